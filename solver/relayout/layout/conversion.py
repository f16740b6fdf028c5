"""Conversion paths between memory formats: the Transposes, Reshapes, Pads and crops that lead from one to the other.

A tensor of a model has **dimensions**, each a group of atoms of its axes, outermost first (a shape factorization). A
unit dimension is the empty group. Regrouping moves nothing; a transpose moves whole groups; padding and cropping change
a dimension that is one whole axis, or the outermost factor of one. Tiles that do not nest (of 2 and of 3) take two
transposes: the first fuses the axis, the second splits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

from relayout.errors import InternalError
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, atom_extent, normal_form, source_order

__all__ = ["Dims", "Stage", "cuts_nest", "dims_shape", "moves", "one_each", "passes", "path", "steps_of"]

Dims = tuple[MemoryFormat, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a path: `kind` is "transpose", "regroup", "pad" or "crop", and `dims` are those after it.

    `perm` says which dimension goes where. `place` is the dimension whose end gets or loses `amount` zeros.
    """

    kind: str
    dims: Dims
    perm: tuple[int, ...] = ()
    place: int = 0
    amount: int = 0


def one_each(order: MemoryFormat) -> Dims:
    """One dimension for each atom."""
    return tuple((atom,) for atom in order)


def dims_shape(dims: Dims, extents: tuple[Extent, ...]) -> list[Extent]:
    """The extent of each group: an int, the axis's own symbol, or None."""
    shape: list[Extent] = []
    for group in dims:
        parts = [atom_extent(atom, extents) for atom in group]
        if all(isinstance(p, int) for p in parts):
            product = 1
            for p in parts:
                product *= p if isinstance(p, int) else 1
            shape.append(product)
        else:
            shape.append(parts[0] if len(parts) == 1 else None)
    return shape


def cuts_nest(source: MemoryFormat, target: MemoryFormat) -> bool:
    """Whether the factors of each axis nest in both formats: 12 = 3 * 4 and 12 = 2 * 6 do not."""
    cuts: dict[int, set[int]] = {}
    for atom in (*source, *target):
        cuts.setdefault(atom.axis, set()).update((atom.inner, atom.outer or atom.inner))
    return all(large % small == 0 for found in cuts.values() for small, large in pairwise(sorted(found)))


