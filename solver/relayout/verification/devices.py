"""Devices: each node must be on one that can run it, and values are copied between them."""

from __future__ import annotations

from collections.abc import Iterator, Set

import onnx_ir as ir

from relayout.backend.calls import ask, supported_by
from relayout.backend.interface import Backend
from relayout.errors import BackendError
from relayout.layout.metadata_keys import DEVICE_KEY
from relayout.ops import graphs_of
from relayout.report.schema import Finding
from relayout.verification.counterparts import VIEWS
from relayout.verification.model_index import ModelIndex
from relayout.verification.requirements import node_label

__all__ = ["check_placement", "transferred"]

# They move data, and run where the conversion is made.
_MOVES = VIEWS | {"Pad", "Slice"}


def check_placement(index: ModelIndex, backend: Backend) -> Iterator[Finding]:
    """Yield a finding for each node on an unknown device, or on one that does not take it."""
    devices = backend.devices()
    if not devices:
        return
    for node in index.nodes:
        device = node.metadata_props.get(DEVICE_KEY)
        if device is not None and device not in devices:
            yield _finding(node, f"one of {', '.join(devices)}", device, "there is no such device")
        elif not all(value in index.constants for value in node.outputs) and not _moves_data(node):
            taking = _taking(node, backend)
            if device not in taking and (device is not None or not taking):
                expected = " or ".join(taking) or f"a node that one of {', '.join(devices)} can run"
                yield _finding(node, expected, device or node.op_type, "the node is not where the backend runs it")


def _taking(node: ir.Node, backend: Backend) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(way.device for way in ask(backend, node)))
    except BackendError:
        if supported_by(backend, node):
            raise
        return ()


def _moves_data(node: ir.Node) -> bool:
    """Whether a node moves data, or computes extents to do so."""
    vectors = all(v.dtype == ir.DataType.INT64 and v.shape is not None and len(v.shape) < 2 for v in node.outputs)
    return node.op_type in _MOVES or vectors


def transferred(model: ir.Model, constants: Set[ir.Value]) -> Iterator[tuple[ir.Value, str, str]]:
    """(value, from, to) for each value and each device that reads it and is not its own. A body reads an outer value
    from that value's device, wherever the node around the body runs."""
    readers: dict[ir.Value, dict[str, None]] = {}
    made_at: dict[ir.Value, str] = {}
    for graph, outer_device in _graphs(model.graph, ""):
        made_at.update({value: value.metadata_props.get(DEVICE_KEY, outer_device) for value in graph.inputs})
        for node in graph:
            device = node.metadata_props.get(DEVICE_KEY, "")
            made_at.update(dict.fromkeys(node.outputs, device))
            for value in node.inputs:
                if value is not None and device:
                    readers.setdefault(value, {})[device] = None
        for value in graph.outputs:
            if device := value.metadata_props.get(DEVICE_KEY, outer_device):
                readers.setdefault(value, {})[device] = None
    for value, devices in readers.items():
        source = made_at.get(value, "")
        if source and value not in constants:
            yield from ((value, source, device) for device in devices if device != source)


def _graphs(graph: ir.Graph, outer_device: str) -> Iterator[tuple[ir.Graph, str]]:
    """The graph and those inside it, each with the device of the node around it."""
    yield graph, outer_device
    for node in graph:
        for inner in graphs_of(node):
            yield from _graphs(inner, node.metadata_props.get(DEVICE_KEY, ""))


def _finding(node: ir.Node, expected: str, found: str, message: str) -> Finding:
    return Finding(rule="placement", node=node_label(node), expected=expected, found=found, message=message)
