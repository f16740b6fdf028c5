"""Letters for axes: which axis of a value is N, C, H, W.

Operators with named axes name their operands'; the names travel along every space of axes that operators share, and
through relabels. They are how a layout string binds to a value that no named operator touches. The nearest name stays,
of equally near ones that of the first operator. How far it is from a name to an axis is counted in operators: a relabel
is no step, for where relabels stand is what legalizing changes, and of a legal model the names are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.binding import layout_of
from relayout.layout import Layout
from relayout.memory_format import Order
from relayout.rules import Fixed, Free, Passage, Relabel, given_at, read_at
from relayout.views import Operand, Tensors

__all__ = ["Names", "conventional"]

_CONVENTION = {3: "NCW", 4: "NCHW", 5: "NCDHW"}

_Place = tuple[ir.Value, int]
"""An axis of a value."""

# The axes of values that are one axis of a space, until one of them has a name and hands it to all.
_Tied = list[_Place]
# For each value and each space that it is in: what each of its axes is tied to there.
_Ties = dict[ir.Value, list[list[_Tied | None]]]


def conventional(rank: int) -> str | None:
    """ONNX's names for the axes of a tensor of which nothing is known but its rank."""
    return _CONVENTION.get(rank)


class Names:
    """The letters of every value's axes, as far as the model says them. Constants have none: they follow."""

    def __init__(self, tensors: Tensors) -> None:
        # Each axis's name, as the place in `_given` where an operator first gave it.
        self._letters: dict[ir.Value, dict[int, int]] = {}
        self._given: list[str] = []
        self._same: list[int] = []
        self._contested: set[int] = set()
        self._shared: _Ties = {}
        self._views: _Ties = {}
        self._said: list[tuple[_Place, str]] = []
        self._tensors = tensors
        for node, rule in tensors.rules.items():
            if isinstance(rule, Free):
                self._enter_free(node, rule)
            elif isinstance(rule, Relabel):
                self._enter_relabel(node, rule)
            elif isinstance(rule, Fixed):
                self._enter_fixed(node, rule)
        for node, passages in tensors.passages.items():
            for passage in passages:
                self._enter_passage(node, passage)
        self._spread()

    @property
    def has_contested(self) -> bool:
        """Whether two operators call one axis by different names."""
        return bool(self._contested)

    def of(self, operand: Operand) -> str | None:
        """The letters of the operand's axes, one each, or None where one is unknown or occurs twice."""
        own = self._letters.get(operand.value, {})
        letters = "".join(self._given[own[axis]] if axis in own else "" for axis in range(len(operand.view.axes)))
        return letters if len(set(letters)) == len(operand.view.axes) else None

    def filled(self, operand: Operand, wanted: Layout) -> str | None:
        """The letters by which `wanted` is read: the operand's own, and for axes that have none of the layout's letters
        those that are left, in the layout's order: of what is not known it is taken to say how it is. Of two axes with
        one name one of extent 1 has none. None where no axis has one, or two have the same."""
        asked = [name for i, name in enumerate(wanted.names) if wanted.outer(i) is None and name != "*"]
        letters, extents = self.of(operand), operand.view.extents
        if letters is not None and (len(asked) != len(extents) or sorted(letters) == sorted(asked)):
            return letters
        own = self._letters.get(operand.value, {})
        known = {axis: letter for axis, name in own.items() if (letter := self._given[name]) in asked}
        wide = {letter for axis, letter in known.items() if extents[axis] != 1}
        known = {axis: letter for axis, letter in known.items() if extents[axis] != 1 or letter not in wide}
        if not known or len(asked) != len(extents) or len(set(known.values())) != len(known):
            return letters
        rest = iter([letter for letter in asked if letter not in known.values()])
        return "".join(known[axis] if axis in known else next(rest) for axis in range(len(extents)))

    def in_order(self, operand: Operand, order: Order) -> str | None:
        """The letters of the operand's axes as they lie in memory, outermost first; None where not all are known, or
        where two operators call one axis by different names."""
        letters = self.of(operand)
        if letters is None or self._is_contested(operand.value):
            return None
        if len(order) != len(letters) or not all(a.is_whole for a in order):
            return None
        return "".join(letters[a.axis] for a in order)

    def layout(self, operand: Operand, order: Order, *, padded: bool = False) -> Layout | None:
        """The same as a layout, which has words for inner factors too, and for padding where that is asked for."""
        letters = self.of(operand)
        if letters is None or self._is_contested(operand.value):
            return None
        return layout_of(order, letters, operand.view.extents if padded else None)

    def _enter_fixed(self, node: ir.Node, rule: Fixed) -> None:
        for value, letters in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False):
            if value is not None and letters is not None and self._follows(value):
                for axis, letter in enumerate(letters):
                    self._said.append(((value, axis), letter))

    def _enter_free(self, node: ir.Node, rule: Free) -> None:
        # An axis and the one beside it go by one name: what is split is still what it was.
        alike = {axis: min(axis, partner) for axis, partner in rule.beside.items()}
        members = [
            (value, tuple(alike.get(axis, axis) for axis in axes))
            for value, axes in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False)
            if value is not None and axes is not None and self._follows(value)
        ]
        kept = [(value, _kept(node, rule, value, axes)) for value, axes in members]
        _tie(self._shared, kept, len(rule.extents))
        if rule.letters:
            for value, axes in members:
                for axis, space_axis in enumerate(axes):
                    self._said.append(((value, axis), rule.letters[space_axis]))

    def _enter_passage(self, node: ir.Node, passage: Passage) -> None:
        rule = passage.rule
        sides = (
            *zip(read_at(node, passage.reads), rule.inputs, strict=True),
            *zip(given_at(node, passage.gives), rule.outputs, strict=True),
        )
        members = [(v, axes) for v, axes in sides if v is not None and axes is not None and self._follows(v)]
        _tie(self._shared, members, len(rule.extents))

    def _enter_relabel(self, node: ir.Node, rule: Relabel) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None:
            return
        # A unit axis has no atom, but a Transpose moves its name all the same: the rule tells which axis it was.
        axes = [group[0].axis if len(group) == 1 and group[0].is_whole else None for group in rule.axes]
        rank = len(source.shape)
        _tie(self._views, [(source, range(rank)), (result, axes)], rank)

    def _follows(self, value: ir.Value) -> bool:
        return self._tensors.operands.get(value) is not None and not self._tensors.is_constant(value)

    def _give(self, letter: str) -> int:
        self._given.append(letter)
        self._same.append(len(self._same))
        return len(self._same) - 1

    def _spread(self) -> None:
        level: list[tuple[_Place, int]] = []
        for place, letter in self._said:
            name = self._give(letter)
            level += [(reached, name) for reached in self._reach(place, name)]
        while level:
            following: list[tuple[_Place, int]] = []
            for place, name in level:
                for other in _hand_over(self._shared, place):
                    following += [(reached, name) for reached in self._reach(other, name)]
            level = following

    def _reach(self, place: _Place, name: int) -> list[_Place]:
        """Name an axis, and it in all views of its tensor; those that had no name."""
        found: list[_Place] = []
        waiting = [place]
        for each in waiting:
            if self._name(each, name):
                found.append(each)
                waiting += _hand_over(self._views, each)
        return found

    def _name(self, place: _Place, name: int) -> bool:
        """Name an axis; whether it had no name."""
        value, axis = place
        own = self._letters.setdefault(value, {})
        if axis not in own:
            own[axis] = name
            return True
        if own[axis] != name:
            self._meet(own[axis], name)
        return False

    def _meet(self, one: int, other: int) -> None:
        """Two names reach one axis: all axes of either are the same one, and contested where the names differ."""
        one, other = self._first(one), self._first(other)
        if one == other:
            return
        if self._given[one] != self._given[other] or one in self._contested:
            self._contested.add(other)
        self._same[one] = other

    def _first(self, name: int) -> int:
        while self._same[name] != name:
            self._same[name] = self._same[self._same[name]]
            name = self._same[name]
        return name

    def _is_contested(self, value: ir.Value) -> bool:
        return any(self._first(name) in self._contested for name in self._letters.get(value, {}).values())


