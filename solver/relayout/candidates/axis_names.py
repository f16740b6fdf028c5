"""Axis-name inference: which axis of a value is N, C, H, W.

Operators with named axes name their operands' axes. The names propagate along iteration spaces and through view ops, so
that a layout string binds to values without a named operator. The nearest name wins; among equally near names, that of
the first operator. Distance counts operators. View ops do not count, because legalization moves them and the legal
model must have the same names. Operators that do not distinguish their axes name the remaining ones (assumed names).
Elidable operators come last, because a legal model may lack them.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.candidates.axis_classes import (
    Axis,
    AxisClasses,
    join,
    kept_by,
    kept_whole,
    long_axes,
    repeated_by,
    same_axes_operators,
    take_members,
)
from relayout.candidates.tensors import Operand, Tensors
from relayout.layout.binding import carrying, layout_of
from relayout.layout.layout import Layout
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import Fixed, Free, OperatorClass, RegionEdge, Relabel, given_at, read_at
from relayout.ops.operand_roles import tells_apart

__all__ = ["AxisNames", "conventional"]

_Member = tuple[int, Sequence[int], Sequence[int | None], frozenset[int]]
"""An operand of a free node with names: its index among all operands, its axes in the space, those that pass names on,
and those that only receive them."""

_CONVENTION = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


def conventional(rank: int) -> str | None:
    """ONNX's axis names for a tensor of which only the rank is known."""
    return _CONVENTION.get(rank)


