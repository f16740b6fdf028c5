"""Black boxes: what only the backend knows of how a tensor lies, beside the order of its axes.

A format with boxes is what a backend says that a node gives, or takes, or what a graph input or output is said to be.
From one to another there is no way but an operator of the backend's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relayout.candidates.alternatives import Alternative, NodeAlternatives, Port, in_source
from relayout.candidates.backend_requirements import Contract, Wish
from relayout.candidates.tensors import Tensor, Tensors
from relayout.layout.conversion import Dims
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Box, Boxed, MemoryFormat, boxes_of

__all__ = ["Givers", "boxed", "in_boxes"]


def in_boxes(
    choice: NodeAlternatives, wish: Wish, formats: Sequence[MemoryFormat], laid: Sequence[Dims | None]
) -> tuple[MemoryFormat, ...] | None:
    """The formats of a choice's ports with the boxes that the wish speaks of, where the operands have the dimensions
    `laid`; None where one cannot be in a box, or the wish is of what crosses a border."""
    if not any(wish.boxes):
        return tuple(formats)
    if choice.region_edge is not None:
        return None
    found = [
        boxed(format_, port, layout, dims) if layout is not None else format_
        for format_, port, layout, dims in zip(formats, choice.ports, wish.layouts, laid, strict=True)
    ]
    return tuple([format_ for format_ in found if format_ is not None]) if None not in found else None


def boxed(format_: MemoryFormat, port: Port, layout: Layout, dims: Dims | None) -> MemoryFormat | None:
    """A format of the port's tensor with the boxes of `layout`, in which its operand has these dimensions; None where
    the operand has other axes than the tensor: nobody knows what a Reshape of what is in a box gives."""
    view = port.operand.view
    laid = dims if dims is not None else in_source(len(view.axes))
    found: list[Box] = []
    for i in range(layout.rank):
        boxes = layout.boxes(i)
        if not boxes:
            continue
        group = laid[i] if len(laid) == layout.rank else ()
        own = view.axes[group[0].axis] if len(group) == 1 else ()
        if len(own) != 1 or not view.is_plain:
            return None
        found += [(own[0].axis, group[0].inner, *box) for box in boxes]
    units = tuple([view.extents[group[0].axis] == 1 for group in laid])
    return Boxed(format_, found, units) if found else format_


class Givers:
    """In which formats each tensor is given, and what may be made of them: what a format with boxes comes from."""

    def __init__(self, contract: Contract, tensors: Tensors, choices: Iterable[NodeAlternatives]) -> None:
        self._contract = contract
        self._tensors = tensors
        self._given: dict[Tensor, dict[MemoryFormat, None]] = {}
        for choice in choices:
            for alternative in choice.alternatives:
                for port, format_ in zip(choice.ports, alternative.formats, strict=True):
                    if port.is_result:
                        self._given.setdefault(port.operand.tensor, {})[format_] = None

    def drop_what_nobody_gives(self, choice: NodeAlternatives) -> bool:
        """Leave out the alternatives that take a tensor in boxes in which it cannot be had; whether there were any."""
        every = list(zip(choice.alternatives, choice.layouts, strict=True))
        kept = [(each, said) for each, said in every if self._may_be(choice, each)]
        choice.alternatives = [each for each, _ in kept]
        choice.layouts = [said for _, said in kept]
        return len(kept) < len(every)

    def _may_be(self, choice: NodeAlternatives, alternative: Alternative) -> bool:
        wanted = zip(choice.ports, alternative.formats, strict=True)
        return all(p.is_result or not boxes_of(f) or self._gives(p.operand.tensor, f) for p, f in wanted)

    def _gives(self, tensor: Tensor, wanted: MemoryFormat) -> bool:
        given = self._given.get(tensor, {})
        base = self._tensors.operands[tensor.base]
        if wanted in given or base is None:
            return wanted in given
        return any(self._contract.converts(base, source, wanted) for source in given)
