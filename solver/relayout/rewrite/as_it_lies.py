"""Element-wise nodes among cut axes: in the dimensions that their operands have, whatever pieces these consist of."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from relayout.choices import FreeForm, Port
from relayout.memory_format import Atom, Extent, Order
from relayout.paths import Dims
from relayout.rewrite.workshop import Workshop
from relayout.rules import NO_EDIT, Free, extents_of

__all__ = ["as_it_lies", "is_elementwise"]

Ports = dict[tuple[bool, int], tuple[Port, Order]]


def is_elementwise(rule: Free, form: FreeForm) -> bool:
    """Whether the node's elements at equal places meet, and its text says nothing of axes."""
    axes = tuple(range(len(rule.extents)))
    return rule.splits == rule.broadcasts == axes and rule.edit(form.axes) is NO_EDIT


def as_it_lies(shop: Workshop, node: ir.Node, rule: Free, form: FreeForm, ports: Ports) -> FreeForm:
    """The form with several pieces in a dimension, where an operand has them so: that saves the Reshapes around the
    node. The form itself where a dimension would be stretched in part."""
    whole = all(atom.is_whole for group in form.dims for atom in group)
    if whole or form.asked or not is_elementwise(rule, form):
        return form
    axes = tuple(range(len(rule.extents)))
    for index, own in enumerate(rule.inputs):
        port, format_ = ports.get((False, index), (None, ()))
        if port is None or own != axes or port.operand.view.extents != rule.extents:
            continue
        dims = _dims_of(shop, rule, port, format_)
        if dims is not None and all(_takes(_extents(node, ports, i), rule, i, dims) for i in range(len(node.inputs))):
            return replace(form, dims=dims)
    return form


def _dims_of(shop: Workshop, rule: Free, port: Port, format_: Order) -> Dims | None:
    """The dimensions of an operand that has all axes of the space, as groups of pieces of those."""
    physical = shop.copies.first(port.operand.tensor, format_)
    units = [axis for axis, extent in enumerate(rule.extents) if extent == 1]
    found: list[Order] = []
    for group in physical.dims:
        own = port.operand.view.from_root(group)
        if own is None or physical.shape is not None or not (own or units):
            return None
        found.append(own or (Atom(units.pop(0)),))
    # A unit axis without a dimension of its own goes along with the pieces of others.
    place = max(range(len(found)), key=lambda place: (len(found[place]), place))
    found[place] += tuple(Atom(axis) for axis in units)
    return tuple(found)


def _extents(node: ir.Node, ports: Ports, index: int) -> tuple[Extent, ...] | None:
    """The extents of an input as the source has them."""
    if (False, index) in ports:
        return ports[False, index][0].operand.view.extents
    value = node.inputs[index]
    return extents_of(value) if value is not None else ()


def _takes(extents: tuple[Extent, ...] | None, rule: Free, index: int, dims: Dims) -> bool:
    """Whether this input has all axes of each dimension, or none, so that it is stretched along all or none."""
    axes = rule.inputs[index] if index < len(rule.inputs) else None
    if axes is None or extents is None:
        return extents == ()
    full = {axis for axis, extent in zip(axes, extents, strict=True) if extent == rule.extents[axis]}
    return all(len({a.axis in full for a in group if rule.extents[a.axis] != 1}) <= 1 for group in dims)
