"""Names for the extents that windows, pads, resizes and blocks compute from dims that are not known before the run.

onnx's inference generates a new name for each. Here the name is the formula, `(height - 1)//2 + 1`, so that equal
extents have equal names, and the extent has a size as soon as `height` has one. A window that keeps the extent keeps
the name, and so do a resize in its other dims and a broadcast of operands whose extents turn out to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import onnx

from relayout.layout.terms import GENERATED, Term, is_name, product, rounded_down, term_of
from relayout.model.dims.dim_unification import rename
from relayout.model.dims.formula import LONGEST_FORMULA
from relayout.model.proto_graphs import STANDARD_DOMAINS, declared_values
from relayout.ops.elementwise import BROADCAST

__all__ = ["UNBOUNDED", "name_spatial_dims"]

_WINDOWED = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})
_RESIZED = frozenset({"Resize", "Upsample"})
_IN_BLOCKS = frozenset({"DepthToSpace", "SpaceToDepth"})
UNBOUNDED = (1 << 31) - 1
"""From here on a bound of a Slice means the end, as exporters write it."""

_MOST_NUMBERS = 16
"""Of a constant of scales or pads."""


_Infos = Mapping[str, onnx.ValueInfoProto]


class _Formula(NamedTuple):
    """An extent as the value of an expression, plus a number."""

    base: str
    plus: int = 0

    def __str__(self) -> str:
        return f"{self.base} {'-' if self.plus < 0 else '+'} {abs(self.plus)}" if self.plus else self.base


def name_spatial_dims(graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> bool:
    """Rename the generated dims of results of convolutions, pools, pads, resizes, operators on blocks, broadcasts, and
    cyclic shifts, everywhere in the graph. `known` are the computed constants by name.

    Returns whether there was one.
    """
    infos = {info.name: info for info in declared_values(graph)}
    kernels = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    formulas: dict[str, _Formula] = {}
    slices: dict[str, _Cut] = {}
    for node in graph.node:
        if node.domain not in STANDARD_DOMAINS or not node.output or node.output[0] not in infos:
            continue
        if node.op_type == "Slice":
            if (cut := _cut(node, graph, known)) is not None:
                slices[node.output[0]] = cut
            continue
        if node.op_type in _WINDOWED:
            found = _after_window(node, infos, kernels, formulas)
        elif node.op_type in _RESIZED:
            found = _after_resize(node, infos, _scales(node, graph), formulas)
        elif node.op_type == "Pad":
            found = _after_pad(node, infos, _pads(node, graph, known), formulas)
        elif node.op_type == "Concat":
            found = _after_shift(node, infos, slices, formulas)
        elif node.op_type in _IN_BLOCKS:
            found = _after_blocks(node, infos, formulas)
        elif node.op_type in BROADCAST:
            found = _after_broadcast(node, infos, kernels, formulas)
        else:
            continue
        for name, formula in found:
            if name.startswith(GENERATED) and name not in formulas and formula.base != name:
                formulas[name] = formula
    if formulas:
        rename(graph, {name: str(_formula(name, formulas)) for name in formulas})
    return bool(formulas)


def _formula(name: str, formulas: Mapping[str, _Formula]) -> _Formula:
    """The extent of this name, as far as it is known."""
    formula = _Formula(name)
    while not formula.plus and formula.base in formulas:
        formula = formulas[formula.base]
    return formula


def _after_window(
    node: onnx.NodeProto, infos: _Infos, kernels: Mapping[str, list[int]], formulas: Mapping[str, _Formula]
) -> Iterator[tuple[str, _Formula]]:
    """The names of a window's results, each with its formula."""
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    kernel = _kernel(node)
    window = given.get("kernel_shape") or (kernels.get(kernel) or _numbers(infos, kernel))[2:]
    if not window or node.input[0] not in infos:
        return
    read, made = (_dims(infos, name)[2:] for name in (node.input[0], node.output[0]))
    if len(read) != len(window) or len(made) != len(window):
        return
    for place, (before, after) in enumerate(zip(read, made, strict=True)):
        if before.dim_param and after.dim_param:
            formula = _extent(_formula(before.dim_param, formulas), given, place, window)
            if formula is not None and len(str(formula)) <= LONGEST_FORMULA:
                yield after.dim_param, formula


def _after_pad(
    node: onnx.NodeProto, infos: _Infos, pads: Mapping[int, int], formulas: Mapping[str, _Formula]
) -> Iterator[tuple[str, _Formula]]:
    """The names of a pad's results, each with its formula. `pads`: what is added to each axis; none if not known."""
    if not pads or node.input[0] not in infos:
        return
    read, made = _dims(infos, node.input[0]), _dims(infos, node.output[0])
    for place, (before, after) in enumerate(zip(read, made, strict=False)):
        if before.dim_param and after.dim_param:
            formula, added = _formula(before.dim_param, formulas), pads.get(place % len(read), 0)
            formula = _Formula(formula.base, formula.plus + added)
            if (not added or _is_stable(formula.base)) and len(str(formula)) <= LONGEST_FORMULA:
                yield after.dim_param, formula


