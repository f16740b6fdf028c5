"""The plugin interface: the layouts that a backend requires. After Glow's TensorLayoutCommon.

    class Channels(Backend):
        '''MaxPool runs on NHWC data.'''

        name = "channels"

        def nth_input_layout_requirements(self, node, n):
            if node.op_type == "MaxPool" and n == 0:
                return "NHWC"
            return super().nth_input_layout_requirements(node, n)

A method may return a string for a `Layout`; `relayout.backend.ask` parses and checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, TypeGuard

from relayout.backend.rewriting import Rewrite
from relayout.layout.extensions import Found
from relayout.layout.layout import COMMON, Layout

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

MOVES = frozenset(["Constant", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"])
"""The operators that only move or hold data. Every device runs them."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor in memory: the element's size in bytes, and the extents in physical order.

    An extent is an int, a symbol's name, or None if unknown. The stride of dimension i is padded to a multiple of
    `alignments[i]` bytes; empty: no padding.
    """

    element_size: int
    shape: tuple[int | str | None, ...]
    alignments: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, without padding; an extent that is not known counts as 1.

        >>> TensorType(4, (1, 8, 8, 4)).nbytes, TensorType(4, ("N", 8, None, 4)).nbytes
        (1024, 128)
        """
        return self.element_size * prod([extent for extent in self.shape if isinstance(extent, int)])

    def stride_factors(self) -> tuple[int, ...]:
        """For each dimension the largest number known to divide its stride in bytes (0: every number does).

        >>> TensorType(4, (1, 8, 8, 4)).stride_factors()
        (1024, 128, 16, 4)
        >>> TensorType(4, ("N", 8, "W", 3)).stride_factors()
        (96, 12, 12, 4)
        """
        factors: list[int] = []
        factor = self.element_size
        for i in reversed(range(len(self.shape))):
            alignment = self.alignments[i] if self.alignments else 1
            if factor % alignment:
                # Known extents are rounded up; the stride of unknown ones is only known to be aligned.
                exact = all(isinstance(extent, int) for extent in self.shape[i + 1 :])
                factor = -(-factor // alignment) * alignment if exact else alignment
            factors.append(factor)
            extent = self.shape[i]
            factor *= extent if isinstance(extent, int) else 1
        return tuple(reversed(factors))


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation of a node on a backend.

    `inputs` and `results` have a layout for each operand, in the node's order (`*`: no requirement). `cost` is the cost
    of running the node beyond its cheapest implementation, in bytes of memory traffic.

    `rewrite` writes the node as other operators or with other constants. Its layouts bind by the axis names of the
    operator, and `*` means as in the source. `pads`: a dimension that a tile does not divide is padded with zeros,
    unless its extent is 1. The rewrite must write zeros there too, as readers may sum over them. `device` is the device
    that runs the node, for backends with several devices (see `relayout.backend.Composite`).

    `any_order`: without a requirement, the node runs in any order of its axes, as Glow's `acceptsAnyLayout` says; else
    an operator whose axes have names runs as ONNX defines it. It is for operators that work at each place of their
    data alike, such as pools, normalizations and Resize; a convolution lists its orders.
    """

    inputs: tuple[Layout, ...]
    results: tuple[Layout, ...]
    cost: int = 0
    rewrite: Rewrite | None = None
    pads: bool = False
    device: str = ""
    any_order: bool = False

    @property
    def is_numbered(self) -> bool:
        """Whether it requires a layout by axis numbers."""
        return any(layout.is_numbered for layout in (*self.inputs, *self.results))


@dataclass(frozen=True, slots=True)
class Reordering:
    """The backend's own conversion between two layouts: `cost` in bytes of memory traffic (None: the default cost), and
    `rewrite` to write it (None: Reshape and Transpose)."""

    cost: int | None = None
    rewrite: Rewrite | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A fault that a backend finds at a node of a legal model (see `Backend.check`).

    `rule` names the kind of fault in the verifier's findings; `operand` counts the node's inputs from 0.
    """

    node: ir.Node
    message: str
    operand: int | None = None
    expected: str = ""
    found: str = ""
    rule: str = "backend"


@dataclass(frozen=True, slots=True)
class OperatorBody:
    """ONNX operators that compute what an operator of a backend's own computes (see `Backend.operator_body`).

    `function` has the operands in order, of which a node may leave out the last. `is_needed`: onnxruntime on this
    machine has an operator of that name that computes something else.
    """

    function: onnx.FunctionProto
    is_needed: bool = False


class Backend:
    """The layout requirements of one target. The base class requires nothing: every operator as ONNX defines it.

    `context` is the outermost backend when one delegates to another. Look-ups about neighbours go through it, so that
    the outer one's overrides count (Glow PR 4731).
    """

    name = ""
    is_enabled = True
    answers_by_type = True
    """Whether the answers of this class about a node depend only on its operator, its attributes, its operands' types,
    and on which operands are constants: not on names, numbers, metadata or neighbours. The backend is then called once
    for all nodes that are equal in these. A subclass that overrides an answer must set this attribute again, else it is
    called for every node. An instance may deny it."""
    is_pure = False
    """Whether the answers of this class depend on nothing but their arguments and the backend's options: not on time,
    chance, files or the machine. A service may then keep results, and where the class also answers by type, an instance
    is asked once for all graphs. A subclass must set this attribute again."""
    flows_down: bool | frozenset[str] = False
    """On equal cost, an operator that accepts any order runs in the layout of its producer, as in TVM and OneFlow, and
    not in the source's. A set has the types of the operators of which this holds."""

    def __init__(self, context: Backend | None = None) -> None:
        self.context: Backend = context.context if context is not None else self

    def layouts_for_dims(self) -> tuple[Layout, ...]:
        """The predefined layouts by rank, 0 to 6: "" N ** *** **** ***** ****** (Glow's table)."""
        return COMMON

    def default_nd_layout(self, rank: int) -> Layout:
        """The default layout of a tensor of `rank` dimensions."""
        table = self.layouts_for_dims()
        return table[rank] if rank < len(table) else Layout.any(rank)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        """The layout that `node` requires for its n-th input; all `*` is no requirement."""
        return self.default_nd_layout(rank_of(node.inputs[n]))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        """The layout of the n-th result of `node`."""
        return self.default_nd_layout(rank_of(node.outputs[n]))

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        """The implementations of `node` on this backend, at least one. Here: the one of the two methods above."""
        return (
            Implementation(
                _requirements(self.nth_input_layout_requirements, "input", node, node.inputs),
                _requirements(self.nth_result_layout_requirements, "result", node, node.outputs),
            ),
        )

    def order_cost(self, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> int | None:
        """The cost of running `node` with the axes of its first result in the order `axes`, outermost first, beyond its
        best order, in bytes of memory traffic; None: this device cannot.

        Called for operators that accept their axes in any order; a tiled axis is listed several times. `is_rewritten`:
        ONNX's operator does not accept this order, and the node is written as other operators (a product of the
        transposes, a decomposed normalization), which read and write `traffic` more bytes. Default: the traffic.
        """
        return traffic

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        """The cost of a Transpose from `source` to `target`, in bytes of memory traffic; None: the default cost.

        A conversion that needs two of them, or zeros to fill tiles, costs their sum and the traffic of its Pads.
        `tensor` has the shape of `source`, with a size assumed for each extent that is not known. Where the axes have
        no names, the answer by their names is None, or the conversion needs two Transposes, dimensions are numbered:
        `source` has them in ascending order, and `target` is the perm of the Transpose, outermost first. Neighbours of
        known extents that stay neighbours are then one dimension, and extents of 1 none. So a price by numbers holds
        for all Transposes, whatever Reshapes are around them.
        """
        return None

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        """The backend's own operator for a conversion from `source` to `target`; None: a Transpose.

        `tensor` has the shape of `source`. It is called twice: first with the extents as the model has them, a symbol's
        name or None where they are not known, for the `rewrite`; then with a size assumed for each of these, for the
        cost. `tensor.nbytes` is a number in both calls. A layout without axis names is all `*`. A padded dimension has
        its number of zeros as an extension, as in `C[pad:8]`.

        One memory may have several layouts: one block of `NCHWc[tile:16]` is that of `NHWC`, and an axis of extent 1
        may be anywhere. It is called with the formats as they are by themselves, an axis of one block whole, and with
        each layout that a requirement of the tensor states. An operator for the latter is taken where it costs less.
        """
        return None

    def devices(self) -> tuple[str, ...]:
        """The names of the devices; empty for a backend of one device (see `relayout.backend.Composite`)."""
        return ()

    def at(self, device: str) -> Backend:
        """The backend of the device `device`. Default: this one, for every device."""
        return self

    def host(self) -> str | None:
        """The device of the graph's inputs and outputs; None: each is where it is cheapest."""
        return None

    def transfer_cost(self, nbytes: int, source: str, target: str) -> int:
        """The cost of copying a tensor of `nbytes` from one device to another, in bytes of memory traffic."""
        return 2 * nbytes

    def prepare(self, model: ir.Model) -> bool:
        """Run a pre-pass on the source's model, in place, before any other hook. Returns whether the model changed.

        Use it to replace ONNX's operators with equal ones of the target that accept their operands in more orders.
        Inputs, outputs and results must not change. It is not called for the devices of a composite. Default: no pass.
        """
        return False

    def finish(self, model: ir.Model, device: str = "") -> bool:
        """Run a post-pass on a legal model, in place. Returns whether the model changed.

        Use it to fuse nodes that the target runs as one, or to permute constants. Inputs, outputs and results must not
        change. With `device`, this backend is one device of several, and may change only the nodes whose metadata
        `DEVICE_KEY` is that name. Default: no pass.
        """
        return False

    def check(self, model: ir.Model, device: str = "") -> Iterable[Violation]:
        """The faults of a legal model that only this backend can find, such as misused operators of its own.

        The verifier calls this in addition to its own checks of layouts. `device`: as in `finish`.

            def check(self, model, device=""):
                for node in model.graph.all_nodes():
                    if node.domain == "com.acme" and node.attributes.get_int("bank", 0) > 7:
                        yield Violation(node, "there are eight banks", expected="a bank from 0 to 7")
        """
        return ()

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        """The operators of this backend's own that only convert layouts, by domain and name.

        The totals of a report count them as `reorders`, and the verifier counts them again.

            def conversion_operators(self):
                return frozenset({("com.acme", "Pack"), ("com.acme", "Unpack")})
        """
        return frozenset()

    def operator_layouts(self, node: ir.Node) -> Implementation | None:
        """The operand layouts of a node with an operator of this backend's own; None: not known.

        The verifier calls this for nodes outside ONNX's domains and `relayout`, and derives the names of axes from the
        answer. A layout has a name for each dimension in the file: `NCHW8c` has five. If the axes have no names, all
        layouts are `*`.

            def operator_layouts(self, node):
                if (node.domain, node.op_type) == ("com.acme", "Pool"):
                    return Implementation((Layout.parse("NHWC"),), (Layout.parse("NHWC"),))
                return None
        """
        return None

    def operator_body(self, node: ir.Node, opset: int) -> OperatorBody | None:
        """ONNX operators of version `opset` that compute what `node`, an operator of this backend's own, computes from
        its operands as they are in memory; None: not known.

        The verifier runs them where it compares numbers: in place of an operator that no runtime has, and in float64
        where the runtime has it in float32 alone. There their results are held against those of the runtime.

            def operator_body(self, node, opset):
                if (node.domain, node.op_type) != ("com.acme", "Pack"):
                    return None
                return OperatorBody(onnx.parser.parse_function(f'''
                    <domain: "com.acme", opset_import: ["": {opset}]>
                    Pack (x) => (y) {{ y = Transpose <perm = [0, 2, 3, 1]> (x) }}'''))
        """
        return None

    def opaque_values(self, model: ir.Model) -> Iterable[ir.Value]:
        """The values of a legal model whose memory is not in the order of their shape.

        An example is a blocked result that an operator of this backend's own declares with a plain shape. The verifier
        does not compare the numbers of such values.

            def opaque_values(self, model):
                return [node.outputs[0] for node in model.graph.all_nodes() if node.domain == "com.acme.blocked"]
        """
        return ()

    def warnings(self, model: ir.Model) -> Iterable[str]:
        """Warnings for the user about this backend and a model, such as a setting that fits no node of it.

        Reports list it, and `relayout verify` has a finding for each.

            def warnings(self, model):
                if not any(node.op_type == self.operator for node in model.graph.all_nodes()):
                    yield f"the model has no {self.operator}"
        """
        return ()

    def supports(self, node: ir.Node) -> bool:
        """Whether this backend runs `node` at all."""
        return True

    def is_satisfied_by(self, tensor: TensorType, required: Layout, current: Layout | None) -> bool:
        """Whether a tensor of type `tensor` in layout `current` meets `required`.

        After Glow's isSatisfiedBy: the ranks are equal; the stride of each dimension in bytes is a multiple of its
        alignment, provably so if extents are unknown; names are equal, and `*` equals any name on either side; the name
        of the only dimension is ignored. Of axes by numbers, those of extent 1 may be anywhere. A dimension with a
        black box meets only a requirement with the same black box, or `*`. `current` is None if unknown.
        """
        if required.rank != len(tensor.shape) or (current is not None and current.rank != required.rank):
            return False
        if required.is_numbered and current is not None and current.is_numbered:
            return _is_same_order(tensor, required, current)
        return _names_met(required, current) and (not required.numbers or _numbers_met(tensor, required, current))


def is_backend(found: object) -> TypeGuard[Backend | type[Backend]]:
    """Whether this is a backend, or a class of backends."""
    return isinstance(found, Backend) or (isinstance(found, type) and issubclass(found, Backend))


def element_size(value: ir.Value | None) -> int:
    """The bytes of one element: 1 for smaller types, 4 for unknown types and strings."""
    dtype = value.dtype if value is not None else None
    return 4 if dtype is None else _size_of(dtype)


@cache
def _size_of(dtype: ir.DataType) -> int:
    # Names and properties of the members of an enum are slow to look up.
    return 4 if dtype.name in ("UNDEFINED", "STRING") else max(1, dtype.bitwidth // 8)


def rank_of(value: ir.Value | None) -> int:
    """The number of dimensions of an operand; 0 for a missing operand and for one of unknown rank."""
    return len(value.shape) if value is not None and value.shape is not None else 0


@lru_cache(maxsize=4096)
def axis_count(layout: Layout) -> int:
    """The number of axes of a tensor in a layout: the inner part of a tiled dimension is not counted.

    >>> axis_count(Layout.parse("NCHWc[tile:16]"))
    4
    """
    return sum(1 for i in range(layout.rank) if layout.tile(i) is None)


def _requirements(
    method: Callable[[ir.Node, int], Layout | str], side: str, node: ir.Node, values: Sequence[ir.Value | None]
) -> tuple[Layout, ...]:
    layouts: list[Layout] = []
    for n, value in enumerate(values):
        try:
            answer = COMMON[0] if value is None else method(node, n)
            layouts.append(Layout.parse(answer) if isinstance(answer, str) else answer)
        except Exception as error:
            error.add_note(f"{side} {n}")  # for the message: `relayout.backend.failures` adds the location of the error
            raise
    return tuple(layouts)


@lru_cache(maxsize=4096)
def _names_met(required: Layout, current: Layout | None) -> bool:
    """Whether the names and black boxes of all dimensions match; the layouts have one rank."""
    return all(_dim_matches(required, current, i) for i in range(required.rank))


def _dim_matches(required: Layout, current: Layout | None, i: int) -> bool:
    if current is None:
        return not required.boxes(i)
    if required.names[i] == "*" and not required.boxes(i):
        return True
    return (
        required.rank == 1 or "*" in (required.names[i], current.names[i]) or required.names[i] == current.names[i]
    ) and sorted(required.boxes(i)) == sorted(current.boxes(i))


def _is_same_order(tensor: TensorType, required: Layout, current: Layout) -> bool:
    """Whether two layouts by axis numbers have the axes of more than one element in one order."""
    units = {axis for axis, extent in zip(current.names, tensor.shape, strict=True) if extent == 1}
    orders = [[axis for axis in layout.names if axis not in units] for layout in (required, current)]
    return orders[0] == orders[1]


def _numbers_met(tensor: TensorType, required: Layout, current: Layout | None) -> bool:
    factors = tensor.stride_factors()
    known = {} if current is None else {(i, row): number for i, row, number in current.numbers}
    return all(
        row.is_met(number, Found(tensor.shape[i], factors[i], known.get((i, row))))
        for i, row, number in required.numbers
    )
