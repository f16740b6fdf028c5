"""Layout-agnostic nodes in another order of their iteration space."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec.structs import replace

from relayout.candidates.alternatives import FreeLowering, Port, in_source, input_dims, is_parameter
from relayout.formulate.plan import PlannedNode
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Atom, Extent, MemoryFormat
from relayout.model.emit import Physical
from relayout.model.layout_functions import DOMAIN, OperandConversion, use_onnx_operator
from relayout.ops import NO_EDIT, Axes, Edit, Free, extents_of
from relayout.ops.named_axes import native_letters
from relayout.rewrite.annotations import forget
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.copies import stem_of
from relayout.rewrite.function_calls import call_function, layout_string, operand_extents, permuted
from relayout.rewrite.operand_dims import base_dims, present

__all__ = ["write_free"]

_Ports = dict[int, tuple[Port, MemoryFormat]]


def write_free(
    context: RewriteContext, planned: PlannedNode, node: ir.Node, rule: Free, lowering: FreeLowering
) -> Edit | None:
    """Connect the node to operands with the dimensions of the lowering; returns the remaining edit."""
    ports = {port.index: (port, format_) for port, format_ in planned.operands()}
    is_elementwise = _is_elementwise(rule, lowering)
    aliased = _aliased_shape(context, node, rule, lowering, ports) if is_elementwise else None
    if aliased is None and is_elementwise:
        lowering = _in_place(context, node, rule, lowering, ports)
    for index, value in enumerate(node.inputs):
        axes = rule.inputs[index] if index < len(rule.inputs) else None
        if value is None:
            continue
        if index not in ports:
            if axes is not None and not is_parameter(rule, axes) and context.tensors.is_constant(value):
                constant = context.constants.relaid(value, input_dims(rule, axes, lowering.dims))
                context.replace_input(node, index, constant)
            continue
        port, format_ = ports[index]
        dims = base_dims(port.operand, lowering.operand_dims(port, rule))
        if aliased is not None and axes is not None:
            tensor = port.operand.tensor
            read = context.copies.read_as(tensor, format_, dims, aliased, stem=stem_of(tensor)).value
        else:
            # An operand of lower rank may have leading unit dimensions, which broadcasting would add.
            is_short = axes is not None and rule.broadcasts and len(axes) < len(rule.outputs[0] or ())
            read = context.read(port.operand, format_, dims, most=len(lowering.dims) if is_short else 0)
        context.replace_input(node, index, read)
    edit = None
    is_permuted = aliased is None and lowering.dims != in_source(len(lowering.dims))
    native = native_letters(len(rule.axis_names)) if rule.axis_names else ""
    if is_permuted and _stays_onnx(context, planned, node, rule, lowering):
        edit = _edit(rule, lowering)
    elif is_permuted and rule.axis_names != native:
        # The operator inside the function, its attributes and its constants are in ONNX's order.
        edit = rule.edit(tuple(rule.axis_names.index(letter) for letter in native))
    for port, format_ in planned.results():
        value, own = node.outputs[port.index], lowering.operand_dims(port, rule)
        if aliased is not None and rule.outputs[port.index] is not None:
            value.shape = ir.Shape(aliased)
            forget(value)
            dims = base_dims(port.operand, own)
            context.copies.add(port.operand.tensor, format_, Physical(value, dims, aliased))
        else:
            context.register(value, port.operand, format_, present(own))
    return edit


def _edit(rule: Free, lowering: FreeLowering) -> Edit:
    """The node's edit, also for tiled axes."""
    tiles = (atom for group in lowering.dims for atom in group if not atom.is_whole)
    is_tiled = any(rule.traits[atom.axis].tile_multiple for atom in tiles)
    if rule.edit_tiled is None or not is_tiled:
        return rule.edit(lowering.axes)
    # The `outer` of an outermost tile is 0: it reaches to the end of its axis.
    strides = tuple(1 if len(group) > 1 else 0 if group[0].outer else group[0].inner for group in lowering.dims)
    return rule.edit_tiled(lowering.axes, strides)


