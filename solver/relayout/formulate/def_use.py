"""Requirements -> each tensor with its producer and its readers, in the formats and at the devices that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from relayout.backend.interface import DEVICE_KEY
from relayout.candidates.alternatives import Alternative, NodeAlternatives
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.errors import InternalError
from relayout.formulate.conversion_costs import Prices
from relayout.formulate.transfers import Arrivals
from relayout.layout.memory_format import MemoryFormat

__all__ = ["DEVICE_KEY", "DefUse", "TensorUse", "def_use_chains", "settle_places", "told_place"]

_MOST_DEVICES = 4
"""Of more devices, a node that is left out is at one: sets of them would be too many."""


@dataclass(frozen=True, slots=True)
class TensorUse:
    """Port `port` of choice `choice`: one device where a tensor is given or read."""

    choice: int
    port: int


@dataclass(frozen=True, slots=True)
class DefUse:
    """A tensor with its producer and its readers, its formats, the devices that may touch it, and how it gets from one
    to another where there are several. `uniform` is the price of all conversions, where there is one."""

    tensor: Tensor
    producer: TensorUse
    readers: tuple[TensorUse, ...]
    formats: tuple[MemoryFormat, ...]
    devices: tuple[str, ...]
    uniform: int | None
    arrivals: Arrivals | None = None

    @property
    def uses(self) -> tuple[TensorUse, ...]:
        return (self.producer, *self.readers)


def def_use_chains(requirements: Requirements, prices: Prices, *, apart: bool) -> tuple[DefUse, ...]:
    """Every tensor that somebody reads. `apart`: nodes run at several devices."""
    producers: dict[Tensor, TensorUse] = {}
    readers: dict[Tensor, list[TensorUse]] = {}
    for c, choice in enumerate(requirements.choices):
        for p, port in enumerate(choice.ports):
            tensor = port.operand.tensor
            if port.is_result:
                producers[tensor] = TensorUse(c, p)
            else:
                readers.setdefault(tensor, []).append(TensorUse(c, p))
    for tensor in readers:
        if tensor not in producers:
            raise InternalError(f"tensor '{tensor.base.name}' is read and nothing gives it")
    found = []
    for tensor, producer in producers.items():
        if tensor in readers:
            uses = (producer, *readers[tensor])
            devices = _devices(requirements, uses) if apart else ("",)
            formats = _formats(requirements, uses)
            found.append(
                DefUse(tensor, producer, uses[1:], formats, devices, prices.uniform(tensor, formats, devices))
            )
    return tuple(found)


def _devices(requirements: Requirements, uses: Sequence[TensorUse]) -> tuple[str, ...]:
    choices = dict.fromkeys(use.choice for use in uses)
    return tuple(dict.fromkeys(p for c in choices for a in requirements.choices[c].alternatives for p in a.devices))


def _formats(requirements: Requirements, uses: Sequence[TensorUse]) -> tuple[MemoryFormat, ...]:
    found: dict[MemoryFormat, None] = {}
    for use in uses:
        for alternative in requirements.choices[use.choice].alternatives:
            found[alternative.formats[use.port]] = None
    return tuple(found)


def settle_places(requirements: Requirements, devices: Sequence[str], hosts: Sequence[str]) -> None:
    """Let the graph's inputs and outputs be at any of the hosts. To have them, or to run a node, where it was told to
    before, or else at the first device that takes it, is to leave it as it is."""
    for choice in requirements.choices:
        if choice.node is None:
            spread = [(a, said, p) for p in hosts for a, said in zip(choice.alternatives, choice.layouts, strict=True)]
            choice.alternatives = [replace(a, device=p) for a, _, p in spread]
            choice.layouts = [said for _, said, _ in spread]
        _spread_left_out(choice)
        known, told = {a.device for a in choice.alternatives}, told_place(choice)
        usual = told if told in known else next(p for p in (hosts if choice.node is None else devices) if p in known)
        choice.alternatives = [replace(a, is_source=a.is_source and a.device == usual) for a in choice.alternatives]


def _spread_left_out(choice: NodeAlternatives) -> None:
    """Let a node that is left out be at any of the devices at once where it may be."""
    devices: dict[tuple[MemoryFormat, ...], list[str]] = {}
    for alternative in choice.alternatives:
        if alternative.is_left_out:
            devices.setdefault(alternative.formats, []).append(alternative.device)
    if not devices:
        return
    spread: list[tuple[Alternative, tuple[str, ...]]] = []
    for alternative, said in zip(choice.alternatives, choice.layouts, strict=True):
        every = devices[alternative.formats] if alternative.is_left_out else []
        later = every[every.index(alternative.device) + 1 :] if 0 < len(every) <= _MOST_DEVICES else []
        sets = (more for size in range(len(later) + 1) for more in combinations(later, size))
        spread += [(replace(alternative, beside=more), said) for more in sets]
    choice.alternatives, choice.layouts = [a for a, _ in spread], [said for _, said in spread]


def told_place(choice: NodeAlternatives) -> str | None:
    """Where an earlier run put the node, input or output."""
    holder = choice.node if choice.node is not None else choice.ports[0].operand.value
    return holder.metadata_props.get(DEVICE_KEY)
