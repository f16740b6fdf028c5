"""Devices: each node must be on one that can run it, values are copied between them, and shardings name the axes that
they name in the original."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import ask, supported_by
from relayout.backend.interface import Backend
from relayout.errors import BackendError
from relayout.layout.metadata_keys import DEVICE_KEY, WRITTEN_KEY
from relayout.ops import graphs_of
from relayout.report.schema import Finding, Severity
from relayout.verification.counterparts import VIEWS, Counterparts, behind_transposes, behind_views, counterpart
from relayout.verification.memory_format import memory_format_of
from relayout.verification.model_index import ModelIndex
from relayout.verification.requirements import node_label

# They move data, and run where the conversion is made.
_MOVES = VIEWS | {"Pad", "Slice"}


def check_placement(index: ModelIndex, backend: Backend) -> Iterator[Finding]:
    """Yield a finding for each node, input and output that is no constant and names no device, or one where the backend
    does not have it."""
    devices = backend.devices()
    if not devices:
        return
    graph, host = index.model.graph, backend.host()
    for side, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            device = value.metadata_props.get(DEVICE_KEY)
            if value not in index.constants and device not in ((host,) if host is not None else devices):
                message = f"{side} '{value.name}' is not where the backend has it"
                yield _finding(None, host or _one_of(devices), device or "no device", message)
    for node in index.nodes:
        device = node.metadata_props.get(DEVICE_KEY)
        if device is not None and device not in devices:
            yield _finding(node, _one_of(devices), device, "there is no such device")
        elif not all(value in index.constants for value in node.outputs):
            taking = devices if node.op_type in _MOVES else _taking(node, backend)
            if device not in taking:
                expected = " or ".join(taking) or f"a node that {_one_of(devices)} can run"
                found = device or ("no device" if taking else node.op_type)
                yield _finding(node, expected, found, "the node is not where the backend runs it")


def check_written(pairs: Counterparts, backend: Backend) -> Iterator[Finding]:
    """Yield a finding for each node that is noted as written for its device, is one of the original's, and is on a
    device that does not take that one."""
    if not backend.devices():
        return
    noted = [node for node in pairs.model.nodes if WRITTEN_KEY in node.metadata_props and node.op_type not in _MOVES]
    for node in noted:
        other, device = pairs.nodes.get(node), node.metadata_props.get(DEVICE_KEY)
        if other is not None and other.op_identifier() == node.op_identifier():
            taking = _taking(other, backend)
            if taking and device not in taking:
                message = "the node is not where the backend runs the original's"
                yield _finding(node, " or ".join(taking), device or "no device", message)


def _taking(node: ir.Node, backend: Backend) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(way.device for way in ask(backend, node)))
    except BackendError:
        if supported_by(backend, node):
            raise
        return ()


def _one_of(devices: Sequence[str]) -> str:
    return f"one of {', '.join(devices)}"


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


def _finding(node: ir.Node | None, expected: str, found: str, message: str) -> Finding:
    label = node_label(node) if node is not None else None
    return Finding(rule="placement", node=label, expected=expected, found=found, message=message)


def check_shardings(pairs: Counterparts) -> Iterator[Finding]:
    """Yield a finding for each sharding that is not the original's, for one that is gone a warning, and for one that
    cannot be compared a note."""
    index, original = pairs.model, pairs.original
    stating = [node for node in original.nodes if node.device_configurations and node.op_type not in VIEWS]
    if not stating and not any(node.device_configurations for node in index.nodes):
        return
    of_model, of_original, kept = _Shardings(pairs), _Shardings(Counterparts(original, original)), set()
    for node in index.nodes:
        other = pairs.nodes.get(node)
        if other is not None and node.op_type not in VIEWS:
            # It may make the result of a Transpose that is gone.
            other = behind_views(other)
        theirs = dict(of_original.of(other)) if other is not None else {}
        for place, mine in of_model.of(node):
            kept.add((other, place))
            wanted = theirs.get(place)
            if wanted is None:
                yield _sharding(node, place, "none", mine, "error", "the original states no such sharding")
            elif None in mine.axes or None in wanted.axes:
                yield _sharding(node, place, wanted, mine, "note", "the sharding is not compared")
            elif mine != wanted:
                yield _sharding(node, place, wanted, mine, "error", "the sharding is of other axes or devices")
    for other in stating:
        for place, wanted in of_original.of(other):
            if (other, place) not in kept:
                yield _sharding(other, place, wanted, "none", "warning", "the sharding is gone")


_Place = tuple[str, bool, int]
"""A configuration of devices, and an operand of a node: whether it is a result, and its index."""
_Axis = tuple[str, int | str]
"""An axis: of a value of the original, or the name that an operator has for it."""


class _Sharding(Struct, frozen=True):
    """The devices of a tensor, and the shards of each sharded axis; None for axes that are not known."""

    devices: tuple[object, ...]
    axes: Mapping[_Axis | None, tuple[object, ...]]

    def __str__(self) -> str:
        axes = ["?" if axis is None else " ".join(map(str, axis)).strip() for axis in self.axes]
        return f"axis {', '.join(axes) or 'none'}, devices {self.devices[0]}"


class _Shardings:
    """The shardings that nodes of a model state, in axes of the original's values that are no results of Transposes."""

    def __init__(self, pairs: Counterparts) -> None:
        self._index = pairs.model
        self._scopes = {mine: pairs.scopes[theirs] for mine, theirs in pairs.graphs.items()}

    def of(self, node: ir.Node) -> Iterator[tuple[_Place, _Sharding]]:
        """Each sharding of the node, with its place."""
        for part in node.device_configurations:
            for spec in part.sharding_specs:
                devices = (spec.device, spec.index_to_device_group_map)
                for is_result, values in ((False, node.inputs), (True, node.outputs)):
                    for n, value in enumerate(values):
                        if value is not None and value is spec.value and part.configuration is not None:
                            axes = {
                                self._axis(node, value, is_result, n, dim.axis): tuple(
                                    [(str(each.dim), each.num_shards) for each in dim.simple_shardings]
                                )
                                for dim in spec.sharded_dims
                            }
                            yield (part.configuration.name, is_result, n), _Sharding(devices, axes)

    def _axis(self, node: ir.Node, value: ir.Value, is_result: bool, n: int, axis: int) -> _Axis | None:
        rank = len(value.shape) if value.shape is not None else 0
        axis += rank if axis < 0 else 0
        if not 0 <= axis < rank:
            return None
        if value in self._index.constants:
            # A constant has no note of its memory format.
            kind = self._index.class_of(node)
            names = (kind.results if is_result else kind.inputs)[n]
            name = names[axis] if names is not None else None
            return ("", name) if name is not None else None
        value, axes = behind_transposes(value)
        axis, graph = axes[axis], node.graph
        source = counterpart(value, self._scopes[graph]) if graph in self._scopes else None
        if source is None:
            return None
        format_ = memory_format_of(value)
        own = format_.axes[axis] if format_ is not None and axis < len(format_.axes) else axis
        if own is None or ((theirs := memory_format_of(source)) is not None and own not in theirs.axes):
            return None
        own = own if theirs is None else theirs.axes.index(own)
        source, axes = behind_transposes(source)
        return str(source.name), axes[own] if axes else own


def _sharding(
    node: ir.Node, place: _Place, expected: object, found: object, severity: Severity, message: str
) -> Finding:
    configuration, is_result, n = place
    where = f"{'result' if is_result else 'input'} {n}, configuration '{configuration}'"
    return Finding(
        rule="sharding",
        severity=severity,
        node=node_label(node),
        expected=str(expected),
        found=str(found),
        message=f"{message} ({where})",
    )
