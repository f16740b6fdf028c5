"""Layout-agnostic nodes in another order of their iteration space."""

from __future__ import annotations

from typing import cast

import onnx_ir as ir
from msgspec.structs import replace

from relayout.candidates.alternatives import FixedLowering, FreeLowering, Port, in_source
from relayout.candidates.free_node import operand_dims
from relayout.formulate.plan import PlannedNode
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Atom, Extent, MemoryFormat
from relayout.model.emit import Physical
from relayout.ops import NO_EDIT, Edit, Free, extents_of
from relayout.ops.named_axes import native_letters
from relayout.rewrite.annotations import forget
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.copies import stem_of
from relayout.rewrite.fixed_nodes import Operator, layout_string, onnx_operator, packed_operator
from relayout.rewrite.wiring import Wiring

_Ports = dict[int, tuple[Port, MemoryFormat]]


def free_operator(
    context: RewriteContext, planned: PlannedNode, rule: Free, lowering: FreeLowering
) -> tuple[Operator, Edit | None]:
    """ONNX's own operator if that supports this order, else a `relayout::` operator; and the remaining edit. The
    attributes of ONNX's own must follow the permutation."""
    node = planned.node
    assert node is not None
    if lowering.dims == in_source(len(lowering.dims)):
        return None, None
    if not rule.axis_names:
        return None, _edit(rule, lowering)
    data = planned.ports[0].operand.view.extents
    layout = layout_string(lowering.dims, rule.axis_names, data if len(data) == len(rule.axis_names) else None)
    native = native_letters(len(rule.axis_names))
    if rule.allows(lowering.axes) and (layout == native or not lowering.asked):
        return onnx_operator(node), _edit(rule, lowering)
    assert layout is not None  # only an order that a backend requires by a layout has such an operator
    inputs, outputs = (
        tuple([operand_dims(axes, lowering.dims) for axes in each]) for each in (rule.inputs, rule.outputs)
    )
    return packed_operator(context, planned, rule, FixedLowering(inputs, outputs))


def _edit(rule: Free, lowering: FreeLowering) -> Edit:
    """The node's edit, also for tiled axes."""
    tiles = (atom for group in lowering.dims for atom in group if not atom.is_whole)
    is_tiled = any(rule.traits[atom.axis].tile_multiple for atom in tiles)
    if rule.edit_tiled is None or not is_tiled:
        return rule.edit(lowering.axes)
    # The `outer` of an outermost tile is 0: it reaches to the end of its axis.
    strides = tuple(1 if len(group) > 1 else 0 if group[0].outer else group[0].inner for group in lowering.dims)
    return rule.edit_tiled(lowering.axes, strides)


def is_tiled_elementwise(rule: Free, lowering: FreeLowering) -> bool:
    """Whether a node is elementwise, has no numbers per axis, and works on tiled axes."""
    if all(atom.is_whole for group in lowering.dims for atom in group):
        return False
    axes = tuple(range(len(rule.extents)))
    return rule.tileable == rule.broadcasts == axes and rule.edit(lowering.axes) is NO_EDIT


def connect_aliased(context: RewriteContext, planned: PlannedNode, node: ir.Node, rule: Free, wiring: Wiring) -> bool:
    """Connect an elementwise node to operands that all have one aliased shape, and let it work on this shape. The
    result: whether they have."""
    shape = _aliased_shape(context, node, rule, _operands(planned))
    if shape is None:
        return False
    for wire in wiring.inputs:
        if wire.place is not None:
            tensor, format_ = planned.ports[wire.place].operand.tensor, planned.formats[wire.place]
            dims, stem = cast(Dims, wire.dims), stem_of(tensor)
            if rule.inputs[wire.index] is None:
                read = context.copies.read(tensor, format_, dims, stem=stem)
            else:
                read = context.copies.read_as(tensor, format_, dims, shape, stem=stem)
            context.replace_input(node, wire.index, read.value)
    for place, laid in wiring.results:
        port, format_ = planned.ports[place], planned.formats[place]
        value = node.outputs[port.index]
        if rule.outputs[port.index] is None:
            context.place(value, port.operand, format_, laid)
        else:
            value.shape = ir.Shape(shape)
            forget(value)
            context.copies.add(port.operand.tensor, format_, Physical(value, laid.dims, shape))
    return True


def fused_tiles(
    context: RewriteContext, planned: PlannedNode, node: ir.Node, rule: Free, lowering: FreeLowering
) -> FreeLowering:
    """The lowering of an elementwise node with several tiles fused into one dimension, as in one of its operands, which
    saves the Reshapes around the node. The unchanged lowering if a dimension would be partly broadcast."""
    if lowering.asked:
        return lowering
    axes, ports = tuple(range(len(rule.extents))), _operands(planned)
    for index, own in enumerate(rule.inputs):
        port, format_ = ports.get(index, (None, ()))
        if port is None or own != axes or port.operand.view.extents != rule.extents:
            continue
        dims = _dims_of(context, rule, port, format_)
        if dims is not None and all(_takes(_extents(node, ports, i), rule, i, dims) for i in range(len(node.inputs))):
            return replace(lowering, dims=dims)
    return lowering


def with_units_of_operands(
    context: RewriteContext, planned: PlannedNode, rule: Free, lowering: FreeLowering
) -> FreeLowering:
    """The lowering of an elementwise node with its axes of extent 1 where all its operands have them, which saves the
    Reshapes around the node; else the unchanged lowering."""
    axes = tuple(range(len(rule.extents)))
    if 1 not in rule.extents or lowering.asked or rule.tileable != axes or rule.edit(axes) is not NO_EDIT:
        return lowering
    found: set[Dims | None] = set()
    for index, (port, format_) in _operands(planned).items():
        own = rule.inputs[index]
        if own:
            is_whole_space = own == axes and port.operand.view.extents == rule.extents
            found.add(_dims_of(context, rule, port, format_) if is_whole_space else None)
    dims = found.pop() if len(found) == 1 else None
    if dims is None or dims == lowering.dims or _long_axes(dims, rule) != _long_axes(lowering.dims, rule):
        return lowering
    # Each axis is one dimension, and their order is one in which the node runs.
    is_permuted = sorted(dims) == list(in_source(len(axes)))
    return (
        replace(lowering, dims=dims)
        if is_permuted and rule.allows(tuple(group[0].axis for group in dims))
        else lowering
    )


def _long_axes(dims: Dims, rule: Free) -> list[Atom]:
    return [atom for group in dims for atom in group if rule.extents[atom.axis] != 1]


def _operands(planned: PlannedNode) -> _Ports:
    """The operands with their formats, by index."""
    return {port.index: (port, format_) for port, format_ in planned.operands()}


def _aliased_shape(context: RewriteContext, node: ir.Node, rule: Free, ports: _Ports) -> tuple[Extent, ...] | None:
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
    if not found:
        return None  # a scalar
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
