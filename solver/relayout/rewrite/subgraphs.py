"""Region ops (If, Loop, Scan) and their regions, each value in the planned format of its region edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from relayout.candidates.alternatives import FreeLowering, Port, input_dims
from relayout.formulate.plan import PlannedNode
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import RegionPort, extents_of, graphs_of, read_at
from relayout.rewrite.boundary import keep_extents, set_output
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.conversions import convert, convert_from_outside, convert_results
from relayout.rewrite.operand_dims import port_dims, present
from relayout.rewrite.wiring import connect_operands, register_results, wiring_of

Write = Callable[[RewriteContext, ir.Node], None]


def write_region_op(context: RewriteContext, planned: PlannedNode, node: ir.Node, write: Write) -> None:
    """Write the node, and by `write` each node of its regions."""
    region_edges = context.plan.region_edges.get(node, ())
    wiring = wiring_of(context, planned, planned.lowering)
    connect_operands(context, planned, node, wiring)
    for each in region_edges:
        for index, value, _ in _operands(context, each, None):
            context.replace_input(node, index, value)
    context.insert_before(node)
    for graph in graphs_of(node):
        with context.inside(graph):
            _write_region(context, (planned, *region_edges), write)
    context.at(planned.device)
    register_results(context, planned, node, wiring)
    for each in region_edges:
        _set_scan_axis(each, node)
        context.at(each.device)
        for region_port, port, format_, dims in _results(each):
            if region_port.graph is None:
                context.register(node.outputs[region_port.index], port.operand, format_, dims)
    for each in (planned, *region_edges):
        convert_results(context, node, each)


def _write_region(context: RewriteContext, every: tuple[PlannedNode, ...], write: Write) -> None:
    """Write the current graph. `every` are its region op and region edges, which determine its inputs and outputs."""
    graph = context.graph
    declared = [extents_of(value) for value in graph.outputs]
    for each in every:
        for region_port, port, format_, dims in _results(each):
            if region_port.graph is graph:
                context.at(each.device)
                context.register(graph.inputs[region_port.index], port.operand, format_, dims)
                convert(context, port.operand.tensor)
    convert_from_outside(context)
    context.insert_before(None, front=True)
    for inner in list(graph):
        write(context, inner)
    written: set[ir.Value] = set()
    for each in every:
        for index, value, read in _operands(context, each, graph):
            set_output(context, index, value, written)
            context.insert_before(None)
            if read is not None:
                result, own = graph.outputs[index], present(each.operand_dims(read))
                keep_extents(result, declared[index] or (), own)
                # Values that cross the border of a region are in no black box.
                context.annotate(result, read.operand, own, ())


def _results(planned: PlannedNode) -> Iterator[tuple[RegionPort, Port, MemoryFormat, Dims]]:
    """Each tensor that a region op or region edge produces: its region port, format and dimensions."""
    for port, format_ in planned.results():
        yield planned.region_port(port), port, format_, present(planned.operand_dims(port))


def _operands(
    context: RewriteContext, planned: PlannedNode, graph: ir.Graph | None
) -> Iterator[tuple[int, ir.Value, Port | None]]:
    """Each value that a region op or region edge reads from `graph` (a region, or None for the node itself), with its
    index there; a constant has no port."""
    context.at(planned.device)
    for port, format_ in planned.operands():
        region_port = planned.region_port(port)
        if region_port.graph is graph:
            yield region_port.index, context.read(port.operand, format_, port_dims(planned, port)), port
    if planned.region_edge is None or planned.node is None:
        return
    region_edge, lowering = planned.region_edge, planned.lowering
    assert isinstance(lowering, FreeLowering)
    values = read_at(planned.node, region_edge.reads)
    for region_port, value, axes in zip(region_edge.reads, values, region_edge.rule.inputs, strict=True):
        if region_port.graph is graph and value is not None and axes is not None and context.tensors.is_constant(value):
            dims = input_dims(region_edge.rule, axes, lowering.dims)
            yield region_port.index, context.constants.relaid(value, dims), None


def _set_scan_axis(planned: PlannedNode, node: ir.Node) -> None:
    """Set the attribute for the axis along which a Scan runs."""
    region_edge, lowering = planned.region_edge, planned.lowering
    if region_edge is None or region_edge.scanned is None:
        return
    assert isinstance(lowering, FreeLowering)
    assert region_edge.outer_axis is not None
    attribute, index, count = region_edge.scanned
    known = list(node.attributes.get_ints(attribute, (0,) * count) or ())
    axes = [*known[:index], lowering.axes.index(region_edge.outer_axis), *known[index + 1 :]]
    if axes != known:
        node.attributes[attribute] = ir.AttrInt64s(attribute, axes)
