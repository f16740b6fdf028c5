"""Vectors with numbers of axes: each number must be of the axis that it is of in the original."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from relayout.ops.node_reader import constant_tensor
from relayout.report.schema import Finding
from relayout.verification.counterparts import source_name
from relayout.verification.operator_facts import constant_ints, small_constant
from relayout.verification.requirements import node_label

_NUMBERED = {"Pad": (1,), "Resize": (1, 2, 3)}
"""The operands with numbers of axes: begins and ends, a region, scales or sizes."""


def check_axis_numbers(node: ir.Node, counterpart: ir.Node, order: Sequence[int]) -> Iterator[Finding]:
    """Yield a finding for each vector with numbers of axes, one or two for each axis, in which a number is of another
    axis than in the original. Shapes do not show that where the vector is computed while the model runs. `order` has
    the original's axis of each axis of the result.
    """
    for n in _NUMBERED.get(node.op_type, ()) if not node.domain and not counterpart.domain else ():
        (base, found), (other, wanted) = _axes_of_numbers(node, n, order), _axes_of_numbers(counterpart, n)
        if base is None or other is None or source_name(base) != source_name(other) or found.keys() != wanted.keys():
            continue
        # An axis of extent 1 may be anywhere.
        shape = counterpart.outputs[0].shape
        if any(found[place] != axis for place, axis in wanted.items() if shape is None or shape[axis[0]] != 1):
            yield Finding(
                rule="axis-mismatch",
                node=node_label(node),
                operand=n,
                expected=f"numbers of the axes {_listed(wanted)}",
                found=f"numbers of the axes {_listed(found)}",
                message=f"operand {n} of this {node.op_type} has the numbers of other axes than in the original",
            )


_Numbers = dict[int, tuple[int, int]]
"""The original's axis of each number of a vector, and whether it is the first or the second number of this axis."""


def _axes_of_numbers(node: ir.Node, n: int, order: Sequence[int] = ()) -> tuple[ir.Value | None, _Numbers]:
    """The vector from which operand `n` is gathered, or that operand, and the axes of its numbers, of which `order` has
    the original's; no axes where these are not known."""
    value, shape = node.inputs[n] if n < len(node.inputs) else None, node.outputs[0].shape
    if value is None or shape is None or constant_tensor(value) is not None:
        return None, {}
    is_region = node.op_type == "Resize" and n == 1 and len(node.inputs) > 2  # before opset 11 the scales are there
    if is_region and node.attributes.get_string("coordinate_transformation_mode") != "tf_crop_and_resize":
        return None, {}  # no other mode reads it, and it may be empty
    rank = len(shape)
    has_axes = "axes" in node.attributes or (node.op_type == "Pad" and len(node.inputs) > 3)
    axes = constant_ints(node, "axes", 3) if has_axes else tuple(range(rank))
    if axes is None or not all(-rank <= axis < rank for axis in axes):
        return value, {}
    places: Sequence[int] = range(len(axes) * (1 if node.op_type == "Resize" and n > 1 else 2))
    gather = value.producer()
    if gather is not None and gather.op_type == "Gather" and gather.domain == "" and gather.inputs[1] is not None:
        chosen = small_constant(gather.inputs[1])
        if chosen is not None and len(chosen) == len(places):
            value, places = gather.inputs[0], chosen
    named = [order[axis % rank] if order else axis % rank for axis in axes]
    return value, {place: (named[i % len(named)], i // len(named)) for i, place in enumerate(places)}


def check_constant_numbers(node: ir.Node, counterpart: ir.Node, order: Mapping[int, int]) -> Iterator[Finding]:
    """Yield a finding where a Pad, Slice or Tile has other constant numbers along an axis than in the original. `order`
    has the original's axis of each axis, as far as it is known."""
    here, there = _extents(node), _extents(counterpart)
    # One of the models may know an extent that the other computes.
    here |= {axis: there[own] for axis, own in order.items() if axis not in here and own in there}
    there |= {own: here[axis] for axis, own in order.items() if axis in here}
    found, wanted = _entries(node, here), _entries(counterpart, there)
    if found is None or wanted is None:
        return
    mine = {order[axis]: entry for axis, entry in found.items() if axis in order}
    theirs = {axis: entry for axis, entry in wanted.items() if axis in order.values()}
    if mine != theirs:
        yield Finding(
            rule="axis-mismatch",
            node=node_label(node),
            expected=_shown(theirs),
            found=_shown(mine),
            message=f"this {node.op_type} has the numbers of other axes than in the original",
        )


def _extents(node: ir.Node) -> dict[int, int]:
    """The extents of a node's first operand that are numbers, by axis."""
    value = node.inputs[0] if node.inputs else None
    shape = value.shape if value is not None and value.shape is not None else ()
    return {axis: extent for axis, extent in enumerate(shape) if isinstance(extent, int)}


def _entries(node: ir.Node, extents: Mapping[int, int]) -> dict[int, object] | None:
    """The constant numbers of a Pad, Slice or Tile along each axis on which it acts; None where they are not known."""
    value = node.inputs[0] if node.inputs else None
    if node.domain or value is None or value.shape is None or node.op_type not in ("Pad", "Slice", "Tile"):
        return None
    rank = len(value.shape)
    if node.op_type == "Tile":
        repeats = constant_ints(node, "repeats", 1)
        return None if repeats is None else {axis: each for axis, each in enumerate(repeats) if each != 1}
    has_axes, has_steps = (
        name in node.attributes or (len(node.inputs) > n and node.inputs[n] is not None)
        for n, name in ((3, "axes"), (4, "steps"))
    )
    columns: list[tuple[int, ...] | None]
    if node.op_type == "Pad":
        widths = constant_ints(node, "pads", 1) or ()
        half = len(widths) // 2
        columns = [widths[:half], widths[half:]]
    else:
        starts, ends = constant_ints(node, "starts", 1), constant_ints(node, "ends", 2)
        columns = [starts, ends, constant_ints(node, "steps", 4) if has_steps else (1,) * len(starts or ())]
    known = [each for each in columns if each]
    axes = constant_ints(node, "axes", 3) if has_axes else tuple(range(len(known[0]) if known else 0))
    if axes is None or len(known) < len(columns) or any(len(each) != len(axes) for each in known):
        return None
    found: dict[int, object] = {}
    for axis, *numbers in zip(axes, *known, strict=True):
        if not -rank <= axis < rank:
            return None
        extent = extents.get(axis % rank)
        if node.op_type == "Pad":
            entry: object = tuple(numbers) if any(numbers) else None
        elif extent is not None:
            taken = range(*slice(*numbers).indices(extent)) if numbers[2] else None
            entry = None if taken == range(extent) else taken
        else:
            entry = tuple(numbers)
        if entry is not None:
            found[axis % rank] = entry
    return found


def _shown(numbers: Mapping[int, object]) -> str:
    return ", ".join(f"axis {axis}: {entry}" for axis, entry in sorted(numbers.items())) or "none"


def _listed(numbers: _Numbers) -> str:
    return ",".join(str(axis) for _, (axis, _) in sorted(numbers.items()))
