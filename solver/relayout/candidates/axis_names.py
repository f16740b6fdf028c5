"""Axis-name inference: which axis of a value is N, C, H, W.

Operators with named axes name their operands' axes. The names propagate along iteration spaces and through view ops, so
that a layout string binds to values without a named operator. The nearest name wins; among equally near names, that of
the first operator. Distance counts operators. View ops do not count, because legalization moves them and the legal
model must have the same names. Operators that do not distinguish their axes name the remaining ones (assumed names).
Elidable operators come last, because a legal model may lack them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import cache

import onnx_ir as ir
from msgspec import Struct

from relayout.candidates.alternatives import NodePorts, Port
from relayout.candidates.tensors import Operand, Tensors
from relayout.layout.binding import carrying, layout_of
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Extent, MemoryFormat
from relayout.ops import (
    Axes,
    Fixed,
    Free,
    Listed,
    OperatorClass,
    RegionEdge,
    Relabel,
    extents_of,
    given_at,
    read_at,
    rows,
)
from relayout.ops.operand_roles import tells_apart

_OperandAxis = tuple[int, int]
"""An operand among all of a node, and one of its axes."""
_Joined = tuple[Sequence[_OperandAxis], Sequence[_OperandAxis]]
"""The operands' axes that are one axis of an iteration space, and those among them that pass their names on."""

_UNNAMED = -1


class _Space(Struct, frozen=True):
    """The axes of an iteration space, and the letters that its operator gives to axes of its operands."""

    joined: Sequence[_Joined]
    letters: Sequence[tuple[_OperandAxis, str]]


KnownNames = tuple[tuple[str, int], ...]
"""For each axis of a value its name, "" where it has none, and the name's precedence: 0 stated, 1 an elidable
operator's, 2 assumed. Empty where no rule speaks of the value."""


class OperandNames(ABC):
    """The axis names of operands by what is known of their values. A constant has none of its own: each reader names
    its axes by those of its other operands."""

    @abstractmethod
    def known(self, value: ir.Value) -> KnownNames:
        """All that is known about a value's axis names: equal ones give equal results of `of` and `filled`."""

    def of(self, operand: Operand) -> str | None:
        """The names of the operand's axes, or None where one is unknown or occurs twice."""
        return _complete(self.known(operand.value), len(operand.view.axes))

    def of_ports(self, choice: NodePorts) -> tuple[KnownNames, ...]:
        """The names by which the choice reads the axes of each of its ports.

        The operators before and after a node may name an axis of its iteration space differently. A port then has the
        names of the first port that has all its axes, inputs before results, so that one order can suit both. Axes of
        extent 1 do not count.
        """
        known = tuple([self.known(port.operand.value) for port in choice.ports])
        rule = choice.rule
        if not isinstance(rule, Free) or rule.axis_names:
            return known
        return _by_first_port(
            choice.ports, [port.entry(rule.inputs, rule.outputs) or () for port in choice.ports], known
        )


def filled_names(known: KnownNames, extents: Sequence[Extent], wanted: Layout) -> str | None:
    """The axis names of a value of these extents for reading the layout `wanted`. Where some axes have none of the
    layout's names, the axes longer than 1 keep theirs, and the others get the remaining names in the layout's order.
    None where no axis has a name."""
    asked = [name for i, name in enumerate(wanted.names) if wanted.outer(i) is None and name != "*"]
    rank = len(extents)
    axis_names = _complete(known, rank)
    if axis_names is not None and (len(asked) != rank or sorted(axis_names) == sorted(asked)):
        return axis_names
    named = _named(known, extents, asked)
    if not named or len(asked) != rank:
        return axis_names
    rest = iter([letter for letter in asked if letter not in named.values()])
    return "".join(named[axis] if axis in named else next(rest) for axis in range(rank))


def _by_first_port(
    ports: Sequence[Port], axes_of: Sequence[Axes], known: Sequence[KnownNames]
) -> tuple[KnownNames, ...]:
    """The names of each port's axes: those of the first port that has all its named axes longer than 1."""
    every: list[dict[int, tuple[str, int]]] = []
    found: list[KnownNames] = []
    for port, axes, own in zip(ports, axes_of, known, strict=True):
        places = zip(axes, own, port.operand.view.extents, strict=False)
        named = {axis: name for axis, name, extent in places if name[0] and extent != 1}
        given = next((each for each in every if named.keys() <= each.keys()), named)
        if any(given[axis][0] != name[0] for axis, name in named.items()):
            own = tuple([given.get(axis, name) for axis, name in zip(axes, own, strict=True)])
        every.append(named)
        found.append(own)
    return tuple(found)


