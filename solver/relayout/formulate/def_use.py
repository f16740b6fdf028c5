"""Requirements -> each tensor with its producer and its readers, in the formats and at the devices that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.errors import InternalError
from relayout.formulate.conversion_costs import Prices
from relayout.formulate.transfers import Arrivals
from relayout.layout.memory_format import MemoryFormat

__all__ = ["DefUse", "TensorUse", "def_use_chains"]

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
