"""View ops: the result is a view of the input's memory, and the node disappears."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, pairwise
from math import prod
from operator import mul

import numpy as np
from msgspec import Struct

from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form
from relayout.layout.terms import Term, dividend_of, extent_term, product, quotient, term_of
from relayout.ops.axis_ops import without
from relayout.ops.node_reader import NoRuleError, Reading, extents_of, normal_axis
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Edit, Free, Relabel, free


@row("relabel", "Transpose")
def transpose(node: Reading) -> Relabel:
    rank = node.rank()
    perm = node.ints("perm") or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise NoRuleError
    return Relabel(tuple((Atom(axis),) for axis in perm))


@row("relabel", "Identity")
def identity(node: Reading) -> Relabel:
    return Relabel(tuple((Atom(axis),) for axis in range(node.rank())))


@row("relabel", "Dropout")
def dropout(node: Reading) -> Relabel:
    """In inference Dropout is the identity; with a mask that is read or in training it is not."""
    if node.used(1) or (node.opset >= 12 and node.has(2) and node.constant(2).any()):
        raise NoRuleError
    return Relabel(tuple((Atom(axis),) for axis in range(node.rank())))


@row("relabel", "Squeeze")
def squeeze(node: Reading) -> Relabel | Free:
    extents = node.extents(0)
    rank = len(extents)
    axes = node.axes(1, rank)
    if axes is None:
        if not all(isinstance(e, int) for e in extents):
            raise NoRuleError
        axes = tuple(a for a in range(rank) if extents[a] == 1)
    if any(isinstance(extents[a], int) and extents[a] != 1 for a in axes):
        raise NoRuleError
    if all(extents[a] == 1 for a in axes):
        return Relabel(tuple((Atom(a),) for a in range(rank) if a not in axes))
    return _squeezed(node, axes)


def _squeezed(node: Reading, squeezed: Axes) -> Free:
    """If an extent is known only at run time the operator stays; its axes may be in any order."""
    extents, axes = node.space()
    result = without(axes, *squeezed)
    as_input = node.ints("axes") is None

    def edit(order: Axes) -> Edit:
        places = tuple(place for place, axis in enumerate(order) if axis in squeezed)
        return Edit(constants={1: np.array(places, np.int64)}) if as_input else Edit({"axes": places})

    return free(extents, (axes, *(None for _ in node.node.inputs[1:])), (result,), edit=edit, tileable=result)


@row("relabel", "Unsqueeze")
def unsqueeze(node: Reading) -> Relabel:
    rank = node.rank()
    given = node.ints("axes")
    if given is None:
        given = node.integers(1)
    total = rank + len(given)
    axes = {normal_axis(a, total) for a in given}
    if len(axes) != len(given):
        raise NoRuleError
    kept = iter(range(rank))
    return Relabel(tuple(() if a in axes else (Atom(next(kept)),) for a in range(total)))


@row("relabel", "Reshape", "Flatten")
def reshape(node: Reading) -> Relabel:
    """Axes map one to one, are inserted or removed with extent 1, and merge or split where the factors nest.

    A model may declare a result of another rank than the target has: then what it computes is not what it says.
    """
    target = extents_of(node.node.inputs[1]) if node.has(1) else None
    if target is not None and None not in target and target != (len(node.result_extents()),):
        raise NoRuleError
    relabel = factor(node.extents(0), node.result_extents())
    if relabel is None:
        raise NoRuleError
    return relabel


def blocks(node: Reading, axis_names: str) -> Relabel | None:
    """The view that SpaceToDepth or DepthToSpace computes, for data with these axis names: blocks of space become
    channels, or the reverse. None where a split extent is unknown or not divisible by the block size."""
    extents, size = node.extents(0), node.integer("blocksize")
    if len(axis_names) != 4 or size < 1:
        return None
    batch, channel, row, column = (axis_names.index(letter) for letter in "NCHW")
    channels, rows, columns = (extents[axis] for axis in (channel, row, column))
    if not (isinstance(channels, int) and isinstance(rows, int) and isinstance(columns, int)):
        return None
    found: dict[int, MemoryFormat] = {batch: (Atom(batch),)}
    # The blocks are the outermost factors of the channels, or in mode CRD the innermost.
    are_outermost = node.string("mode", "DCR") == "DCR"
    if node.node.op_type == "SpaceToDepth":
        if rows % size or columns % size:
            return None
        block = Atom(row, 1, size), Atom(column, 1, size)
        found[channel] = (*block, Atom(channel)) if are_outermost else (Atom(channel), *block)
        found[row], found[column] = (Atom(row, size),), (Atom(column, size),)
    else:
        depth = channels // size**2
        if channels != depth * size**2:
            return None
        stays, step = (1, depth) if are_outermost else (size**2, 1)
        found[channel] = (Atom(channel, stays, stays * depth),)
        found[row] = (Atom(row), Atom(channel, step * size, step * size**2))
        found[column] = (Atom(column), Atom(channel, step, step * size))
    if not channels * rows * columns:
        return None
    return Relabel(tuple(normal_form(found[axis], extents) for axis in range(4)))


class _Part(Struct):
    """The unmatched rest of an axis."""

    axis: int
    extent: Extent


class _Matched(Struct):
    """The factors that are matched so far: the extents of each source axis's, innermost first, and each target axis's
    as (source axis, number of the factor), innermost first."""

    factors: list[list[Extent]]
    found: list[list[tuple[int, int]]]

    def enter(self, axis: int, extent: Extent, goal: int) -> None:
        self.found[goal].append((axis, len(self.factors[axis])))
        self.factors[axis].append(extent)

    def reverse(self) -> None:
        """Let factors that were entered outermost first be innermost first."""
        self.found = [
            [(axis, len(self.factors[axis]) - 1 - number) for axis, number in reversed(group)] for group in self.found
        ]
        self.factors = [own[::-1] for own in self.factors]


def factor(source: tuple[Extent, ...], target: tuple[Extent, ...]) -> Relabel | None:
    """The target's axes as factors of the source's, or None where they may not nest.

    Equal outermost axes are matched first, and then both sides from the innermost axis outwards; an axis is split where
    one of the other side ends. Symbolic extents are terms: `4*h` ends where 4 and `h` do. The outermost rests of both
    sides need not match, since the totals are equal: of (8, h, w) and (8, 196), `h*w` is 196. For the same reason an
    extent without a name that the other side has may be known: of (8, s) and (16, h, w), `s` is `2*h*w`; and of (h) and
    (h//4, 4), `h` is `4*(h//4)`. Where that fails, both sides are matched from the outermost axis inwards.
    """
    if 0 in source or 0 in target:
        return None
    found = _factored(source, target)
    if found is None and (whole := _as_multiples(source, target)) is not None:
        found = _factored(whole, target)
        if found is not None and found.factors:
            found = None if any(whole[axis] != source[axis] for axis, _ in found.factors) else found
    if found is None and (whole := _as_multiples(target, source)) is not None:
        found = _factored(source, whole)
    if found is None and (known := _completed(source, target)) is not None:
        found = _factored(known, target)
    if found is None and (known := _completed(target, source)) is not None:
        found = _factored(source, known)
    return found if found is not None else _factored(source, target, from_outermost=True)


def _completed(extents: tuple[Extent, ...], others: tuple[Extent, ...]) -> tuple[Extent, ...] | None:
    """The extents with the one that the other side's do not name, as the totals have it. None where there is no such
    one, or several."""
    named = {name for each in others if isinstance(each, str) for name in term_of(each).names}
    unknown = [n for n, each in enumerate(extents) if each is None or (isinstance(each, str) and each not in named)]
    if len(unknown) != 1:
        return None
    (place,) = unknown
    rest = product(map(extent_term, (*extents[:place], *extents[place + 1 :])))
    found = _extent_of(quotient(product(map(extent_term, others)), rest))
    return None if found is None else (*extents[:place], found, *extents[place + 1 :])


def _as_multiples(extents: tuple[Extent, ...], others: tuple[Extent, ...]) -> tuple[Extent, ...] | None:
    """The extents with each as a multiple of its quotient that the other side has. None where there is no such one, or
    where the totals do not show that nothing is left: a multiple is at most the extent, so that all are equal if the
    products are."""
    quotients: dict[str, set[str]] = {}
    for name in {name for each in others if isinstance(each, str) for name in term_of(each).names}:
        if (found := dividend_of(name)) is not None:
            quotients.setdefault(found[0], set()).add(str(Term(Fraction(found[1]), (name,))))
    known = {whole: each.pop() for whole, each in quotients.items() if len(each) == 1}
    multiples = tuple(known.get(each, each) if isinstance(each, str) else each for each in extents)
    totals = [product(map(extent_term, each)) for each in (multiples, others)]
    return multiples if multiples != extents and None not in totals and totals[0] == totals[1] else None


def _factored(
    source: tuple[Extent, ...], target: tuple[Extent, ...], *, from_outermost: bool = False
) -> Relabel | None:
    """The target's axes as factors of the source's by what these extents say."""
    left = [_Part(axis, extent) for axis, extent in enumerate(source) if extent != 1]
    right = [_Part(axis, extent) for axis, extent in enumerate(target) if extent != 1]
    matched = _Matched([[] for _ in source], [[] for _ in target])
    if from_outermost:
        left.reverse()
        right.reverse()
    while left and right and left[0].extent is not None and left[0].extent == right[0].extent:
        part = left.pop(0)
        matched.enter(part.axis, part.extent, right.pop(0).axis)
    while left and right:
        if not _take(left, right, matched):
            return None
    if from_outermost:
        matched.reverse()
    return None if left or right else _relabelled(source, matched)


def _take(left: list[_Part], right: list[_Part], matched: _Matched) -> bool:
    """Match the last parts of both sides; False where they may not nest."""
    part, goal = left[-1], right[-1]
    are_last = len(left) == len(right) == 1 and (_is_open(part) or _is_open(goal))
    if are_last or _quotient(part.extent, goal.extent) == 1:
        matched.enter(part.axis, goal.extent if part.extent is None else part.extent, goal.axis)
        left.pop()
        right.pop()
    elif (rest := _quotient(goal.extent, part.extent)) is not None or _has_all(right, left):
        # The last axis of the target has the whole rest of the source.
        matched.enter(part.axis, part.extent, goal.axis)
        left.pop()
        right[-1] = _Part(goal.axis, rest)
    elif (rest := _quotient(part.extent, goal.extent)) is not None or (
        goal.extent is not None and _has_all(left, right)
    ):
        # The target has the whole rest of the last axis of the source.
        matched.enter(part.axis, goal.extent, goal.axis)
        left[-1] = _Part(part.axis, rest)
        right.pop()
    else:
        return False
    return True


def _has_all(parts: list[_Part], others: list[_Part]) -> bool:
    """Whether one side has a single part left, which may be all that is left of the other: one of them is open, and
    the numbers nest."""
    if len(parts) != 1 or _is_open(parts[0]):
        return len(parts) == 1
    numbers = [each.extent for each in others if isinstance(each.extent, int)]
    return len(numbers) < len(others) and _quotient(parts[0].extent, prod(numbers)) is not None


def _is_open(part: _Part) -> bool:
    """Whether the extent may be anything: it is no number."""
    return not isinstance(part.extent, int)


def _quotient(one: Extent, other: Extent) -> Extent:
    """The first extent by the second, where it is a multiple of it; else None."""
    if isinstance(one, int) and isinstance(other, int):
        return None if one % other else one // other
    return _extent_of(quotient(extent_term(one), extent_term(other)))


def _extent_of(term: Term | None) -> Extent:
    """The term as an extent; None if it is none."""
    if term is None or term.factor.denominator != 1:
        return None
    return str(term) if term.names else int(term.factor)


def _relabelled(source: tuple[Extent, ...], matched: _Matched) -> Relabel | None:
    """The view with these factors. Those of an axis are its digits where the inner ones are numbers; else they become
    axes of their own. None if one of those has an unknown extent without a name."""
    factors: list[tuple[int, Extent]] = []
    atoms: list[list[Atom]] = []
    for axis, extent in enumerate(source):
        own = matched.factors[axis]
        inner = [each for each in own[:-1] if isinstance(each, int)]
        if len(inner) >= len(own) - 1:
            ends = list(accumulate(inner, mul, initial=1))
            atoms.append([Atom(len(factors), low, high) for low, high in pairwise([*ends, 0])])
            factors.append((axis, extent))
            continue
        if None in own:
            return None
        atoms.append([Atom(len(factors) + place) for place in reversed(range(len(own)))])
        factors += [(axis, each) for each in reversed(own)]
    axes = tuple(tuple(atoms[axis][number] for axis, number in reversed(group)) for group in matched.found)
    return Relabel(axes, tuple(factors) if len(factors) > len(source) else ())
