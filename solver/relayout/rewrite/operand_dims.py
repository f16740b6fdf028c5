"""Dimensions of operands under a plan, as groups of atoms of the base tensor's axes."""

from __future__ import annotations

from relayout.candidates.alternatives import OperandDims, Port
from relayout.candidates.tensors import Operand
from relayout.formulate.plan import PlannedNode
from relayout.layout.conversion import Dims, flat
from relayout.layout.memory_format import MemoryFormat, normal_form


def port_dims(planned: PlannedNode, port: Port) -> Dims:
    """The port's dimensions in atoms of its base tensor."""
    return base_dims(port.operand, planned.operand_dims(port))


def present(own: OperandDims) -> Dims:
    """The dimensions without those for axes that the operand lacks."""
    return tuple([group for group in own if group is not None])


def base_dims(operand: Operand, own: OperandDims) -> Dims:
    """Convert dimensions from atoms of the operand's axes to atoms of the base tensor's."""
    return tuple([_base_group(operand, group) if group is not None else () for group in own])


def _base_group(operand: Operand, group: MemoryFormat) -> MemoryFormat:
    view = operand.view
    first = group[0]
    if view.extents[first.axis] == 1:
        return ()
    if len(group) == 1 and not first.is_whole:
        # A tile that is the whole axis counts as the axis, even if the base tensor's extents are unknown.
        group = normal_form(group, view.extents)
        if not group:
            return ()
    if len(group) == 1 and group[0].is_whole:
        return view.axes[group[0].axis]
    parts = [view.to_base((atom,)) for atom in group]
    assert None not in parts  # the format of the whole nests
    return normal_form(flat(part for part in parts if part is not None), operand.tensor.extents)
