"""The rows of the tables of conversions and dear operators: repeated blocks are one row, factors of axes are words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from relayout.report.grouping import Group, counted, grouped
from relayout.report.schema import Charge, Conversion, Transfer

__all__ = ["ChargeRow", "charge_rows", "conversion_rows", "in_words", "megabytes", "transfer_rows"]

_Moved = TypeVar("_Moved", Conversion, Transfer)

Row = tuple[str, str, str, str, str, str, str]
"""How many, as `12 x`, or "" for one; the value, its two ends, and the kind; the megabytes of all, and the readers, one
a line."""

# An axis by its number, with the size of the block that the factor lies in, and that of the blocks that it counts.
_FACTOR = re.compile(r"(\d+)(?:%(\d+))?(?:/(\d+))?", re.ASCII)


def conversion_rows(conversions: Sequence[Conversion]) -> list[Row]:
    """One row for each group of conversions that differ in the numbers of their names only, in the order of the first
    of each."""
    groups = grouped(
        (
            [each.value, *(f"{by.node}:{by.operand} {by.layout}".rstrip() for by in each.required_by)],
            # The layouts and the numbers of operands count: only names are merged.
            (each.from_, each.to, each.kind, each.passes, each.bytes, _readers(each)),
            each,
        )
        for each in conversions
    )
    rows = []
    for group in groups:
        first = group.items[0]
        kind = first.kind if first.passes == 1 else f"{first.passes} {first.kind}s"
        rows.append(_row(group, in_words(first.from_), in_words(first.to), kind))
    return rows


def transfer_rows(transfers: Sequence[Transfer]) -> list[Row]:
    """One row for each group of similar transfers, of whatever sizes, in the order of the first of each: from one
    device to another, with the layout for a kind."""
    groups = grouped(
        (
            [each.value, *(f"{by.node}:{by.operand}" for by in each.required_by)],
            (each.from_, each.to, each.layout, tuple(by.operand for by in each.required_by)),
            each,
        )
        for each in transfers
    )
    firsts = ((group, group.items[0]) for group in groups)
    return [_row(group, first.from_, first.to, in_words(first.layout)) for group, first in firsts]


def _row(group: Group[_Moved], source: str, target: str, kind: str) -> Row:
    value, *readers = group.names
    total = sum(each.bytes for each in group.items)
    return counted(group), value, source, target, kind, megabytes(total), "\n".join(readers)


_REMARKS = {
    "operator": "",
    "decomposition": "written out in others",
    "reorder": "a reorder of the source",
    "pad": "a pad of the source",
}


@dataclass(frozen=True, slots=True)
class ChargeRow:
    """Nodes that differ in the numbers of their names and in their cost only; `cost` is that of all of them."""

    count: str
    node: str
    layout: str
    remark: str
    cost: int


def charge_rows(charges: Sequence[Charge]) -> list[ChargeRow]:
    """One row for each group of similar nodes, the dearest first."""
    groups = grouped(([each.node], (each.layout, each.kind), each) for each in charges)
    rows = [
        ChargeRow(
            counted(group),
            group.names[0],
            in_words(group.items[0].layout),
            _REMARKS[group.items[0].kind],
            sum(each.cost for each in group.items),
        )
        for group in groups
    ]
    return sorted(rows, key=lambda row: -row.cost)


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"


def _readers(conversion: Conversion) -> tuple[tuple[int, str], ...]:
    return tuple((by.operand, by.layout) for by in conversion.required_by)


_LONGEST_IN_WORDS = 80
"""Letters: a longer cell makes a table too wide to read."""


def in_words(text: str) -> str:
    """A format by the numbers of axes, with factors in words; any other text as it is, and one that has many factors.

    >>> in_words("2/32,1,2%32"), in_words("1%64/16"), in_words("0,2,1"), in_words("NCHW")
    ('2 (blocks of 32), 1, 2 (in blocks of 32)', '1 (blocks of 16 in blocks of 64)', '0,2,1', 'NCHW')
    """
    parts = [_FACTOR.fullmatch(part) for part in text.split(",")]
    if not all(parts) or not ("%" in text or "/" in text):
        return text
    words = ", ".join(_factor(*part.groups()) for part in parts if part)
    return words if len(words) <= _LONGEST_IN_WORDS else text


def _factor(axis: str, outer: str | None, inner: str | None) -> str:
    blocks = f"blocks of {inner}" if inner else ""
    within = f"in blocks of {outer}" if outer else ""
    about = " ".join(filter(None, [blocks, within]))
    return f"{axis} ({about})" if about else axis
