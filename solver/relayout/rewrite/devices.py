"""The device of each node of the legal model, in the node's metadata, where there are several devices.

A node of the source runs on its planned device, a conversion on the device of the plan, and a Reshape between shapes of
one format on the device of its consumers. A node that several devices need is duplicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from relayout.backend.interface import DEVICE_KEY, WRITTEN_KEY
from relayout.formulate.device_expansion import annotated_device
from relayout.formulate.plan import Plan
from relayout.layout.memory_format import source_order
from relayout.ops import Relabel, graphs_of
from relayout.rewrite.context import RewriteContext

__all__ = ["assign_devices", "is_placed"]

_RESHAPES = frozenset(["Reshape", "Squeeze", "Unsqueeze"])

Consumers = dict[ir.Value, dict[str, list[ir.Node]]]


def assign_devices(context: RewriteContext) -> None:
    """Assign a device to every node that depends on data, and to every input and output of the graph."""
    plan = context.plan
    producers = _producer_devices(context)
    outputs = _output_devices(context)
    for value, device in outputs.items():
        value.metadata_props[DEVICE_KEY] = device
    constant = context.tensors.constant_nodes
    consumers: Consumers = {}
    placed: dict[ir.Node, dict[str, ir.Node]] = {}
    for node in _reversed_nodes(context.graph):
        if node in plan.of_node:
            _assign(node, plan.of_node[node].device, consumers)
        elif node not in constant:
            read = {device: None for value in node.outputs for device in consumers.get(value, ())}
            own = [outputs[value] for value in node.outputs if value in outputs]
            devices = next((producers[value] for value in node.outputs if value in producers), (*own, *read))
            if own or read:
                placed[node] = _duplicate(context, node, tuple(dict.fromkeys(devices)), own, consumers)
    # Of conversions to one format at several devices, the last was written and then duplicated.
    last = {(each.tensor, each.target): context.written.get(id(each), ()) for each in plan.conversions}
    for each in plan.conversions:
        nodes = last[each.tensor, each.target]
        context.written[id(each)] = [placed.get(node, {}).get(each.device, node) for node in nodes]


def _reversed_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node in reverse order, the nodes of its regions after it."""
    for node in reversed(list(graph)):
        yield node
        for inner in graphs_of(node):
            yield from _reversed_nodes(inner)


def is_placed(plan: Plan) -> bool:
    """Whether all nodes, inputs, outputs, and the conversions' Transposes already have their device annotations."""
    if any(annotated_device(planned) != planned.device for planned in plan.nodes):
        return False
    tensors, converted = plan.tensors, set()
    if any(DEVICE_KEY not in node.metadata_props for node in tensors.shapes):
        return False
    for node, rule in tensors.rules.items():
        if not isinstance(rule, Relabel) or node in tensors.constant_nodes or node in tensors.dead:
            continue
        device, view = node.metadata_props.get(DEVICE_KEY), tensors.operands[node.outputs[0]]
        if device is None:
            return False
        if view is not None:
            converted.add((view.tensor, view.view.to_base(source_order(len(view.view.axes))), device))
    return all((each.tensor, each.target, each.device) in converted for each in plan.conversions)


def _producer_devices(context: RewriteContext) -> dict[ir.Value, tuple[str, ...]]:
    """The devices of a tensor's values in a format: that of its producer, then those of the conversions."""
    found: dict[ir.Value, tuple[str, ...]] = {}
    inputs = set(context.graph.inputs)
    for planned in context.plan.nodes:
        for port, format_ in planned.results():
            if port.operand.value in inputs:
                port.operand.value.metadata_props[DEVICE_KEY] = planned.device
            tensor = port.operand.tensor
            # The result of an elided node aliases its operand, which has a device.
            targets = {} if planned.is_elided else {format_: (planned.device,)}
            for conversion in context.plan.conversions_of.get(tensor, ()):
                at = (*targets.get(conversion.target, ()), conversion.device)
                targets[conversion.target] = tuple(sorted(at, key=lambda device: device != planned.device))
            for target, devices in targets.items():
                if context.copies.has(tensor, target):
                    copy = context.copies.first(tensor, target).value
                    found[copy] = devices
                    if (moved := _moved(copy)) is not None:
                        found.setdefault(moved, devices)
    return found


def _moved(copy: ir.Value) -> ir.Value | None:
    """The result of the Transpose of which emitted nodes make the copy by another shape. Consumers may read it too."""
    node = copy.producer()
    while node is not None and node.op_type in _RESHAPES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node.outputs[0] if node is not None and node.op_type == "Transpose" else None


def _output_devices(context: RewriteContext) -> dict[ir.Value, str]:
    """The devices of the outputs of the graph, and of its regions."""
    found: dict[ir.Value, str] = {}
    for planned in context.plan.nodes:
        for port, _ in planned.operands():
            if planned.node is None:
                found[context.graph.outputs[port.index]] = planned.device
            elif (region_port := planned.region_port(port)).graph is not None:
                found[region_port.graph.outputs[region_port.index]] = planned.device
    return found


def _assign(node: ir.Node, device: str, consumers: Consumers) -> None:
    node.metadata_props[DEVICE_KEY] = device
    for value in dict.fromkeys(node.inputs):
        if value is not None:
            consumers.setdefault(value, {}).setdefault(device, []).append(node)


def _duplicate(
    context: RewriteContext, node: ir.Node, devices: Sequence[str], outputs: Sequence[str], consumers: Consumers
) -> dict[str, ir.Node]:
    """Run an emitted node on these devices; returns the node of each. Each consumer reads the duplicate on its own
    device, or else the first. The node itself defines graph outputs, whose devices are `outputs`."""
    first = next((device for device in outputs if device in devices), devices[0])
    at = {device: node if device == first else _copy_of(context, node) for device in dict.fromkeys((first, *devices))}
    for device, copy in at.items():
        _assign(copy, device, consumers)
        copy.metadata_props[WRITTEN_KEY] = device
    for index, value in enumerate(node.outputs):
        for device, nodes in list(consumers.get(value, {}).items()):
            nearest = at.get(device, at[devices[0]])
            if nearest is not node:
                _replace_input(nodes, value, nearest.outputs[index])
                consumers.setdefault(nearest.outputs[index], {}).setdefault(device, []).extend(nodes)
                del consumers[value][device]
    return at


def _copy_of(context: RewriteContext, node: ir.Node) -> ir.Node:
    """A duplicate of the node, inserted right after it."""
    fresh = context.emitter.fresh
    results = []
    for value in node.outputs:
        result = ir.Value(name=fresh(f"{value.name}_too"), shape=value.shape, type=value.type)
        result.metadata_props.update(value.metadata_props)
        results.append(result)
    attributes = list(node.attributes.values())
    name = fresh(f"{node.name}_too")
    copy = ir.Node(
        node.domain, node.op_type, node.inputs, attributes, outputs=results, name=name, overload=node.overload
    )
    assert node.graph is not None
    node.graph.insert_after(node, [copy])
    return copy


def _replace_input(nodes: Sequence[ir.Node], old: ir.Value, new: ir.Value) -> None:
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is old:
                node.replace_input_with(index, new)
