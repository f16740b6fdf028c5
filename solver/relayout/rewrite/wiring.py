"""The operands and results of a node in their planned formats."""

from __future__ import annotations

from typing import cast

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.interface import rank_of
from relayout.candidates.alternatives import (
    FixedLowering,
    FreeLowering,
    Lowering,
    OperandDims,
    axis_numbers,
    in_source,
    input_dims,
    is_parameter,
    noted_orders,
)
from relayout.candidates.axis_names import filled_names
from relayout.candidates.fixed_node import port_axis_names
from relayout.formulate.plan import PlannedNode
from relayout.layout.conversion import Dims, flat
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import OPERAND_ORDERS_KEY
from relayout.ops import Free, Rule
from relayout.rewrite.context import Laid, RewriteContext
from relayout.rewrite.operand_dims import base_dims, present


class Wire(Struct, frozen=True):
    """Input `index` of a node in these dimensions: the operand of port `place`, in atoms of its base tensor's axes; or,
    with None, a constant, in atoms of its own. A value of further leading unit dimensions, up to `most`, is taken.
    `order`: the source's axes in this order, or their names, where the graph does not determine them."""

    index: int
    place: int | None
    dims: OperandDims
    most: int = 0
    order: str = ""


class Wiring(Struct, frozen=True):
    """The inputs of a node, and its results, each with its port. `result_orders`: the order of each result, as that of
    an input."""

    inputs: tuple[Wire, ...]
    results: tuple[tuple[int, Laid], ...]
    result_orders: tuple[str, ...]


def wiring_of(context: RewriteContext, planned: PlannedNode, lowering: Lowering) -> Wiring:
    """The wiring of a node under this lowering. Nodes that share an alternative have the same."""
    assert planned.node is not None
    rule, wires = planned.rule, list[Wire]()
    places = {port.index: place for place, port in enumerate(planned.ports) if not port.is_result}
    noted = noted_orders(planned.node, is_result=False) if planned.chosen.is_numbered else []
    for index, value in enumerate(planned.node.inputs):
        place, order = places.get(index), ""
        if place is not None:
            port = planned.ports[place]
            own = lowering.operand_dims(port, rule)
            dims: OperandDims | None = base_dims(port.operand, own)
            order = _order(context, planned, place, present(own))
        else:
            dims = constant_dims(rule, lowering, index) if value is not None else None
            if value is not None and planned.chosen.is_numbered:
                dims = dims or in_source(rank_of(value))
                order = _in_numbers(noted[index], dims)
        if dims is not None:
            wires.append(Wire(index, place, dims, _most_dims(rule, lowering, index), order))
    results = list[tuple[int, Laid]]()
    result_orders = [""] * len(planned.node.outputs)
    for place, (port, format_) in enumerate(zip(planned.ports, planned.formats, strict=True)):
        if port.is_result:
            given = present(lowering.operand_dims(port, rule))
            results.append((place, context.laid(port.operand, format_, given)))
            if port.index < len(result_orders):
                result_orders[port.index] = _order(context, planned, place, given)
    return Wiring(tuple(wires), tuple(results), tuple(result_orders))


def connect_operands(context: RewriteContext, planned: PlannedNode, node: ir.Node, wiring: Wiring) -> None:
    """Connect each input to its planned copy; constants are permuted. The orders of operands and results that a
    requirement by numbers is met in are noted: readers behind different Transposes count the axes of a value otherwise.
    So are names that the graph does not determine."""
    orders = [""] * len(node.inputs)
    for wire in wiring.inputs:
        value = node.inputs[wire.index]
        if wire.place is not None:
            operand, format_ = planned.ports[wire.place].operand, planned.formats[wire.place]
            value = context.read(operand, format_, cast(Dims, wire.dims), most=wire.most)
            context.replace_input(node, wire.index, value)
        elif value is not None and context.tensors.is_constant(value):
            value = context.constants.relaid(value, wire.dims)
            context.replace_input(node, wire.index, value)
        if value is not None:
            orders[wire.index] = wire.order
    node.metadata_props.pop(OPERAND_ORDERS_KEY, None)
    if any(wiring.result_orders):
        orders += wiring.result_orders
    if any(orders):
        node.metadata_props[OPERAND_ORDERS_KEY] = ";".join(orders)


def register_results(context: RewriteContext, planned: PlannedNode, node: ir.Node, wiring: Wiring) -> None:
    """Register each result in its planned format."""
    for place, laid in wiring.results:
        port = planned.ports[place]
        # The node may have lost an unused result.
        if port.index < len(node.outputs):
            context.place(node.outputs[port.index], port.operand, planned.formats[place], laid)


def _order(context: RewriteContext, planned: PlannedNode, place: int, own: Dims) -> str:
    """The names or numbers of an operand's axes by which the node's layouts of whole axes are required; empty where the
    graph determines them, and where the numbers are those of the axes as they lie."""
    port, text = planned.ports[place], planned.layouts[place]
    layout = Layout.parse(text) if text else None
    is_whole = all(len(group) == 1 and group[0].is_whole for group in own)
    if is_whole and layout is not None and not layout.is_numbered:
        names = _in_names(context, planned, place, layout, own)
        if names:
            return names
    # The next run counts as this one does, whichever implementation is chosen.
    return _in_numbers(port.noted_order, own) if planned.chosen.is_numbered else ""


def _in_names(context: RewriteContext, planned: PlannedNode, place: int, layout: Layout, own: Dims) -> str:
    """The names by which a layout is required, in the order of these dimensions; empty where the graph determines
    them."""
    names, port = context.plan.names, planned.ports[place]
    if port_axis_names(planned.rule, (port,))[0] is not None:
        return ""
    known = names.of_ports(planned)[place]
    found = port.names_for(layout, filled_names(known, port.operand.view.extents, layout)) or ""
    order = [found[group[0].axis] for group in own] if found else []
    return ",".join(order) if "".join(order) != names.in_order(port.operand, flat(own)) else ""


def _in_numbers(noted: str, own: OperandDims) -> str:
    """The numbers of the source's axes in the order of these dimensions; empty where they are in the source's order,
    and where a dimension is not one axis, be it in another order of its factors."""
    numbers, in_source = axis_numbers(noted, len(own)), [*range(len(own))]
    axes = [group[0].axis for group in own if group and len({atom.axis for atom in group}) == 1]
    order = [numbers[axis] for axis in axes]
    return ",".join(order) if sorted(axes) == in_source and order != [*map(str, in_source)] else ""


def constant_dims(rule: Rule | None, lowering: Lowering, index: int) -> OperandDims | None:
    """The dimensions of a constant input in atoms of its own axes; None: as in the source."""
    if isinstance(lowering, FixedLowering):
        return lowering.inputs[index] if index < len(lowering.inputs) else None
    assert isinstance(lowering, FreeLowering)
    assert isinstance(rule, Free)
    axes = rule.inputs[index] if index < len(rule.inputs) else None
    return None if axes is None or is_parameter(rule, axes) else input_dims(rule, axes, lowering.dims)


def _most_dims(rule: Rule | None, lowering: Lowering, index: int) -> int:
    """An operand of lower rank may have leading unit dimensions, which broadcasting would add."""
    if not isinstance(rule, Free) or not isinstance(lowering, FreeLowering) or not rule.broadcasts:
        return 0
    axes = rule.inputs[index] if index < len(rule.inputs) else None
    return len(lowering.dims) if axes is not None and len(axes) < len(rule.outputs[0] or ()) else 0
