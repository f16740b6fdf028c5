"""The dimensions that an alternative gives each operand, as groups of atoms of the tensor behind it."""

from __future__ import annotations

from itertools import chain

from relayout.candidates.alternatives import FixedLowering, FreeLowering, Lowering, NodeAlternatives, Port, in_source
from relayout.candidates.tensors import Operand
from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import MemoryFormat, normal_form
from relayout.ops import Axes, Free, Rule
from relayout.rewrite.constant_steps import Laid, input_dims

__all__ = ["flat", "is_parameter", "own_dims", "port_dims", "present", "base_dims"]


def port_dims(choice: NodeAlternatives, port: Port, form: Lowering, rule: Rule | None) -> Dims:
    """The port's dimensions in this form, in atoms of the tensor's root."""
    return base_dims(port.operand, own_dims(choice, port, form, rule))


def own_dims(choice: NodeAlternatives, port: Port, form: Lowering, rule: Rule | None) -> Laid:
    """The same in the operand's own axes; None where a unit dimension stands in for an axis that it lacks."""
    natural = in_source(len(port.operand.view.axes))
    if isinstance(form, FixedLowering):
        side = form.outputs if port.is_result else form.inputs
        own = side[port.index] if port.index < len(side) else None
        return natural if own is None else own
    if isinstance(form, FreeLowering):
        assert isinstance(rule, Free)
        sides = rule.outputs if port.is_result else rule.inputs
        axes = sides[port.index] if port.index < len(sides) else None
        if axes is None or (is_parameter(rule, axes) and not form.rewritten):
            return natural
        found = input_dims(rule, axes, form.dims)
        # What a result lacks it does not have: only inputs are stretched.
        return tuple(group for group in found if group is not None) if port.is_result else found
    return one_each(form)


def is_parameter(rule: Free, axes: Axes) -> bool:
    """Whether an operand of an operator with named axes has some of them only: it stays whole, however data are cut."""
    return bool(rule.letters) and len(axes) < len(rule.extents)


def present(own: Laid) -> Dims:
    """The dimensions that there are, without those that stand in for axes the operand lacks."""
    return tuple(group for group in own if group is not None)


def flat(dims: Dims) -> MemoryFormat:
    """All atoms in their order, whatever dimensions they make up."""
    return tuple(chain.from_iterable(dims))


def base_dims(operand: Operand, own: Laid) -> Dims:
    """Dimensions of the operand's own axes as groups of atoms of the root's."""
    return tuple(_base_group(operand, group) if group is not None else () for group in own)


def _base_group(operand: Operand, group: MemoryFormat) -> MemoryFormat:
    view = operand.view
    if view.extents[group[0].axis] == 1:
        return ()
    if len(group) == 1:
        # A piece that is all of its axis is the axis, also where the extents of the tensor behind it do not say so.
        group = normal_form(group, view.extents)
        if not group:
            return ()
    if len(group) == 1 and group[0].is_whole:
        return view.axes[group[0].axis]
    parts = [view.to_base((atom,)) for atom in group]
    assert None not in parts  # the format of the whole nests
    return normal_form(tuple(chain.from_iterable(part for part in parts if part is not None)), operand.tensor.extents)
