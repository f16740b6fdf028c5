"""The alternatives of every node for each possible device or set of devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from msgspec.structs import replace

from relayout.candidates.alternatives import Alternative, NodeAlternatives, NodePorts
from relayout.candidates.requirements import Requirements
from relayout.layout.memory_format import MemoryFormat
from relayout.layout.metadata_keys import DEVICE_KEY

_MOST_DEVICES = 4
"""An elided node with more possible devices gets a single one, because the sets would be too many."""


def expand_devices(requirements: Requirements, devices: Sequence[str], hosts: Sequence[str]) -> Requirements:
    """The requirements with the graph's inputs and outputs at any of the hosts, and elided nodes at any set of devices.

    An alternative leaves a node unchanged only on its annotated device, or without one on the first possible device.
    """
    return replace(requirements, choices=tuple([_expanded(choice, devices, hosts) for choice in requirements.choices]))


def _expanded(choice: NodeAlternatives, devices: Sequence[str], hosts: Sequence[str]) -> NodeAlternatives:
    every: Sequence[Alternative] = choice.alternatives
    if choice.node is None:
        every = [replace(a, device=host) for host in hosts for a in every]
    every = _with_device_sets(every)
    known = {a.device for a in every}
    preferred = (annotated_device(choice), *(hosts if choice.node is None else devices))
    usual = next(device for device in preferred if device in known)
    return replace(choice, alternatives=tuple([replace(a, is_source=a.is_source and a.device == usual) for a in every]))


def _with_device_sets(alternatives: Sequence[Alternative]) -> list[Alternative]:
    """The alternatives; those that elide the node once for each set of its possible devices."""
    devices: dict[tuple[MemoryFormat, ...], list[str]] = {}
    for alternative in alternatives:
        if alternative.is_elided:
            devices.setdefault(alternative.formats, []).append(alternative.device)
    found: list[Alternative] = []
    for alternative in alternatives:
        every = devices[alternative.formats] if alternative.is_elided else []
        later = every[every.index(alternative.device) + 1 :] if 0 < len(every) <= _MOST_DEVICES else []
        sets = (more for size in range(len(later) + 1) for more in combinations(later, size))
        found += [replace(alternative, other_devices=more) for more in sets]
    return found


def annotated_device(choice: NodePorts) -> str | None:
    """The device that an earlier run assigned to the node, input or output."""
    holder = choice.node if choice.node is not None else choice.ports[0].operand.value
    return holder.metadata_props.get(DEVICE_KEY)
