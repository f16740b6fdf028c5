"""Where each node of the legal model runs, where there are several devices: in the node's metadata.

A node of the source runs where the solver put it. What was added to lay a tensor out runs where the conversion was
priced; what only regroups dimensions runs where it is read. What has to be at several devices stands once for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from relayout.backend.interface import DEVICE_KEY, WRITTEN_KEY
from relayout.candidates.requirements import Requirements
from relayout.formulate.device_expansion import annotated_device
from relayout.formulate.formulation import PlannedConversion
from relayout.layout.memory_format import source_order
from relayout.ops import Relabel, graphs_of
from relayout.rewrite.context import RewriteContext

__all__ = ["assign_devices", "is_placed"]

Readers = dict[ir.Value, dict[str, list[ir.Node]]]


def assign_devices(context: RewriteContext) -> None:
    """Give every node that computes from data its device, and every input and output of the graph. Constants are at hand
    everywhere."""
    own = {node: context.chosen[id(choice)].device for node, choice in context.by_node.items()}
    fixed = _fixed_places(context)
    last = _output_places(context)
    for value, device in last.items():
        value.metadata_props[DEVICE_KEY] = device
    constant = context.tensors.constant_nodes
    readers: Readers = {}
    for node in _from_the_back(context.graph):
        if node in own:
            _note(node, own[node], readers)
        elif node not in constant:
            read = {device: None for value in node.outputs for device in readers.get(value, ())}
            given = [last[value] for value in node.outputs if value in last]
            devices = next((fixed[value] for value in node.outputs if value in fixed), (*given, *read))
            if given or read:
                _spread(context, node, tuple(dict.fromkeys(devices)), given, readers)


def _from_the_back(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node, those inside a node after it."""
    for node in reversed(list(graph)):
        yield node
        for inner in graphs_of(node):
            yield from _from_the_back(inner)


def is_placed(requirements: Requirements, assignment: Sequence[int], made: Iterable[PlannedConversion]) -> bool:
    """Whether all nodes, inputs and outputs say already that they are where they shall be, and so does what turns a
    tensor into a format that is to be made of it."""
    for choice, picked in zip(requirements.choices, assignment, strict=True):
        if annotated_device(choice) != choice.alternatives[picked].device:
            return False
    tensors, turned = requirements.tensors, set()
    if any(DEVICE_KEY not in node.metadata_props for node in tensors.shapes):
        return False
    for node, rule in tensors.rules.items():
        if not isinstance(rule, Relabel) or node in tensors.constant_nodes or node in tensors.dead:
            continue
        device, view = node.metadata_props.get(DEVICE_KEY), tensors.operands[node.outputs[0]]
        if device is None:
            return False
        if view is not None:
            turned.add((view.tensor, view.view.to_base(source_order(len(view.view.axes))), device))
    return all((each.tensor, each.target, each.device) in turned for each in made)


def _fixed_places(context: RewriteContext) -> dict[ir.Value, tuple[str, ...]]:
    """The devices of the values that give a tensor in a format: where its producer runs, which is the first, or where
    the conversions were chosen to run."""
    made: dict[ir.Value, tuple[str, ...]] = {}
    inputs = set(context.graph.inputs)
    for choice in context.requirements.choices:
        alternative = context.chosen[id(choice)]
        for port, format_ in zip(choice.ports, alternative.formats, strict=True):
            if not port.is_result:
                continue
            if port.operand.value in inputs:
                port.operand.value.metadata_props[DEVICE_KEY] = alternative.device
            tensor = port.operand.tensor
            # What a left-out node gives is what it reads, which has its device.
            targets = {} if alternative.is_left_out else {format_: (alternative.device,)}
            for conversion in context.made.get(tensor, ()):
                at = (*targets.get(conversion.target, ()), conversion.device)
                targets[conversion.target] = tuple(sorted(at, key=lambda device: device != alternative.device))
            for target, devices in targets.items():
                if context.copies.has(tensor, target):
                    made[context.copies.first(tensor, target).value] = devices
    return made


def _output_places(context: RewriteContext) -> dict[ir.Value, str]:
    """The devices of the graph's outputs, and of those of the graphs inside it."""
    found: dict[ir.Value, str] = {}
    for choice in context.requirements.choices:
        for port in choice.ports:
            if port.is_result:
                continue
            graph = context.graph if choice.node is None else choice.region_port(port).graph
            if graph is not None:
                index = port.index if choice.node is None else choice.region_port(port).index
                found[graph.outputs[index]] = context.chosen[id(choice)].device
    return found


def _note(node: ir.Node, device: str, readers: Readers) -> None:
    node.metadata_props[DEVICE_KEY] = device
    for value in dict.fromkeys(node.inputs):
        if value is not None:
            readers.setdefault(value, {}).setdefault(device, []).append(node)


def _spread(context: RewriteContext, node: ir.Node, devices: Sequence[str], given: Sequence[str], readers: Readers) -> None:
    """Let an added node run at these devices, each reader reading what is at its own, or else at the first. What the
    graph gives is the node itself."""
    home = next((device for device in given if device in devices), devices[0])
    at = {device: node if device == home else _twin(context, node) for device in dict.fromkeys((home, *devices))}
    for device, twin in at.items():
        _note(twin, device, readers)
        twin.metadata_props[WRITTEN_KEY] = device
    for index, value in enumerate(node.outputs):
        for device, those in list(readers.get(value, {}).items()):
            nearest = at.get(device, at[devices[0]])
            if nearest is not node:
                _reread(those, value, nearest.outputs[index])
                readers.setdefault(nearest.outputs[index], {}).setdefault(device, []).extend(those)
                del readers[value][device]


def _twin(context: RewriteContext, node: ir.Node) -> ir.Node:
    """The same node once more, right after the first."""
    fresh = context.emitter.fresh
    results = []
    for value in node.outputs:
        result = ir.Value(name=fresh(f"{value.name}_too"), shape=value.shape, type=value.type)
        result.metadata_props.update(value.metadata_props)
        results.append(result)
    attributes = list(node.attributes.values())
    name = fresh(f"{node.name}_too")
    twin = ir.Node(
        node.domain, node.op_type, node.inputs, attributes, outputs=results, name=name, overload=node.overload
    )
    assert node.graph is not None
    node.graph.insert_after(node, [twin])
    return twin


def _reread(nodes: Sequence[ir.Node], old: ir.Value, new: ir.Value) -> None:
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is old:
                node.replace_input_with(index, new)
