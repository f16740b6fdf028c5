"""Strides within an axis whose factors are no numbers: of `h*w`, the stride of `h` is `w`.

The atoms of a memory format have integers as strides. So the name of a dim has a prime of its own, above all extents: a
stride divides another if it does so at all sizes, and no number is the stride of a name.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from math import prod

from relayout.layout.terms import Term, extent_term, in_order, quotient

UNKNOWN = (1 << 61) - 1
"""The integer for an extent without a name. As a prime, no other extent divides it. No format has such strides."""

_FIRST = 1 << 80

_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
"""A number below 3 * 10**24 that passes the test of Miller and Rabin to these bases is a prime (Sorenson and Webster,
"Strong pseudoprimes to twelve prime bases")."""


@lru_cache(maxsize=1 << 16)
def stride_of(extent: int | str | None) -> int:
    """The integer that stands for an extent in strides; `UNKNOWN` for one without a name.

    >>> stride_of(32), stride_of("32*h*w") == 32 * stride_of("h") * stride_of("w"), stride_of(None) == UNKNOWN
    (32, True, True)
    """
    if isinstance(extent, int):
        return extent
    term = extent_term(extent)
    if term is None or not term.is_formula:
        return UNKNOWN
    return int(term.factor) * prod(map(_prime_of, term.names))


def is_open(stride: int) -> bool:
    """Whether a stride is no number, or unknown."""
    return stride >= UNKNOWN


def is_unknown(stride: int) -> bool:
    """Whether a stride has a factor without a name."""
    return stride >= UNKNOWN and stride % UNKNOWN == 0


@lru_cache(maxsize=1 << 16)
def part_of(extent: str, inner: int, outer: int = 0) -> Term | None:
    """The extent of the part of an axis between two strides, of which one is open; `outer` 0: the axis's end.

    >>> str(part_of("4*h*w", stride_of("w"))), str(part_of("4*h*w", stride_of("w"), stride_of("h*w")))
    ('4*h', 'h')
    """
    whole = extent_term(extent)
    assert whole is not None
    return quotient(_named(outer, whole) if outer else whole, _named(inner, whole))


def _named(stride: int, whole: Term) -> Term:
    """The term for which a stride within an axis of this extent stands."""
    names: list[str] = []
    for name in whole.names:
        if stride % _prime_of(name) == 0:
            names.append(name)
            stride //= _prime_of(name)
    return Term(Fraction(stride), in_order(names))


@lru_cache(maxsize=1 << 16)
def _prime_of(name: str) -> int:
    """The prime that stands for a name. It depends on the name alone, so that nothing depends on earlier models."""
    number = _FIRST + int.from_bytes(sha256(name.encode()).digest()[:10], "big") | 1
    while not _is_prime(number):
        number += 2
    return number


def _is_prime(number: int) -> bool:
    """The test of Miller and Rabin for an odd number."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in _BASES:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        if all((power := power * power % number) != number - 1 for _ in range(twos - 1)):
            return False
    return True
