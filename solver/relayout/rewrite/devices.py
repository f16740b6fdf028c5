"""The device of each node of the legal model, in the node's metadata, where there are several devices.

A node of the source runs on its planned device. Emitted nodes are on the device for which they were written, those that
depend on constants alone on the devices of their consumers: one that several devices need is duplicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from relayout.layout.metadata_keys import DEVICE_KEY, WRITTEN_KEY
from relayout.ops import graphs_of
from relayout.rewrite.context import RewriteContext

Consumers = dict[ir.Value, dict[str, list[ir.Node]]]


def assign_devices(context: RewriteContext) -> None:
    """Assign a device to every node that has none, and to every input and output of the graph."""
    plan = context.plan
    for planned in plan.nodes:
        if planned.node is None:
            for port, _ in planned.results():
                port.operand.value.metadata_props[DEVICE_KEY] = planned.device
    outputs = _output_devices(context)
    for value, device in outputs.items():
        value.metadata_props[DEVICE_KEY] = device
    constant = context.tensors.constant_nodes
    consumers: Consumers = {}
    for node in _reversed_nodes(context.graph):
        if node in plan.of_node:
            _assign(node, plan.of_node[node].device, consumers)
        elif node in constant:
            continue
        elif (own_device := node.metadata_props.get(DEVICE_KEY)) is not None:
            _assign(node, own_device, consumers)
        else:
            read = {device: None for value in node.outputs for device in consumers.get(value, ())}
            own = [outputs[value] for value in node.outputs if value in outputs]
            if own or read:
                _duplicate(context, node, tuple(dict.fromkeys((*own, *read))), own, consumers)


def _reversed_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node in reverse order, the nodes of its regions after it."""
    for node in reversed(list(graph)):
        yield node
        for inner in graphs_of(node):
            yield from _reversed_nodes(inner)


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
) -> None:
    """Run an emitted node on these devices. Each consumer reads the duplicate on its own device, or else the first. The
    node itself defines graph outputs, whose devices are `outputs`."""
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
