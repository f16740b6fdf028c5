"""The shardings of tensors that nodes state for several devices, carried over to the layouts of the legal model.

ONNX has them since IR version 11, as `ShardingSpecProto`: axes of an input or a result of a node, each with its shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.interface import rank_of
from relayout.candidates.alternatives import FixedLowering, FreeLowering, OperandDims, in_source
from relayout.formulate.plan import Plan, PlannedNode
from relayout.layout.conversion import flat
from relayout.layout.memory_format import is_whole
from relayout.ops import graphs_of
from relayout.rewrite.wiring import constant_dims

if TYPE_CHECKING:
    from onnx_ir import NodeDeviceConfiguration, ShardingSpec


class Sharding(Struct, frozen=True):
    """A sharding that a node of the source states in a configuration. `axes`: for each input and result of the legal
    node that it is about, the sharded axes, counted from the last one; none where a layout cannot state it."""

    configuration: NodeDeviceConfiguration
    spec: ShardingSpec
    axes: Mapping[tuple[bool, int], Sequence[int]]


def shardings_of(planned: PlannedNode) -> list[Sharding]:
    """The shardings that the source states at this node, before it is rewritten; nearly always none."""
    node = planned.node
    if node is None or not node.device_configurations or planned.is_elided:
        return []
    return [
        Sharding(configuration, spec, dict(_relaid(planned, node, spec)))
        for configuration in node.device_configurations
        for spec in configuration.sharding_specs
    ]


def state_shardings(node: ir.Node, parts: Sequence[NodeDeviceConfiguration], shardings: Iterable[Sharding]) -> None:
    """State at a node of the legal model its `parts` in configurations of devices, with these shardings."""
    stated: dict[int, dict[tuple[int, ir.Value], ShardingSpec]] = {}
    for each in shardings:
        for (is_result, index), axes in each.axes.items():
            values = node.outputs if is_result else node.inputs
            value = values[index] if index < len(values) else None
            if value is None:
                continue  # a result that nothing reads is left out
            rank = len(value.shape) if value.shape is not None else 0
            sharded = zip(each.spec.sharded_dims, axes, strict=True)
            dims = tuple(dataclasses.replace(dim, axis=rank + axis) for dim, axis in sharded)
            # One node may read a value twice.
            known = stated.setdefault(id(each.configuration.configuration), {})
            known[id(each.spec), value] = dataclasses.replace(each.spec, value=value, sharded_dims=dims)
    node.device_configurations = tuple(
        dataclasses.replace(each, sharding_specs=tuple(stated.get(id(each.configuration), {}).values()))
        for each in parts
    )


def lost_shardings(plan: Plan) -> Iterator[str]:
    """A warning if the legal model cannot state all shardings of the source."""
    lost = [each.spec.value for planned in plan.of_node.values() for each in shardings_of(planned) if not each.axes]
    if lost:
        first = lost[0].name if lost[0] is not None else None
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield f"shardings left out, which the layouts or the new nodes cannot state: of '{first}'{more}"


def _relaid(planned: PlannedNode, node: ir.Node, spec: ShardingSpec) -> Iterator[tuple[tuple[bool, int], list[int]]]:
    """Each input and result of the node that the sharding is about, with the sharded axes in the legal model."""
    for is_result, values in ((False, node.inputs), (True, node.outputs)):
        for index, value in enumerate(values):
            if value is None or value is not spec.value:
                continue
            rank, own = rank_of(value), _dims_of(planned, value, is_result, index)
            if own is None:
                continue
            places = {group[0].axis: n for n, group in enumerate(own) if group and len(group) == 1 and is_whole(group)}
            axes = [places.get(dim.axis + rank if dim.axis < 0 else dim.axis) for dim in spec.sharded_dims]
            if None not in axes:
                yield (is_result, index), [axis - len(own) for axis in axes if axis is not None]


def _dims_of(planned: PlannedNode, value: ir.Value, is_result: bool, index: int) -> OperandDims | None:
    """The dimensions of an input or result in the legal model, in atoms of its axes; None where other nodes replace the
    node, where its tiles may be fused, and where the layout is that of a value in a body."""
    lowering = planned.lowering
    if isinstance(lowering, FixedLowering) and lowering.rewrite is not None:
        return None
    if isinstance(lowering, FreeLowering) and (lowering.rewritten or not is_whole(flat(lowering.dims))):
        return None
    for port in planned.ports:
        if (port.is_result, port.index) == (is_result, index):
            return planned.operand_dims(port)
    if value.shape and planned.node is not None and any(graphs_of(planned.node)):
        return None
    constant = None if is_result else constant_dims(planned.rule, lowering, index)
    return in_source(rank_of(value)) if constant is None else constant
