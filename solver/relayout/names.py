"""Letters for axes: which axis of a tensor is N, C, H, W.

Operators with named axes name their operands'; the names travel along every space of axes that operators share. They
are how a layout string binds to a tensor that no named operator touches. The first name that reaches an axis stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import onnx_ir as ir

from relayout.memory_format import Order
from relayout.rules import Fixed, Free
from relayout.views import Operand, Tensor, Tensors

__all__ = ["Names", "conventional"]

_CONVENTION = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


def conventional(rank: int) -> str | None:
    """ONNX's names for the axes of a tensor of which nothing is known but its rank."""
    return _CONVENTION.get(rank)


class Names:
    """The letters of every tensor's axes, as far as the model says them."""

    def __init__(self, tensors: Tensors) -> None:
        self._letters: dict[Tensor, dict[int, str]] = {t: {} for t in tensors.tensors}
        self._spaces: dict[Tensor, list[tuple[Operand, tuple[tuple[Operand, tuple[int, ...]], ...]]]] = {}
        self._queue: deque[tuple[Tensor, int, str]] = deque()
        for node, rule in tensors.rules.items():
            if isinstance(rule, Free):
                self._enter_free(node, rule, tensors)
            elif isinstance(rule, Fixed):
                for value, letters in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False):
                    self._enter(tensors.operands.get(value) if value is not None else None, letters)
        self._spread()

    def of(self, operand: Operand) -> str | None:
        """The letters of the operand's axes in its own order, one each, or None where one is unknown or occurs twice."""
        own = self._letters[operand.tensor]
        letters = []
        for atoms in operand.view.axes:
            if len(atoms) != 1 or not atoms[0].is_whole or atoms[0].axis not in own:
                return None
            letters.append(own[atoms[0].axis])
        return "".join(letters) if len(set(letters)) == len(letters) else None

    def in_order(self, operand: Operand, order: Order) -> str | None:
        """The letters of the operand's axes as they lie in memory, outermost first; None where not all are known."""
        letters = self.of(operand)
        if letters is None or len(order) != len(letters) or not all(a.is_whole for a in order):
            return None
        return "".join(letters[a.axis] for a in order)

    def _enter(self, operand: Operand | None, letters: str | None) -> None:
        if operand is None or letters is None or len(letters) != len(operand.view.axes):
            return
        for atoms, letter in zip(operand.view.axes, letters, strict=True):
            if len(atoms) == 1 and atoms[0].is_whole:
                self._name(operand.tensor, atoms[0].axis, letter)

    def _enter_free(self, node: ir.Node, rule: Free, tensors: Tensors) -> None:
        ports = tuple(
            (operand, axes)
            for value, axes in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False)
            if value is not None and axes is not None and (operand := tensors.operands.get(value)) is not None
            if not operand.tensor.constant
        )
        for operand, axes in ports:
            if rule.letters:
                self._enter(operand, "".join(rule.letters[a] for a in axes))
            self._spaces.setdefault(operand.tensor, []).append((operand, ports))

    def _name(self, tensor: Tensor, axis: int, letter: str) -> None:
        if tensor.constant or axis in self._letters[tensor]:
            return
        self._letters[tensor][axis] = letter
        self._queue.append((tensor, axis, letter))

    def _spread(self) -> None:
        while self._queue:
            tensor, axis, letter = self._queue.popleft()
            for operand, ports in self._spaces.get(tensor, ()):
                for space_axis in _space_axes(operand, axis, ports):
                    for other, axes in ports:
                        if space_axis not in axes:
                            continue
                        atoms = other.view.axes[axes.index(space_axis)]
                        if len(atoms) == 1 and atoms[0].is_whole:
                            self._name(other.tensor, atoms[0].axis, letter)


def _space_axes(
    operand: Operand, axis: int, ports: tuple[tuple[Operand, tuple[int, ...]], ...]
) -> Iterator[int]:
    for other, axes in ports:
        if other is not operand:
            continue
        for place, atoms in enumerate(other.view.axes):
            if len(atoms) == 1 and atoms[0].is_whole and atoms[0].axis == axis:
                yield axes[place]


