"""Names for the extents that windows, pads, resizes, joins and cuts compute from dims that are not known before the
run.

onnx's inference generates a new name for each. Here the name is the formula, `(height - 1)//2 + 1`, so that equal
extents have equal names, and the extent has a size as soon as `height` has one. A window that keeps the extent keeps
the name, and so do a resize in its other dims and a broadcast of operands whose extents turn out to be equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import onnx

from relayout.layout.terms import GENERATED, Term, is_multiple, is_name, product, term_of
from relayout.model.dims.dim_unification import rename
from relayout.model.dims.formula import LONGEST_FORMULA, formula_names
from relayout.model.proto_graphs import STANDARD_DOMAINS, attributes_of, dims_by_name, tensor_of
from relayout.ops.elementwise import BROADCAST

_WINDOWS = {"AveragePool": None, "Conv": 1, "ConvInteger": 1, "LpPool": None, "MaxPool": None, "QLinearConv": 3}
"""The operators with windows, each with the index of its kernel."""
_KERNELS = {**_WINDOWS, "ConvTranspose": 1}
UNBOUNDED = (1 << 31) - 1
"""From here on a bound of a Slice means the end, as exporters write it."""

_MOST_NUMBERS = 16
"""Of a constant of scales or pads."""


class _Formula(NamedTuple):
    """An extent as the value of an expression, plus a number."""

    base: str
    plus: int = 0

    def __str__(self) -> str:
        return f"{self.base} {'-' if self.plus < 0 else '+'} {abs(self.plus)}" if self.plus else self.base


_Dims = list[_Formula | None]
"""The extents of a value; None for a number, and for an extent of which nothing is known."""


class _Cut(NamedTuple):
    """A Slice of every element between two bounds of one axis."""

    source: str
    axis: int
    start: int
    end: int


class _Values:
    """The values of a graph while its nodes are gone through in order.

    `dims` are the dims that have been inferred, `stored` the shapes of constants, `formulas` the extents of generated
    names, and `cuts` the Slices so far.
    """

    def __init__(self, graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> None:
        self._graph, self._known = graph, known
        self.dims = {name: list(dims) for name, dims in dims_by_name(graph).items()}
        self.stored = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
        self.formulas: dict[str, _Formula] = {}
        self.cuts: dict[str, _Cut] = {}

    def extents(self, name: str) -> _Dims:
        """The extents of a value, as far as they are known."""
        return [self.formula(dim.dim_param) if dim.dim_param else None for dim in self.dims.get(name, ())]

    def text(self, name: str, axis: int) -> str:
        """The extent of an axis of a value, a number or a formula; "" where it is not known."""
        if name in self.stored:
            return str(self.stored[name][axis]) if axis < len(self.stored[name]) else ""
        dim = self.dims[name][axis] if axis < len(self.dims.get(name, ())) else onnx.TensorShapeProto.Dimension()
        if dim.HasField("dim_value"):
            return str(dim.dim_value) if dim.dim_value >= 0 else ""
        return str(self.formula(dim.dim_param)) if dim.dim_param else ""

    def formula(self, name: str) -> _Formula:
        """The extent of this name, as far as it is known."""
        formula = _Formula(name)
        while not formula.plus and formula.base in self.formulas:
            formula = self.formulas[formula.base]
        return formula

    def integers(self, name: str) -> list[int]:
        """The numbers of a constant; none where they are not known."""
        arrays = [self._known[name]] if name in self._known else map(onnx.numpy_helper.to_array, self.tensors(name))
        return next(([int(number) for number in array.reshape(-1)] for array in arrays), [])

    def tensors(self, name: str) -> Iterator[onnx.TensorProto]:
        """The stored tensor of this name, if it has few elements that are at hand. A default of an input is no
        constant."""
        if any(value.name == name for value in self._graph.input):
            return
        made = (other for other in self._graph.node if other.op_type == "Constant" and name in other.output)
        values = (tensor for each in made if (tensor := tensor_of(each)) is not None)
        for tensor in (*values, *(tensor for tensor in self._graph.initializer if name and tensor.name == name)):
            has_data = tensor.raw_data or tensor.float_data or tensor.int64_data
            if has_data and 0 < sum(tensor.dims) <= _MOST_NUMBERS:
                yield tensor


def name_spatial_dims(graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> bool:
    """Rename the generated dims of results of convolutions, pools, pads, resizes, broadcasts, joins and cuts everywhere
    in the graph. `known` are the computed constants by name.

    Returns whether there was one.
    """
    values = _Values(graph, known)
    formulas = values.formulas
    for node in graph.node:
        rule = _RULES.get(node.op_type)
        if rule is None or node.domain not in STANDARD_DOMAINS or not node.output or node.output[0] not in values.dims:
            continue
        for dim, formula in zip(values.dims[node.output[0]], rule(node, values), strict=False):
            name = dim.dim_param
            if formula is not None and name.startswith(GENERATED) and name not in formulas and formula.base != name:
                formulas[name] = formula
    if formulas:
        rename(graph, {name: str(values.formula(name)) for name in formulas})
    return bool(formulas)


def _after_window(node: onnx.NodeProto, values: _Values) -> _Dims:
    """The extents of the result of a window, or of a transposed convolution."""
    given, read = attributes_of(node), values.extents(node.input[0])
    place = _KERNELS[node.op_type]
    kernel = node.input[place] if place is not None and place < len(node.input) else ""
    window = given.get("kernel_shape") or (values.stored.get(kernel) or _numbers(values.dims.get(kernel, [])))[2:]
    if not window or not len(read) == len(values.dims[node.output[0]]) == len(window) + 2:
        return []
    behind = _behind_window if node.op_type in _WINDOWS else _behind_transposed
    return [None, None, *(behind(each, given, axis, window) for axis, each in enumerate(read[2:]))]


def _numbers(dims: list[onnx.TensorShapeProto.Dimension]) -> list[int]:
    """The dims of a known shape; empty for another."""
    return [dim.dim_value for dim in dims] if all(dim.HasField("dim_value") for dim in dims) else []


def _behind_window(read: _Formula | None, given: Mapping[str, Any], axis: int, window: list[int]) -> _Formula | None:
    """The extent after a window of these attributes; None where it is not known."""
    stride = (given.get("strides") or [1] * len(window))[axis]
    dilation = (given.get("dilations") or [1] * len(window))[axis]
    padding, kind = given.get("pads") or [0] * 2 * len(window), given.get("auto_pad", b"NOTSET")
    covered = dilation * (window[axis] - 1)
    if kind in (b"SAME_UPPER", b"SAME_LOWER"):
        rest = stride - 1  # rounded up
    elif kind == b"VALID":
        rest = -covered - 1 + stride
    elif kind == b"NOTSET" and not given.get("ceil_mode"):
        rest = padding[axis] + padding[axis + len(window)] - covered - 1 + stride
    else:
        return None
    # (read + rest) // stride, where what a multiple of the stride adds is added afterwards.
    if read is None or stride == 1:
        return _longer(read, rest)
    after, inside = divmod(read.plus + rest, stride)
    if inside:
        after, inside = after + 1, inside - stride
    own = str(_Formula(read.base, inside))
    whole = f"({own})" if inside or not is_name(read.base) else own
    return _short(_Formula(f"{whole}//{stride}", after)) if _is_stable(read.base) else None


def _behind_transposed(
    read: _Formula | None, given: Mapping[str, Any], axis: int, window: list[int]
) -> _Formula | None:
    """The extent after a transposed convolution of these attributes; None where it is not known."""
    if given.get("output_shape") or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    stride = (given.get("strides") or [1] * len(window))[axis]
    dilation = (given.get("dilations") or [1] * len(window))[axis]
    padding = given.get("pads") or [0] * 2 * len(window)
    more = (given.get("output_padding") or [0] * len(window))[axis]
    added = dilation * (window[axis] - 1) + 1 - stride + more - padding[axis] - padding[axis + len(window)]
    return _longer(read if stride == 1 else _times(read, Fraction(stride)), added)


def _after_pad(node: onnx.NodeProto, values: _Values) -> _Dims:
    """The extents of a pad's result; none where it is not known what is added."""
    pads = attributes_of(node).get("pads")
    if pads is None:
        pads = values.integers(node.input[1])
    axes = values.integers(node.input[3]) if any(node.input[3:]) else [*range(len(pads) // 2)]
    if not pads or len(pads) != 2 * len(axes) or min(axes, default=0) < 0:
        return []
    added = {axis: pads[place] + pads[place + len(axes)] for place, axis in enumerate(axes)}
    return [_longer(each, added.get(axis, 0)) for axis, each in enumerate(values.extents(node.input[0]))]


def _enter_cut(node: onnx.NodeProto, values: _Values) -> _Dims:
    """Note the bounds of a Slice, unless it cuts other axes too, or they are not known."""
    given = {each.name: list(each.ints) for each in node.attribute}
    given |= {
        each: values.integers(name)
        for each, name in zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False)
        if name
    }
    starts, ends, axes = (given.get(each, []) for each in ("starts", "ends", "axes"))
    if len(starts) == len(ends) == len(axes) == 1 and given.get("steps", [1]) == [1]:
        cut = values.cuts[node.output[0]] = _Cut(node.input[0], axes[0], starts[0], ends[0])
        read, rank = values.extents(cut.source), len(values.dims[node.output[0]])
        if len(read) == rank and -rank <= cut.axis < rank:
            return [_behind_cut(each, cut) if place == cut.axis % rank else None for place, each in enumerate(read)]
    return []


def _behind_cut(read: _Formula | None, cut: _Cut) -> _Formula | None:
    """The extent of what a Slice takes; None where it is not known. Of a formula plus a number, no more than the number
    may be cut off: `n + 1` tokens without the first are `n`. The last 8 tokens of a window are `min(8, n)`."""
    is_to_end = cut.end >= UNBOUNDED
    if cut.start < 0 and is_to_end:
        return _at_most(read, -cut.start)
    if cut.start == 0 and 0 < cut.end < UNBOUNDED:
        return _at_most(read, cut.end)
    if cut.start < 0 or 0 <= cut.end < UNBOUNDED:
        return None
    return _shorter(read, cut.start - (0 if is_to_end else cut.end))


def _at_most(extent: _Formula | None, most: int) -> _Formula | None:
    """An extent, or a number where that is smaller; None where the extent is not known, or no formula."""
    if extent is None or GENERATED in extent.base or formula_names(str(extent)) is None:
        return None
    return _short(_Formula(f"min({most}, {extent})"))


def _shorter(extent: _Formula | None, removed: int) -> _Formula | None:
    """An extent less a number; None where it is not known, or may be smaller than the number."""
    if extent is None or GENERATED in extent.base:
        return None
    total = _Sum.of([str(extent)])
    return total.formula(-removed) if total is not None and total.number >= removed else None


class _Sum(NamedTuple):
    """A sum of terms and a number."""

    terms: Mapping[tuple[str, ...], Fraction]
    number: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Sum | None:
        """The sum of these numbers and formulas; None where one is generated, or no formula."""
        terms: dict[tuple[str, ...], Fraction] = {}
        number = 0
        for text in texts:
            if not text or GENERATED in text or formula_names(text) is None:
                return None
            for addend in _addends(text):
                if addend.lstrip("-").isdecimal():
                    number += int(addend)
                else:
                    factor, names = term_of(addend)
                    terms[names] = terms.get(names, Fraction(0)) + factor
        return cls(terms, number)

    def formula(self, more: int = 0) -> _Formula | None:
        """The sum plus a number, with its terms in alphabetical order; None for a number alone."""
        each = sorted(str(Term(factor, names)) for names, factor in self.terms.items())
        return _short(_Formula(" + ".join(each), self.number + more)) if each else None


def _addends(text: str) -> list[str]:
    """The addends of a formula: itself, where something else than a number is subtracted."""
    parts = [""]
    depth = 0
    for part in re.split(r"([()]| [+-] )", text):
        depth += (part == "(") - (part == ")")
        if depth or part not in (" + ", " - "):
            parts[-1] += part
        else:
            parts.append("-" if part == " - " else "")
    return parts if all(not part.startswith("-") or part[1:].isdecimal() for part in parts) else [text]


def _after_join(node: onnx.NodeProto, values: _Values) -> _Dims:
    """The extent of the axis along which values are joined: the sum of theirs, such as `past + new` of a cache."""
    shifted = _after_shift(node, values)
    axis, rank = attributes_of(node).get("axis", 0), len(values.dims[node.output[0]])
    if shifted or not -rank <= axis < rank:
        return shifted
    total = _Sum.of([values.text(name, axis % rank) for name in node.input])
    return [total.formula() if total is not None and place == axis % rank else None for place in range(rank)]


def _after_shift(node: onnx.NodeProto, values: _Values) -> _Dims:
    """The extent of the axis of a cyclic shift, which is joined of the end of a tensor and its beginning, as in Swin:
    it stays the same, wherever the cut is."""
    if len(node.input) != 2 or not values.cuts.keys() >= {*node.input}:
        return []
    behind, before = (values.cuts[name] for name in node.input)
    is_whole = before.start == 0 and behind.start == before.end and behind.end >= UNBOUNDED
    if (behind.source, behind.axis) != (before.source, before.axis) or not is_whole:
        return []
    read, axis = values.extents(behind.source), attributes_of(node).get("axis", 0)
    rank = len(values.dims[node.output[0]])
    if len(read) != rank or not -rank <= axis < rank or (axis - behind.axis) % rank:
        return []
    return [each if place == axis % rank else None for place, each in enumerate(read)]


def _after_resize(node: onnx.NodeProto, values: _Values) -> _Dims:
    """The extents of a resize's result that it keeps or multiplies."""
    scales, read = _scales(node, values), values.extents(node.input[0])
    if not len(scales) == len(read) == len(values.dims[node.output[0]]):
        return []
    return [
        each if scale == 1 else _times(each, Fraction(scale)) if scale.is_integer() and scale > 1 else None
        for each, scale in zip(read, scales, strict=True)
    ]


def _scales(node: onnx.NodeProto, values: _Values) -> list[float]:
    """The constant scales of a resize, one a dim; none where they are not known, or where other inputs count too."""
    given = attributes_of(node)
    if "scales" in given:
        return list(given["scales"])
    if "axes" in given or given.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        return []
    # The scales are the second input up to opset 10, and later the third; a fourth has sizes.
    name = node.input[min(len(node.input), 3) - 1] if 2 <= len(node.input) <= 3 or not any(node.input[3:]) else ""
    stored = (tensor for tensor in values.tensors(name) if tensor.data_type == onnx.TensorProto.FLOAT)
    scales = (onnx.numpy_helper.to_array(tensor).reshape(-1) for tensor in stored)
    return next(([float(scale) for scale in each] for each in scales), [])


def _after_broadcast(node: onnx.NodeProto, values: _Values) -> _Dims:
    """The extents of a broadcast's result that its operands have in common, or that one of them has where it is a
    multiple: that is never 1, so another operand has the same extent, or 1."""
    # A legal model declares the shapes of constants too.
    open_ = [name for name in node.input if name not in values.stored]
    if not all(name in values.dims for name in open_):
        return []
    stored = [values.stored[name] for name in node.input if name in values.stored]
    found: _Dims = []
    for place in range(1, len(values.dims[node.output[0]]) + 1):
        read = [dims[-place] for dims in map(values.dims.__getitem__, open_) if place <= len(dims)]
        common = {values.formula(dim.dim_param) if dim.dim_param else None for dim in read if dim.dim_value != 1}
        if any(place <= len(own) and own[-place] != 1 for own in stored):
            found.append(None)
            continue
        multiples = [each for each in common if each is not None and is_multiple(term_of(str(each)))]
        found.append(common.pop() if len(common) == 1 else min(multiples, key=str, default=None))
    return found[::-1]


_RULES: dict[str, Callable[[onnx.NodeProto, _Values], _Dims]] = {
    **dict.fromkeys(_KERNELS, _after_window),
    **dict.fromkeys(("Resize", "Upsample"), _after_resize),
    **dict.fromkeys(BROADCAST, _after_broadcast),
    "Concat": _after_join,
    "Pad": _after_pad,
    "Slice": _enter_cut,
}


def _longer(extent: _Formula | None, added: int) -> _Formula | None:
    """An extent plus a number; None where it is not known."""
    if extent is None or not added:
        return extent
    return _short(_Formula(extent.base, extent.plus + added)) if _is_stable(extent.base) else None


def _times(extent: _Formula | None, factor: Fraction) -> _Formula | None:
    """An extent times a number; None where it is not known."""
    if extent is None or not _is_stable(extent.base):
        return None
    return _short(_Formula(str(product([Term(factor), term_of(str(extent))]))))


def _short(formula: _Formula) -> _Formula | None:
    """The formula, unless it is too long to say something."""
    return formula if len(str(formula)) <= LONGEST_FORMULA else None


def _is_stable(base: str) -> bool:
    """Whether the text is a name that the model has given, or a formula of such names. The generated ones are given
    anew to other dims when the model is read again."""
    return (is_name(base) or "//" in base or "*" in base) and GENERATED not in base
