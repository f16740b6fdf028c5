"""Products of a number and of names, as texts of dims."""

from __future__ import annotations

from fractions import Fraction

import pytest

from relayout.layout.conversion import dims_shape
from relayout.layout.memory_format import Atom, Extent
from relayout.layout.terms import Term, product, quotient, term_of


@pytest.mark.parametrize(
    ("text", "factor", "names"),
    [
        ("batch", 1, ("batch",)),
        ("8*batch", 8, ("batch",)),
        ("2*b*a*2", 4, ("a", "b")),
        ("2 * ids.45", 2, ("ids.45",)),
        ("2*batch-size", 2, ("batch-size",)),
        ("batch*((h - 1)//2 + 1)", 1, ("batch", "(h - 1)//2 + 1")),
        ("(h + 1)*(w + 1)", 1, ("h + 1", "w + 1")),
        # No products.
        ("2*h + 1", 1, ("2*h + 1",)),
        ("8*batch//3", 1, ("8*batch//3",)),
        ("(h)+(w*2)", 1, ("(h)+(w*2)",)),
        ("h**2", 1, ("h**2",)),
        ("2*(h", 1, ("2*(h",)),
        ("2*3", 1, ("2*3",)),
        ("7", 1, ("7",)),
        ("?", 1, ("?",)),
    ],
)
def test_a_name_is_a_term(text: str, factor: int, names: tuple[str, ...]) -> None:
    assert term_of(text) == (factor, names)


@pytest.mark.parametrize("text", ["batch", "8*batch", "4*a*b", "batch*((h - 1)//2 + 1)", "2*h + 1", "8*(h + 1)"])
def test_the_text_of_a_term_is_the_term(text: str) -> None:
    assert str(term_of(text)) == text


def test_names_of_a_quotient_cancel() -> None:
    whole = product([term_of("64*batch"), Term(Fraction(49)), term_of("h + 1")])
    assert str(quotient(whole, term_of("49*(h + 1)"))) == "64*batch"
    assert quotient(term_of("batch"), term_of("h")) is None
    assert product([whole, None]) is None


@pytest.mark.parametrize(
    ("group", "extent"),
    [
        ((Atom(0, 8),), "8*batch"),
        ((Atom(0, 8), Atom(1)), "24*batch"),
        ((Atom(0, 64), Atom(2)), "batch*h"),
        ((Atom(1), Atom(2)), "3*h"),
        ((Atom(0, 1, 8), Atom(1)), 24),
        ((Atom(2, 2),), "h//2"),
        ((Atom(2, 2), Atom(1)), "3*(h//2)"),
        ((Atom(3), Atom(1)), None),  # onnx gives the name anew to another dim
        ((Atom(4), Atom(1)), None),
    ],
    ids=str,
)
def test_a_dimension_of_several_atoms_is_a_product(group: tuple[Atom, ...], extent: Extent) -> None:
    assert dims_shape((group,), ("64*batch", 3, "h", "unk__0", None)) == (extent,)
