"""Names for the spatial extents that convolutions and pools compute from dims that are not known before the run.

onnx's inference generates a new name for each. Here the name is the formula, `(height - 1)//2 + 1`, so that equal
extents have equal names, and the extent has a size as soon as `height` has one. A window that keeps the extent keeps
the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import onnx

from relayout.model.dims.dim_unification import GENERATED, rename

__all__ = ["name_spatial_dims"]

LONGEST = 160
"""A longer formula says nothing to a reader: the generated name stays."""

_WINDOWED = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})


class _Formula(NamedTuple):
    """An extent as the value of an expression, plus a number."""

    base: str
    plus: int = 0

    def __str__(self) -> str:
        return f"{self.base} {'-' if self.plus < 0 else '+'} {abs(self.plus)}" if self.plus else self.base


def name_spatial_dims(graph: onnx.GraphProto) -> None:
    """Rename the generated dims of results of convolutions and pools, everywhere in the graph."""
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    kernels = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    formulas: dict[str, _Formula] = {}
    for node in graph.node:
        if node.op_type not in _WINDOWED or node.domain not in ("", "ai.onnx"):
            continue
        source, result = infos.get(node.input[0]), infos.get(node.output[0])
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        window = given.get("kernel_shape") or kernels.get(_kernel(node), [])[2:]
        if source is None or result is None or not window:
            continue
        read, made = ([*info.type.tensor_type.shape.dim][2:] for info in (source, result))
        if len(read) != len(window) or len(made) != len(window):
            continue
        for place, (before, after) in enumerate(zip(read, made, strict=True)):
            name = after.dim_param
            if not name.startswith(GENERATED) or name in formulas or not before.dim_param:
                continue
            known = formulas.get(before.dim_param)
            if known is None:
                known = _Formula(before.dim_param)
            formula = _extent(known, given, place, window)
            if formula is not None and len(str(formula)) <= LONGEST:
                formulas[name] = formula
    if formulas:
        rename(graph, {name: str(formula) for name, formula in formulas.items()})


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
    whole = f"({own})" if inside or not read.base.isidentifier() else own
    return _Formula(f"{whole}//{stride}", after)


def _is_stable(base: str) -> bool:
    """Whether the text is a name that the model has given, or a formula of such names. The generated ones are given
    anew to other dims when the model is read again."""
    return (base.isidentifier() or "//" in base) and GENERATED not in base