class _Cut(NamedTuple):
    """A Slice of every element between two bounds of one axis."""

    source: str
    axis: int
    start: int
    end: int


def _after_shift(
    node: onnx.NodeProto, infos: _Infos, slices: Mapping[str, _Cut], formulas: Mapping[str, _Formula]
) -> Iterator[tuple[str, _Formula]]:
    """The name of the axis of a cyclic shift, which is joined of the end of a tensor and its beginning, as in Swin: the
    extent stays the same, wherever the cut is."""
    if len(node.input) != 2 or not slices.keys() >= {*node.input}:
        return
    behind, before = (slices[name] for name in node.input)
    axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
    is_whole = before.start == 0 and behind.start == before.end and behind.end >= UNBOUNDED
    if (behind.source, behind.axis) != (before.source, before.axis) or not is_whole or behind.source not in infos:
        return
    read, made = _dims(infos, behind.source), _dims(infos, node.output[0])
    if len(read) != len(made) or not -len(read) <= axis < len(read) or (axis - behind.axis) % len(read):
        return
    if read[axis].dim_param and made[axis].dim_param:
        yield made[axis].dim_param, _formula(read[axis].dim_param, formulas)


def _cut(node: onnx.NodeProto, graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> _Cut | None:
    """The bounds of a Slice; None where it has other axes too, or where they are not known."""
    given = {each.name: list(each.ints) for each in node.attribute}
    given |= {
        each: _integers(name, graph, known)
        for each, name in zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False)
        if name
    }
    starts, ends, axes = (given.get(each, []) for each in ("starts", "ends", "axes"))
    if not len(starts) == len(ends) == len(axes) == 1 or given.get("steps", [1]) != [1]:
        return None
    return _Cut(node.input[0], axes[0], starts[0], ends[0])


