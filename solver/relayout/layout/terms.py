"""Terms: products of a number and of named dims, such as `8*batch` or `batch*((height - 1)//2 + 1)`.

What a Reshape does to an extent is a product or a quotient. So an extent that is a term is followed through Reshapes,
and a dim whose name is the text of a term is the term when the model is read again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

GENERATED = "unk__"
"""The prefix of the names that onnx's inference generates."""

NAME = re.compile(r"[^\W\d](?:[\w.:]|[-/](?=[^\W\d]))*")
"""A name may have dots, colons, and hyphens and slashes before letters: `ids.45_dim_1`, `onnx::Gather_7_dim_0`,
`batch-size`, `Add/m/Add_output_0_dim_0`. A formula has spaces around a minus, or a number behind it or the slash."""


class Term(NamedTuple):
    """A number times dims, in alphabetical order: names, then formulas that are no products."""

    factor: Fraction
    names: tuple[str, ...] = ()

    @property
    def is_formula(self) -> bool:
        """Whether it is an extent as a formula of names that the model gives."""
        is_given = not any(GENERATED in name for name in self.names)
        return bool(self.names) and is_given and self.factor > 0 and self.factor.denominator == 1

    def __str__(self) -> str:
        """The formula of the term.

        >>> str(Term(Fraction(8), ("batch", "h + 1")))
        '8*batch*(h + 1)'
        """
        if self.factor == 1 and len(self.names) == 1:
            return self.names[0]
        numbers = [] if self.factor == 1 and self.names else [str(self.factor)]
        return "*".join([*numbers, *(name if is_name(name) else f"({name})" for name in self.names)])


def is_name(text: str) -> bool:
    """Whether a text is one name, and no formula of several."""
    return NAME.fullmatch(text) is not None


def is_given(text: str) -> bool:
    """Whether a text is one name that neither inference nor an operator gives."""
    return is_name(text) and not text.startswith(GENERATED)


def is_multiple(term: Term) -> bool:
    """Whether an extent is an open dim times a whole number of at least 2. It is never 1.

    >>> is_multiple(term_of("2*h")), is_multiple(term_of("h")), is_multiple(term_of("2*h - 1"))
    (True, False, False)
    """
    return bool(term.names) and term.factor.denominator == 1 and term.factor >= 2


LONGEST_PRODUCT = 1000
"""A longer text is a name: parentheses in it may be nested deeply, and its numbers may have thousands of digits."""


@lru_cache(1024)
def term_of(text: str) -> Term:
    """The term of a dim with this name, whatever the text.

    >>> term_of("8*batch*(h + 1)")
    Term(factor=Fraction(8, 1), names=('batch', 'h + 1'))
    >>> term_of("8*h + 1")
    Term(factor=Fraction(1, 1), names=('8*h + 1',))
    >>> term_of("2*((h//2))"), term_of("(h//2)")
    (Term(factor=Fraction(2, 1), names=('h//2',)), Term(factor=Fraction(1, 1), names=('h//2',)))
    """
    is_product = len(text) <= LONGEST_PRODUCT and ("*" in text or text.startswith("("))
    parts = [_factor(part) for part in _split(text)] if is_product else []
    factors = [part for part in parts if part is not None]
    names = in_order(each for each in factors if not each.isdecimal())
    if len(factors) < len(parts) or not names:
        return Term(Fraction(1), (text,))
    return Term(Fraction(prod(int(each) for each in factors if each.isdecimal())), names)


def extent_term(extent: int | str | None) -> Term | None:
    """The term of an extent; None for one that has no name."""
    return Term(Fraction(extent)) if isinstance(extent, int) else term_of(extent) if extent is not None else None


def product(terms: Iterable[Term | None]) -> Term | None:
    """The product of terms; None if one is not known."""
    factor = Fraction(1)
    names: list[str] = []
    for term in terms:
        if term is None:
            return None
        factor *= term.factor
        names += term.names
    return Term(factor, in_order(names))


def quotient(one: Term | None, other: Term | None) -> Term | None:
    """The quotient of two terms where the names of the second cancel."""
    if one is None or other is None or not other.factor:
        return None
    left, gone = Counter(one.names), Counter(other.names)
    if not gone <= left:
        return None
    return Term(one.factor / other.factor, in_order((left - gone).elements()))


def rounded_down(term: Term) -> Term:
    """A positive term as whole numbers have it: a quotient is a formula, which stands for a name.

    >>> str(rounded_down(Term(Fraction(3, 2), ("h",)))), str(rounded_down(Term(Fraction(2), ("h",))))
    ('(3*h)//2', '2*h')
    """
    if term.factor.denominator == 1:
        return term
    whole = str(Term(Fraction(term.factor.numerator), term.names))
    return Term(Fraction(1), (f"{whole if is_name(whole) else f'({whole})'}//{term.factor.denominator}",))


_DIVISOR = re.compile(r"[1-9][0-9]{0,17}")


def dividend_of(name: str) -> tuple[str, int] | None:
    """The dividend and the divisor of a quotient that `rounded_down` has written; None for another name.

    >>> dividend_of("(3*h)//2"), dividend_of("((h - 1)//2 + 1)//7"), dividend_of("(h + 1)//2 - (h//2)//2")
    (('3*h', 2), ('(h - 1)//2 + 1', 7), None)
    """
    return _operands(name, "//")


def remainder_of(name: str) -> tuple[str, int] | None:
    """The dividend and the divisor of a remainder, written alike; None for another name.

    >>> remainder_of("h % 7"), remainder_of("(h//4) % 7"), remainder_of("n + h % 7")
    (('h', 7), ('h//4', 7), None)
    """
    return _operands(name, " % ")


def _operands(name: str, operator: str) -> tuple[str, int] | None:
    """A name, or a formula in parentheses, and a number, with the operator between them."""
    whole, _, divisor = name.rpartition(operator)
    if _DIVISOR.fullmatch(divisor) is None:
        return None
    inner = whole if is_name(whole) else _inside(whole)
    return None if inner is None else (inner, int(divisor))


def factors_of(number: int, count: int) -> list[int]:
    """So many factors of a number, as equal as whole numbers allow, the smallest first.

    >>> factors_of(256, 2), factors_of(24, 3), factors_of(7, 2)
    ([16, 16], [2, 3, 4], [1, 7])
    """
    found = []
    for left in range(count, 0, -1):
        factor = int(number ** (1 / left) + 1e-9)
        while factor > 1 and number % factor:
            factor -= 1
        found.append(factor)
        number //= max(factor, 1)
    return found


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (not is_name(name), name)))


def _split(text: str) -> list[str]:
    """The text between the asterisks that are not in parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "*" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _factor(part: str) -> str | None:
    """A name, a number, or what is in parentheses; None for another formula."""
    part = part.strip(" ")
    if is_name(part) or part.isdecimal():
        return part
    inner = _inside(part)
    return None if inner is None else _factor(inner) or inner


def _inside(text: str) -> str | None:
    """The formula in the parentheses that are around a text; None if there are none."""
    inner = text[1:-1]
    depths = accumulate((letter == "(") - (letter == ")") for letter in inner)
    return inner if inner and text == f"({inner})" and min(depths) >= 0 else None