def _tie(ties: _Ties, members: Sequence[tuple[ir.Value, Sequence[int | None]]], rank: int) -> None:
    """Axis i of each member is axis `axes[i]` of a space of `rank` axes; None: it is tied to nothing."""
    tied: list[_Tied] = [[] for _ in range(rank)]
    for value, axes in members:
        own: list[_Tied | None] = []
        for place, axis in enumerate(axes):
            if axis is None:
                own.append(None)
                continue
            tied[axis].append((value, place))
            own.append(tied[axis])
        ties.setdefault(value, []).append(own)


def _hand_over(ties: _Ties, place: _Place) -> list[_Place]:
    """The axes that this one is tied to, each space's for once: all of them have its name then."""
    value, axis = place
    found: list[_Place] = []
    for own in ties.get(value, ()):
        tied = own[axis]
        if tied:
            found += tied
            tied.clear()
    return found


def _kept(node: ir.Node, rule: Free, value: ir.Value, axes: Sequence[int]) -> list[int | None]:
    """The axes without those of a result that are reduced to extent 1: what reads these may call them anything."""
    extents = value.shape if value in node.outputs else None
    if extents is None:
        return list(axes)
    return [None if one == 1 and rule.extents[a] != 1 else a for a, one in zip(axes, extents, strict=True)]