def _pads(node: onnx.NodeProto, graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> dict[int, int]:
    """The elements that a Pad adds to its axes; none where they are not known."""
    given = next((list(each.ints) for each in node.attribute if each.name == "pads"), None)
    if given is None:
        given = _integers(node.input[1], graph, known)
    axes = _integers(node.input[3], graph, known) if any(node.input[3:]) else [*range(len(given) // 2)]
    if len(given) != 2 * len(axes) or min(axes, default=0) < 0:
        return {}
    return {axis: given[place] + given[place + len(axes)] for place, axis in enumerate(axes)}


def _integers(name: str, graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> list[int]:
    """The numbers of a constant; none where they are not known."""
    arrays = [known[name]] if name in known else map(onnx.numpy_helper.to_array, _tensors(name, graph))
    return next(([int(number) for number in array.reshape(-1)] for array in arrays), [])


def _tensors(name: str, graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The stored tensor of this name, if it has few elements that are at hand. A default of an input is no constant."""
    if any(value.name == name for value in graph.input):
        return
    made = (other for other in graph.node if other.op_type == "Constant" and name in other.output)
    values = (each.t for other in made for each in other.attribute if each.name == "value")
    for tensor in (*values, *(tensor for tensor in graph.initializer if name and tensor.name == name)):
        has_data = tensor.raw_data or tensor.float_data or tensor.int64_data
        if has_data and 0 < sum(tensor.dims) <= _MOST_NUMBERS:
            yield tensor


def _after_resize(
    node: onnx.NodeProto, infos: _Infos, scales: list[float], formulas: Mapping[str, _Formula]
) -> Iterator[tuple[str, _Formula]]:
    """The names of a resize's results in dims that it keeps or multiplies, each with its formula."""
    if node.input[0] not in infos:
        return
    read, made = _dims(infos, node.input[0]), _dims(infos, node.output[0])
    if not len(scales) == len(read) == len(made):
        return
    for scale, before, after in zip(scales, read, made, strict=True):
        if not before.dim_param or not after.dim_param or not scale.is_integer() or scale < 1:
            continue
        formula = _formula(before.dim_param, formulas)
        if scale != 1:
            if not _is_stable(formula.base):
                continue
            formula = _Formula(str(product([Term(Fraction(scale)), term_of(str(formula))])))
        if len(str(formula)) <= LONGEST_FORMULA:
            yield after.dim_param, formula


def _after_blocks(
    node: onnx.NodeProto, infos: _Infos, formulas: Mapping[str, _Formula]
) -> Iterator[tuple[str, _Formula]]:
    """The names of the rows and columns after DepthToSpace or SpaceToDepth, each with its formula."""
    size = next((each.i for each in node.attribute if each.name == "blocksize"), 0)
    if size < 1 or node.input[0] not in infos:
        return
    factor = Fraction(size) if node.op_type == "DepthToSpace" else Fraction(1, size)
    for before, after in zip(_dims(infos, node.input[0])[2:], _dims(infos, node.output[0])[2:], strict=False):
        if not before.dim_param or not after.dim_param:
            continue
        base = str(_formula(before.dim_param, formulas))
        term = product([Term(factor), term_of(base)])
        if term is None or not _is_stable(base):
            continue
        term = rounded_down(term)
        if len(str(term)) <= LONGEST_FORMULA:
            yield after.dim_param, _Formula(str(term))


def _scales(node: onnx.NodeProto, graph: onnx.GraphProto) -> list[float]:
    """The constant scales of a resize, one a dim; none where they are not known, or where other inputs count too."""
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if "scales" in given:
        return list(given["scales"])
    if "axes" in given or given.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        return []
    # The scales are the second input up to opset 10, and later the third; a fourth has sizes.
    name = node.input[min(len(node.input), 3) - 1] if 2 <= len(node.input) <= 3 or not any(node.input[3:]) else ""
    stored = (tensor for tensor in _tensors(name, graph) if tensor.data_type == onnx.TensorProto.FLOAT)
    scales = (onnx.numpy_helper.to_array(tensor).reshape(-1) for tensor in stored)
    return next(([float(scale) for scale in each] for each in scales), [])


def _after_broadcast(
    node: onnx.NodeProto, infos: _Infos, stored: Mapping[str, list[int]], formulas: Mapping[str, _Formula]
) -> Iterator[tuple[str, _Formula]]:
    """The names of a broadcast's result in dims that its operands have in common, each with their formula."""
    # A legal model declares the shapes of constants too.
    open_ = [name for name in node.input if name not in stored]
    if not all(name in infos and infos[name].type.tensor_type.HasField("shape") for name in open_):
        return
    for place, made in enumerate(reversed(_dims(infos, node.output[0]))):
        if any(place < len(own := stored[name]) and own[-1 - place] != 1 for name in node.input if name in stored):
            continue
        read = [dims[-1 - place] for name in open_ if place < len(dims := _dims(infos, name))]
        common = {_formula(dim.dim_param, formulas) if dim.dim_param else None for dim in read if dim.dim_value != 1}
        if made.dim_param and len(common) == 1 and (formula := common.pop()) is not None:
            yield made.dim_param, formula


def _dims(infos: _Infos, name: str) -> list[onnx.TensorShapeProto.Dimension]:
    return list(infos[name].type.tensor_type.shape.dim)


def _numbers(infos: _Infos, name: str) -> list[int]:
    """The shape of a value that has known extents; empty for another."""
    dims = _dims(infos, name) if name in infos else []
    return [dim.dim_value for dim in dims] if all(dim.HasField("dim_value") for dim in dims) else []


def _kernel(node: onnx.NodeProto) -> str:
    place = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}.get(node.op_type)
    return node.input[place] if place is not None and place < len(node.input) else ""


def _extent(read: _Formula, given: Mapping[str, Any], place: int, window: list[int]) -> _Formula | None:
    """The extent after a window of these attributes; None where it is not known."""
    stride = (given.get("strides") or [1] * len(window))[place]
    dilation = (given.get("dilations") or [1] * len(window))[place]
    padding, kind = given.get("pads") or [0] * 2 * len(window), given.get("auto_pad", b"NOTSET")
    covered = dilation * (window[place] - 1)
    if kind in (b"SAME_UPPER", b"SAME_LOWER"):
        rest = stride - 1  # rounded up
    elif kind == b"VALID":
        rest = -covered - 1 + stride
    elif kind == b"NOTSET" and not given.get("ceil_mode"):
        rest = padding[place] + padding[place + len(window)] - covered - 1 + stride
    else:
        return None
    # (read + rest) // stride, where what a multiple of the stride adds is added afterwards.
    if stride == 1 and not rest:
        return read
    if not _is_stable(read.base):
        return None
    if stride == 1:
        return _Formula(read.base, read.plus + rest)
    after, inside = divmod(read.plus + rest, stride)
    if inside:
        after, inside = after + 1, inside - stride
    own = str(_Formula(read.base, inside))
    whole = f"({own})" if inside or not is_name(read.base) else own
    return _Formula(f"{whole}//{stride}", after)


def _is_stable(base: str) -> bool:
    """Whether the text is a name that the model has given, or a formula of such names. The generated ones are given
    anew to other dims when the model is read again."""
    return (is_name(base) or "//" in base or "*" in base) and GENERATED not in base
