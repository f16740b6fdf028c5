"""The alternatives of every node for each possible device or set of devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from msgspec.structs import replace

from relayout.backend.interface import DEVICE_KEY
from relayout.candidates.alternatives import Alternative, NodeAlternatives, NodePorts
from relayout.candidates.requirements import Requirements
from relayout.layout.memory_format import MemoryFormat

__all__ = ["annotated_device", "expand_devices"]

_MOST_DEVICES = 4
"""An elided node with more possible devices gets a single one, because the sets would be too many."""


def expand_devices(requirements: Requirements, devices: Sequence[str], hosts: Sequence[str]) -> Requirements:
    """The requirements with the graph's inputs and outputs at any of the hosts, and elided nodes at any set of devices.

    An alternative leaves a node unchanged only on its annotated device, or without one on the first possible device.
    """
    return replace(requirements, choices=tuple([_expanded(choice, devices, hosts) for choice in requirements.choices]))


def _expanded(choice: NodeAlternatives, devices: Sequence[str], hosts: Sequence[str]) -> NodeAlternatives:
    pairs = list(zip(choice.alternatives, choice.layouts, strict=True))
    if choice.node is None:
        pairs = [(replace(a, device=host), layouts) for host in hosts for a, layouts in pairs]
    pairs = _with_device_sets(pairs)
    known = {a.device for a, _ in pairs}
    preferred = (annotated_device(choice), *(hosts if choice.node is None else devices))
    usual = next(device for device in preferred if device in known)
    alternatives = tuple([replace(a, is_source=a.is_source and a.device == usual) for a, _ in pairs])
    return replace(choice, alternatives=alternatives, layouts=tuple([layouts for _, layouts in pairs]))


def _with_device_sets(pairs: list[tuple[Alternative, tuple[str, ...]]]) -> list[tuple[Alternative, tuple[str, ...]]]:
    """The alternatives; those that elide the node once for each set of its possible devices."""
    devices: dict[tuple[MemoryFormat, ...], list[str]] = {}
    for alternative, _ in pairs:
        if alternative.is_elided:
            devices.setdefault(alternative.formats, []).append(alternative.device)
    found: list[tuple[Alternative, tuple[str, ...]]] = []
    for alternative, layouts in pairs:
        every = devices[alternative.formats] if alternative.is_elided else []
        later = every[every.index(alternative.device) + 1 :] if 0 < len(every) <= _MOST_DEVICES else []
        sets = (more for size in range(len(later) + 1) for more in combinations(later, size))
        found += [(replace(alternative, other_devices=more), layouts) for more in sets]
    return found


def annotated_device(choice: NodePorts) -> str | None:
    """The device that an earlier run assigned to the node, input or output."""
    holder = choice.node if choice.node is not None else choice.ports[0].operand.value
    return holder.metadata_props.get(DEVICE_KEY)