def _complete(known: KnownNames, rank: int) -> str | None:
    """The names of all axes of a value, or None where one is unknown or occurs twice."""
    axis_names = "".join([name for name, _ in known])
    return axis_names if len(set(axis_names)) == rank else None


def own_names(known: KnownNames, extents: Sequence[Extent]) -> str:
    """The names of a value's axes, `*` for an axis without one. Where any has none, so has each axis of extent 1."""
    axis_names = _complete(known, len(extents))
    if axis_names is not None:
        return axis_names
    named = _named(known, extents, [*dict.fromkeys(name for name, _ in known if name)])
    return "".join([named.get(axis, "*") for axis in range(len(extents))])


def _named(known: KnownNames, extents: Sequence[Extent], asked: Sequence[str]) -> dict[int, str]:
    """The axes longer than 1 that have one of these names. A stated name takes precedence over an assumed one, and of
    those an elidable operator's, which only axes without another name have. Where two axes have equal claims, neither
    gets the name."""
    found: dict[str, list[tuple[int, int]]] = {}
    for axis, (name, claim) in enumerate(known):
        if name and extents[axis] != 1:
            found.setdefault(name, []).append((claim, axis))
    named: dict[int, str] = {}
    for letter in [letter for letter in asked if letter in found]:
        (claim, axis), *others = sorted(found[letter])
        if not others or others[0][0] != claim:
            named[axis] = letter
    return named


