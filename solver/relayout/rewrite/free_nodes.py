"""Nodes whose operands share a space of axes, written in the order that was chosen for the space."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from relayout.candidates.alternatives import FreeLowering, NodeAlternatives, Port, in_source
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Atom, Extent, MemoryFormat
from relayout.model.emit import Physical
from relayout.model.layout_functions import DOMAIN, Turn
from relayout.ops import NO_EDIT, Axes, Edit, Free, extents_of
from relayout.ops.named_axes import native_letters
from relayout.rewrite.constant_steps import input_dims
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.function_calls import operand_extents, relayout, standard, turned, word
from relayout.rewrite.operand_dims import is_parameter, own_dims, port_dims, present

__all__ = ["as_it_lies", "is_elementwise", "write_free"]



def write_free(context: RewriteContext, choice: NodeAlternatives, node: ir.Node, rule: Free, form: FreeLowering) -> Edit | None:
    """Wire the node itself to operands with the dimensions of the form; how its text is still to change."""
    alternative = context.chosen[id(choice)]
    ports = {(p.is_result, p.index): (p, f) for p, f in zip(choice.ports, alternative.formats, strict=True)}
    hidden = _hidden_shape(context, node, rule, form, ports)
    if hidden is None:
        form = as_it_lies(context, node, rule, form, ports)
    for index, value in enumerate(node.inputs):
        axes = rule.inputs[index] if index < len(rule.inputs) else None
        if value is None:
            continue
        if (False, index) not in ports:
            if axes is not None and not is_parameter(rule, axes) and context.tensors.is_constant(value):
                context.replace(node, index, context.constants.laid(value, input_dims(rule, axes, form.dims)))
            continue
        port, format_ = ports[False, index]
        tensor, stem = port.operand.tensor, context.stem(port.operand)
        dims = port_dims(choice, port, form, rule)
        if hidden is not None and axes is not None:
            context.replace(node, index, context.copies.read_as(tensor, format_, dims, hidden, stem=stem).value)
            continue
        # An operand of lower rank may as well have unit dimensions at the front: broadcasting adds them anyway.
        result_axes = rule.outputs[0] or ()
        most = len(form.dims) if axes is not None and rule.broadcasts and len(axes) < len(result_axes) else 0
        context.replace(node, index, context.copies.read(tensor, format_, dims, most=most, stem=stem).value)
    edit = None
    moved = hidden is None and form.dims != in_source(len(form.dims))
    native = native_letters(len(rule.letters)) if rule.letters else ""
    if moved and _operator(context, choice, node, rule, form):
        edit = _in_steps(rule, form)
    elif moved and rule.letters != native:
        # The function's operator reads ONNX's own order, and so do its attributes and constants.
        edit = rule.edit(tuple(rule.letters.index(letter) for letter in native))
    for index, value in enumerate(node.outputs):
        if (True, index) not in ports:
            continue
        port, format_ = ports[True, index]
        if hidden is not None and rule.outputs[index] is not None:
            value.shape = ir.Shape(hidden)
            dims = port_dims(choice, port, form, rule)
            context.copies.enter(port.operand.tensor, format_, Physical(value, dims, hidden))
        else:
            context.register(value, port.operand, format_, present(own_dims(choice, port, form, rule)))
    return edit


def _in_steps(rule: Free, form: FreeLowering) -> Edit:
    """How the node's text changes, where an axis that it works on may be cut."""
    is_cut = any(not atom.is_whole and rule.traits[atom.axis].tile_multiple for group in form.dims for atom in group)
    if rule.edit_tiled is None or not is_cut:
        return rule.edit(form.axes)
    # What reaches up to the end of an axis is its outer piece.
    strides = tuple(1 if len(group) > 1 else 0 if group[0].outer else group[0].inner for group in form.dims)
    return rule.edit_tiled(form.axes, strides)


def _hidden_shape(
    context: RewriteContext, node: ir.Node, rule: Free, form: FreeLowering, ports: dict[tuple[bool, int], tuple[Port, MemoryFormat]]
) -> tuple[Extent, ...] | None:
    """Where an element-wise node reads only tensors that a shape hides, all the same one, it works on them as they
    are: elements at equal places meet. None elsewhere."""
    axes = tuple(range(len(rule.extents)))
    if not is_elementwise(rule, form) or all(a.is_whole for group in form.dims for a in group):
        return None
    found: set[tuple[Extent, ...] | None] = set()
    for index, value in enumerate(node.inputs):
        own = rule.inputs[index] if index < len(rule.inputs) else None
        if value is None or own is None or own == ():
            continue
        if (False, index) not in ports:
            return None
        port, format_ = ports[False, index]
        if own != axes or port.operand.view.extents != rule.extents:
            return None
        found.add(context.copies.hidden(port.operand.tensor, format_))
    shared = next(iter(found)) if len(found) == 1 else None
    return shared if all(own in (axes, None) for own in rule.outputs) else None


def _operator(context: RewriteContext, choice: NodeAlternatives, node: ir.Node, rule: Free, form: FreeLowering) -> bool:
    """ONNX's own operator where it takes this order, else `relayout::` with the layout in letters; whether it is
    ONNX's own, whose attributes speak of the axes as they lie."""
    if not rule.letters:
        return True
    data = choice.ports[0].operand.view.extents
    layout = word(form.dims, rule.letters, data if len(data) == len(rule.letters) else None)
    native = native_letters(len(rule.letters))
    if rule.allows(form.axes) and (layout == native or not form.asked):
        if node.domain == DOMAIN:
            standard(node)
        return True
    assert layout is not None  # only what a backend's layout names is written so
    places = tuple(native.index(letter) for letter in rule.letters)

    extents = operand_extents(choice)

    def turn(axes: Axes | None, index: int, *, is_result: bool) -> Turn | None:
        if axes is None or len(axes) != len(places):
            return None
        return turned(form.dims, places, extents.get((is_result, index)))

    relayout(context,
        node,
        (("data_layout", layout),),
        tuple(turn(axes, index, is_result=False) for index, axes in enumerate(rule.inputs)),
        tuple(turn(axes, index, is_result=True) for index, axes in enumerate(rule.outputs)),
    )
    return False


Ports = dict[tuple[bool, int], tuple[Port, MemoryFormat]]


def is_elementwise(rule: Free, form: FreeLowering) -> bool:
    """Whether the node's elements at equal places meet, and its text says nothing of axes."""
    axes = tuple(range(len(rule.extents)))
    return rule.tileable == rule.broadcasts == axes and rule.edit(form.axes) is NO_EDIT


def as_it_lies(context: RewriteContext, node: ir.Node, rule: Free, form: FreeLowering, ports: Ports) -> FreeLowering:
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
        dims = _dims_of(context, rule, port, format_)
        if dims is not None and all(_takes(_extents(node, ports, i), rule, i, dims) for i in range(len(node.inputs))):
            return replace(form, dims=dims)
    return form


def _dims_of(context: RewriteContext, rule: Free, port: Port, format_: MemoryFormat) -> Dims | None:
    """The dimensions of an operand that has all axes of the space, as groups of pieces of those."""
    physical = context.copies.first(port.operand.tensor, format_)
    units = [axis for axis, extent in enumerate(rule.extents) if extent == 1]
    found: list[MemoryFormat] = []
    for group in physical.dims:
        own = port.operand.view.from_base(group)
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
