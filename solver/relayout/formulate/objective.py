"""What an objective charges, as one integer: levels in lexicographic order, packed.

    bytes        bytes read and written by conversions, then their number, then changes against the source
    transposes   the number of conversions, then their bytes, then changes against the source

An operator that could be left out, and then a conversion might do what it does, is charged after what conversions
spend, as before and after are counted, and before changes: for bytes it counts as one more conversion.

A level is left out only where the sum would not fit into 2^60; the bytes are counted in units of their greatest common
divisor first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from relayout.errors import UsageError

__all__ = ["OBJECTIVES", "Scale"]

OBJECTIVES = ("bytes", "transposes")
LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Scale:
    """Weights of the levels. `price(bytes, count, change)` packs them; `unit` is the divisor of all bytes."""

    unit: int
    byte_weight: int
    count_weight: int
    change_weight: int
    aside: int
    """What an operator that could be left out is charged where it is not."""

    @classmethod
    def of(cls, objective: str, charges: Iterable[int], most: tuple[int, int, int], asides: int = 0) -> Scale:
        """The scale for these byte charges, when at most `most` = (bytes, conversions, changes) can add up, and so many
        operators that could be left out."""
        if objective not in OBJECTIVES:
            raise UsageError(
                "unknown objective", where="--objective", expected=" or ".join(OBJECTIVES), found=objective
            )
        unit = gcd(*charges) or 1
        most_bytes, most_count, most_changes = most[0] // unit + 1, most[1] + 1, most[2] + 1
        for changes in (most_changes, 0):
            low = changes + 1 if changes else 1
            change = 1 if changes else 0
            if objective == "bytes":
                scale = cls(unit, low * (most_count + asides), low, change, low)
            else:
                least = low * (asides + 1)
                scale = cls(unit, least, least * most_bytes, change, low)
            most_charged = scale.count_weight * (most_count + asides) + low * (asides + 1)
            if scale.byte_weight * most_bytes + most_charged < LIMIT:
                return scale
        return cls(unit, 1, 0, 0, 0) if objective == "bytes" else cls(unit, 0, 1, 0, 0)

    def price(self, nbytes: int, count: int = 0, changes: int = 0) -> int:
        return self.byte_weight * (nbytes // self.unit) + self.count_weight * count + self.change_weight * changes
