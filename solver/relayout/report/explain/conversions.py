"""A plan as records of the report: each conversion and transfer with its producer and consumers, and the boundary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from relayout.backend.calls import conversion_operators_of
from relayout.backend.interface import Backend
from relayout.candidates.alternatives import BoundaryLowering, FreeLowering
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.messages import format_text
from relayout.candidates.tensors import Operand, Tensor
from relayout.formulate.def_use import TensorUse
from relayout.formulate.plan import Plan, PlannedConversion, PlannedNode
from relayout.layout.conversion import Dims, dims_shape, one_each, path, steps_of
from relayout.layout.memory_format import Extent, MemoryFormat, boxes_of, source_order
from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.model.dims.output_dims import noted_extents
from relayout.ops.logical_node import node_name
from relayout.report.schema import (
    BoundaryValue,
    Charge,
    ChargeKind,
    Conversion,
    ConversionKind,
    DevicePlacement,
    Explanation,
    RequiredBy,
    Transfer,
)


class Records(Struct, frozen=True):
    """A plan as fields of the report."""

    conversions: tuple[Conversion, ...]
    transfers: tuple[Transfer, ...]
    charges: tuple[Charge, ...]
    devices: tuple[DevicePlacement, ...]
    boundary: tuple[BoundaryValue, ...]
    explanation: Explanation | None = None


def records_of(
    graph: ir.Graph, plan: Plan, bytes_of: Callable[[Tensor, MemoryFormat], int], backend: Backend
) -> Records:
    """The records of a plan, before the rewrite of `graph`. `bytes_of` has the size of a tensor in a format."""
    return Records(
        conversions_of(plan),
        transfers_of(plan),
        _charges_of(plan, bytes_of, conversion_operators_of(backend)),
        _placements(plan, backend),
        boundary_of(graph, plan),
    )


def conversions_of(plan: Plan) -> tuple[Conversion, ...]:
    """The conversions of the plan, in the order of the graph."""
    found = []
    for conversion in plan.conversions:
        producer = plan.nodes[conversion.producer.choice]
        operand = producer.ports[conversion.producer.port].operand
        source, target = _ends_text(plan, conversion, operand)
        found.append(
            Conversion(
                value=conversion.tensor.base.name or "",
                from_=source,
                to=target,
                kind=_kind(conversion),
                bytes=conversion.bytes,
                passes=conversion.passes,
                padding=conversion.padding,
                producer=name_of(producer, conversion.producer.port),
                required_by=tuple(_required_by(plan, use) for use in conversion.consumers),
            )
        )
    return tuple(found)


def _ends_text(plan: Plan, conversion: PlannedConversion, operand: Operand) -> list[str]:
    """The formats of a conversion, in the spelling in which the backend was asked about an operator of its own."""
    formats, base = (conversion.source, conversion.target), plan.tensors.operands[conversion.tensor.base]
    found = []
    for format_, spelled in zip(formats, conversion.native or formats, strict=True):
        layout = plan.names.layout(base, spelled) if base is not None and spelled != format_ else None
        found.append(str(layout) if layout is not None else format_text(plan.names, operand, format_))
    return found


def with_nodes(plan: Plan, written: Mapping[int, Sequence[ir.Node]], records: Records) -> Records:
    """The records of the plan with the nodes of the legal model that its conversions and charges became. `written` are
    those that the rewrite emitted; empty where the source is the legal model, and its Transposes are the conversions.
    """
    views: dict[tuple[Tensor, MemoryFormat], list[ir.Node]] = {}
    for node, _, given in plan.tensors.turns() if plan.conversions and not written else ():
        views.setdefault((given.tensor, given.source_format), []).append(node)

    def of(planned: PlannedConversion | PlannedNode, kept: Sequence[ir.Node | None]) -> dict[str, tuple[str, ...]]:
        nodes = [node for node in written.get(id(planned), kept) if node is not None and node.graph is not None]
        return {"nodes": tuple([node.outputs[0].name or "" for node in nodes])}

    moved = []
    for each, conversion in zip(records.conversions, plan.conversions, strict=True):
        own = views.get((conversion.tensor, conversion.target), [])
        moved.append(each.model_copy(update=of(conversion, [own.pop(0)] if own else ())))
    charged = zip(records.charges, _charged(plan), strict=True)
    charges = tuple([each.model_copy(update=of(own, [own.node])) for each, own in charged])
    return replace(records, conversions=tuple(moved), charges=charges)


def _charged(plan: Plan) -> list[PlannedNode]:
    return [each for each in plan.nodes if each.chosen.cost]


def _kind(conversion: PlannedConversion) -> ConversionKind:
    if conversion.by_backend:
        return "reorder"
    if all(atom.is_whole for atom in (*conversion.source, *conversion.target)):
        return "transpose"
    stages = path(one_each(conversion.source), one_each(conversion.target), conversion.tensor.extents)
    kinds = {stage.kind for stage in stages}
    if "transpose" in kinds:
        return "transpose"
    return "pad" if kinds & {"pad", "crop"} else "reshape"


def transfers_of(plan: Plan) -> tuple[Transfer, ...]:
    """The transfers of the plan, in the order of the graph."""
    found = []
    for transfer in plan.transfers:
        producer = plan.nodes[transfer.producer.choice]
        found.append(
            Transfer(
                value=transfer.tensor.base.name or "",
                from_=transfer.source,
                to=transfer.target,
                layout=format_text(plan.names, producer.ports[transfer.producer.port].operand, transfer.format),
                bytes=transfer.bytes,
                cost=transfer.cost,
                producer=producer.label,
                required_by=tuple(_required_by(plan, use) for use in transfer.consumers),
            )
        )
    return tuple(found)


def _charges_of(
    plan: Plan, bytes_of: Callable[[Tensor, MemoryFormat], int], operators: Set[tuple[str, str]]
) -> tuple[Charge, ...]:
    """The nodes with a cost, in the order of the graph. `operators` are the backend's own that only convert."""
    found = []
    for each in _charged(plan):
        kind, cost = _kind_of_charge(each, operators), each.chosen.cost
        first = next(zip(each.ports, each.formats, strict=True), None)
        moved = sum(bytes_of(port.operand.tensor, f) for port, f in zip(each.ports, each.formats, strict=True))
        found.append(
            Charge(
                node=each.label,
                layout=format_text(plan.names, first[0].operand, first[1]) if first is not None else "",
                kind=kind,
                bytes=moved if kind in ("reorder", "pad") else cost,
                cost=cost,
            )
        )
    return tuple(found)


