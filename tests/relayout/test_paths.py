"""The way from one arrangement to another has no more steps than it needs."""

from __future__ import annotations

import pytest

from relayout.memory_format import Atom
from relayout.paths import Dims, dims_shape, path

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
def test_units_go_along_with_a_transpose(source: Dims, target: Dims, ways: list[str]) -> None:
    extents = (1, 197, 192)
    stages = path(source, target, extents)
    assert [f"{s.kind} {','.join(map(str, dims_shape(s.dims, extents)))}" for s in stages] == ways


def test_what_is_not_known_keeps_its_places_before_units() -> None:
    extents = (1, None, 192)
    stages = path((UNIT, ROWS, BOTH), (UNIT, HEADS, ROWS, PLACES), extents)
    assert [dims_shape(stage.dims, extents) for stage in stages] == [[None, 3, 64, 1], [1, 3, None, 64]]


def test_what_is_padded_is_moved_before_it_grows_and_after_it_has_shrunk() -> None:
    extents, channels = (2, 8, 6), (Atom(1, 1, 16),)
    plain, padded = ((Atom(0),), (Atom(1),), (Atom(2),)), ((Atom(0),), (), (Atom(2),), channels)
    there, back = path(plain, padded, extents), path(padded, plain, extents)
    shown = [(stage.kind, dims_shape(stage.dims, extents)) for stage in there]
    assert shown == [("transpose", [2, 6, 8]), ("regroup", [2, 1, 6, 8]), ("pad", [2, 1, 6, 16])]
    assert [s.kind for s in back] == ["crop", "transpose", "regroup"]
