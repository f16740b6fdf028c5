"""Letters for axes: which axis of a value is N, C, H, W.

Operators with named axes name their operands'; the names travel along every space of axes that operators share, and
through relabels. They are how a layout string binds to a value that no named operator touches. The nearest name stays,
of equally near ones that of the first operator. How far it is from a name to an axis is counted in operators: a relabel
is no step, for where relabels stand is what legalizing changes, and of a legal model the names are the same. An
operator to which it is nothing which axis is which names those that nobody else does, and one that may be left out,
after which the model has no word of it, those that still have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.candidates.axis_classes import Place, Ties, alike, hand_over, kept_by, kept_whole, repeated_by, tie
from relayout.candidates.tensors import Operand, Tensors
from relayout.layout.binding import carrying, layout_of
from relayout.layout.layout import Layout
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import Fixed, Free, RegionEdge, Relabel, given_at, read_at
from relayout.ops.operand_roles import tells_apart

__all__ = ["AxisNames", "conventional"]

_CONVENTION = {3: "NCW", 4: "NCHW", 5: "NCDHW"}

def conventional(rank: int) -> str | None:
    """ONNX's names for the axes of a tensor of which nothing is known but its rank."""
    return _CONVENTION.get(rank)


class AxisNames:
    """The letters of every value's axes, as far as the model says them. Constants have none: they follow."""

    def __init__(self, tensors: Tensors) -> None:
        # Each axis's name, as the place in `_given` where an operator first gave it.
        self._letters: dict[ir.Value, dict[int, int]] = {}
        self._given: list[str] = []
        self._same: list[int] = []
        self._contested: set[int] = set()
        # How many of them somebody said; the others are presumed.
        self._surely = 0
        self._shared: Ties = {}
        self._views: Ties = {}
        self._said: list[tuple[Place, str]] = []
        self._presumed: list[tuple[Place, str]] = []
        self._left: list[tuple[Place, str]] = []
        self._tensors = tensors
        for node, rule in tensors.rules.items():
            if isinstance(rule, Free) and rule.elidable_as is not None and node.outputs[0] in tensors.materialized:
                self._enter_relabel(node, rule.elidable_as)
            elif isinstance(rule, Free):
                self._enter_free(node, rule)
            elif isinstance(rule, Relabel):
                self._enter_relabel(node, rule)
            elif isinstance(rule, Fixed):
                self._enter_fixed(node, rule)
            elif rule is None and node.op_type in alike():
                self._enter_pinned(node)
        for node, region_edges in tensors.region_edges.items():
            for region_edge in region_edges:
                self._enter_region_edge(node, region_edge)
        self._spread(self._said)
        self._surely = len(self._given)
        self._spread(self._presumed)
        self._spread(self._left)

    @property
    def has_contested(self) -> bool:
        """Whether two operators call one axis by different names."""
        return bool(self._contested)

    def of(self, operand: Operand) -> str | None:
        """The letters of the operand's axes, one each, or None where one is unknown or occurs twice."""
        own = self._letters.get(operand.value, {})
        letters = "".join(self._given[own[axis]] if axis in own else "" for axis in range(len(operand.view.axes)))
        return letters if len(set(letters)) == len(operand.view.axes) else None

    def key(self, value: ir.Value) -> tuple[tuple[int, str, bool], ...]:
        """All that is known of the names of a value's axes: equal keys give equal answers of `of` and `filled`."""
        own = self._letters.get(value)
        if own is None:
            return ()
        return tuple(sorted([(axis, self._given[name], name >= self._surely) for axis, name in own.items()]))

    def filled(self, operand: Operand, wanted: Layout) -> str | None:
        """The letters by which `wanted` is read: the operand's own, or, where not all axes have one of the layout's,
        those of its axes that are longer than 1, and for the others the letters that are left, in the layout's order:
        of what is not known it is taken to say how it is. None where no axis has one."""
        asked = [name for i, name in enumerate(wanted.names) if wanted.outer(i) is None and name != "*"]
        letters, rank = self.of(operand), len(operand.view.axes)
        if letters is not None and (len(asked) != rank or sorted(letters) == sorted(asked)):
            return letters
        known = self._held(operand, asked)
        if not known or len(asked) != rank:
            return letters
        rest = iter([letter for letter in asked if letter not in known.values()])
        return "".join(known[axis] if axis in known else next(rest) for axis in range(rank))

    def _held(self, operand: Operand, asked: Sequence[str]) -> dict[int, str]:
        """Which axis longer than 1 has which of these letters, by those who say it before those who presume it; neither
        of two that have as good a claim to it."""
        held: dict[str, list[tuple[bool, int]]] = {}
        for axis, name in self._letters.get(operand.value, {}).items():
            if operand.view.extents[axis] != 1:
                held.setdefault(self._given[name], []).append((name >= self._surely, axis))
        known: dict[int, str] = {}
        for letter in [letter for letter in asked if letter in held]:
            (is_presumed, axis), *others = sorted(held[letter])
            if not others or others[0][0] != is_presumed:
                known[axis] = letter
        return known

    def in_order(self, operand: Operand, order: MemoryFormat) -> str | None:
        """The letters of the operand's axes as they lie in memory, outermost first; None where not all are known, or
        where two operators call one axis by different names."""
        letters = self.of(operand)
        if letters is None or self._is_contested(operand.value):
            return None
        if len(order) != len(letters) or not all(a.is_whole for a in order):
            return None
        return "".join(letters[a.axis] for a in order)

    def layout(self, operand: Operand, order: MemoryFormat, *, padded: bool = False) -> Layout | None:
        """The same as a layout, which has words for inner factors and black boxes too, and for padding where that is
        asked for."""
        letters = self.of(operand)
        if letters is None or self._is_contested(operand.value):
            return None
        layout = layout_of(order, letters, operand.view.extents if padded else None)
        return layout if layout is None else carrying(layout, order)

    def _enter_fixed(self, node: ir.Node, rule: Fixed) -> None:
        for value, letters in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False):
            if value is not None and letters is not None and self._follows(value):
                for axis, letter in enumerate(letters):
                    self._said.append(((value, axis), letter))

    def _enter_free(self, node: ir.Node, rule: Free) -> None:
        # An axis and the one beside it go by one name: what is split is still what it was.
        alike = {axis: min(axis, own.companion) for axis, own in enumerate(rule.traits) if own.companion is not None}
        members = [
            (value, tuple(alike.get(axis, axis) for axis in axes))
            for value, axes in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False)
            if value is not None and axes is not None and self._follows(value)
        ]
        kept = [(value, kept_by(node, rule, value, axes)) for value, axes in members]
        silent = {place for value, axes in members for place in repeated_by(rule, value, axes)}
        tie(self._shared, kept, len(rule.extents), silent)
        if rule.letters:
            for value, axes in members:
                for axis, space_axis in enumerate(axes):
                    letter = rule.letters[space_axis]
                    told = self._said if tells_apart(node, letter) else self._presumed
                    said = told if rule.elidable_as is None else self._left
                    said.append(((value, axis), letter))

    def _enter_pinned(self, node: ir.Node) -> None:
        """What stays as in the source, for all that is not known of it, still gives the axes that it reads."""
        source = next(iter(node.inputs), None)
        if source is None or not self._follows(source):
            return
        for result in node.outputs:
            kept = kept_whole(source, result) if self._follows(result) else None
            if kept is not None:
                tie(self._shared, [(source, range(len(kept))), (result, kept)], len(kept))

    def _enter_region_edge(self, node: ir.Node, region_edge: RegionEdge) -> None:
        rule = region_edge.rule
        sides = (
            *zip(read_at(node, region_edge.reads), rule.inputs, strict=True),
            *zip(given_at(node, region_edge.gives), rule.outputs, strict=True),
        )
        members = [(v, axes) for v, axes in sides if v is not None and axes is not None and self._follows(v)]
        tie(self._shared, members, len(rule.extents))

    def _enter_relabel(self, node: ir.Node, rule: Relabel) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None:
            return
        # A unit axis has no atom, but a Transpose moves its name all the same: the rule tells which axis it was.
        axes = [group[0].axis if len(group) == 1 and group[0].is_whole else None for group in rule.axes]
        rank = len(source.shape)
        tie(self._views, [(source, range(rank)), (result, axes)], rank)

    def _follows(self, value: ir.Value) -> bool:
        return self._tensors.operands.get(value) is not None and not self._tensors.is_constant(value)

    def _give(self, letter: str) -> int:
        self._given.append(letter)
        self._same.append(len(self._same))
        return len(self._same) - 1

    def _spread(self, said: Sequence[tuple[Place, str]]) -> None:
        level: list[tuple[ir.Value, int, int]] = []
        for (value, axis), letter in said:
            self._reach(value, axis, self._give(letter), level)
        while level:
            following: list[tuple[ir.Value, int, int]] = []
            for value, axis, name in level:
                for own in self._shared.get(value, ()):
                    for other, at in hand_over(own[axis]):
                        self._reach(other, at, name, following)
            level = following

    def _reach(self, value: ir.Value, axis: int, name: int, found: list[tuple[ir.Value, int, int]]) -> None:
        """Name an axis, and it in all views of its tensor; those that had no name are `found`."""
        waiting = [(value, axis)]
        for each, at in waiting:
            own = self._letters.setdefault(each, {})
            if at not in own:
                own[at] = name
                found.append((each, at, name))
                for tied in self._views.get(each, ()):
                    waiting += hand_over(tied[at])
            elif own[at] != name:
                self._meet(own[at], name)

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
