"""Letters for axes: which axis of a value is N, C, H, W.

Operators with named axes name their operands'; the names travel along every space of axes that operators share, and
through relabels. They are how a layout string binds to a value that no named operator touches. The first name that
reaches an axis stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import onnx_ir as ir

from relayout.memory_format import Order
from relayout.rules import Fixed, Free, Relabel
from relayout.views import Operand, Tensors

__all__ = ["Names", "conventional"]

_CONVENTION = {3: "NCW", 4: "NCHW", 5: "NCDHW"}

# Values whose axes are tied: axis i of each stands for the tie's axis `axes[i]`, None where it is tied to nothing.
_Tie = tuple[tuple[ir.Value, Sequence[int | None]], ...]


def conventional(rank: int) -> str | None:
    """ONNX's names for the axes of a tensor of which nothing is known but its rank."""
    return _CONVENTION.get(rank)


class Names:
    """The letters of every value's axes, as far as the model says them. Constants have none: they follow."""

    def __init__(self, tensors: Tensors) -> None:
        self._letters: dict[ir.Value, dict[int, str]] = {}
        self._ties: dict[ir.Value, list[_Tie]] = {}
        self._queue: deque[tuple[ir.Value, int, str]] = deque()
        self._tensors = tensors
        for node, rule in tensors.rules.items():
            if isinstance(rule, Free):
                self._enter_free(node, rule)
            elif isinstance(rule, Relabel):
                self._enter_relabel(node, rule)
            elif isinstance(rule, Fixed):
                self._enter_fixed(node, rule)
        self._spread()

    def of(self, operand: Operand) -> str | None:
        """The letters of the operand's axes, one each, or None where one is unknown or occurs twice."""
        own = self._letters.get(operand.value, {})
        letters = "".join(own.get(axis, "") for axis in range(len(operand.view.axes)))
        return letters if len(set(letters)) == len(operand.view.axes) else None

    def in_order(self, operand: Operand, order: Order) -> str | None:
        """The letters of the operand's axes as they lie in memory, outermost first; None where not all are known."""
        letters = self.of(operand)
        if letters is None or len(order) != len(letters) or not all(a.is_whole for a in order):
            return None
        return "".join(letters[a.axis] for a in order)

    def _enter_fixed(self, node: ir.Node, rule: Fixed) -> None:
        for value, letters in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False):
            if value is not None and letters is not None and self._follows(value):
                for axis, letter in enumerate(letters):
                    self._name(value, axis, letter)

    def _enter_free(self, node: ir.Node, rule: Free) -> None:
        tie = tuple(
            (value, axes)
            for value, axes in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False)
            if value is not None and axes is not None and self._follows(value)
        )
        for value, axes in tie:
            self._ties.setdefault(value, []).append(tie)
            if rule.letters:
                for axis, space_axis in enumerate(axes):
                    self._name(value, axis, rule.letters[space_axis])

    def _enter_relabel(self, node: ir.Node, rule: Relabel) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None:
            return
        # A unit axis has no atom, but a Transpose moves its name all the same: the rule tells which axis it was.
        axes = [group[0].axis if len(group) == 1 and group[0].is_whole else None for group in rule.axes]
        tie: _Tie = ((source, range(len(source.shape))), (result, axes))
        for value, _ in tie:
            self._ties.setdefault(value, []).append(tie)

    def _follows(self, value: ir.Value) -> bool:
        return self._tensors.operands.get(value) is not None and not self._tensors.is_constant(value)

    def _name(self, value: ir.Value, axis: int, letter: str) -> None:
        own = self._letters.setdefault(value, {})
        if axis not in own:
            own[axis] = letter
            self._queue.append((value, axis, letter))

    def _spread(self) -> None:
        while self._queue:
            value, axis, letter = self._queue.popleft()
            for tie in self._ties.get(value, ()):
                tied = {axes[axis] for member, axes in tie if member is value} - {None}
                for other, axes in tie:
                    for place, tied_axis in enumerate(axes):
                        if tied_axis in tied:
                            self._name(other, place, letter)
