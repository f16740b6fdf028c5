"""The steps that permute or reshape a constant to given dimensions."""

from __future__ import annotations

import onnx_ir as ir

from relayout.candidates.alternatives import OperandDims
from relayout.layout.conversion import steps_of
from relayout.layout.memory_format import Atom, Extent, normal_form
from relayout.layout.relaid_constant import Step
from relayout.ops import Axes, Free, extents_of

__all__ = ["is_permuted", "space_order", "steps_to", "view_steps"]


def is_permuted(dims: OperandDims, rank: int) -> bool:
    """Whether the dimensions are all whole axes, each once, and additional unit dimensions."""
    groups = [group for group in dims if group is not None]
    whole = all(len(group) == 1 and group[0].is_whole for group in groups)
    return whole and len({group[0].axis for group in groups}) == rank


def steps_to(dims: OperandDims, extents: tuple[Extent, ...]) -> list[Step]:
    """The steps to these dimensions of a constant. Its extents must be known unless its axes are only permuted."""
    if not is_permuted(dims, len(extents)):
        units = tuple(() if extents[a] == 1 else (Atom(a),) for a in range(len(extents)))
        # A unit axis has no position: it is dropped, and empty groups insert new ones.
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
    """The steps of a view op; None where they are not known."""
    value, result = node.inputs[0], node.outputs[0]
    before, after = extents_of(value) if value is not None else None, extents_of(result)
    if before is None or after is None or not all(isinstance(extent, int) for extent in (*before, *after)):
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", tuple(range(len(before)))[::-1]) or ()
        return [{"op": "transpose", "perm": list(perm)}]
    return [{"op": "reshape", "shape": list(after), "from": list(before)}] if before != after else []


def space_order(rule: Free, own: Axes, perm: tuple[int, ...]) -> Axes | None:
    """The order of the iteration space that permutes the result by `perm`; None unless the result has all axes."""
    if len(own) != len(rule.extents):
        return None
    return tuple(own[p] for p in perm)
