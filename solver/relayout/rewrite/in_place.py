"""Whether a source already has the nodes that its plan would write, so that it stays as it is."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from relayout.backend.calls import ask, supported_by
from relayout.backend.interface import Backend
from relayout.candidates.backend_requirements import has_requirement
from relayout.candidates.tensors import Tensor
from relayout.formulate.conversion_costs import ConversionCosts
from relayout.formulate.device_expansion import annotated_device
from relayout.formulate.plan import Plan
from relayout.layout.memory_format import MemoryFormat
from relayout.layout.metadata_keys import DEVICE_KEY
from relayout.ops import Relabel, is_read


class _Copy(NamedTuple):
    """A tensor in a format, at a device (without devices: "")."""

    tensor: Tensor
    format: MemoryFormat
    device: str


def is_in_place(plan: Plan, costs: ConversionCosts, backend: Backend) -> bool:
    """Whether every node stays at its device, and the source's Transposes make the copies that the conversions make,
    from formats from which they cost as much. A conversion by the backend's own operator is not in the source: there it
    would be a node with a cost. Nor has the plan the nodes on which no output depends: they may stay only where they
    are free."""
    tensors, conversions, has_devices = plan.tensors, plan.conversions, bool(backend.devices())
    if not plan.keeps_nodes or tensors.cancelling or any(map(_is_unread, tensors.dead)):
        return False
    if has_devices and not _are_placed(plan):
        return False
    if any(each.by_backend or each.passes > 1 for each in conversions):
        return False
    turns = [
        (_Copy(given.tensor, given.source_format, node.metadata_props.get(DEVICE_KEY, "") if has_devices else ""), read)
        for node, read, given in tensors.turns()
    ]
    origins = {copy: read.source_format for copy, read in turns}
    copies = {_Copy(each.tensor, each.target, each.device): each for each in conversions}
    if len(turns) != len(copies) or origins.keys() != copies.keys():
        return False
    spent = [
        costs.of(copy.tensor, source, copy.format, copy.device)
        for copy, source in origins.items()
        if source != copies[copy].source
    ]
    planned = [each.cost for copy, each in copies.items() if origins[copy] != each.source]
    if sum(each.cost for each in spent if each is not None) != sum(planned):
        return False
    return all(_is_free(node, backend) for node in tensors.dead if node not in tensors.constant_nodes)


def _is_unread(node: ir.Node) -> bool:
    """Whether nothing reads the node. Others on which no output depends compute the shape of a Reshape, or have a known
    extent read from their result."""
    return not any(map(is_read, node.outputs))


def _is_free(node: ir.Node, backend: Backend) -> bool:
    """Whether the backend runs the node in any layout, at no cost."""
    device = node.metadata_props.get(DEVICE_KEY)
    return supported_by(backend, node) and any(
        not each.cost and device in (None, each.device) and not any(map(has_requirement, (*each.inputs, *each.results)))
        for each in ask(backend, node)
    )


def _are_placed(plan: Plan) -> bool:
    """Whether all nodes, inputs, outputs and view ops already have the annotations of their devices."""
    tensors = plan.tensors
    views = [
        node
        for node, rule in tensors.rules.items()
        if isinstance(rule, Relabel) and node not in tensors.constant_nodes and node not in tensors.dead
    ]
    return all(DEVICE_KEY in node.metadata_props for node in (*views, *tensors.known)) and all(
        annotated_device(planned) == planned.device for planned in plan.nodes
    )