def _kind_of_charge(planned: PlannedNode, operators: Set[tuple[str, str]]) -> ChargeKind:
    node = planned.node
    if node is not None and (node.domain, node.op_type) in operators:
        return "reorder"
    if node is not None and CONVERSION_KEY in node.metadata_props:
        return "pad"
    is_decomposed = isinstance(planned.lowering, FreeLowering) and planned.lowering.rewritten is not None
    return "decomposition" if is_decomposed else "operator"


def _placements(plan: Plan, backend: Backend) -> tuple[DevicePlacement, ...]:
    """The nodes of each device, if there are several devices."""
    nodes: dict[str, list[str]] = {device: [] for device in backend.devices()}
    for node, each in plan.of_node.items():
        if each.device in nodes and not each.is_elided:
            nodes[each.device].append(node_name(node))
    return tuple(
        DevicePlacement(device=device, backend=backend.at(device).name, nodes=tuple(names))
        for device, names in nodes.items()
    )


def boundary_of(graph: ir.Graph, plan: Plan) -> tuple[BoundaryValue, ...]:
    """The shape and layout of each graph input and output under the plan, and the steps from and to the source's.
    `graph` is the source, before the rewrite."""
    formats: dict[tuple[str, int], MemoryFormat] = {}
    for planned in plan.nodes:
        if planned.node is None and isinstance(planned.lowering, BoundaryLowering):
            for port in planned.ports:
                formats["input" if port.is_result else "output", port.index] = planned.lowering.format
    of_inputs = {value: formats["input", i] for i, value in enumerate(graph.inputs) if ("input", i) in formats}
    found = []
    sides: tuple[tuple[Literal["input", "output"], Sequence[ir.Value]], ...]
    sides = (("input", graph.inputs), ("output", graph.outputs))
    for side, values in sides:
        for index, value in enumerate(values):
            # An output that is an input has the input's format.
            order = formats.get((side, index), of_inputs.get(value))
            key = side, value.name or ""
            found.append(
                BoundaryValue(
                    name=value.name or "",
                    side=side,
                    wanted=plan.boundary.requested.get(key),
                    coupled_with=plan.boundary.coupled.get(key, ()),
                    **_layout_facts(value, side, plan.tensors.operands.get(value), order, plan.names),
                )
            )
    return tuple(found)


def _layout_facts(
    value: ir.Value, side: str, operand: Operand | None, order: MemoryFormat | None, names: AxisNames
) -> dict[str, Any]:
    extents = noted_extents(value)
    if operand is None or order is None or order == source_order(len(order)):
        return {"shape": extents, "layout": names.of(operand) if operand is not None else None}
    if extents is not None and any(not atom.is_whole for atom in order):
        identity, dims = one_each(source_order(len(extents))), one_each(order)
        return {
            "shape": dims_shape(dims, extents),
            "transform": _steps(identity, dims, extents),
            "back": _steps(dims, identity, extents) if side == "output" else (),
            "layout": str(names.layout(operand, order) or "") or None,
        }
    axes = tuple(atom.axis for atom in order)
    shape = tuple(extents[axis] for axis in axes) if extents is not None else None
    layout = str(names.layout(operand, order) or "") or None if boxes_of(order) else names.in_order(operand, order)
    return {"shape": shape, "order": axes if axes != tuple(range(len(axes))) else None, "layout": layout}


def _steps(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> tuple[dict[str, Any], ...]:
    return tuple(_in_numbers(step) for step in steps_of(source, target, extents))


def _in_numbers(step: Mapping[str, Any]) -> dict[str, Any]:
    """The step as JSON; -1 stands for an extent that is only known at run time."""
    numbers = {key: [n if isinstance(n, int) else -1 for n in field] for key, field in step.items() if key != "op"}
    return {"op": step["op"], **numbers}


def name_of(planned: PlannedNode, port: int) -> str:
    """The name of the node, input or output in messages; of coupled ones, the one with this port."""
    if planned.node is None and len(planned.ports) > 1:
        own = planned.ports[port]
        return f"{'input' if own.is_result else 'output'} {own.operand.value.name}"
    return planned.label


def required_layout(plan: Plan, use: TensorUse) -> str:
    """The required layout at this use, as the backend or the caller spells it; without one, the chosen format."""
    planned = plan.nodes[use.choice]
    return planned.layouts[use.port] or format_text(plan.names, planned.ports[use.port].operand, plan.format_at(use))


def _required_by(plan: Plan, use: TensorUse) -> RequiredBy:
    planned = plan.nodes[use.choice]
    operand = max(planned.ports[use.port].index, 0)
    return RequiredBy(node=name_of(planned, use.port), operand=operand, layout=required_layout(plan, use))
