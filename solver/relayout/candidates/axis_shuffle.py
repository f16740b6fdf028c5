"""Axis shuffles: a summed axis may be permuted, as long as all operands that share it are permuted alike. A convolution
sums over its input channels in any order if the kernel has them in the same one; a matrix product over its contracted
axis. So a channel shuffle before it, or a Flatten of channels-last data, only changes constants. The rows of a matrix
are independent, and may be permuted with those of the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from relayout.candidates.alternatives import FixedLowering, NodePorts, Port, in_source
from relayout.candidates.backend_requirements import Requirement
from relayout.layout.conversion import Dims, is_untold
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, is_padded, is_whole
from relayout.ops import Free, Shared, extents_of

_Member = tuple[bool, int, int]


class ShuffledAlternative(NamedTuple):
    """An alternative with a permuted axis, and the format that it gives each port."""

    requirement: Requirement
    lowering: FixedLowering
    formats: tuple[MemoryFormat, ...]


class AxisShuffle(Struct, frozen=True, eq=False):
    """One node with axes that may be shuffled: `shared` has, for each axis of an operand, the axes that follow it, and
    `base` the alternatives without a shuffle."""

    node: NodePorts
    shared: Mapping[_Member, Shared]
    base: tuple[tuple[Requirement, FixedLowering], ...]

    def follow(
        self, index: int, format_: MemoryFormat, found: Sequence[ShuffledAlternative]
    ) -> Iterator[ShuffledAlternative]:
        """The further alternatives in which each axis of port `index` has its factors of this format, in their order,
        beside those `found`.

        Where the node takes one order of the axes alone, they may stand in another in the format: the channels of a
        group that are normalized with its pixels come before these where the groups are last, and behind them in a
        convolution. Batched matrix products take so many orders that this would give too many alternatives.
        """
        port = self.node.ports[index]
        if port.operand.view.is_plain and is_whole(format_):
            return
        own = port.operand.view.from_base(format_)
        if own is None or is_whole(own) or is_padded(own, port.operand.view.extents):
            return
        known = [*self.base, *((each.requirement, each.lowering) for each in found)]
        is_ordered = len({_order(port, lowering) for _, lowering in self.base}) > 1
        for requirement, lowering in list(known):
            shuffled = self._shuffled(port, own, lowering, is_ordered=is_ordered)
            if shuffled is None or (requirement, shuffled) in known:
                continue
            sides = (shuffled.inputs, shuffled.outputs)
            formats = [each.format_in(sides[each.is_result][each.index]) for each in self.node.ports]
            whole = tuple([each for each in formats if each is not None])
            if len(whole) == len(formats):
                known.append((requirement, shuffled))
                yield ShuffledAlternative(requirement, shuffled, whole)

    def _shuffled(
        self, port: Port, own: MemoryFormat, lowering: FixedLowering, *, is_ordered: bool
    ) -> FixedLowering | None:
        """The form with the factors of `own` in each dimension; None where these are its own, where the model would not
        tell the order, and, if `is_ordered`, where the axes of `own` stand in another one."""
        dims_of_port = _dims(port, lowering)
        if any(len({a.axis for a in group}) != 1 for group in dims_of_port):
            return None
        known = {group[0].axis: group for group in dims_of_port if port.operand.view.extents[group[0].axis] != 1}
        given = {axis: tuple([atom for atom in own if atom.axis == axis]) for axis in known}
        changes = {axis: found for axis, found in given.items() if found != known[axis]}
        placed = tuple(chain.from_iterable(given.values()))
        if not changes or not all(given.values()) or (placed != own if is_ordered else len(placed) != len(own)):
            return None
        inputs, outputs = list(lowering.inputs), list(lowering.outputs)
        for axis, factors in changes.items():
            members = self.shared.get((port.is_result, port.index, axis))
            if members is None:
                return None
            for member in members:
                dims_side = outputs if member[0] else inputs
                dims = dims_side[member[1]] or in_source(len(_extents(self.node, member)))
                if sum(group[0].axis == member[2] for group in dims) != 1:
                    return None  # a layout that is required tiles it
                dims_side[member[1]] = _replaced(dims, member[2], factors)
        shuffled = FixedLowering(tuple(inputs), tuple(outputs), lowering.pick, lowering.rewrite)
        is_told = all(not is_untold(_dims(each, shuffled), each.operand.view.extents) for each in self.node.ports)
        return shuffled if is_told else None


def axis_shuffle(
    node: NodePorts, shared: tuple[Shared, ...], base: Sequence[tuple[Requirement, FixedLowering]]
) -> AxisShuffle | None:
    """The shuffle of a node whose rule says that these axes may be permuted together; None where none has one extent,
    a number or a name, in all the operands that share it."""
    members = {member: axes for axes in shared if _have_one_extent(node, axes) for member in axes}
    return AxisShuffle(node, members, tuple(base)) if members else None


def permuted_together(node: NodePorts, rule: Free) -> tuple[Shared, ...]:
    """The axes that a backend's rewrite of a free node may find permuted: all operands have them alike, and the rewrite
    computes the operator. A rewrite may read a constant as the node has it, so none of a constant's axes."""
    ports = {(port.is_result, port.index) for port in node.ports}
    sides = [
        (is_result, n, own)
        for is_result, side in ((False, rule.inputs), (True, rule.outputs))
        for n, own in enumerate(side)
    ]
    found: list[Shared] = []
    for axis, traits in enumerate(rule.traits):
        members = tuple([(r, n, own.index(axis)) for r, n, own in sides if own is not None and axis in own])
        if traits.permutable_within == "same" and all(member[:2] in ports for member in members):
            found.append(members)
    return tuple(found)


def _dims(port: Port, lowering: FixedLowering) -> Dims:
    return port.entry(lowering.inputs, lowering.outputs) or in_source(len(port.operand.view.axes))


def _order(port: Port, lowering: FixedLowering) -> tuple[int, ...]:
    """The axes of the port in the order in which they stand first."""
    return tuple(dict.fromkeys(atom.axis for dim in _dims(port, lowering) for atom in dim))


def _have_one_extent(node: NodePorts, members: Shared) -> bool:
    """Whether the axis has one extent, a number or a name, in all the operands that share it."""
    known = [(_extents(node, member), member[2]) for member in members]
    found = {extents[axis] if axis < len(extents) else None for extents, axis in known}
    return len(found) == 1 and None not in found


def _extents(node: NodePorts, member: _Member) -> tuple[Extent, ...]:
    """The extents of a member's operand; none where they are not known."""
    assert node.node is not None
    values = node.node.outputs if member[0] else node.node.inputs
    value = values[member[1]] if member[1] < len(values) else None
    return extents_of(value) or ()


def _replaced(dims: Dims, axis: int, factors: MemoryFormat) -> Dims:
    """The dimensions with the factors of `axis` as given, in this operand's numbering."""
    own = tuple(Atom(axis, factor.inner, factor.outer) for factor in factors)
    return tuple(own if group[0].axis == axis else group for group in dims)
