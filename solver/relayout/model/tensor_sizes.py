"""Sizes of tensors in elements and bytes, symbolic dims estimated.

A dim that the caller gave a size has that size, and a formula of dims that of the dims in it. Of the others, one that a
Reshape to known extents forces to a size has it, and the first dim of a graph input (in the source's order) is a batch
and counts 1. A dim that a Reshape or the like introduces has the size that the operand leaves for it, one that an
operator keeps under another name, or that of a Slice, Pad or pool, that of the operand; one that goes into a body or
comes out of it under another name, that on the other side. Dims in a formula or a product for which a Reshape, a
Squeeze, another operand (such as a matrix of so many rows) or a declared output asks for a number have sizes with
which it is that number. Any other counts 64, or the first usual size with which no formula is 0: an image of 64 x 64
has no window of 7 x 7 behind five strides of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from math import prod
from typing import NamedTuple

import onnx_ir as ir

from relayout.errors import InputError
from relayout.layout.memory_format import Extent, MemoryFormat
from relayout.layout.metadata_keys import ORDER_KEY
from relayout.layout.terms import factors_of, is_name, term_of
from relayout.model.dims.forced_dims import RESHAPES, AskedSizes, fitting_sizes, forced_sizes, has_open_extents
from relayout.model.dims.formula import formula_names, formula_size
from relayout.ops import (
    Axes,
    Fixed,
    Free,
    RegionEdge,
    all_nodes,
    given_at,
    graphs_of,
    read_at,
    region_edges_of,
    rule_of,
)
from relayout.ops.node_reader import constant_tensor

BATCH = 1
DYNAMIC = 64
MOST_ELEMENTS = (1 << 63) - 1
"""ONNX and its runtimes count elements in 64 bits."""
USUAL = (128, 224, 256, 384, 512, 1024, 2048, 4096)
"""Sizes of images and texts that take the place of `DYNAMIC` where that is too small."""

_MOVES = frozenset({"Identity", "Transpose"})
_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_WINDOWS = _POOLS | {"Pad", "Slice"}


class Bounds(NamedTuple):
    """The smallest and the largest size of a dim; None: any."""

    low: int
    high: int | None


class OpenExtent(NamedTuple):
    """An extent that is computed while the model runs: its symbol, the size that is assumed, and its bounds."""

    name: str
    assumed: int
    low: int
    high: int | None


class DimSizes:
    """The number of elements of a shape, with a size for each extent that is not known before the run.

    `given` has the sizes of symbols by name. A shape of unknown rank counts as one dynamic dim. `counted` has the sizes
    that were taken so far, by name. `assumed` has those of them that neither `given` nor the graph has; `?` is a dim
    without a name. `asked`: the sizes that the model asks for, if they are known already.
    """

    def __init__(self, model: ir.Model, given: Mapping[str, int], asked: AskedSizes | None = None) -> None:
        self.assumed: dict[str, int] = {}
        self.counted: dict[str, int] = {}
        self._batches: Set[str] = frozenset()
        self._sizes = dict(given)
        self._usual: dict[str, int] = {}
        self._formulas: dict[tuple[str, int], int] = {}
        self._bounds: dict[str, Bounds] = {}
        self._seen: set[str] = set()
        self._seen_shapes: set[int] = set()
        if has_open_extents(model):
            self._size_open(model, asked)

    def _size_open(self, model: ir.Model, asked: AskedSizes | None) -> None:
        """Find the sizes of the model's open extents."""
        first = [
            value.shape[first_axis(value)]
            for value in model.graph.inputs
            if value.shape is not None and len(value.shape) > 0
        ]
        batches = {dim.value for dim in first if not isinstance(dim, int) and dim.value is not None}
        # A branch may force a formula to a size that its symbols do not give it. Those of all runs are numbers by now.
        forced = forced_sizes(model, asked)
        forced = {name: size for name, size in forced.items() if not formula_names(name) or is_name(name)}
        given = self._sizes
        self._batches = batches - given.keys() - forced.keys()
        self._sizes = {**dict.fromkeys(self._batches, BATCH), **forced, **given}
        fitting = fitting_sizes(model, self._sizes, asked, assumed=self._batches)
        self._sizes |= {name: fitting[name] for name in self._batches & fitting.keys()}
        self._usual = {**fitting, **_usual_sizes(model, {**self._sizes, **fitting})}
        # Values of equal type share a shape: the names of one that was seen before are no longer new.
        self._seen = {name for value in model.graph.inputs for name in _names(value.shape)} | self._sizes.keys()
        self._size_introduced(model.graph, model.graph.opset_imports)
        self._formulas.clear()  # so that those read later are entered into `assumed` and `counted`
        self.assumed.clear()
        self.counted.clear()

    def __call__(self, shape: ir.Shape | None) -> int:
        if shape is None:
            return DYNAMIC
        count = 1
        for dim in shape.dims:
            count *= dim if isinstance(dim, int) else self._extent(dim)
        if count > MOST_ELEMENTS:
            raise InputError(
                "a value has more elements than 64 bits count",
                where=f"a value of shape {str(shape)[:80]}",
                expected=f"at most {MOST_ELEMENTS} elements",
                found=f"about 10 to the {len(str(count)) - 1}",
                hint="declare smaller extents, or give open dims smaller sizes",
            )
        return count

    def bounds(self, dim: int | ir.SymbolicDim) -> Bounds | None:
        """The smallest and the largest size of a dim that is computed while the model runs; None for one that the
        shapes of the inputs, as given or assumed, determine."""
        if isinstance(dim, int):
            return None
        if dim.value is None:
            return Bounds(1, None)
        if dim.value in self._bounds or dim.value in self._sizes or dim.value.isidentifier():
            return self._bounds.get(dim.value)
        names = formula_names(dim.value)
        return Bounds(1, None) if names is None or names & self._bounds.keys() else None

    def open_extents(self, shape: ir.Shape | None) -> tuple[OpenExtent, ...]:
        """The dims of a shape that are computed while the model runs, sorted by name. One without a name is none of
        its own: its extent is compared with no other."""
        found = []
        for axis, dim in enumerate(shape.dims if shape is not None else ()):
            bounds = self.bounds(dim)
            if bounds is not None and not isinstance(dim, int):
                name = dim.value if dim.value is not None else f"?{id(shape)}.{axis}"
                found.append(OpenExtent(name, self(ir.Shape([dim])), *bounds))
        return tuple(sorted(found))

    def _extent(self, dim: ir.SymbolicDim) -> int:
        name = dim.value
        if name is None:
            self.assumed["?"] = DYNAMIC
            return DYNAMIC
        if name in self._sizes or name.isidentifier():
            return self._size(name)
        # Sizes are added while reshapes are gone through.
        key = name, len(self._sizes)
        if key not in self._formulas:
            self._formulas[key] = self._evaluated(name)
        return self._formulas[key]

    def _size(self, name: str) -> int:
        size = self.counted[name] = self._of_symbol(name)
        if name in self._batches or name not in self._sizes:
            self.assumed[name] = size
        return size

    def _of_symbol(self, name: str) -> int:
        return self._sizes[name] if name in self._sizes else self._usual.get(name, DYNAMIC)

    def _evaluated(self, name: str) -> int:
        """The size of a dim such as `2*height`, or the dynamic default. A product is one of sizes, as that of dims is:
        a factor may be a formula that has a size of its own."""
        term = term_of(name)
        if term.names != (name,):
            return int(term.factor * prod(self._extent(ir.SymbolicDim(each)) for each in term.names))
        names = formula_names(name) or frozenset()
        result = formula_size(name, {each: self._of_symbol(each) for each in names})
        if result is None or result < 0:
            self.assumed[name] = self.counted[name] = DYNAMIC
            return DYNAMIC
        for each in sorted(names):
            self._size(each)
        return result

    def _size_introduced(self, graph: ir.Graph, opsets: Mapping[str, int]) -> None:
        """Add the sizes of symbols that the graph introduces: by a reshape, whose result has as many elements as its
        operand, by a window, by an operator that keeps an axis, or at the border of a graph inside. `_bounds` gets what
        is known of all symbols that nodes introduce."""
        for node in graph:
            # The dims of a graph inside are sized first: those that it takes, those of its nodes, those that it gives.
            if inner := graphs_of(node):
                edges = region_edges_of(node, opsets.get("", 1), lambda _: False)
                self._size_at_border(node, edges, inwards=True)
                for each in inner:
                    self._size_introduced(each, opsets)
                self._size_at_border(node, edges, inwards=False)
            for value in node.outputs:
                new = self._new_names(value)
                if not new:
                    continue
                self._bounds.update(self._bounds_of(node, value, new))
                if node.op_type in _MOVES and not node.domain:
                    self._size_moved(node, value, new)
                    continue
                if node.op_type in _WINDOWS and node.inputs[0] is not None:
                    self._size_like_operand(node.inputs[0].shape, value.shape, new)
                    continue
                self._size_kept(node, value, new, opsets)
                source = node.inputs[0] if node.op_type in RESHAPES and node.inputs else None
                if source is not None and source.shape is not None:
                    self._size_by_elements(source, value, new)

    def _new_names(self, value: ir.Value) -> list[str]:
        """The names in the value's shape that were not seen before; from now on they are."""
        if id(value.shape) in self._seen_shapes:
            return []
        self._seen_shapes.add(id(value.shape))
        new = [name for name in _names(value.shape) if name not in self._seen]
        self._seen.update(new)
        return new

    def _size_moved(self, node: ir.Node, value: ir.Value, new: Sequence[str]) -> None:
        """Add the sizes of the `new` symbols of a value whose dims are those of the operand."""
        read, made = node.inputs[0].shape if node.inputs[0] is not None else None, value.shape
        if read is None or made is None or len(read) != len(made):
            return
        every = range(len(made)) if node.op_type == "Identity" else reversed(range(len(made)))
        for axis, dim in zip(node.attributes.get_ints("perm", tuple(every)), made, strict=True):
            name = None if isinstance(dim, int) else dim.value
            if name not in new or name is None or not name.isidentifier():
                continue
            self._sizes[name] = self(ir.Shape([read[axis]]))
            if self.bounds(read[axis]) is None:
                self._bounds.pop(name, None)

    def _size_at_border(self, node: ir.Node, edges: Iterable[RegionEdge], *, inwards: bool) -> None:
        """Add the sizes of symbols that are new where values go into the graphs inside a node, or come out of them:
        those of the values that are read. An extent of 0 or 1 may be the beginning of one that grows."""
        for edge in edges:
            read = zip(edge.reads, edge.rule.inputs, read_at(node, edge.reads), strict=True)
            given = zip(edge.gives, edge.rule.outputs, given_at(node, edge.gives), strict=True)
            long: dict[int, list[int]] = {}
            for axis, dim in _dims_of((axes, value) for port, axes, value in read if (port.graph is None) is inwards):
                if dim not in (0, 1):
                    long.setdefault(axis, []).append(self(ir.Shape([dim])))
            for axis, dim in _dims_of((axes, value) for port, axes, value in given if (port.graph is None) != inwards):
                name = None if isinstance(dim, int) else dim.value
                if name is None or name in self._seen or not name.isidentifier():
                    continue
                if axis in long:
                    self._sizes[name] = max(long[axis])
                if inwards:
                    self._seen.add(name)

    def _size_by_elements(self, source: ir.Value, value: ir.Value, new: Sequence[str]) -> None:
        """Add the sizes of the `new` symbols of a reshaped value: together they have what the other dims leave of the
        operand's elements. Of several, each has as equal a share as whole numbers allow."""
        assert source.shape is not None
        assert value.shape is not None
        # A formula has the size that its symbols give it.
        open_ = sorted(name for name in new if name.isidentifier())
        rest = [1 if not isinstance(dim, int) and dim.value in open_ else dim for dim in value.shape.dims]
        if not open_ or sum(not isinstance(dim, int) and dim.value in open_ for dim in value.shape.dims) > len(open_):
            return
        read, left = elements_of(source, self), self(ir.Shape(rest))
        if not left or read % left:
            return
        self._sizes.update(zip(open_, factors_of(read // left, len(open_)), strict=True))
        if len(open_) == 1 and all(self.bounds(dim) is None for dim in (*source.shape.dims, *rest)):
            self._bounds.pop(open_[0], None)  # that of an axis which the operator keeps is gone

    def _size_like_operand(self, read: ir.Shape | None, made: ir.Shape | None, new: Sequence[str]) -> None:
        """Add a size for each new symbol of a result but formulas, which have that of their own symbols: the size of
        the operand's dim at its index. So a conversion is as expensive before the operator as behind it, and stays in
        place."""
        if read is None or made is None or len(read) != len(made):
            return
        pairs = [(dim, named) for dim, named in zip(read.dims, made.dims, strict=True) if not isinstance(named, int)]
        plain = {name for name in new if name.isidentifier()}
        sizes = {named.value: self(ir.Shape([dim])) for dim, named in pairs if named.value and named.value in plain}
        self._sizes.update(sizes)

    def _size_kept(self, node: ir.Node, value: ir.Value, new: Sequence[str], opsets: Mapping[str, int]) -> None:
        """Add the sizes of the `new` symbols that a model declares for axes that the operator keeps: those of the
        operand. So a view counts the same before the operator and behind it."""
        rule = rule_of(node, opsets) if any(name.isidentifier() for name in new) else None
        if isinstance(rule, Fixed) and rule.kernel is not None:
            self._size_batch(rule, node.inputs[0], value, new)
            return
        place = value.index()
        own = (
            rule.outputs[place] if isinstance(rule, Free) and place is not None and place < len(rule.outputs) else None
        )
        if not isinstance(rule, Free) or own is None or value.shape is None or len(value.shape) != len(own):
            return
        kept = [(axis, dim.value) for axis, dim in zip(own, value.shape, strict=True) if not isinstance(dim, int)]
        for axis, name in kept:
            if not name or name not in new or not name.isidentifier() or not (rule.axis_names or axis in rule.tileable):
                continue
            read = [
                source.shape[axes.index(axis)]
                for source, axes in zip(node.inputs, rule.inputs, strict=False)
                if source is not None and source.shape is not None and axes is not None and axis in axes
            ]
            long = [dim for dim in read if dim != 1]
            if long:
                self._sizes[name] = self(ir.Shape([long[0]]))
                keeps_extent = axis in rule.tileable or not _has_parameters(node, rule)
                if keeps_extent and all(self.bounds(dim) is None for dim in long):
                    self._bounds.pop(name, None)

    def _size_batch(self, rule: Fixed, read: ir.Value | None, made: ir.Value, new: Sequence[str]) -> None:
        """Add the size of the batch of a convolution's result, if its name is `new`: that of the data's batch."""
        axis_names, result = rule.inputs[0], rule.outputs[0]
        if read is None or read.shape is None or made.shape is None or axis_names is None or result is None:
            return
        dim, named = read.shape[axis_names.index("N")], made.shape[result.index("N")]
        name = None if isinstance(named, int) else named.value
        if name is None or name not in new or not is_name(name):
            return
        self._sizes[name] = self(ir.Shape([dim]))
        if self.bounds(dim) is None:
            self._bounds.pop(name, None)

    def _bounds_of(self, node: ir.Node, value: ir.Value, new: Sequence[str]) -> Iterator[tuple[str, Bounds]]:
        """The bounds of each symbol that a node introduces."""
        read = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
        made = value.shape
        assert made is not None
        for name in new:
            if not name.isidentifier() and self.bounds(ir.SymbolicDim(name)) is None:
                continue  # a formula of known sizes
            axis = next(axis for axis, dim in enumerate(made) if not isinstance(dim, int) and dim.value == name)
            dim = read[axis] if read is not None and len(read) == len(made) else None
            bounds = Bounds(1, None)
            if node.op_type in _WINDOWS and dim is not None:
                known = self.bounds(dim)
                size = self(ir.Shape([dim]))
                bounds = _after_window(node, axis, known or Bounds(size, size), len(made))
            yield name, bounds


def _usual_sizes(model: ir.Model, known: Mapping[str, int]) -> dict[str, int]:
    """A size for each dim of an input, none of those `known`, that `DYNAMIC` is too small for: a formula would be 0."""
    open_ = {name for value in model.graph.inputs for name in _names(value.shape)} - known.keys()
    if not open_:
        return {}
    shapes = {id(value.shape): value.shape for node in all_nodes(model.graph) for value in node.outputs}
    texts = {name for shape in shapes.values() for name in _names(shape) if not name.isidentifier()}
    formulas = [(text, formula_names(text) or frozenset()) for text in sorted(texts)]
    sized = [(text, names & open_) for text, names in formulas if names & open_ and names <= open_ | known.keys()]
    found: dict[str, int] = {}
    for usual in USUAL:
        small = {
            name
            for text, names in sized
            if _is_empty(text, {**known, **dict.fromkeys(names, DYNAMIC), **found})
            for name in names
        }
        if not small:
            return found
        found.update(dict.fromkeys(small, usual))
    return {}


def _is_empty(formula: str, sizes: Mapping[str, int]) -> bool:
    size = formula_size(formula, sizes)
    return size is not None and size < 1


def _dims_of(members: Iterable[tuple[Axes | None, ir.Value | None]]) -> Iterator[tuple[int, int | ir.SymbolicDim]]:
    """The dims of values, each with its axis of a rule's space."""
    for axes, value in members:
        if axes is not None and value is not None and value.shape is not None:
            yield from zip(axes, value.shape, strict=True)


def _has_parameters(node: ir.Node, rule: Free) -> bool:
    """Whether an operand that is not known before the run may state extents, such as the sizes of a Resize."""
    stated = [
        value for value, axes in zip(node.inputs, rule.inputs, strict=False) if value is not None and axes is None
    ]
    return any(value.is_graph_input() or constant_tensor(value) is None for value in stated)


def _after_window(node: ir.Node, axis: int, read: Bounds, rank: int) -> Bounds:
    """The bounds of an axis behind a Slice, a Pad or a pool, by those of the axis before it."""
    if node.op_type == "Slice":
        return Bounds(1, read.high)
    if node.op_type == "Pad":
        pads = node.attributes.get_ints("pads", ())
        if len(pads) != 2 * rank:
            return Bounds(1, None)  # an input may state negative pads
        more = pads[axis] + pads[axis + rank]
        return Bounds(max(read.low + more, 1), None if read.high is None else read.high + more)
    kernel = node.attributes.get_ints("kernel_shape", ())
    place, count = axis - 2, len(kernel)
    if not 0 <= place < count:
        return read
    stride = node.attributes.get_ints("strides", (1,) * count)[place]
    pads = node.attributes.get_ints("pads", (0,) * 2 * count)
    covered = node.attributes.get_ints("dilations", (1,) * count)[place] * (kernel[place] - 1)
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return Bounds(1, None if read.high is None else -(-read.high // stride))
    # Rounded up, as with `ceil_mode`.
    rest = pads[place] + pads[place + count] - covered - 1
    return Bounds(
        max((read.low + rest) // stride + 1, 1), None if read.high is None else -(-(read.high + rest) // stride) + 1
    )


def elements_of(value: ir.Value, elements: Callable[[ir.Shape | None], int]) -> int:
    """The number of elements of a value. If a dim has neither number nor name, and the value is reshaped from another,
    it is that of the other."""
    while (node := value.producer()) is not None and node.op_type in RESHAPES and node.inputs[0] is not None:
        if value.shape is not None and all(isinstance(dim, int) or dim.value is not None for dim in value.shape):
            break
        value = node.inputs[0]
    return elements(value.shape)


def assumed_extents(shape: ir.Shape | None, elements: Callable[[ir.Shape], int]) -> tuple[int, ...]:
    """The extents of a shape, with the size that `elements` assumes for each symbolic dim; none of an unknown rank."""
    dims = shape.dims if shape is not None else ()
    return tuple([elements(ir.Shape([*[1] * axis, dim])) for axis, dim in enumerate(dims)])


def _names(shape: ir.Shape | None) -> list[str]:
    if shape is None:
        return []
    return [dim.value for dim in shape.dims if not isinstance(dim, int) and dim.value is not None]


def first_axis(value: ir.Value) -> int:
    """The axis of a value that is the first in the source's order: the annotation of a permuted value has its order."""
    order = value.metadata_props.get(ORDER_KEY, "").split(",")
    return order.index("0") if value.shape is not None and len(order) == len(value.shape) and "0" in order else 0


def tensor_bytes(elements: int, dtype: ir.DataType | None) -> int:
    """Return the bytes of `elements` elements of `dtype`; an element of unknown type or of a string counts 4 bytes."""
    if dtype is None or dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 4 * elements
    return (elements * dtype.bitwidth + 7) // 8


def padded_elements(elements: int, format_: MemoryFormat, extents: Sequence[Extent]) -> int:
    """How many elements a tensor of `elements` has in a format that pads some of its axes with zeros.

    >>> from relayout.layout.memory_format import Atom
    >>> padded_elements(2 * 24, (Atom(0), Atom(1, 1, 32)), (2, 24))
    64
    """
    reached: dict[int, int] = {}
    for atom in format_:
        extent = extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent:
            reached[atom.axis] = max(atom.outer, reached.get(atom.axis, 0))
    for axis, reach in reached.items():
        extent = extents[axis]
        assert isinstance(extent, int)
        elements = elements // extent * reach if extent else 0
    return elements
