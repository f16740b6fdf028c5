"""Extents that are sums of terms and a number, such as `past + new` or `(height - 1)//2 + 1`, as terms of one name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from relayout.layout.terms import GENERATED, Term, term_of
from relayout.model.dims.formula import LONGEST_FORMULA, formula_names


class Sum(NamedTuple):
    """A sum of terms, each as its names and its factor, and of a number."""

    terms: Mapping[tuple[str, ...], Fraction]
    number: int

    @classmethod
    def of(cls, extents: Iterable[Term | None]) -> Sum | None:
        """The sum of extents; None where one is not known, has a name that inference generated, or is no formula."""
        terms: dict[tuple[str, ...], Fraction] = {}
        number = 0
        for extent in extents:
            text = "" if extent is None or extent.factor.denominator != 1 else str(extent)
            if not text or GENERATED in text or formula_names(text) is None:
                return None
            for addend in _addends(text):
                if addend.lstrip("-").isdecimal():
                    number += int(addend)
                else:
                    factor, names = term_of(addend)
                    terms[names] = terms.get(names, Fraction(0)) + factor
        return cls(terms, number)

    def term(self, more: int = 0) -> Term | None:
        """The sum plus a number, with its terms in alphabetical order; None where the formula is too long to say
        something."""
        texts = sorted(str(Term(factor, names)) for names, factor in self.terms.items())
        number = self.number + more
        if not texts:
            return Term(Fraction(number))
        text = " + ".join(texts)
        if not number and len(texts) == 1:
            return term_of(text)
        return named(f"{text} {'-' if number < 0 else '+'} {abs(number)}" if number else text)


def plus(extent: Term | None, number: int) -> Term | None:
    """An extent plus a number; None where it is not known.

    >>> str(plus(Term(Fraction(1), ("h//2 + 1",)), 3)), str(plus(Term(Fraction(2), ("h",)), -1))
    ('h//2 + 4', '2*h - 1')
    """
    if not number:
        return extent
    total = Sum.of([extent])
    return None if total is None else total.term(number)


def named(formula: str) -> Term | None:
    """The term that a formula, which is no product, stands for; None where it is too long to say something."""
    return Term(Fraction(1), (formula,)) if len(formula) <= LONGEST_FORMULA else None


def _addends(text: str) -> list[str]:
    """The addends of a formula: itself, where something else than a number is subtracted."""
    parts = [""]
    depth = 0
    for part in re.split(r"([()]| [+-] )", text):
        depth += (part == "(") - (part == ")")
        if depth or part not in (" + ", " - "):
            parts[-1] += part
        else:
            parts.append("-" if part == " - " else "")
    return parts if all(not part.startswith("-") or part[1:].isdecimal() for part in parts) else [text]