def path(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    """The stages from `source` to `target`, which hold the same axes.

    At most one is a transpose, unless an axis is padded, cropped or split otherwise and both ends have it split.
    """
    stages = _way(source, target, extents)
    if not all(isinstance(extent, int) for extent in extents):
        return stages  # a Reshape that reads its extents off the tensor does one thing at a time
    found: list[Stage] = []
    for stage in stages:
        if stage.kind == "regroup" and found and found[-1].kind == "regroup":
            found.pop()
        if stage.kind != "regroup" or stage.dims != (found[-1].dims if found else source):
            found.append(stage)
    return found


def _way(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    before, after = _reaches(source, extents), _reaches(target, extents)
    if before == after:
        return _rearrange(source, target, extents)
    grow = {axis: reach for axis, reach in after.items() if before.get(axis) != reach}
    shrink = {axis: reach for axis, reach in before.items() if after.get(axis) != reach}
    plain = one_each(source_order(len(extents)))
    if grow and shrink:
        between = _shrunk(source, shrink) or _shrunk(target, grow) or plain
        return [*_way(source, between, extents), *_way(between, target, extents)]
    start, end = (source, target) if grow else (target, source)
    # Padded last and cropped first, a tensor is moved while it is small.
    small = _shrunk(end, grow or shrink) or _with_outer(start, grow or shrink, extents) or plain
    large = tuple(tuple(_reaching(atom, grow or shrink) for atom in group) for group in small)
    if grow:
        return [*_way(source, small, extents), *_padding("pad", small, large, extents), *_way(large, target, extents)]
    return [*_way(end, large, extents), *_padding("crop", large, small, extents), *_way(small, start, extents)]


@lru_cache(maxsize=4096)
def moves(
    source: MemoryFormat, target: MemoryFormat, extents: tuple[Extent, ...]
) -> tuple[tuple[str, MemoryFormat, MemoryFormat], ...]:
    """The stages that move data, all but regroupings: the kind, and the formats before and after."""
    found: list[tuple[str, MemoryFormat, MemoryFormat]] = []
    dims = one_each(source)
    for stage in path(dims, one_each(target), extents):
        if stage.kind != "regroup":
            found.append((stage.kind, _flat(dims, extents), _flat(stage.dims, extents)))
        dims = stage.dims
    return tuple(found)


@lru_cache(maxsize=4096)
def passes(source: MemoryFormat, target: MemoryFormat, extents: tuple[Extent, ...]) -> tuple[MemoryFormat, ...]:
    """The formats of a tensor on the path from `source` to `target`, both included. An intermediate one follows a
    transpose and a crop, and precedes a pad and the next transpose.

    >>> passes((Atom(0, 2), Atom(1), Atom(0, 1, 2)), (Atom(0, 3), Atom(1), Atom(0, 1, 3)), (12, 5))[1:-1]
    ((Atom(axis=0, inner=1, outer=0), Atom(axis=1, inner=1, outer=0)),)
    """
    between: list[MemoryFormat] = []
    reached: Dims | None = None
    is_padded = False
    for stage in path(one_each(source), one_each(target), extents):
        if stage.kind == "transpose":
            if reached is not None:
                between.append(_flat(reached, extents))
            reached, is_padded = stage.dims, False
        elif stage.kind == "pad":
            is_padded = True
        elif reached is not None and not is_padded:
            reached = stage.dims
    return (source, *between, target)


def steps_of(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[dict[str, Any]]:
    """The same way as steps for a constant (see `relayout.layout.relaid_constant`): every extent is a number."""
    steps: list[dict[str, Any]] = []
    dims = source
    for stage in path(source, target, extents):
        before, after = dims_shape(dims, extents), dims_shape(stage.dims, extents)
        if stage.kind == "transpose":
            steps.append({"op": "transpose", "perm": list(stage.perm)})
        elif stage.kind == "regroup":
            steps.append({"op": "reshape", "shape": after, "from": before})
        elif stage.kind == "pad":
            ends = [stage.amount if place == stage.place else 0 for place in range(len(dims))]
            steps.append({"op": "pad", "pads": [0] * len(dims) + ends, "from": before})
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
        if not cuts_nest(tuple(chain.from_iterable(source)), tuple(chain.from_iterable(target))):
            return _by_other_pieces(source, target, extents)
        fine_source, fine_target = _common_groups(source, target, extents)
        if sorted(g for g in fine_source if g) != sorted(g for g in fine_target if g):
            raise InternalError(f"{source} and {target} are not the same axes")
        # Units go along with a Transpose: so they need no Reshape of their own.
        start = source if groups == list(fine_source) else _with_units(fine_source, _units(target), extents)
        end = target if wanted == list(fine_target) else (*_units(start), *fine_target)
        return [
            *([Stage("regroup", start)] if start != source else []),
            *_rearrange(start, end, extents),
            *([Stage("regroup", target)] if end != target else []),
        ]
    units = [place for place, group in enumerate(source) if not group]
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
    turned = Stage("transpose", tuple(reached), tuple(perm))
    return [turned] if tuple(reached) == target else [turned, Stage("regroup", target)]


def _by_other_pieces(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    """The way where one cuts through the pieces of the other: by larger pieces, where these lie side by side, or else
    by whole axes."""
    start, end = one_each(_flat(source, extents)), one_each(_flat(target, extents))
    ends = [(start, end)]
    if not cuts_nest(_flat(source, extents), _flat(target, extents)):
        reaches = _reaches(source, extents)
        known = [axis for axis, extent in enumerate(extents) if extent != 1]
        whole = one_each(tuple(Atom(axis, 1, reaches.get(axis, 0)) for axis in known))
        ends = [(start, whole), (whole, end)]
    return [
        *([Stage("regroup", start)] if start != source else []),
        *chain.from_iterable(_rearrange(one, other, extents) for one, other in ends),
        *([Stage("regroup", target)] if end != target else []),
    ]


def _units(dims: Dims) -> Dims:
    return tuple(group for group in dims if not group)


def _with_units(dims: Dims, units: Dims, extents: tuple[Extent, ...]) -> Dims:
    """Units before what has known extents; what has not keeps its places, by which a Reshape can name it."""
    known = all(isinstance(extent, int) for extent in dims_shape(dims, extents))
    return (*units, *dims) if known else (*dims, *units)


def _flat(groups: Sequence[MemoryFormat], extents: tuple[Extent, ...]) -> MemoryFormat:
    return normal_form(tuple(chain.from_iterable(groups)), extents)


def _reaches(dims: Dims, extents: tuple[Extent, ...]) -> dict[int, int]:
    """How far each padded axis reaches."""
    found: dict[int, int] = {}
    for atom in chain.from_iterable(dims):
        extent = extents[atom.axis]
        if isinstance(extent, int) and atom.outer > extent:
            found[atom.axis] = atom.outer
    return found


def _shrunk(dims: Dims, axes: dict[int, int]) -> Dims | None:
    """The same dimensions without the padding of `axes`; None where one is in pieces, or in a dimension with others."""
    if any((Atom(axis, 1, reach),) not in dims for axis, reach in axes.items()):
        return None
    # A tile for all of an axis has an outer piece of extent 1 beside it.
    units = {(Atom(axis, reach, reach),) for axis, reach in axes.items()}
    bare = tuple(() if group in units else group for group in dims)
    return tuple((Atom(group[0].axis),) if group and group[0].axis in axes else group for group in bare)


def _with_outer(dims: Dims, axes: dict[int, int], extents: tuple[Extent, ...]) -> Dims | None:
    """The same memory with each of `axes`, or its outer piece, as one dimension; None where no such piece reaches as
    far as `axes` say."""
    loose = one_each(_flat(dims, extents))
    ends = [atom for (atom,) in loose if atom.axis in axes and not atom.outer]
    if len(ends) < len(axes) or any(axes[atom.axis] % atom.inner for atom in ends):
        return None
    return dims if all((atom,) in dims for atom in ends) else loose


def _reaching(atom: Atom, axes: dict[int, int]) -> Atom:
    return Atom(atom.axis, atom.inner, axes[atom.axis]) if not atom.outer and atom.axis in axes else atom


def _padding(kind: str, source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[Stage]:
    """One stage for each dimension whose extent differs."""
    stages: list[Stage] = []
    dims = list(source)
    for place, group in enumerate(target):
        if group != dims[place]:
            (before,), (after,) = dims_shape((dims[place],), extents), dims_shape((group,), extents)
            assert isinstance(before, int)
            assert isinstance(after, int)
            dims[place] = group
            stages.append(Stage(kind, tuple(dims), place=place, amount=abs(after - before)))
    return stages


def _common_groups(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> tuple[Dims, Dims]:
    """Both as groups that move as wholes: atoms cut where either side cuts, joined where both have them together."""
    left, right = list(chain.from_iterable(source)), list(chain.from_iterable(target))
    cuts: dict[int, set[int]] = {}
    for atom in (*left, *right):
        cuts.setdefault(atom.axis, set()).update((atom.inner, atom.outer))

    def cut(atoms: list[Atom]) -> list[Atom]:
        pieces: list[Atom] = []
        for atom in atoms:
            inside = sorted(
                (c for c in cuts[atom.axis] if c > atom.inner and (not atom.outer or c < atom.outer)), reverse=True
            )
            bounds = [atom.outer, *inside, atom.inner]
            pieces += [Atom(atom.axis, low, high) for high, low in pairwise(bounds)]
        # A cut at the very end of an axis leaves a piece of extent 1: it has no place.
        return [piece for piece in pieces if atom_extent(piece, extents) != 1]

    fine_left, fine_right = cut(left), cut(right)
    follows = set(pairwise(fine_right))
    groups: list[list[Atom]] = []
    for place, atom in enumerate(fine_left):
        # A Reshape can work out a product of unknown extents only once, so these stay apart.
        before = fine_left[place - 1] if place else None
        known = before is not None and (
            before.axis == atom.axis or all(isinstance(atom_extent(a, extents), int) for a in (before, atom))
        )
        if before is not None and known and (before, atom) in follows:
            groups[-1].append(atom)
        else:
            groups.append([atom])
    joined = {group[0]: normal_form(tuple(group), extents) for group in groups}
    return tuple(joined[g[0]] for g in groups), tuple(joined[a] for a in fine_right if a in joined)
