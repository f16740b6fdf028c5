"""The question about a Transpose, where an extent is not known."""

from __future__ import annotations

import pytest

from relayout.candidates.backend_conversions import transposition
from relayout.layout.memory_format import Atom

WHOLE, INNER = Atom(0, 2, 0), Atom(0, 1, 2)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("source", "target", "perm"),
    [((WHOLE, INNER), (INNER, WHOLE), "10"), ((WHOLE, Atom(1), INNER), (WHOLE, INNER, Atom(1)), "021")],
)
def test_the_size_assumed_for_an_extent_need_not_be_a_multiple_of_its_tile(
    size: int, source: tuple[Atom, ...], target: tuple[Atom, ...], perm: str
) -> None:
    extents = ("n", 3)[: len({atom.axis for atom in source})]
    turn = transposition(extents, (size, *extents[1:]), source, target)
    assert turn is not None
    query = turn.query(4)
    assert "".join(query.target.names) == perm
    assert 2 in query.tensor.shape
    assert all(isinstance(extent, int) and extent > 0 for extent in query.tensor.shape)
