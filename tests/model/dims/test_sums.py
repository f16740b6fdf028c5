"""Sums of extents have one spelling."""

from __future__ import annotations

import pytest

from relayout.layout.terms import term_of
from relayout.model.dims.sums import Sum, plus


@pytest.mark.parametrize(
    ("extents", "total"),
    [
        (["past", "new"], "new + past"),
        (["n + 1", "2", "n"], "2*n + 3"),
        (["(h - 1)//2 + 1", "n"], "(h - 1)//2 + n + 1"),
        (["h - w", "1"], "h - w + 1"),
        (["h - 2", "2"], "h"),
        (["n", "unk__0"], None),
        (["n", ""], None),
    ],
)
def test_a_sum_is_its_terms_in_alphabetical_order_and_a_number(extents: list[str], total: str | None) -> None:
    found = Sum.of([term_of(each) if each else None for each in extents])
    term = None if found is None else found.term()
    assert (None if term is None else str(term)) == total


def test_a_sum_that_would_be_long_is_not_known() -> None:
    assert str(plus(term_of("n" * 150), 10)) == f"{'n' * 150} + 10"
    assert plus(term_of("n" * 159), 10) is None
