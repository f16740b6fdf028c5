"""Several devices, each with a backend of its own, in one graph.

    Composite(
        [
            Device("npu", "nhwc", takes=Nodes(operators=("Conv", "MaxPool")), transfer=2.0),
            Device("cpu", "onnx"),
        ],
        [Assignment({"cpu": 0}, Nodes(names=("head/*",)))],
        host="cpu",
    )

Devices and layouts are chosen together: a node has the implementations of each device that can run it. A tensor that
is produced on one device and read on another is transferred, at a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from relayout.backend.calls import ask, finished_by, is_met_by, supported_by
from relayout.backend.interface import MOVES, Backend, Implementation, OperatorBody, TensorType, Violation
from relayout.backend.members import is_pure, misspelt_hooks
from relayout.backend.registry import instantiate
from relayout.errors import BackendError
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import DEVICE_KEY, WRITTEN_KEY
from relayout.ops.logical_node import logical, node_name, without_layouts

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Nodes:
    """A selection of nodes by patterns of operator and name, in which `*` matches any text and `?` one character.

    A node without a name has the name of its first result. `when` is called last.
    """

    operators: tuple[str, ...] = ("*",)
    names: tuple[str, ...] = ("*",)
    when: Callable[[ir.Node], bool] | None = None

    def __call__(self, node: ir.Node) -> bool:
        name = node_name(node)
        return (
            any(fnmatchcase(node.op_type, pattern) for pattern in self.operators)
            and any(fnmatchcase(name, pattern) for pattern in self.names)
            and (self.when is None or self.when(node))
        )


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    `backend` is an installed name, a class, an instance, or a function from the outermost backend to a backend. The
    device runs the nodes that it takes and that its backend supports. `transfer` is the memory traffic for each byte
    that is copied to or from it, `transfer_fixed` that for each tensor, both in bytes.
    """

    name: str
    backend: Any = "onnx"
    takes: Callable[[ir.Node], bool] = Nodes()
    transfer: float = 1.0
    transfer_fixed: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The devices that may run some nodes, and the cost there, in bytes of memory traffic."""

    devices: Mapping[str, int]
    nodes: Callable[[ir.Node], bool] = Nodes()


class Composite(Backend):
    """Several backends in one graph: a node may run on each device that takes it, unless an assignment decides.

    The first assignment that fits a node decides. `host` is the device of the graph's inputs and outputs; without it
    each is where it is cheapest. Raises BackendError for unknown devices, and for two of one name.
    """

    name = "composite"

    def __init__(
        self,
        devices: Iterable[Device],
        assignments: Sequence[Assignment] = (),
        *,
        host: str | None = None,
        name: str = "composite",
        context: Backend | None = None,
    ) -> None:
        super().__init__(context)
        self.name = name
        devices = tuple(devices)
        self._devices = {device.name: device for device in devices}
        if len(self._devices) < len(devices):
            names = ", ".join(device.name for device in devices)
            raise BackendError("two devices of one name", where=name, expected="a name of its own each", found=names)
        self._assignments = tuple(assignments)
        self._host = host
        self._check([each for a in self._assignments for each in a.devices] + ([host] if host is not None else []))
        self._at = {device.name: self._loaded(device) for device in self._devices.values()}
        self.is_pure = all(map(is_pure, self._at.values()))

    def devices(self) -> tuple[str, ...]:
        return tuple(self._devices)

    def at(self, device: str) -> Backend:
        return self._at.get(device, self)

    def host(self) -> str | None:
        return self._host

    def device_words(self, device: str) -> str:
        """The nodes that a device takes and the cost of transfers, in words that follow its name."""
        own = self._devices[device]
        fixed = f" and {own.transfer_fixed} bytes a tensor" if own.transfer_fixed else ""
        return f"{_words(own.takes)}; transfers cost {own.transfer:g} times their bytes{fixed}"

    def assignment_words(self) -> list[str]:
        """Each assignment in words."""
        return [
            f"assigned{_words(each.nodes)}: "
            + " or ".join(f"{device}{f' ({cost} bytes more)' * bool(cost)}" for device, cost in each.devices.items())
            for each in self._assignments
        ]

    def transfer_cost(self, nbytes: int, source: str, target: str) -> int:
        ends = self._devices[source], self._devices[target]
        return round(sum(end.transfer for end in ends) * nbytes) + sum(end.transfer_fixed for end in ends)

    def supports(self, node: ir.Node) -> bool:
        return bool(self.able(node))

    def finish(self, model: ir.Model, device: str = "") -> bool:
        """Run each device's post-pass, and note the nodes that it changes into another operator as written for the
        device: what the device takes and is assigned selects the operators of the source."""
        changed = False
        for name, backend in self._at.items():
            before = {node: node.op_identifier() for node in model.graph.all_nodes()}
            changed = finished_by(backend, model, name) or changed
            for node in model.graph.all_nodes():
                if node.metadata_props.get(DEVICE_KEY) == name and before.get(node) != node.op_identifier():
                    node.metadata_props[WRITTEN_KEY] = name
        return changed

    def check(self, model: ir.Model, device: str = "") -> Iterable[Violation]:
        for name, backend in self._at.items():
            yield from backend.check(model, name)

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return frozenset[tuple[str, str]]().union(*(each.conversion_operators() for each in self._at.values()))

    def operator_layouts(self, node: ir.Node) -> Implementation | None:
        """The answer of the first device that knows the operator."""
        answers = (backend.operator_layouts(node) for backend in self._at.values())
        return next((each for each in answers if each is not None), None)

    def operator_body(self, node: ir.Node, opset: int) -> OperatorBody | None:
        """The answer of the first device that knows the operator."""
        answers = (backend.operator_body(node, opset) for backend in self._at.values())
        return next((each for each in answers if each is not None), None)

    def opaque_values(self, model: ir.Model) -> Iterable[ir.Value]:
        for backend in self._at.values():
            yield from backend.opaque_values(model)

    def warnings(self, model: ir.Model) -> Iterable[str]:
        for name, backend in self._at.items():
            yield from (f"device {name}: {text}" for text in (*misspelt_hooks(backend), *backend.warnings(model)))
        yield from self._unused(model)
        costly = {name for each in self._assignments for name, cost in each.devices.items() if cost}
        free = [name for name, device in self._devices.items() if not device.transfer and not device.transfer_fixed]
        unpriced = [name for name in free if name not in costly]
        if unpriced and len(self._devices) > 1:
            named = ", ".join(unpriced)
            yield f"backend {self.name}: {named} has no cost, neither of running a node there nor of a copy to it"

    def _unused(self, model: ir.Model) -> Iterable[str]:
        """The devices and assignments that fit no node of a model."""
        nodes = [logical(node) for node in model.graph.all_nodes()]
        placed = {node.metadata_props.get(DEVICE_KEY) for node in nodes}
        chosen = [(f"device {name}", each.takes) for name, each in self._devices.items() if name not in placed]
        chosen += [(f"assign[{index}]", each.nodes) for index, each in enumerate(self._assignments)]
        for place, takes in chosen:
            if not any(map(takes, nodes)):
                near = _nearest(takes, {node.op_type for node in nodes})
                yield f"backend {self.name}, {place}: no node of the model fits{near}"

    def able(self, node: ir.Node) -> dict[str, int]:
        """The devices that may run `node`, and its cost there beyond that of the device's own backend.

        A node that was written for a device stays there. If it only moves data it may move to any device, as the
        conversion that it was written for.
        """
        own = node.metadata_props.get(DEVICE_KEY)
        if own in self._devices and own == node.metadata_props.get(WRITTEN_KEY):
            return dict.fromkeys(self._devices if node.op_type in MOVES else (own,), 0)
        allowed = next((a.devices for a in self._assignments if a.nodes(node)), dict.fromkeys(self._devices, 0))
        found = {
            name: allowed[name]
            for name, device in self._devices.items()
            if name in allowed and device.takes(node) and supported_by(self._at[name], node)
        }
        return found or (dict.fromkeys(self._devices, 0) if node.op_type in MOVES else {})

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        able = self.able(node)
        if not able:
            raise BackendError(
                f"no device can run {node.op_type} '{node_name(node)}'",
                where=f"backend {self.name}",
                expected=f"one of {', '.join(self._devices)}",
                found="none that is assigned to it, takes it, and whose backend supports it",
                hint="add a device that can run every node",
            )
        return [
            replace(each, cost=each.cost + cost, device=device)
            for device, cost in able.items()
            for each in self._ask(device, node)
        ]

    def _ask(self, device: str, node: ir.Node) -> Iterable[Implementation]:
        """The implementations of a node on a device. An earlier run has laid an operator of the domain `relayout` for
        the device that the node notes: another device takes it in that layout only where it asks for it."""
        own = node.metadata_props.get(DEVICE_KEY)
        is_elsewhere = own in self._devices and own != device
        return ask(self._at[device], without_layouts(node) if is_elsewhere else node)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return self._first(node).nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return self._first(node).nth_result_layout_requirements(node, n)

    def is_satisfied_by(self, tensor: TensorType, required: Layout, current: Layout | None) -> bool:
        return any(is_met_by(backend, tensor, required, current) for backend in self._at.values())

    def _first(self, node: ir.Node) -> Backend:
        """The backend of the first device that can run the node; neighbours see its requirements."""
        return self._at[next(iter(self.able(node) or self._devices))]

    def _check(self, names: Iterable[str]) -> None:
        if not self._devices:
            raise BackendError("no devices", where=f"backend {self.name}", expected="one device or more")
        for name in names:
            if name not in self._devices:
                raise BackendError(
                    "unknown device",
                    where=f"backend {self.name}",
                    expected=" or ".join(self._devices),
                    found=repr(name),
                )

    def _loaded(self, device: Device) -> Backend:
        make = device.backend
        is_factory = callable(make) and not isinstance(make, type)
        backend: Backend = make(self.context) if is_factory else instantiate(make, context=self.context)
        if backend.devices():
            raise BackendError(
                "the backend of a device has several devices itself",
                where=f"backend {self.name}, device {device.name}",
                expected="a backend of one device",
                found=f"{backend.name}, of {', '.join(backend.devices())}",
            )
        return backend


def _nearest(takes: Callable[[ir.Node], bool], operators: Collection[str]) -> str:
    """The operators of a model that are spelled much like those of a selection, for the end of a message. An operator
    that ONNX has is not misspelt: a model without Conv may have Concat."""
    from onnx import defs

    patterns = [each for each in takes.operators if not defs.has(each)] if isinstance(takes, Nodes) else []
    found = [near for pattern in patterns for near in get_close_matches(pattern, operators, n=1) if near != pattern]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _words(nodes: Callable[[ir.Node], bool]) -> str:
    if not isinstance(nodes, Nodes):
        return ", the nodes that its function takes"
    parts = [", ".join(nodes.operators)] if nodes.operators != ("*",) else []
    parts += [f"named {', '.join(nodes.names)}"] if nodes.names != ("*",) else []
    parts += ["under a condition"] if nodes.when is not None else []
    return f", nodes {' '.join(parts)}" if parts else ", all nodes"
