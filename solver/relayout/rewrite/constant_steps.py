"""What is done to a constant to lay it out: its dimensions in words of its own axes, and the steps that lead there."""

from __future__ import annotations

import onnx_ir as ir

from relayout.layout.conversion import Dims, steps_of
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form
from relayout.layout.relaid_constant import Step
from relayout.ops import Axes, Free, extents_of

__all__ = ["Laid", "input_dims", "is_turned", "space_order", "steps_to", "view_steps"]

Laid = tuple[MemoryFormat | None, ...]
"""Dimensions of a constant as groups of atoms of its own axes; None: a unit dimension that it lacks."""


def is_turned(dims: Laid, rank: int) -> bool:
    """Whether each dimension is a whole axis, every axis once, or a unit dimension that the constant lacks."""
    groups = [group for group in dims if group is not None]
    whole = all(len(group) == 1 and group[0].is_whole for group in groups)
    return whole and len({group[0].axis for group in groups}) == rank


def steps_to(dims: Laid, extents: tuple[Extent, ...]) -> list[Step]:
    """What makes these dimensions of a constant of these extents; known ones but where it is only turned."""
    if not is_turned(dims, len(extents)):
        units = tuple(() if extents[a] == 1 else (Atom(a),) for a in range(len(extents)))
        # A unit axis has no place of its own: it goes, and the empty groups bring others.
        wanted = tuple(
            normal_form(tuple(atom for atom in group or () if extents[atom.axis] != 1), extents) for group in dims
        )
        return [*steps_of(units, wanted, extents)]
    perm = tuple(group[0].axis for group in dims if group is not None)
    steps: list[Step] = []
    if perm != tuple(range(len(perm))):
        steps.append({"op": "transpose", "perm": list(perm)})
    if None in dims:
        shape = [extents[group[0].axis] if group is not None else 1 for group in dims]
        steps.append({"op": "reshape", "shape": shape, "from": [extents[axis] for axis in perm]})
    return steps


def view_steps(node: ir.Node) -> list[Step] | None:
    """The steps that a node does which only says how its input is seen; None where they are not known."""
    value, result = node.inputs[0], node.outputs[0]
    before, after = extents_of(value) if value is not None else None, extents_of(result)
    if before is None or after is None or not all(isinstance(extent, int) for extent in (*before, *after)):
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", tuple(range(len(before)))[::-1]) or ()
        return [{"op": "transpose", "perm": list(perm)}]
    return [{"op": "reshape", "shape": list(after), "from": list(before)}] if before != after else []


def input_dims(rule: Free, axes: Axes, dims: Dims) -> Laid:
    """An input's own dimensions when the space has `dims`; `axes` are the input's axes in the space.

    None where a unit dimension stands in for an axis that it lacks. Those at the front are left out: broadcasting adds
    them.
    """
    found: list[MemoryFormat | None] = []
    for group in dims:
        axis = group[0].axis
        if axis in axes:
            own = [atom for atom in group if atom.axis in axes]
            found.append(tuple(Atom(axes.index(atom.axis), atom.inner, atom.outer) for atom in own))
        elif axis in rule.broadcasts and found:
            found.append(None)
    return tuple(found)


def space_order(rule: Free, own: Axes, perm: tuple[int, ...]) -> Axes | None:
    """The order of the space that lays the result out by `perm`, where the result has all of the space's axes."""
    if len(own) != len(rule.extents):
        return None
    return tuple(own[p] for p in perm)