class AxisNames:
    """The axis names of every value, as far as the model determines them. Constants have none: they take any layout."""

    def __init__(self, tensors: Tensors) -> None:
        # Each axis's name, as the index in `_given` where an operator gave it first.
        self._letters: dict[ir.Value, dict[int, int]] = {}
        self._given: list[str] = []
        self._class_of: list[int] = []
        self._conflicting: set[int] = set()
        # The index of the first assumed name; those before it are stated.
        self._first_assumed = self._first_elidable = 0
        self._shared: AxisClasses = {}
        self._views: AxisClasses = {}
        self._stated: list[tuple[Axis, str]] = []
        self._assumed: list[tuple[Axis, str]] = []
        self._of_elidable: list[tuple[Axis, str]] = []
        self._tensors = tensors
        # By rule, operator class and the operands with names.
        self._members: dict[tuple[int, OperatorClass, tuple[bool, ...]], list[_Member]] = {}
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
        self._first_elidable = len(self._given)
        self._spread(self._of_elidable)
        # They are not read any more, and take as much memory as all else here.
        for each in (self._shared, self._views, self._members, self._stated, self._assumed, self._of_elidable):
            each.clear()

    @property
    def has_conflicting(self) -> bool:
        """Whether two operators call one axis by different names."""
        return bool(self._conflicting)

    def of(self, operand: Operand) -> str | None:
        """The names of the operand's axes, or None where one is unknown or occurs twice."""
        own = self._letters.get(operand.value, {})
        axis_names = "".join(self._given[own[axis]] if axis in own else "" for axis in range(len(operand.view.axes)))
        return axis_names if len(set(axis_names)) == len(operand.view.axes) else None

    def key(self, value: ir.Value) -> tuple[tuple[int, str, int], ...]:
        """A key of everything known about a value's axis names: equal keys give equal results of `of` and `filled`."""
        own = self._letters.get(value)
        if own is None:
            return ()
        return tuple(sorted([(axis, self._given[name], self._claim(name)) for axis, name in own.items()]))

    def filled(self, operand: Operand, wanted: Layout) -> str | None:
        """The operand's axis names for reading the layout `wanted`. Where some axes have none of the layout's names,
        the axes longer than 1 keep theirs, and the others get the remaining names in the layout's order. None where no
        axis has a name."""
        asked = [name for i, name in enumerate(wanted.names) if wanted.outer(i) is None and name != "*"]
        axis_names, rank = self.of(operand), len(operand.view.axes)
        if axis_names is not None and (len(asked) != rank or sorted(axis_names) == sorted(asked)):
            return axis_names
        known = self._known_names(operand, asked)
        if not known or len(asked) != rank:
            return axis_names
        rest = iter([letter for letter in asked if letter not in known.values()])
        return "".join(known[axis] if axis in known else next(rest) for axis in range(rank))

    def _known_names(self, operand: Operand, asked: Sequence[str]) -> dict[int, str]:
        """The axes longer than 1 that have one of these names. A stated name takes precedence over an assumed one, and
        of those an elidable operator's, which only axes without another name have. Where two axes have equal claims,
        neither gets the name."""
        found: dict[str, list[tuple[int, int]]] = {}
        for axis, name in self._letters.get(operand.value, {}).items():
            if operand.view.extents[axis] != 1:
                found.setdefault(self._given[name], []).append((self._claim(name), axis))
        known: dict[int, str] = {}
        for letter in [letter for letter in asked if letter in found]:
            (claim, axis), *others = sorted(found[letter])
            if not others or others[0][0] != claim:
                known[axis] = letter
        return known

    def in_order(self, operand: Operand, order: MemoryFormat) -> str | None:
        """The operand's axis names in this order, outermost first; None where one is unknown or conflicting."""
        axis_names = self.of(operand)
        if axis_names is None or self._is_conflicting(operand.value):
            return None
        if len(order) != len(axis_names) or not all(a.is_whole for a in order):
            return None
        return "".join(axis_names[a.axis] for a in order)

    def layout(self, operand: Operand, order: MemoryFormat, *, padded: bool = False) -> Layout | None:
        """The order as a layout, with inner factors and black boxes, and with padding if asked for."""
        axis_names = self.of(operand)
        if axis_names is None or self._is_conflicting(operand.value):
            return None
        layout = layout_of(order, axis_names, operand.view.extents if padded else None)
        return layout if layout is None else carrying(layout, order)

    def _claim(self, name: int) -> int:
        """The precedence of a name: 0 stated, 1 an elidable operator's, 2 assumed."""
        return 0 if name < self._first_assumed else 1 if name >= self._first_elidable else 2

    def _enter_fixed(self, node: ir.Node, rule: Fixed) -> None:
        for value, axis_names in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False):
            if value is not None and axis_names is not None and self._has_names(value):
                for axis, letter in enumerate(axis_names):
                    self._stated.append(((value, axis), letter))

    def _enter_free(self, node: ir.Node, rule: Free) -> None:
        values = (*node.inputs, *node.outputs)
        named = tuple([value is not None and self._has_names(value) for value in values])
        key = id(rule), self._tensors.classes[node], named
        members = self._members.get(key)
        if members is None or len(set(values)) < len(values):
            members = self._members[key] = self._members_of(node, rule, values, named)
        places = [(value, kept, ones) for n, _, kept, ones in members if (value := values[n]) is not None]
        join(self._shared, places, len(rule.extents))
        if rule.axis_names:
            for n, axes, _, _ in members:
                value = values[n]
                assert value is not None
                for axis, space_axis in enumerate(axes):
                    letter = rule.axis_names[space_axis]
                    stated = self._stated if tells_apart(node, letter) else self._assumed
                    stated_names = stated if rule.elidable_as is None else self._of_elidable
                    stated_names.append(((value, axis), letter))

    def _members_of(
        self, node: ir.Node, rule: Free, values: Sequence[ir.Value | None], named: Sequence[bool]
    ) -> list[_Member]:
        # An axis and its companion have the same name: a split axis keeps it.
        traits = enumerate(rule.traits)
        companions = {axis: min(axis, own.companion) for axis, own in traits if own.companion is not None}
        own = [
            (n, value, tuple([companions.get(axis, axis) for axis in axes]))
            for n, (value, axes) in enumerate(zip(values, (*rule.inputs, *rule.outputs), strict=False))
            if value is not None and axes is not None and named[n]
        ]
        long = long_axes(rule, [(value, axes) for _, value, axes in own])
        repeated: dict[ir.Value, frozenset[int]] = {}
        for _, value, axes in own:
            repeated[value] = repeated.get(value, frozenset()) | repeated_by(long, value, axes)
        return [(n, axes, kept_by(node, rule, value, axes), repeated[value]) for n, value, axes in own]

    def _enter_pinned(self, node: ir.Node) -> None:
        """A pinned operator of this kind still gives its result the axes of its input."""
        source = next(iter(node.inputs), None)
        if source is None or not self._has_names(source):
            return
        for result in node.outputs:
            kept = kept_whole(source, result) if self._has_names(result) else None
            if kept is not None:
                join(self._shared, [(source, range(len(kept)), ()), (result, kept, ())], len(kept))

    def _enter_region_edge(self, node: ir.Node, region_edge: RegionEdge) -> None:
        rule = region_edge.rule
        sides = (
            *zip(read_at(node, region_edge.reads), rule.inputs, strict=True),
            *zip(given_at(node, region_edge.gives), rule.outputs, strict=True),
        )
        members = [(v, axes, ()) for v, axes in sides if v is not None and axes is not None and self._has_names(v)]
        join(self._shared, members, len(rule.extents))

    def _enter_view(self, node: ir.Node, rule: Relabel) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None:
            return
        # A unit axis has no atom, but a Transpose moves its name: the rule tells which axis it was.
        axes = [group[0].axis if len(group) == 1 and group[0].is_whole else None for group in rule.axes]
        rank = len(source.shape)
        join(self._views, [(source, range(rank), ()), (result, axes, ())], rank)

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
                    members = own[axis]
                    if members:
                        for other, at in take_members(members):
                            self._reach(other, at, name, following)
            level = following

    def _reach(self, value: ir.Value, axis: int, name: int, found: list[tuple[ir.Value, int, int]]) -> None:
        """Name an axis in a value and in all views of its tensor. Newly named axes are appended to `found`."""
        waiting = [(value, axis)]
        for each, at in waiting:
            own = self._letters.get(each)
            if own is None:
                own = self._letters[each] = {}
            if at not in own:
                own[at] = name
                found.append((each, at, name))
                for members in self._views.get(each, ()):
                    waiting += take_members(members[at])
            elif own[at] != name:
                self._unite(own[at], name)

    def _unite(self, one: int, other: int) -> None:
        """Merge the classes of two names that reach the same axis; they conflict where the names differ."""
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
