"""The def-use chain of every tensor: its producer and consumers, and its possible formats and devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct

from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.errors import InternalError
from relayout.formulate.transfers import TransferChoices
from relayout.layout.memory_format import MemoryFormat


class TensorUse(Struct, frozen=True):
    """Port `port` of choice `choice`: one definition or use of a tensor."""

    choice: int
    port: int


class DefUse(Struct, frozen=True, dict=True):
    """A tensor with its producer and consumers, its formats, and the devices that may use it. `transfers` are the
    choices of its transfers, if several devices may use it. `turned` are the formats that the source's Transposes make
    of it."""

    tensor: Tensor
    producer: TensorUse
    consumers: tuple[TensorUse, ...]
    formats: tuple[MemoryFormat, ...]
    devices: tuple[str, ...]
    transfers: TransferChoices | None = None
    turned: tuple[MemoryFormat, ...] = ()

    @cached_property
    def number(self) -> dict[MemoryFormat, int]:
        """The number of each format."""
        return {f: i for i, f in enumerate(self.formats)}

    @property
    def uses(self) -> tuple[TensorUse, ...]:
        return (self.producer, *self.consumers)


def def_use_chains(requirements: Requirements, *, has_devices: bool) -> tuple[DefUse, ...]:
    """The chain of every tensor that has a consumer. `has_devices`: nodes run at several devices."""
    producers: dict[Tensor, TensorUse] = {}
    consumers: dict[Tensor, list[TensorUse]] = {}
    for c, choice in enumerate(requirements.choices):
        for p, port in enumerate(choice.ports):
            tensor = port.operand.tensor
            if port.is_result:
                producers[tensor] = TensorUse(c, p)
            else:
                consumers.setdefault(tensor, []).append(TensorUse(c, p))
    for tensor in consumers:
        if tensor not in producers:
            raise InternalError(f"tensor '{tensor.base.name}' has consumers and no producer")
    turned: dict[Tensor, dict[MemoryFormat, None]] = {}
    for _, _, given in requirements.tensors.turns():
        turned.setdefault(given.tensor, {})[given.source_format] = None
    found = []
    for tensor, producer in producers.items():
        if tensor in consumers:
            uses = (producer, *consumers[tensor])
            devices = _devices(requirements, uses) if has_devices else ("",)
            own = tuple(turned.get(tensor, ()))
            found.append(DefUse(tensor, producer, uses[1:], _formats(requirements, uses), devices, turned=own))
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
