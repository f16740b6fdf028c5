"""The layout problem as pure data: choices, values, cost tables. Knows nothing of graphs.

A **choice** is a node that picks one of its alternatives (implementations). A **value** is produced by one choice and
used by several; each alternative of its producer puts it into one of the value's formats, and each alternative of a
consumer wants it in one. A format that is wanted and was not produced is made by one conversion, paid once however
many consumers want it:

    cost = sum over choices  costs[alternative]
         + sum over values   sum over {formats wanted} \\ {format produced} of conversion[produced][wanted]

Costs are non-negative integers, so that optimal means optimal. See "Nearly optimal register allocation with PBQP"
(Scholz & Eckstein 2002) for the pairwise special case.
"""

from __future__ import annotations

from dataclasses import dataclass


__all__ = ["Choice", "Problem", "Use", "Value"]

Row = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One node's alternatives; `costs[a]` is what alternative `a` costs by itself."""

    name: str
    costs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """How one choice touches a value: alternative `a` of `choice` produces it in, or wants it in, `formats[a]`."""

    choice: int
    formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value with `len(conversion)` formats; `conversion[f][g]` is the price of making `g` from `f`.

    The diagonal is 0; None: that conversion does not exist.
    """

    name: str
    producer: Use
    consumers: tuple[Use, ...]
    conversion: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Choices and the values between them. Valid by construction: every index and length is checked here."""

    choices: tuple[Choice, ...]
    values: tuple[Value, ...]
