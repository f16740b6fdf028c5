"""The path between two formats has no more stages than needed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import chain
from math import prod

import numpy as np
import pytest

from relayout.layout.conversion import Dims, cuts_nest, dims_shape, moves, one_each, path, steps_of
from relayout.layout.memory_format import Atom, MemoryFormat, atom_extent, normal_form
from relayout.layout.relaid_constant import apply_step

UNIT, ROWS, HEADS, PLACES, BOTH = (), (Atom(1),), (Atom(2, 64),), (Atom(2, 1, 64),), (Atom(2),)


@pytest.mark.parametrize(
    ("source", "target", "ways"),
    [
        # The heads of an image's rows: split, then turned; the unit goes along.
        ((UNIT, ROWS, BOTH), (UNIT, HEADS, ROWS, PLACES), ["regroup 1,197,3,64", "transpose 1,3,197,64"]),
        # Turned at once where what moves is whole, then split.
        ((UNIT, ROWS, BOTH), (UNIT, HEADS, PLACES, ROWS), ["transpose 1,192,197", "regroup 1,3,64,197"]),
        # And back: turned with its unit, then joined.
        ((UNIT, HEADS, ROWS, PLACES), (UNIT, ROWS, BOTH), ["transpose 1,197,3,64", "regroup 1,197,192"]),
        ((UNIT, ROWS, BOTH), (HEADS, ROWS, PLACES), ["regroup 197,3,64", "transpose 3,197,64"]),
        ((ROWS, BOTH), (HEADS, UNIT, ROWS, UNIT, PLACES), ["regroup 1,1,197,3,64", "transpose 3,1,197,1,64"]),
    ],
)
def test_a_transpose_moves_unit_dimensions_too(source: Dims, target: Dims, ways: list[str]) -> None:
    extents = (1, 197, 192)
    stages = path(source, target, extents)
    assert [f"{s.kind} {','.join(map(str, dims_shape(s.dims, extents)))}" for s in stages] == ways


def test_a_dimension_of_unknown_extent_keeps_its_index_before_units() -> None:
    extents = (1, None, 192)
    stages = path((UNIT, ROWS, BOTH), (UNIT, HEADS, ROWS, PLACES), extents)
    assert [dims_shape(stage.dims, extents) for stage in stages] == [(None, 3, 64, 1), (1, 3, None, 64)]


def test_a_tensor_is_transposed_before_padding_and_after_cropping() -> None:
    extents, channels = (2, 8, 6), (Atom(1, 1, 16),)
    plain, padded = ((Atom(0),), (Atom(1),), (Atom(2),)), ((Atom(0),), (), (Atom(2),), channels)
    there, back = path(plain, padded, extents), path(padded, plain, extents)
    shown = [(stage.kind, dims_shape(stage.dims, extents)) for stage in there]
    assert shown == [("transpose", (2, 6, 8)), ("regroup", (2, 1, 6, 8)), ("pad", (2, 1, 6, 16))]
    assert [s.kind for s in back] == ["crop", "transpose", "regroup"]


IMAGE = (1, 20, 12, 13)
SOURCE = ((), (Atom(1),), (Atom(2),), (Atom(3),))


@pytest.mark.parametrize(
    ("target", "ways"),
    [
        # The tile is beside its outer factor: both are the axis, which is filled up once it is in its place.
        (
            ((), (Atom(2),), (Atom(3),), (Atom(1, 16, 32),), (Atom(1, 1, 16),)),
            ["transpose 1,12,13,20", "pad 12,13,32"],
        ),
        # It is not: 20 channels have no tiles of 16.
        (
            ((), (Atom(1, 16, 32),), (Atom(2),), (Atom(3),), (Atom(1, 1, 16),)),
            ["pad 1,32,12,13", "transpose 1,2,156,16"],
        ),
        # The columns are filled up before the transpose, and the channels after it, where that is less.
        (
            ((), (Atom(3, 4, 16),), (Atom(2),), (Atom(1, 1, 48),), (Atom(3, 1, 4),)),
            ["pad 1,20,12,16", "transpose 1,4,12,20,4", "pad 1,4,12,48,4"],
        ),
        # A little is filled up at once, as each pad reads and writes the whole tensor.
        (
            ((), (Atom(3, 4, 16),), (Atom(2),), (Atom(1, 1, 21),), (Atom(3, 1, 4),)),
            ["pad 1,21,12,16", "transpose 1,4,12,21,4"],
        ),
    ],
)
def test_zeros_are_added_where_the_least_data_is_moved(target: Dims, ways: list[str]) -> None:
    stages = path(SOURCE, target, IMAGE)
    shown = [f"{s.kind} {','.join(map(str, dims_shape(s.dims, IMAGE)))}" for s in stages if s.kind != "regroup"]
    assert shown == ways
    back = path(target, SOURCE, IMAGE)
    kinds = ["crop" if way.startswith("pad") else "transpose" for way in reversed(ways)]
    assert [s.kind for s in back if s.kind != "regroup"] == kinds


def test_an_axis_that_both_ends_pad_and_tile_is_cropped_to_the_other_tiles() -> None:
    """20 channels are 2 tiles of 16, and 3 of 8: a tile of 8 is cut off, so that one transpose is enough."""
    sixteens = one_each((Atom(1, 16, 32), Atom(0), Atom(1, 1, 16)))
    eights = one_each((Atom(1, 8, 24), Atom(0), Atom(1, 1, 8)))
    there, back = path(sixteens, eights, (5, 20)), path(eights, sixteens, (5, 20))
    assert [stage.kind for stage in there if stage.kind != "regroup"] == ["transpose", "crop"]
    assert [stage.kind for stage in back if stage.kind != "regroup"] == ["pad", "transpose"]


def test_a_conversion_moves_as_much_whatever_the_dimensions_of_its_ends() -> None:
    """The planner prices the format, and the writer converts to the dimensions that a consumer reads."""
    draw = random.Random(11)
    for _ in range(400):
        extents = draw.choice([1, 2]), draw.randint(2, 40), draw.choice([1, 3, 16])
        source, target = some_dims(draw, extents), some_dims(draw, extents)
        ends = [flat(dims, extents) for dims in (source, target)]
        planned = [(kind, size(one, extents), size(other, extents)) for kind, one, other in moves(*ends, extents)]
        written = []
        before = source
        for stage in path(source, target, extents):
            if stage.kind != "regroup":
                written.append(
                    (stage.kind, size(flat(before, extents), extents), size(flat(stage.dims, extents), extents))
                )
            before = stage.dims
        assert written == planned, (source, target, extents)
        assert before == target


def test_no_two_conversions_move_less_than_the_one_between_their_ends() -> None:
    draw = random.Random(13)
    for _ in range(400):
        extents = draw.choice([1, 2]), draw.randint(2, 40), draw.choice([1, 3, 16])
        source, between, target = (flat(some_dims(draw, extents), extents) for _ in range(3))
        if {source, target} & {between}:
            continue
        one = moves(source, target, extents)
        two = [*moves(source, between, extents), *moves(between, target, extents)]
        assert traffic(one, extents) <= traffic(two, extents), (source, between, target, extents)


def test_any_two_tilings_are_converted_with_every_number_at_its_index() -> None:
    """Against NumPy: zeros filled up, cut into a tile, and turned, each way from the same numbers."""
    draw = random.Random(7)
    for _ in range(300):
        extents = draw.choice([1, 2]), draw.randint(2, 13), draw.choice([1, 3])
        numbers = np.arange(1, 1 + np.prod(extents)).reshape(extents)
        (source, laid), (target, wanted) = tiled(draw, extents, numbers), tiled(draw, extents, numbers)
        for step in steps_of(one_each(source), one_each(target), extents):
            laid = apply_step(laid, step)
        np.testing.assert_array_equal(laid, wanted, err_msg=f"{source} to {target} of {extents}")
        kinds = [stage.kind for stage in path(one_each(source), one_each(target), extents) if stage.kind != "regroup"]
        found = moves(source, target, extents)
        assert [kind for kind, _, _ in found] == kinds, (source, target, extents)
        ends = [source, *[after for _, _, after in found]]
        assert [before for _, before, _ in found] == ends[:-1], (source, target, extents)
        assert ends[-1] == target, (source, target, extents)
        turns = sum(stage.kind == "transpose" for stage in path(one_each(source), one_each(target), extents))
        assert turns <= 2


def test_factors_that_nest_after_fusion_take_one_transpose() -> None:
    thirds = ((Atom(0, 12), Atom(0, 3, 12), Atom(0, 1, 3)), (Atom(1),))
    halves = ((Atom(1),), (Atom(0, 18),), (Atom(0, 2, 18),), (Atom(0, 1, 2),))
    stages = path(thirds, halves, (36, 5))
    assert [stage.kind for stage in stages] == ["regroup", "transpose", "regroup"]
    assert stages[-1].dims == halves


def test_tiles_that_do_not_nest_take_two_transposes() -> None:
    thirds = (Atom(0, 1, 4), Atom(0, 4))
    halves = (Atom(0, 1, 6), Atom(0, 6))
    assert not cuts_nest(thirds, halves)
    assert cuts_nest(thirds, (Atom(0, 1, 2), Atom(0, 2)))
    assert cuts_nest(thirds, (Atom(0),))
    stages = path(one_each(thirds), one_each(halves), (12,))
    assert [stage.kind for stage in stages] == ["transpose", "regroup", "transpose"]


def tiled(draw: random.Random, extents: tuple[int, ...], numbers: np.ndarray) -> tuple[MemoryFormat, np.ndarray]:
    """A format with tiles of the middle axis, and the numbers in it: its pieces of extent 1 are left out."""
    batch, channels, rows = extents
    tile = draw.randint(1, 9)
    reach = -(-channels // tile) * tile
    atoms = [Atom(0), Atom(1, tile, reach if reach > channels else 0), Atom(1, 1, tile), Atom(2)]
    lengths = [batch, reach // tile, tile, rows]
    perm = [place for place in draw.sample(range(4), 4) if lengths[place] > 1]
    filled = np.pad(numbers, [(0, 0), (0, reach - channels), (0, 0)]).reshape(lengths)
    order = normal_form(tuple(atoms[place] for place in perm), extents)
    units = [place for place in range(4) if lengths[place] == 1]
    laid = filled.transpose(*units, *perm)
    return order, laid.reshape([int(n) for n in dims_shape(one_each(order), extents) if isinstance(n, int)])


def some_dims(draw: random.Random, extents: tuple[int, ...]) -> Dims:
    """Dimensions of a format with tiles of the last two axes, in any order: each atom is one."""
    atoms = [Atom(0)]
    for axis, tile in ((1, draw.choice([1, 4, 7, 16])), (2, draw.choice([1, 1, 4]))):
        reach = -(-extents[axis] // tile) * tile if extents[axis] > 1 else 1
        if reach == 1:
            atoms.append(Atom(axis))
        else:
            atoms += [Atom(axis, tile, reach if reach > extents[axis] else 0), Atom(axis, 1, tile)]
    draw.shuffle(atoms)
    return tuple(() if atom_extent(atom, extents) == 1 and draw.random() < 0.5 else (atom,) for atom in atoms)


def flat(dims: Dims, extents: tuple[int, ...]) -> MemoryFormat:
    return normal_form(tuple(chain.from_iterable(dims)), extents)


def size(format_: MemoryFormat, extents: tuple[int, ...]) -> int:
    return prod(int(extent) for extent in dims_shape(one_each(format_), extents) if isinstance(extent, int))


def traffic(found: Iterable[tuple[str, MemoryFormat, MemoryFormat]], extents: tuple[int, ...]) -> int:
    return sum(size(one, extents) + size(other, extents) for _, one, other in found)