class AxisNames(OperandNames):
    """The axis names of every value, as far as the model determines them."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._operands, self._constants = tensors.operands, tensors.constants
        # Axes are numbered. An axis of a view has the number of the axis that it is in the tensor.
        self._axes: dict[ir.Value, Sequence[int]] = {}
        # Each axis's name, as the index in `_given` where an operator gave it first.
        self._names: list[int] = []
        self._given: list[str] = []
        self._class_of: list[int] = []
        self._conflicting: set[int] = set()
        # For each axis and each space that has it: the axes that are one axis there, until one of them has a name.
        self._joined: list[list[list[int]] | None] = []
        self._stated: list[tuple[int, str]] = []
        self._assumed: list[tuple[int, str]] = []
        self._of_elidable: list[tuple[int, str]] = []
        # By rule, operator class and the operands with names.
        self._spaces: dict[tuple[int, OperatorClass, tuple[bool, ...]], _Space] = {}
        for node, rule in tensors.rules.items():
            if isinstance(rule, Free) and rule.elidable_as is not None and node.outputs[0] in tensors.materialized:
                self._enter_view(node, rule.elidable_as)
            elif isinstance(rule, Free):
                self._enter_free(node, rule)
            elif isinstance(rule, Relabel):
                self._enter_view(node, rule)
            elif isinstance(rule, Fixed):
                self._enter_fixed(node, rule)
            elif isinstance(rule, Listed):
                self._enter_listed(node, rule)
            elif rule is None and node.op_type in _same_axes_operators():
                self._enter_pinned(node)
        for node, region_edges in tensors.region_edges.items():
            for region_edge in region_edges:
                self._enter_region_edge(node, region_edge)
        self._spread(self._stated)
        # The index of the first assumed name; those before it are stated.
        self._first_assumed = len(self._given)
        self._spread(self._assumed)
        self._first_elidable = len(self._given)
        self._spread(self._of_elidable)
        # The last one is that of an axis without a name, whose index is -1.
        self._known = [*zip(self._given, map(self._claim, range(len(self._given))), strict=True), ("", 0)]
        # They are not read any more, and take as much memory as all else here.
        for each in (self._joined, self._spaces, self._stated, self._assumed, self._of_elidable):
            each.clear()

    @property
    def has_conflicting(self) -> bool:
        """Whether two operators call one axis by different names."""
        return bool(self._conflicting)

    def of_ports(self, choice: NodePorts) -> tuple[KnownNames, ...]:
        if not self._conflicting:
            return tuple([self.known(port.operand.value) for port in choice.ports])
        return super().of_ports(choice)

    def known(self, value: ir.Value) -> KnownNames:
        known = self._known
        return tuple([known[name] for name in self._names_of(value)])

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

    def _names_of(self, value: ir.Value) -> list[int]:
        """The name of each axis of a value; empty where no rule speaks of the value."""
        names = self._names
        return [names[axis] for axis in self._axes.get(value, ())]

    def _axes_of(self, value: ir.Value) -> Sequence[int]:
        known = self._axes.get(value)
        if known is None:
            known = self._axes[value] = self._new_axes(len(value.shape.dims) if value.shape is not None else 0)
        return known

    def _new_axes(self, count: int) -> Sequence[int]:
        first = len(self._names)
        self._names += [_UNNAMED] * count
        self._joined += [None] * count
        return range(first, first + count)

    def _join(self, joined: Sequence[_Joined], axes: Sequence[Sequence[int]]) -> None:
        """Enter an iteration space; `axes` are those of each operand."""
        known = self._joined
        for places, passing in joined:
            members = [axes[n][index] for n, index in places]
            for n, index in passing:
                axis = axes[n][index]
                others = known[axis]
                if others is None:
                    known[axis] = [members]
                else:
                    others.append(members)

    def _enter_fixed(self, node: ir.Node, rule: Fixed) -> None:
        for value, axis_names in zip((*node.inputs, *node.outputs), (*rule.inputs, *rule.outputs), strict=False):
            if value is not None and axis_names is not None and self._has_names(value):
                self._stated += zip(self._axes_of(value), axis_names, strict=False)

    def _enter_listed(self, node: ir.Node, rule: Listed) -> None:
        """Operands of a product have the names of the axes that they share, as those of a MatMul have."""
        values = (*node.inputs, *node.outputs)
        axes = [self._axes_of(value) if value is not None and self._has_names(value) else () for value in values]
        shared = [
            [(n + len(node.inputs) * is_result, axis) for is_result, n, axis in own] for own in rule.permutable_within
        ]
        named = [[(n, axis) for n, axis in own if axes[n]] for own in shared]
        self._join([(own, own) for own in named if len(own) > 1], axes)

    def _enter_free(self, node: ir.Node, rule: Free) -> None:
        values = (*node.inputs, *node.outputs)
        axes = [self._axes_of(value) if value is not None and self._has_names(value) else () for value in values]
        key = id(rule), self._tensors.classes[node], tuple(map(bool, axes))
        space = self._spaces.get(key)
        if space is None or len(set(values)) < len(values):
            space = self._spaces[key] = _space_of(node, rule, values, axes)
        self._join(space.joined, axes)
        for (n, index), letter in space.letters:
            stated = self._stated if tells_apart(node, letter) else self._assumed
            found = stated if rule.elidable_as is None else self._of_elidable
            found.append((axes[n][index], letter))

    def _enter_pinned(self, node: ir.Node) -> None:
        """A pinned operator of this kind still gives its result the axes of its input."""
        source = next(iter(node.inputs), None)
        if source is None or not self._has_names(source):
            return
        for result in node.outputs:
            kept = _kept_whole(source, result) if self._has_names(result) else None
            if kept is not None:
                members = [(0, range(len(kept)), ()), (1, kept, ())]
                self._join(_joined(members, len(kept)), [self._axes_of(source), self._axes_of(result)])

    def _enter_region_edge(self, node: ir.Node, region_edge: RegionEdge) -> None:
        rule = region_edge.rule
        sides = (
            *zip(read_at(node, region_edge.reads), rule.inputs, strict=True),
            *zip(given_at(node, region_edge.gives), rule.outputs, strict=True),
        )
        known = [(v, axes) for v, axes in sides if v is not None and axes is not None and self._has_names(v)]
        own = _joined([(n, axes, ()) for n, (_, axes) in enumerate(known)], len(rule.extents))
        self._join(own, [self._axes_of(value) for value, _ in known])

    def _enter_view(self, node: ir.Node, rule: Relabel) -> None:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None:
            return
        # A unit axis has no atom, but a Transpose moves its name: the rule tells which axis it was.
        read = self._axes_of(source)
        kept = rule.kept
        fresh = iter(self._new_axes(kept.count(None)))
        self._axes[result] = [next(fresh) if axis is None else read[axis] for axis in kept]

    def _has_names(self, value: ir.Value) -> bool:
        return self._operands.get(value) is not None and value not in self._constants

    def _spread(self, stated: Iterable[tuple[int, str]]) -> None:
        names, joined, given, class_of = self._names, self._joined, self._given, self._class_of
        level: list[int] = []
        for axis, letter in stated:
            name = len(given)
            given.append(letter)
            class_of.append(name)
            if names[axis] == _UNNAMED:
                names[axis] = name
                level.append(axis)
            else:
                self._unite(names[axis], name)
        while level:
            following: list[int] = []
            for axis in level:
                name = names[axis]
                for members in joined[axis] or ():
                    for other in members:
                        if names[other] == _UNNAMED:
                            names[other] = name
                            following.append(other)
                        elif names[other] != name:
                            self._unite(names[other], name)
                    # All of them have names by now.
                    members.clear()
            level = following

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
        own = [name for name in self._names_of(value) if name != _UNNAMED]
        return any(self._representative(name) in self._conflicting for name in own)


def _space_of(node: ir.Node, rule: Free, values: Sequence[ir.Value | None], named: Sequence[Sequence[int]]) -> _Space:
    """`named` is empty for an operand that has no names."""
    # An axis and its companion have the same name: a split axis keeps it.
    traits = enumerate(rule.traits)
    companions = {axis: min(axis, own.companion) for axis, own in traits if own.companion is not None}
    own = [
        (n, value, tuple([companions.get(axis, axis) for axis in axes]))
        for n, (value, axes) in enumerate(zip(values, (*rule.inputs, *rule.outputs), strict=False))
        if value is not None and axes is not None and named[n]
    ]
    long = _long_axes(rule, [(value, axes) for _, value, axes in own])
    repeated: dict[ir.Value, frozenset[int]] = {}
    for _, value, axes in own:
        repeated[value] = repeated.get(value, frozenset()) | _repeated_by(long, value, axes)
    members = [(n, _kept_by(node, rule, value, axes), repeated[value]) for n, value, axes in own]
    places = [((n, index), axis) for n, _, axes in own for index, axis in enumerate(axes)]
    names = rule.axis_names or rule.told_names
    letters = [(place, names[axis]) for place, axis in places] if names else []
    return _Space(_joined(members, len(rule.extents)), letters)


def _joined(members: Iterable[tuple[int, Sequence[int | None], Collection[int]]], rank: int) -> Sequence[_Joined]:
    """The axes of a space of `rank` axes that several operands have: axis i of each member, an operand with its index,
    is axis `axes[i]` of the space; None: it is none of them. The third entry has axes that receive names but do not
    pass theirs on."""
    every: list[tuple[list[_OperandAxis], list[_OperandAxis]]] = [([], []) for _ in range(rank)]
    for n, axes, receiving in members:
        for index, axis in enumerate(axes):
            if axis is not None:
                every[axis][0].append((n, index))
                if index not in receiving:
                    every[axis][1].append((n, index))
    return [each for each in every if len(each[0]) > 1]


@cache
def _same_axes_operators() -> frozenset[str]:
    """The operators whose results of the same rank have the axes of their first input."""
    return frozenset(row.operator for row in rows() if row.kind == "free") | {"Bernoulli", "Dropout", "ScatterND"}


def _long_axes(rule: Free, members: Sequence[tuple[ir.Value, Sequence[int]]]) -> frozenset[int]:
    """The axes of the rule that are longer than 1 in some member: SpaceToDepth makes channels of an axis of extent 1,
    and a broadcast repeats it."""
    found = {axis for axis, extent in enumerate(rule.extents) if extent != 1}
    for value, axes in members:
        extents = value.shape.dims if value.shape is not None else ()
        found.update([axis for extent, axis in zip(extents, axes, strict=False) if extent != 1])
    return frozenset(found)


def _repeated_by(long: Collection[int], value: ir.Value, axes: Sequence[int]) -> frozenset[int]:
    """The axes of extent 1 that are longer elsewhere. Their names are not evidence for the other operands."""
    extents = value.shape.dims if value.shape is not None else ()
    pairs = enumerate(zip(extents, axes, strict=False))
    return frozenset([index for index, (extent, axis) in pairs if extent == 1 and axis in long])


def _kept_by(node: ir.Node, rule: Free, value: ir.Value, axes: Sequence[int]) -> Sequence[int | None]:
    """The axes without those that the node reduces to extent 1: the result's consumers may name these freely."""
    shape = value.shape if value in node.outputs else None
    if shape is None:
        return axes
    return [None if one == 1 and rule.extents[a] != 1 else a for a, one in zip(axes, shape.dims, strict=True)]


def _kept_whole(source: ir.Value, result: ir.Value) -> list[int | None] | None:
    """The axes that a result shares with the source; None where the ranks differ."""
    before, after = extents_of(source) or (), extents_of(result) or ()
    if len(before) != len(after):
        return None
    pairs = enumerate(zip(before, after, strict=True))
    return [axis if (one == 1) == (other == 1) else None for axis, (one, other) in pairs]
