"""The Transpose between two formats, found by the places of their factors, is that found from the atoms."""

from __future__ import annotations

import random

import pytest

from relayout.candidates.backend_conversions import transposition
from relayout.formulate.transposes import Transposes
from relayout.layout.conversion import moves
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form, order_of

EXTENTS: dict[tuple[Extent, ...], tuple[Extent, ...]] = {
    (4, 6, 8): (4, 6, 8),
    (1, 12, 5, 16): (1, 12, 5, 16),
    ("n", 8, 6): (3, 8, 6),
    ("n", 8, None, 4): (1, 8, 64, 4),
    (0, 4, 6): (0, 4, 6),
}


def formats_of(rng: random.Random, extents: tuple[Extent, ...]) -> MemoryFormat:
    """The axes in a random order, some of known extent split into two or three factors."""
    atoms: list[Atom] = []
    for axis, extent in enumerate(extents):
        known = extent if isinstance(extent, int) else 1
        inner = [d for d in range(2, known) if known % d == 0]
        ends = sorted(set(rng.choices(inner, k=rng.randint(0, 2)))) if inner else []
        ends = [end for n, end in enumerate(ends) if n == 0 or end % ends[n - 1] == 0]
        if extent != 1:
            atoms += [Atom(axis, low, high) for low, high in zip([1, *ends], [*ends, 0], strict=True)]
    return normal_form(tuple(rng.sample(atoms, len(atoms))), extents)


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_the_transpose_by_places_is_that_by_atoms(extents: tuple[Extent, ...]) -> None:
    rng, sizes = random.Random(7), EXTENTS[extents]
    transposes, compared = Transposes(extents, sizes), 0
    formats = [formats_of(rng, extents) for _ in range(60)]
    cut = [transposes.cut(each) for each in formats]
    for source, given in zip(formats, cut, strict=True):
        for target, wanted in zip(formats, cut, strict=True):
            found = transposes.between(given, wanted)
            if source == target or not found:
                continue
            steps = moves(source, target, extents)
            assert [kind for kind, _, _ in steps] == ["transpose"] * len(found)
            for (_, before, after), turn in zip(steps, found, strict=True):
                expected = transposition(extents, sizes, before, after)
                assert expected == (turn if len(turn.perm) <= MAX_RANK else None)
            compared += 1
    assert compared > 200


def test_factors_that_do_not_nest_take_two_transposes_and_zeros_other_operators() -> None:
    transposes = Transposes((4, 12), (4, 12))
    by_four, by_six = (Atom(1, 4), Atom(0), Atom(1, 1, 4)), (Atom(1, 6), Atom(0), Atom(1, 1, 6))
    padded, whole = (Atom(0), Atom(1, 1, 16)), order_of((1, 0))
    for source, target in ((padded, whole), (whole, padded)):
        assert transposes.between(transposes.cut(source), transposes.cut(target)) == ()
    (one,) = transposes.between(transposes.cut(whole), transposes.cut(by_four))
    assert (one.shape, one.perm) == ((3, 4, 4), (0, 2, 1))
    two = transposes.between(transposes.cut(by_four), transposes.cut(by_six))
    assert [(turn.shape, turn.perm) for turn in two] == [((3, 4, 4), (1, 0, 2)), ((4, 2, 6), (1, 0, 2))]