def _stays_onnx(
    context: RewriteContext, planned: PlannedNode, node: ir.Node, rule: Free, lowering: FreeLowering
) -> bool:
    """Write the node as ONNX's own operator if that supports this order, else as `relayout::` with a layout attribute.
    Returns whether it is ONNX's own, whose attributes must follow the permutation."""
    if not rule.axis_names:
        return True
    data = planned.ports[0].operand.view.extents
    layout = layout_string(lowering.dims, rule.axis_names, data if len(data) == len(rule.axis_names) else None)
    native = native_letters(len(rule.axis_names))
    if rule.allows(lowering.axes) and (layout == native or not lowering.asked):
        if node.domain == DOMAIN:
            use_onnx_operator(node)
        return True
    assert layout is not None  # only an order that a backend requires by a layout has such an operator
    positions = tuple(native.index(letter) for letter in rule.axis_names)
    extents = operand_extents(planned)

    def conversions(sides: Sequence[Axes | None], *, is_result: bool) -> tuple[OperandConversion | None, ...]:
        return tuple(
            None
            if axes is None or len(axes) != len(positions)
            else permuted(lowering.dims, positions, extents.get((is_result, index)))
            for index, axes in enumerate(sides)
        )

    inputs, results = context.shared(
        rule,
        lowering,
        (*extents.items(),),
        lambda: (conversions(rule.inputs, is_result=False), conversions(rule.outputs, is_result=True)),
    )
    call_function(context, node, (("data_layout", layout),), inputs, results)
    return False


def _is_elementwise(rule: Free, lowering: FreeLowering) -> bool:
    """Whether the node is elementwise, has no numbers per axis, and works on tiled axes."""
    if all(atom.is_whole for group in lowering.dims for atom in group):
        return False
    axes = tuple(range(len(rule.extents)))
    return rule.tileable == rule.broadcasts == axes and rule.edit(lowering.axes) is NO_EDIT


def _aliased_shape(
    context: RewriteContext, node: ir.Node, rule: Free, lowering: FreeLowering, ports: _Ports
) -> tuple[Extent, ...] | None:
    """The common aliased shape of all operands of an elementwise node, which then works on this shape; else None."""
    axes = tuple(range(len(rule.extents)))
    found: set[tuple[Extent, ...] | None] = set()
    for index, value in enumerate(node.inputs):
        own = rule.inputs[index] if index < len(rule.inputs) else None
        if value is None or own is None or own == ():
            continue
        if index not in ports:
            return None
        port, format_ = ports[index]
        if own != axes or port.operand.view.extents != rule.extents:
            return None
        found.add(context.copies.aliased_shape(port.operand.tensor, format_))
    shared = next(iter(found)) if len(found) == 1 else None
    return shared if all(own in (axes, None) for own in rule.outputs) else None


def _in_place(
    context: RewriteContext, node: ir.Node, rule: Free, lowering: FreeLowering, ports: _Ports
) -> FreeLowering:
    """The lowering of an elementwise node with several tiles fused into one dimension, as in one of its operands, which
    saves the Reshapes around the node. The unchanged lowering if a dimension would be partly broadcast."""
    if lowering.asked:
        return lowering
    axes = tuple(range(len(rule.extents)))
    for index, own in enumerate(rule.inputs):
        port, format_ = ports.get(index, (None, ()))
        if port is None or own != axes or port.operand.view.extents != rule.extents:
            continue
        dims = _dims_of(context, rule, port, format_)
        if dims is not None and all(_takes(_extents(node, ports, i), rule, i, dims) for i in range(len(node.inputs))):
            return replace(lowering, dims=dims)
    return lowering


def _dims_of(context: RewriteContext, rule: Free, port: Port, format_: MemoryFormat) -> Dims | None:
    """The dimensions of an operand with all axes of the iteration space, as groups of the space's atoms."""
    physical = context.copies.first(port.operand.tensor, format_)
    units = [axis for axis, extent in enumerate(rule.extents) if extent == 1]
    found: list[MemoryFormat] = []
    for group in physical.dims:
        own = port.operand.view.from_base(group)
        if own is None or physical.shape is not None or not (own or units):
            return None
        found.append(own or (Atom(units.pop(0)),))
    # A unit axis without its own dimension is fused with another one.
    index = max(range(len(found)), key=lambda index: (len(found[index]), index))
    found[index] += tuple(Atom(axis) for axis in units)
    return tuple(found)


def _extents(node: ir.Node, ports: _Ports, index: int) -> tuple[Extent, ...] | None:
    """The extents of an input in the source."""
    if index in ports:
        return ports[index][0].operand.view.extents
    value = node.inputs[index]
    return extents_of(value) if value is not None else ()


def _takes(extents: tuple[Extent, ...] | None, rule: Free, index: int, dims: Dims) -> bool:
    """Whether this input has all axes of each dimension or none of them, so that no dimension is partly broadcast."""
    axes = rule.inputs[index] if index < len(rule.inputs) else None
    if axes is None or extents is None:
        return extents == ()
    full = {axis for axis, extent in zip(axes, extents, strict=True) if extent == rule.extents[axis]}
    return all(len({a.axis in full for a in group if rule.extents[a.axis] != 1}) <= 1 for group in dims)
