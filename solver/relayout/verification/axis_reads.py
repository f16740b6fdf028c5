"""The axes that an operator reads of an operand: by name, or by the numbers in its attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import onnx_ir as ir

from relayout.verification.operator_facts import CONTRIBUTED, FACTORS, AxisNames, axis_names, constant_ints, named
from relayout.verification.resize_axes import placed_names

Pair = tuple[str, str]
"""The names of an axis by the producer of a value and by a reader."""

Known = TypeVar("Known", str, Pair)


@dataclass(frozen=True, slots=True)
class AxesRead(Generic[Known]):
    """The names of the axes that an operator reads, and which of them are open: they may have extent 1 at run time.

    Axes of known extent 1, of which there are `units`, may be anywhere and have no names.
    """

    known: Counter[Known]
    open: Counter[Known]
    units: int

    def agree(self, other: AxesRead[Known]) -> bool:
        """Whether both may be the same axes: a name that one lacks is open in the other, and one of its unit axes."""
        return self._lacks_units_of(other) and other._lacks_units_of(self)

    def _lacks_units_of(self, other: AxesRead[Known]) -> bool:
        lacking = other.known - self.known
        return lacking <= other.open and lacking.total() <= self.units


def relation(node: ir.Node, n: int, names: Mapping[ir.Value, AxisNames], by_place: bool) -> AxesRead[Pair] | None:
    """The producer's name of each axis, paired with the name by which this operator reads it; None if one is unknown.
    `names` are those by the producers of all values.

    Axes of extent 1 are left out: they may be anywhere. The outer and the inner tile of an axis are that axis, if the
    one is read as the outer and the other as the inner tile.
    """
    value, read, facts = node.inputs[n], axis_names(node, n), named(node)
    if facts is None and by_place and n == 0 and value is not None and value.shape is not None:
        read = placed_names(node, len(value.shape))
    made = names.get(value) if value is not None else None
    if value is None or value.shape is None or read is None or made is None or len(set(made)) != len(made):
        return None
    pairs: dict[Pair, bool] = {}
    units = 0
    for a, b, extent in zip(made, read, value.shape, strict=True):
        read_axis = _axis_read(b, read, node)
        units += extent == 1
        if read_axis is None or extent == 1:
            continue
        if a is None or b is None:
            return None
        is_part = (_axis(a, made) != a, _axis(b, read) != b)
        pair = (a, b) if is_part[0] != is_part[1] else (_axis(a, made), read_axis)
        pairs[pair] = pairs.get(pair, True) and not isinstance(extent, int)
    return AxesRead(Counter(pairs.keys()), Counter(pair for pair, is_open in pairs.items() if is_open), units)


def _axis_read(name: str | None, names: AxisNames, node: ir.Node) -> str | None:
    """The axis that an operator reads under a name; None where it does not read it by name."""
    facts, axis = named(node), _axis(name, names) if name is not None else None
    if facts is not None and facts.pooled:
        return "kept" if axis in ("N", "C") else "reduced"
    return axis if facts is None or facts.spatial or axis == "C" else None


def _axis(name: str, names: AxisNames) -> str:
    """The axis of a name, or of the inner tile that it names."""
    return name.upper() if len(name) == 1 and name.upper() in names else name


_ALONG_AXES = frozenset({"Concat", "CumSum", "Gather", "Hardmax", "LogSoftmax", "Softmax", "Split", "TopK"})
# Operators of onnxruntime that work along an axis, as ONNX's operator does from this operand on.
_CONTRIBUTED_ALONG_AXES = {"QLinearConcat": ("Concat", 2), "QLinearSoftmax": ("Softmax", 0)}
# Before opset 13 they work on the axis and all that follow it as one.
_FLATTENING = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
_SUMMING = {**FACTORS, "Gemm": (0, 1)}
# They may work on whole blocks of an axis.
_IN_BLOCKS = frozenset({"Concat", "Gather", "Split"})


class ByNumber(NamedTuple):
    """The axes of an operand along which an operator works by number; in blocks, parts of an axis may count."""

    operand: int
    axes: frozenset[int]
    in_blocks: bool


def by_number(node: ir.Node) -> ByNumber | None:
    """The axes that an operator has by number; None if it has no numbers, or they are not known."""
    if node.domain == CONTRIBUTED:
        kind, first = _CONTRIBUTED_ALONG_AXES.get(node.op_type, ("", 0))
    else:
        kind, first = node.op_type if node.domain == "" else "", 0
    value = node.inputs[first] if first < len(node.inputs) else None
    reduces = kind.startswith("Reduce") or kind in ("ArgMax", "ArgMin")
    if value is None or value.shape is None or not (reduces or kind in _ALONG_AXES):
        return None
    axes = (
        constant_ints(node, "axes", 1)
        if kind.startswith("Reduce")
        else constant_ints(node, "axis", 1 if kind == "CumSum" else len(node.inputs))
    )
    rank = len(value.shape)
    if axes is None or any(not -rank <= axis < rank for axis in axes):
        return None
    places = {axis % rank for axis in axes}
    if flattens(node):
        places = set(range(min(places), rank))
    return ByNumber(first, frozenset(places), kind in _IN_BLOCKS)


def numbered_axes(node: ir.Node, names: Mapping[ir.Value, AxisNames]) -> AxesRead[str] | None:
    """The names of the axes that an operator has by number; None if it has no numbers, or one has no name. `names` are
    those by the producers of all values."""
    numbers = by_number(node)
    value = node.inputs[numbers.operand] if numbers is not None else None
    made = names.get(value) if value is not None else None
    if numbers is None or made is None:
        return None
    named_axes = numbers.axes
    if any(made[axis] is None and (numbers.in_blocks or _extent(value, axis) != 1) for axis in named_axes):
        return None
    # An axis of extent 1 may be anywhere.
    parts = {str(name) for axis, name in enumerate(made) if name is not None and _extent(value, axis) != 1}
    if numbers.in_blocks:
        blocks = {str(made[axis]) for axis in named_axes}
        found = Counter(name for name in blocks if name in parts or (name.lower() in parts and name.isupper()))
        # An axis stacked from single slices is ignored where the other model knows no extents.
        return AxesRead(found, Counter(), 0) if found else None
    extents = {str(made[axis]): _extent(value, axis) for axis in named_axes if _extent(value, axis) != 1}
    # An operator on a tiled axis must work on all its tiles.
    axes_of = {name: _whole_axis(name, extents.keys(), parts, made) for name in extents}
    sure = {axes_of[name] for name, extent in extents.items() if isinstance(extent, int)}
    every = set(axes_of.values())
    return AxesRead(Counter(every), Counter(every - sure), len(named_axes) - len(extents))


def summed_axes(node: ir.Node) -> dict[int, int]:
    """The axis of each of the two factors over which a product of matrices sums, by operand; none for other nodes, and
    where an operand's rank is not known."""
    operands = _SUMMING.get(node.op_type, ()) if node.domain in ("", CONTRIBUTED) else ()
    found: dict[int, int] = {}
    for n, (transposed, axis) in zip(operands, (("transA", 1), ("transB", 0)), strict=False):
        value = node.inputs[n] if n < len(node.inputs) else None
        rank = len(value.shape) if value is not None and value.shape is not None else 0
        if rank:
            found[n] = max(rank - 2, 0) + (axis ^ node.attributes.get_int(transposed, 0) if rank > 1 else 0)
    return found if len(found) == 2 else {}


def flattens(node: ir.Node) -> bool:
    """Whether an operator works on an axis and all that follow it as one, as a softmax did before opset 13."""
    kind = _CONTRIBUTED_ALONG_AXES.get(node.op_type, ("", 0))[0] if node.domain == CONTRIBUTED else node.op_type
    return kind in _FLATTENING and node.domain in ("", CONTRIBUTED) and _opset(node) < 13


def _opset(node: ir.Node) -> int:
    """The opset of ONNX in which an operator is to be read; a quantized softmax has its own."""
    of_graph = node.graph.opset_imports.get("", 13) if node.graph is not None else 13
    return node.attributes.get_int("opset", 13) if node.domain == CONTRIBUTED else of_graph


def _whole_axis(name: str, names: Set[str], parts: set[str], made: AxisNames) -> str:
    axis = _axis(name, made)
    own = {part for part in parts if _axis(part, made) == axis}
    return axis if own <= names else f"part {name} of {axis}"


def _extent(value: ir.Value | None, axis: int) -> object:
    return value.shape[axis] if value is not None and value.shape is not None else None
