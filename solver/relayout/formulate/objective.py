"""The objective of a run: tiers in lexicographic order, packed into one integer cost.

    bytes        bytes read and written by conversions, then transposes, then changes against the source
    transposes   the number of conversions, then their bytes, then changes against the source

A node that could be elided but is kept may do the work of a conversion. It is charged in a tier below conversions and
above changes; under `bytes` it counts as one more conversion.

Bytes are counted in units of their greatest common divisor. If the packed sum would exceed 2^60, the lowest tier is
dropped; if it still does, all tiers but the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from msgspec import Struct

from relayout.errors import UsageError, option_text

LIMIT = 1 << 60


class Objective(Struct, frozen=True):
    """A lexicographic objective: the quantities of one tier are added up. `unit` is the first tier's quantity."""

    name: str
    tiers: tuple[tuple[str, ...], ...]
    unit: str


OBJECTIVES = {
    row.name: row
    for row in (
        Objective("bytes", (("bytes",), ("transposes", "elidable"), ("changes",)), "bytes"),
        Objective("transposes", (("transposes",), ("bytes",), ("elidable",), ("changes",)), "transposes"),
    )
}


def objective_named(name: str) -> Objective:
    """The objective of this name. Raises UsageError."""
    if name not in OBJECTIVES:
        raise UsageError(
            "unknown objective", where=option_text("objective"), expected=" or ".join(OBJECTIVES), found=name
        )
    return OBJECTIVES[name]


class Scale(Struct, frozen=True):
    """The weight of each quantity of an objective; `divisor` divides all bytes."""

    objective: Objective
    divisor: int
    weights: Mapping[str, int]

    @classmethod
    def of(cls, objective: Objective, charges: Iterable[int], most: Mapping[str, int]) -> Scale:
        """The scale for these charges in bytes; `most` bounds the sum of each quantity."""
        divisor = gcd(*charges) or 1
        most = {**most, "bytes": most["bytes"] // divisor}
        for tiers in (objective.tiers, objective.tiers[:-1]):
            weight, weights = 1, dict.fromkeys(most, 0)
            for tier in reversed(tiers):
                weights.update(dict.fromkeys(tier, weight))
                weight *= 1 + sum(most[quantity] for quantity in tier)
            if weight < LIMIT:
                return cls(objective, divisor, weights)
        return cls(objective, divisor, {**dict.fromkeys(most, 0), objective.unit: 1})

    def price(self, nbytes: int, transposes: int = 0, changes: int = 0, elidable: int = 0) -> int:
        """The cost of these quantities, packed."""
        weights = self.weights
        return (
            weights["bytes"] * (nbytes // self.divisor)
            + weights["transposes"] * transposes
            + weights["changes"] * changes
            + weights["elidable"] * elidable
        )

    def unpacked(self, cost: int) -> int:
        """The packed cost in the objective's unit, rounded down."""
        return cost // self.weights[self.objective.unit] * (self.divisor if self.objective.unit == "bytes" else 1)
