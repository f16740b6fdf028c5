"""Conversion paths between memory formats: the Transposes, Reshapes, Pads and crops that lead from one to the other.

A tensor of a model has **dimensions**, each a group of atoms of its axes, outermost first (a shape factorization). A
unit dimension is the empty group. Regrouping moves no data; a transpose moves whole groups; padding and cropping change
a dimension that is one whole axis, or the outermost factor of one. Tiles that do not nest (of 2 and of 3) need two
transposes: the first fuses the axis, the second splits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import lru_cache
from itertools import chain, combinations, pairwise
from math import prod
from typing import Any

from msgspec import Struct

from relayout.errors import InternalError
from relayout.layout.memory_format import (
    Atom,
    Extent,
    MemoryFormat,
    atom_extent,
    boxes_of,
    has_open_stride,
    is_padded,
    normal_form,
    source_order,
)
from relayout.layout.terms import extent_term, product

Dims = tuple[MemoryFormat, ...]


class Stage(Struct, frozen=True):
    """One step of a path: `kind` is "transpose", "regroup", "pad" or "crop"; `dims` are the dimensions after it.

    `perm[i]` is the dimension that a transpose moves to position `i`. `zeros[i]` is the number of zeros that the end of
    dimension `i` gains by padding or loses by cropping.
    """

    kind: str
    dims: Dims
    perm: tuple[int, ...] = ()
    zeros: tuple[int, ...] = ()


def flat(dims: Iterable[MemoryFormat]) -> MemoryFormat:
    """All atoms in their order, without the grouping into dimensions."""
    return tuple(chain.from_iterable(dims))


def one_each(order: MemoryFormat) -> Dims:
    """One dimension for each atom."""
    return tuple(zip(order, strict=True))


@lru_cache(maxsize=4096)
def dims_shape(dims: Dims, extents: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """The extent of each group: an int, a symbol, a product of symbols, or None.

    >>> dims_shape(((Atom(0, 8), Atom(1)), (Atom(0, 1, 8),)), ("64*batch", 3))
    ('24*batch', 8)
    """
    shape: list[Extent] = []
    for group in dims:
        parts = [atom_extent(atom, extents) for atom in group]
        if all(isinstance(p, int) for p in parts):
            shape.append(prod([p for p in parts if isinstance(p, int)]))
        else:
            shape.append(parts[0] if len(parts) == 1 else _product_of_symbols(parts))
    return tuple(shape)


def is_untold(dims: Dims, extents: tuple[Extent, ...]) -> bool:
    """Whether the legal model does not tell in which order a tensor lies: no annotation has open strides, so that a
    value of the source's shape counts as one in the source's order.

    >>> from relayout.layout.strides import stride_of
    >>> inner, outer = Atom(0, 1, stride_of("n")), Atom(0, stride_of("n"))
    >>> is_untold(((inner, outer),), ("64*n",)), is_untold(((inner,), (outer,)), ("64*n",))
    (True, False)
    """
    return any(map(has_open_stride, flat(dims))) and dims_shape(dims, extents) == extents


def _product_of_symbols(parts: Sequence[Extent]) -> str | None:
    """The product of extents as one of names that the model gives; None where there is none."""
    found = product(map(extent_term, parts))
    return str(found) if found is not None and found.is_formula else None


def cuts_nest(source: MemoryFormat, target: MemoryFormat) -> bool:
    """Whether the factors of each axis nest in both formats: 12 = 3 * 4 and 12 = 2 * 6 do not."""
    return are_nested(cuts_of(source), cuts_of(target))


@lru_cache(maxsize=4096)
def cuts_of(format_: MemoryFormat) -> frozenset[tuple[int, int]]:
    """The ends of the factors that are not whole axes, each with its axis."""
    return frozenset(
        (atom.axis, end) for atom in format_ if not atom.is_whole for end in (atom.inner, atom.outer) if end
    )


@lru_cache(maxsize=4096)
def are_nested(source: frozenset[tuple[int, int]], target: frozenset[tuple[int, int]]) -> bool:
    """Whether factors with these ends, each with its axis, nest."""
    ends = sorted(source | target)
    return all(large % small == 0 for (axis, small), (other, large) in pairwise(ends) if axis == other)


def path(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    """The stages from `source` to `target`, which have the same axes.

    At most one is a transpose. There are two if tiles do not nest, or if one end pads an axis and neither end has it in
    pieces that can be added or cut off. Of several paths, that which moves the fewest elements is taken; it depends on
    the formats alone, not on the dimensions.
    """
    stages = _stages(source, target, extents)
    if not all(isinstance(extent, int) for extent in extents):
        return stages  # a Reshape that reads its extents from the tensor cannot replace two
    found: list[Stage] = []
    for stage in stages:
        if stage.kind == "regroup" and found and found[-1].kind == "regroup":
            found.pop()
        if stage.kind != "regroup" or stage.dims != (found[-1].dims if found else source):
            found.append(stage)
    return found


def _stages(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    """The stages that move the fewest elements.

    An axis that one end pads is padded, or cropped, before the transpose or after it. The transpose of a padded tensor
    moves the zeros too, so the traffic of every order is compared.
    """
    before, after = _padded_ends(source, extents), _padded_ends(target, extents)
    changed = [axis for axis in sorted({*before, *after}) if before.get(axis) != after.get(axis)]
    if not changed:
        return _rearrange(source, target, extents)
    own, wanted = _ends(source, changed, extents), _ends(target, changed, extents)
    routes: list[list[Stage]] = []
    for early in map(set, chain.from_iterable(combinations(changed, size) for size in range(len(changed) + 1))):
        first = _resized(source, {axis: wanted[axis] for axis in changed if axis in early}, extents)
        last = _resized(target, {axis: own[axis] for axis in changed if axis not in early}, extents)
        if first is None or last is None:
            continue
        (opened, start), (closed, end) = first, last
        routes.append(
            [
                *([Stage("regroup", opened)] if opened != source else []),
                *_padding(opened, start, extents),
                *_rearrange(start, end, extents),
                *_padding(end, closed, extents),
                *([Stage("regroup", target)] if closed != target else []),
            ]
        )
    if all(sum(stage.kind == "transpose" for stage in route) > 1 for route in routes):
        # By way of whole axes, which can be padded and cropped to any extent.
        least = {**before, **{axis: min(own[axis], wanted[axis]) for axis in changed}}
        known = [axis for axis, extent in enumerate(extents) if extent != 1]
        whole = one_each(tuple(_up_to(axis, 1, least.get(axis, 0), extents) for axis in known))
        routes.append([*_stages(source, whole, extents), *_stages(whole, target, extents)])
    return min(routes, key=lambda route: (_traffic(source, route, changed, extents), len(route)))


@lru_cache(maxsize=4096)
def moves(
    source: MemoryFormat, target: MemoryFormat, extents: tuple[Extent, ...]
) -> tuple[tuple[str, MemoryFormat, MemoryFormat], ...]:
    """The kind, the format before and the format after of each stage that moves data: all except regroupings."""
    before, after = _without_zeros(source, extents), _without_zeros(target, extents)
    if before is not None and after is not None:
        # Most conversions are one Transpose, or two by way of whole axes. Their stages need not be found.
        formats = [before, after]
        if not cuts_nest(before, after):
            formats.insert(1, normal_form(source_order(len(extents)), extents))
        return tuple([("transpose", one, other) for one, other in pairwise(formats) if one != other])
    found: list[tuple[str, MemoryFormat, MemoryFormat]] = []
    dims = one_each(source)
    for stage in path(dims, one_each(target), extents):
        if stage.kind != "regroup":
            found.append((stage.kind, _flat(dims, extents), _flat(stage.dims, extents)))
        dims = stage.dims
    return tuple(found)


def tiling_of(format_: MemoryFormat, extents: tuple[Extent, ...]) -> frozenset[tuple[int, int]] | None:
    """The ends of the factors into which axes are split: the number of Transposes between two different formats with
    tilings depends on these alone.

    None where other properties matter: a black box, zeros that fill an axis, a tiled axis of unknown extent, an extent
    of 0, and a format that is not in normal form.
    """
    if boxes_of(format_) or _without_zeros(format_, extents) != format_:
        return None
    ends = cuts_of(format_)
    is_known = all(isinstance(extents[axis], int) for axis, _ in ends) and 0 not in extents
    return ends if is_known or not ends else None


@lru_cache(maxsize=4096)
def _without_zeros(format_: MemoryFormat, extents: tuple[Extent, ...]) -> MemoryFormat | None:
    """The normal form; None where an axis is padded."""
    return None if is_padded(format_, extents) else normal_form(format_, extents)


def steps_of(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[dict[str, Any]]:
    """The path as steps for a constant (see `relayout.layout.relaid_constant`). Every extent must be a number."""
    steps: list[dict[str, Any]] = []
    dims = source
    for stage in path(source, target, extents):
        before, after = [*dims_shape(dims, extents)], [*dims_shape(stage.dims, extents)]
        if stage.kind == "transpose":
            steps.append({"op": "transpose", "perm": list(stage.perm)})
        elif stage.kind == "regroup":
            steps.append({"op": "reshape", "shape": after, "from": before})
        elif stage.kind == "pad":
            steps.append({"op": "pad", "pads": [0] * len(dims) + list(stage.zeros), "from": before})
        else:
            steps.append({"op": "crop", "shape": after, "from": before})
        dims = stage.dims
    return steps


def _rearrange(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    if source == target:
        return []
    groups = [g for g in source if g]
    wanted = [g for g in target if g]
    if groups == wanted or _flat(groups, extents) == _flat(wanted, extents):
        return [Stage("regroup", target)]
    if sorted(groups) != sorted(wanted):
        if not cuts_nest(flat(source), flat(target)):
            return _via_whole_axes(source, target, extents)
        fine_source, fine_target = moved_groups(source, target, extents)
        if sorted(g for g in fine_source if g) != sorted(g for g in fine_target if g):
            raise InternalError(f"{source} and {target} do not have the same axes")
        # The Transpose moves the unit dimensions too, so that they need no Reshape of their own.
        start = source if groups == list(fine_source) else _with_units(fine_source, _units(target), extents)
        end = target if wanted == list(fine_target) else (*_units(start), *fine_target)
        return [
            *([Stage("regroup", start)] if start != source else []),
            *_rearrange(start, end, extents),
            *([Stage("regroup", target)] if end != target else []),
        ]
    units = [index for index, group in enumerate(source) if not group]
    perm: list[int] = []
    reached: list[MemoryFormat] = []
    for group in target:
        if group:
            perm.append(source.index(group))
            reached.append(group)
        elif units:
            perm.append(units.pop(0))
            reached.append(())
    perm, reached = units + perm, [()] * len(units) + reached
    transpose = Stage("transpose", tuple(reached), tuple(perm))
    return [transpose] if tuple(reached) == target else [transpose, Stage("regroup", target)]


def _via_whole_axes(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    """The stages where the factors of an axis do not nest: by way of whole axes.

    If they nest after adjacent factors are fused, no intermediate format is needed.
    """
    start, end = one_each(_flat(source, extents)), one_each(_flat(target, extents))
    ends = [(start, end)]
    if not cuts_nest(_flat(source, extents), _flat(target, extents)):
        padded_ends = _padded_ends(source, extents)
        known = [axis for axis, extent in enumerate(extents) if extent != 1]
        whole = one_each(tuple(Atom(axis, 1, padded_ends.get(axis, 0)) for axis in known))
        ends = [(start, whole), (whole, end)]
    return [
        *([Stage("regroup", start)] if start != source else []),
        *chain.from_iterable(_rearrange(one, other, extents) for one, other in ends),
        *([Stage("regroup", target)] if end != target else []),
    ]


def _units(dims: Dims) -> Dims:
    return tuple(group for group in dims if not group)


def _with_units(dims: Dims, units: Dims, extents: tuple[Extent, ...]) -> Dims:
    """The dimensions with unit dimensions in front, or behind if an extent is unknown.

    A Reshape copies an unknown extent from the same position of its input, so that position must not change.
    """
    known = all(isinstance(extent, int) for extent in dims_shape(dims, extents))
    return (*units, *dims) if known else (*dims, *units)


def _flat(groups: Sequence[MemoryFormat], extents: tuple[Extent, ...]) -> MemoryFormat:
    return normal_form(flat(groups), extents)


def _padded_ends(dims: Dims, extents: tuple[Extent, ...]) -> dict[int, int]:
    """The extent of each padded axis, padding included."""
    found: dict[int, int] = {}
    for atom in chain.from_iterable(dims):
        extent = extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent:
            found[atom.axis] = atom.outer
    return found


def _ends(dims: Dims, axes: Iterable[int], extents: tuple[Extent, ...]) -> dict[int, int]:
    """The extents of these axes, which are known, padding included."""
    padded = _padded_ends(dims, extents)
    return {axis: padded.get(axis) or int(extents[axis] or 0) for axis in axes}


def _up_to(axis: int, inner: int, end: int, extents: tuple[Extent, ...]) -> Atom:
    """The outermost factor of an axis that has this extent, padding included."""
    return Atom(axis, inner, 0 if end == extents[axis] else end)


def _resized(dims: Dims, ends: dict[int, int], extents: tuple[Extent, ...]) -> tuple[Dims, Dims] | None:
    """The dimensions, and the same with other extents of some axes (axis: extent, padding included).

    The outermost factor of each of these axes has to be a dimension. If it is none, it may be one after neighbours that
    are factors of one axis are fused, which is the same memory. None if it is none then either, or if no number of its
    values has the extent.
    """
    if not ends:
        return dims, dims
    for each in (dims, one_each(_flat(dims, extents))):
        # If a tile has the extent of its axis, the outer factor has extent 1.
        bare = [tuple(a for a in group if a.axis not in ends or atom_extent(a, extents) != 1) for group in each]
        own = _ends(each, ends, extents)
        outermost = {
            atom.axis: place
            for place, group in enumerate(bare)
            if len(group) == 1 and (atom := group[0]).axis in ends and atom.outer in (0, own[atom.axis])
        }
        if len(outermost) == len(ends) and all(ends[axis] % bare[p][0].inner == 0 for axis, p in outermost.items()):
            for axis, place in outermost.items():
                bare[place] = (_up_to(axis, bare[place][0].inner, ends[axis], extents),)
            return each, tuple(bare)
    return None


def _padding(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    """One crop of all dimensions that are shorter in `target`, and one pad of all that are longer."""
    sizes = zip(dims_shape(source, extents), dims_shape(target, extents), strict=True)
    more = [after - before if isinstance(before, int) and isinstance(after, int) else 0 for before, after in sizes]
    between = tuple(own if grown > 0 else wanted for own, wanted, grown in zip(source, target, more, strict=True))
    stages: list[Stage] = []
    if min(more, default=0) < 0:
        stages.append(Stage("crop", between, zeros=tuple(max(0, -grown) for grown in more)))
    if max(more, default=0) > 0:
        stages.append(Stage("pad", target, zeros=tuple(max(0, grown) for grown in more)))
    return stages


def _traffic(source: Dims, route: list[Stage], changed: Sequence[int], extents: tuple[Extent, ...]) -> int:
    """The elements that the stages read and write, for one element of all axes but those that are `changed`."""
    traffic = 0
    for before, stage in zip([source, *[stage.dims for stage in route]], route, strict=False):
        if stage.kind != "regroup":
            traffic += sum(prod(_ends(dims, changed, extents).values()) for dims in (before, stage.dims))
    return traffic


@lru_cache(maxsize=16384)
def split_at(
    atoms: tuple[Atom, ...], ends: frozenset[tuple[int, int]], extents: tuple[Extent, ...]
) -> tuple[Atom, ...]:
    """The atoms cut at the `ends` of factors, each with its axis. Formats of a tensor have few different ones."""
    factors: list[Atom] = []
    for atom in atoms:
        inside = [end for axis, end in ends if axis == atom.axis and atom.inner < end < (atom.outer or end + 1)]
        own = [atom.outer, *sorted(inside, reverse=True), atom.inner]
        factors += [Atom(atom.axis, low, high) for high, low in pairwise(own)]
    # An end at the end of an axis leaves a factor of extent 1, which is dropped.
    return tuple([factor for factor in factors if atom_extent(factor, extents) != 1])


def moved_groups(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> tuple[Dims, Dims]:
    """Both sides as groups that a transpose moves as wholes.

    Atoms are split at the bounds of either side, and fused where they are adjacent on both sides.
    """
    left, right = flat(source), flat(target)
    ends, others = cuts_of(left), cuts_of(right)
    ends = ends if ends == others else ends | others
    fine_left, fine_right = split_at(left, ends, extents), split_at(right, ends, extents)
    place = {atom: n for n, atom in enumerate(fine_right)}
    is_known = all(isinstance(extent, int) for extent in extents)
    # A Reshape can infer only one product of unknown extents. These are fused only where both sides have them so.
    joint: set[tuple[Atom, Atom]] = set()
    if not is_known:
        joint = set(chain.from_iterable(map(pairwise, source))) & set(chain.from_iterable(map(pairwise, target)))
    groups: list[list[Atom]] = []
    after = -1
    for atom in fine_left:
        here = place.get(atom, -1)
        if here == after > 0 and (is_known or _may_fuse(groups[-1][-1], atom, joint, extents)):
            groups[-1].append(atom)
        else:
            groups.append([atom])
        after = here + 1
    joined = {
        group[0]: tuple(group) if len(group) == 1 and group[0].is_whole else normal_form(tuple(group), extents)
        for group in groups
    }
    return tuple(joined.values()), tuple([joined[atom] for atom in fine_right if atom in joined])


def _may_fuse(before: Atom, atom: Atom, joint: Set[tuple[Atom, Atom]], extents: tuple[Extent, ...]) -> bool:
    """Whether a Reshape can make one dimension of two neighbours, some of unknown extent."""
    is_known = all(isinstance(atom_extent(each, extents), int) for each in (before, atom))
    return is_known or before.axis == atom.axis or (before, atom) in joint
