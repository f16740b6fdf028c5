"""Axis-name inference: which axis of a value is N, C, H, W.

Operators with named axes name their operands' axes. The names propagate along iteration spaces and through view ops, so
that a layout string binds to values without a named operator. The nearest name stays; of equally near ones, that of the
first operator. Distance counts operators. View ops count nothing, because legalization moves them, and a legal model
must have the same names. Operators that do not tell their axes apart name what is left (assumed names), and elidable
ones, which a legal model may lack, come last.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.candidates.axis_classes import (
    Axis,
    AxisClasses,
    hand_over,
    join,
    kept_by,
    kept_whole,
    repeated_by,
    same_axes_operators,
)
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
    """The names of every value's axes, as far as the model gives them. Constants have none: they take any layout."""

    def __init__(self, tensors: Tensors) -> None:
        # Each axis's name, as the index in `_given` where an operator gave it first.
        self._letters: dict[ir.Value, dict[int, int]] = {}
        self._given: list[str] = []
        self._class_of: list[int] = []
        self._conflicting: set[int] = set()
        # The index of the first assumed name; those before it are stated.
        self._first_assumed = 0
        self._shared: AxisClasses = {}
        self._views: AxisClasses = {}
        self._stated: list[tuple[Axis, str]] = []
        self._assumed: list[tuple[Axis, str]] = []
        self._of_elidable: list[tuple[Axis, str]] = []
        self._tensors = tensors
        for node, rule in tensors.rules.items():
            if isinstance(rule, Free) and rule.elidable_as is not None and node.outputs[0] in tensors.materialized:
                self._enter_view(node, rule.elidable_as)
            elif isinstance(rule, Free):
                self._enter_free(node, rule)
            elif isinstance(rule, Relabel):
                self._enter_view(node, rule)
            elif isinstance(rule, Fixed):
                self._enter_fixed(node, rule)
            elif rule is None and node.op_type in same_axes_operators():
                self._enter_pinned(node)
        for node, region_edges in tensors.region_edges.items():
            for region_edge in region_edges:
                self._enter_region_edge(node, region_edge)
        self._spread(self._stated)
        self._first_assumed = len(self._given)
        self._spread(self._assumed)
        self._spread(self._of_elidable)

    @property
    def has_conflicting(self) -> bool:
        """Whether two operators call one axis by different names."""
        return bool(self._conflicting)

    def of(self, operand: Operand) -> str | None:
        """The names of the operand's axes, or None where one is unknown or occurs twice."""
        own = self._letters.get(operand.value, {})
        letters = "".join(self._given[own[axis]] if axis in own else "" for axis in range(len(operand.view.axes)))
        return letters if len(set(letters)) == len(operand.view.axes) else None

    def key(self, value: ir.Value) -> tuple[tuple[int, str, bool], ...]:
        """All that is known of the names of a value's axes: equal keys give equal answers of `of` and `filled`."""
        own = self._letters.get(value)
        if own is None:
            return ()
        return tuple(sorted([(axis, self._given[name], name >= self._first_assumed) for axis, name in own.items()]))

    def filled(self, operand: Operand, wanted: Layout) -> str | None:
        """The names by which `wanted` is read: the operand's own. Where not all axes have one of the layout's, those of
        its axes that are longer than 1, and for the others the names that are left, in the layout's order. None where
        no axis has one."""
        asked = [name for i, name in enumerate(wanted.names) if wanted.outer(i) is None and name != "*"]
        letters, rank = self.of(operand), len(operand.view.axes)
        if letters is not None and (len(asked) != rank or sorted(letters) == sorted(asked)):
            return letters
        known = self._known_names(operand, asked)
        if not known or len(asked) != rank:
            return letters
        rest = iter([letter for letter in asked if letter not in known.values()])
        return "".join(known[axis] if axis in known else next(rest) for axis in range(rank))

    def _known_names(self, operand: Operand, asked: Sequence[str]) -> dict[int, str]:
        """Which axis longer than 1 has which of these names; a stated name goes before an assumed one, and none of two
        axes with equal claims has it."""
        found: dict[str, list[tuple[bool, int]]] = {}
        for axis, name in self._letters.get(operand.value, {}).items():
            if operand.view.extents[axis] != 1:
                found.setdefault(self._given[name], []).append((name >= self._first_assumed, axis))
        known: dict[int, str] = {}
        for letter in [letter for letter in asked if letter in found]:
            (is_assumed, axis), *others = sorted(found[letter])
            if not others or others[0][0] != is_assumed:
                known[axis] = letter
        return known

    def in_order(self, operand: Operand, order: MemoryFormat) -> str | None:
        """The names of the operand's axes in this order, outermost first; None where not all are known, or where the
        names of one axis conflict."""
        letters = self.of(operand)
        if letters is None or self._is_conflicting(operand.value):
            return None
        if len(order) != len(letters) or not all(a.is_whole for a in order):
            return None
        return "".join(letters[a.axis] for a in order)

    def layout(self, operand: Operand, order: MemoryFormat, *, padded: bool = False) -> Layout | None:
        """The same as a layout, with inner factors and black boxes, and with padding where that is wanted."""
        letters = self.of(operand)
        if letters is None or self._is_conflicting(operand.value):
            return None
        layout = layout_of(order, letters, operand.view.extents if padded else None)
        return layout if layout is None else carrying(layout, order)

    def _enter_fixed(self, node: ir.Node, rule: Fixed) -> None:
        for value, letters in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False):
            if value is not None and letters is not None and self._has_names(value):
                for axis, letter in enumerate(letters):
                    self._stated.append(((value, axis), letter))

    def _enter_free(self, node: ir.Node, rule: Free) -> None:
        # An axis and its companion have one name: a split axis keeps it.
        traits = enumerate(rule.traits)
        companions = {axis: min(axis, own.companion) for axis, own in traits if own.companion is not None}
        members = [
            (value, tuple([companions.get(axis, axis) for axis in axes]) if companions else axes)
            for value, axes in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False)
            if value is not None and axes is not None and self._has_names(value)
        ]
        kept = [(value, kept_by(node, rule, value, axes)) for value, axes in members]
        non_propagating = {place for value, axes in members for place in repeated_by(rule, value, axes)}
        join(self._shared, kept, len(rule.extents), non_propagating)
        if rule.letters:
            for value, axes in members:
                for axis, space_axis in enumerate(axes):
                    letter = rule.letters[space_axis]
                    stated = self._stated if tells_apart(node, letter) else self._assumed
                    stated_names = stated if rule.elidable_as is None else self._of_elidable
                    stated_names.append(((value, axis), letter))

    def _enter_pinned(self, node: ir.Node) -> None:
        """A pinned operator of this kind still gives its result the axes of its input."""
        source = next(iter(node.inputs), None)
        if source is None or not self._has_names(source):
            return
        for result in node.outputs:
            kept = kept_whole(source, result) if self._has_names(result) else None
            if kept is not None:
                join(self._shared, [(source, range(len(kept))), (result, kept)], len(kept))

    def _enter_region_edge(self, node: ir.Node, region_edge: RegionEdge) -> None:
        rule = region_edge.rule
        sides = (
            *zip(read_at(node, region_edge.reads), rule.inputs, strict=True),
            *zip(given_at(node, region_edge.gives), rule.outputs, strict=True),
        )
        members = [(v, axes) for v, axes in sides if v is not None and axes is not None and self._has_names(v)]
        join(self._shared, members, len(rule.extents))

    def _enter_view(self, node: ir.Node, rule: Relabel) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None:
            return
        # A unit axis has no atom, but a Transpose moves its name: the rule tells which axis it was.
        axes = [group[0].axis if len(group) == 1 and group[0].is_whole else None for group in rule.axes]
        rank = len(source.shape)
        join(self._views, [(source, range(rank)), (result, axes)], rank)

    def _has_names(self, value: ir.Value) -> bool:
        return self._tensors.operands.get(value) is not None and not self._tensors.is_constant(value)

    def _give(self, letter: str) -> int:
        self._given.append(letter)
        self._class_of.append(len(self._class_of))
        return len(self._class_of) - 1

    def _spread(self, stated_names: Sequence[tuple[Axis, str]]) -> None:
        level: list[tuple[ir.Value, int, int]] = []
        for (value, axis), letter in stated_names:
            self._reach(value, axis, self._give(letter), level)
        while level:
            following: list[tuple[ir.Value, int, int]] = []
            for value, axis, name in level:
                for own in self._shared.get(value, ()):
                    if own[axis]:
                        for other, at in hand_over(own[axis]):
                            self._reach(other, at, name, following)
            level = following

    def _reach(self, value: ir.Value, axis: int, name: int, found: list[tuple[ir.Value, int, int]]) -> None:
        """Name an axis, and it in all views of its tensor; those that had no name are `found`."""
        waiting = [(value, axis)]
        for each, at in waiting:
            own = self._letters.get(each)
            if own is None:
                own = self._letters[each] = {}
            if at not in own:
                own[at] = name
                found.append((each, at, name))
                for tied in self._views.get(each, ()):
                    waiting += hand_over(tied[at])
            elif own[at] != name:
                self._unite(own[at], name)

    def _unite(self, one: int, other: int) -> None:
        """Two names reach one axis: all axes of either are the same one, and conflicting where the names differ."""
        one, other = self._representative(one), self._representative(other)
        if one == other:
            return
        if self._given[one] != self._given[other] or one in self._conflicting:
            self._conflicting.add(other)
        self._class_of[one] = other

    def _representative(self, name: int) -> int:
        while self._class_of[name] != name:
            self._class_of[name] = self._class_of[self._class_of[name]]
            name = self._class_of[name]
        return name

    def _is_conflicting(self, value: ir.Value) -> bool:
        return any(self._representative(name) in self._conflicting for name in self._letters.get(value, {}).values())
