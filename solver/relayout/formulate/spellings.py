"""The spellings of memory formats: the layouts that requirements state, for questions about a backend's conversions."""

from __future__ import annotations

from collections.abc import Iterator

from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.backend_conversions import base_format
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.layout.memory_format import Atom, MemoryFormat, boxes_of, with_units

Spellings = tuple[tuple[MemoryFormat, tuple[MemoryFormat, ...]], ...]
"""Formats of a tensor, each with further spellings: the same memory with other atoms of extent 1."""


def stated_spellings(requirements: Requirements) -> dict[Tensor, Spellings]:
    """The spellings in which requirements state formats of a tensor, where they are not those that the format has by
    itself: one block of `NCHW16c` is the memory of `NHWC`, and an axis of extent 1 may be anywhere."""
    tensors = requirements.tensors
    shared: dict[object, list[tuple[int, MemoryFormat, MemoryFormat]]] = {}
    found: dict[Tensor, dict[MemoryFormat, dict[MemoryFormat, None]]] = {}
    for choice in requirements.choices:
        if choice.node is None or not any(any(each.layouts) for each in choice.alternatives):
            continue
        key = id(choice.alternatives), *[id(port.operand.view) for port in choice.ports]
        if key not in shared:
            shared[key] = list(dict.fromkeys(_stated_by(choice)))
        for place, format_, order in shared[key]:
            operand = choice.ports[place].operand
            base = tensors.operands[operand.tensor.base]
            spelled = with_units(order, base.view.extents) if base is not None and base.view.is_plain else None
            if base is not None and spelled is not None and spelled != base_format(base, format_):
                found.setdefault(operand.tensor, {}).setdefault(format_, {})[spelled] = None
    return {tensor: tuple([(f, tuple(orders)) for f, orders in own.items()]) for tensor, own in found.items()}


def _stated_by(choice: NodeAlternatives) -> Iterator[tuple[int, MemoryFormat, MemoryFormat]]:
    """Each port of which a layout is required, with the format that an alternative has it in, and all its atoms."""
    for alternative in choice.alternatives:
        each = zip(choice.ports, alternative.formats, alternative.layouts, strict=True)
        for place, (port, format_, text) in enumerate(each):
            if not text or boxes_of(format_) or not port.operand.view.is_plain:
                continue
            dims, axes = alternative.lowering.operand_dims(port, choice.rule), port.operand.view.axes
            if all(group is not None and len(group) == 1 for group in dims):
                atoms = [group[0] for group in dims if group is not None]
                # A view behind a Transpose does not say which axis of extent 1 one of its own is.
                own = [(axes[atom.axis][0].axis, atom) for atom in atoms if axes[atom.axis]]
                yield place, format_, tuple([Atom(axis, atom.inner, atom.outer) for axis, atom in own])
