"""What it costs to make one format of a tensor from another, and to bring it from one device to another: in bytes.

A conversion reads the tensor as it is and writes it as it shall be, zeros included where a format pads; where that
takes several nodes (tiles that do not nest, zeros to be filled up), it is what each of them reads and writes. A backend
may price its own conversions otherwise. Which device a conversion runs on, if there are several, is said by its device.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import onnx_ir as ir

from relayout.backend.calls import conversion_cost_of, conversion_of, transfer_cost_of
from relayout.backend.interface import Backend
from relayout.candidates.backend_conversions import conversion_query, native_conversion
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.layout.conversion import moves, passes
from relayout.layout.memory_format import MemoryFormat, atom_extent, boxes_of
from relayout.model.tensor_sizes import padded_elements, tensor_bytes

__all__ = ["Prices"]


class Prices:
    """The prices of one graph. `elements` counts the elements of a shape, symbolic dims priced."""

    def __init__(
        self, requirements: Requirements, backend: Backend, elements: Callable[[ir.Shape | None], int]
    ) -> None:
        self._names = requirements.names
        self._operands = requirements.tensors.operands
        self._backend = backend
        self._elements = elements
        self._at = {device: backend.at(device) for device in backend.devices() or ("",)}
        self._own = {device for device, each in self._at.items() if _prices_itself(each)}
        self._counts: dict[Tensor, int] = {}
        self._asked: dict[tuple[Tensor, str, MemoryFormat, MemoryFormat], tuple[int | None, bool]] = {}

    def uniform(self, tensor: Tensor, formats: tuple[MemoryFormat, ...], devices: tuple[str, ...]) -> int | None:
        """The one price at which each of these formats is made from each other at these devices; None: it depends."""
        if any(device in self._own for device in devices) or not all(a.is_whole for f in formats for a in f):
            return None
        if any(map(boxes_of, formats)):
            return None
        return 2 * self.bytes_of(tensor, ())

    def bytes_of(self, tensor: Tensor, format_: MemoryFormat) -> int:
        """What the tensor takes in this format."""
        count = self._counts.get(tensor)
        if count is None:
            count = self._counts[tensor] = self._elements(tensor.base.shape)
        return tensor_bytes(padded_elements(count, format_, tensor.extents), tensor.base.dtype)

    def traffic(self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat) -> int:
        """What a conversion at a device reads and writes."""
        if self.is_written_by_backend(tensor, device, source, target):
            return self._ends(tensor, source, target)
        return self._traffic(tensor, source, target)

    def passes(self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat) -> int:
        """How often a conversion at a device reads and writes the tensor; 0 where there is none."""
        if source == target or self.conversion(tensor, device, source, target) is None:
            return 0
        if self.is_written_by_backend(tensor, device, source, target):
            return 1
        return max(1, sum(kind == "transpose" for kind, _, _ in moves(source, target, tensor.extents)))

    def padding(self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat) -> int:
        """What of the traffic of a conversion at a device is not that of its Transposes: zeros, written or left out."""
        if self.is_written_by_backend(tensor, device, source, target):
            return 0
        return self._traffic(tensor, source, target) - self._turned(tensor, source, target)

    def conversion(self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat) -> int | None:
        """What making `target` from `source` costs at a device; None: it cannot be made."""
        if source == target:
            return 0
        if device not in self._own:
            return self._traffic(tensor, source, target) if _can_be_written(tensor, source, target) else None
        return self._answer(tensor, device, source, target)[0]

    def is_written_by_backend(self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat) -> bool:
        """Whether the backend has an operator of its own that makes `target` from `source` at a device."""
        return device in self._own and self._answer(tensor, device, source, target)[1]

    def transfer(self, tensor: Tensor, format_: MemoryFormat, source: str, target: str) -> int:
        """What bringing the tensor in this format from one device to another costs."""
        return transfer_cost_of(self._backend, self.bytes_of(tensor, format_), source, target)

    def _answer(self, tensor: Tensor, device: str, source: MemoryFormat, target: MemoryFormat) -> tuple[int | None, bool]:
        question = (tensor, device, source, target)
        if question not in self._asked:
            self._asked[question] = self._ask(self._at[device], tensor, source, target)
        return self._asked[question]

    def _ask(self, backend: Backend, tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> tuple[int | None, bool]:
        """What the backend says that it costs, or else the traffic, None where neither it nor a Reshape writes it; and
        whether the backend writes it."""
        question = conversion_query(self._names, self._operands[tensor.base], source, target)
        if native_conversion(backend, question) is not None:
            cost = self._stated(backend, tensor, source, target)
            return self._ends(tensor, source, target) if cost is None else cost, True
        if not _can_be_written(tensor, source, target):
            return None, False
        each = list(pairwise(passes(source, target, tensor.extents)))
        costs = [self._stated(backend, tensor, one, other) for one, other in each]
        if None in costs:
            return self._traffic(tensor, source, target), False
        return sum(cost or 0 for cost in costs), False

    def _stated(self, backend: Backend, tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> int | None:
        """What the backend says that one pass costs; None: its traffic."""
        question = conversion_query(self._names, self._operands[tensor.base], source, target)
        if question is None:
            return None
        own = conversion_of(backend, *question) if not question.is_nameless else None
        return own.cost if own is not None and own.cost is not None else conversion_cost_of(backend, *question)

    def _ends(self, tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> int:
        """The tensor as it is and as it shall be."""
        return self.bytes_of(tensor, source) + self.bytes_of(tensor, target)

    def _traffic(self, tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> int:
        """What the nodes between them read and write: two Transposes, it may be, and a Pad or a Slice beside them."""
        each = moves(source, target, tensor.extents)
        spent = sum(self._ends(tensor, before, after) for _, before, after in each)
        return max(self._ends(tensor, source, target), spent)

    def _turned(self, tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> int:
        """What the Transposes among them read and write."""
        each = moves(source, target, tensor.extents)
        return sum(self._ends(tensor, before, after) for kind, before, after in each if kind == "transpose")


def _prices_itself(backend: Backend) -> bool:
    kind = type(backend)
    return kind.conversion_cost is not Backend.conversion_cost or kind.conversion is not Backend.conversion


def _can_be_written(tensor: Tensor, source: MemoryFormat, target: MemoryFormat) -> bool:
    """Whether there is a Reshape to the pieces: what is cut has a known extent, and the rest can be read off the tensor
    at run time; an axis of which nothing is left cannot. One extent that is not known may be left open, but how many
    zeros an axis of unknown extent ends with is never known."""
    if boxes_of(source) or boxes_of(target):
        return False  # nobody but the backend knows how
    pieces = [a for a in (*source, *target) if not a.is_whole]
    if not pieces:
        return True
    if 0 in tensor.extents:
        return False
    if all(isinstance(tensor.extents[a.axis], int) for a in pieces):
        return True
    if any({a.axis for a in o} - {a.axis for a in o if not a.outer} for o in (source, target)):
        return False
    return all(sum(not isinstance(atom_extent(a, tensor.extents), int) for a in o) <= 1 for o in (source, target))
