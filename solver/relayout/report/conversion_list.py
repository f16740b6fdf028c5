"""The conversions and dear operators of a report as lists for a person: repeated blocks of a network are one entry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from relayout.report.grouping import Group, counted, grouped
from relayout.report.schema import Charge, Conversion, Report, RequiredBy, Transfer
from relayout.report.text_table import aligned, padded

_Moved = TypeVar("_Moved", Conversion, Transfer)
_READERS = 4
"""More nodes than these that require one conversion are counted."""

# A part of a format that is a factor of an axis: the axis by its number, and the size of the blocks.
_FACTOR = re.compile(r"(?<![^,])(\d+)[/%](\d+)(?![^,])", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListEntry:
    """Similar conversions, transfers, operators or values.

    `count` is `12 x`, or "" for one. `details` are lines below the text, each of as many cells. `size` is the bytes of
    all, or their cost; None for entries without one.
    """

    count: str
    text: str
    details: tuple[tuple[str, ...], ...] = ()
    size: int | None = None


def listed(title: str, entries: Sequence[ListEntry], top: int | None, *more: str) -> Iterator[str]:
    """The first `top` entries, each above its details; then a line about the others and `more`."""
    yield title
    shown = entries[:top]
    sizes = ["" if entry.size is None else f"{megabytes(entry.size)} MB" for entry in shown]
    numbers = padded([(size, entry.count) for size, entry in zip(sizes, shown, strict=True)], {0, 1})
    for cells, entry in zip(numbers, shown, strict=True):
        margin = "".join(f"  {cell}" for cell in cells if cell) + "  "
        yield f"{margin}{entry.text}"
        # Below a number, a detail stands out without being indented.
        indent = " " * (len(margin) if entry.size is not None else len(margin) + 2)
        for line in aligned(entry.details):
            yield f"{indent}{line}"
    unseen = [f"{len(entries) - len(shown)} more: --top"] if len(entries) > len(shown) else []
    if unseen or more:
        yield f"  and {', and '.join([*unseen, *more])}"


def details_of(label: str, rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Rows with a label, and of many the first few and the number of the others."""
    found = [(label, *row) for row in rows[:_READERS]]
    if len(rows) > _READERS:
        found.append(("", f"and {len(rows) - _READERS} more", *[""] * (len(rows[0]) - 1)))
    return tuple(found)


def conversion_entries(conversions: Sequence[Conversion]) -> list[ListEntry]:
    """One entry for each group of conversions that differ in the numbers of their names only, the dearest first."""
    groups = grouped(
        (
            [each.value, *(by.node for by in each.required_by)],
            # The layouts and the numbers of operands count: only names are merged.
            (each.from_, each.to, each.kind, each.passes, each.bytes, _operands(each)),
            each,
        )
        for each in conversions
    )
    entries = []
    for group in groups:
        first = group.items[0]
        kind = first.kind if first.passes == 1 else f"{first.passes} {first.kind}s"
        entries.append(_entry(group, f"{first.from_} -> {first.to}, {kind}"))
    return dearest_first(entries)


def transfer_entries(transfers: Sequence[Transfer]) -> list[ListEntry]:
    """One entry for each group of similar transfers, of whatever sizes, the dearest first: from one device to another,
    with the layout for a kind."""
    groups = grouped(
        (
            [each.value, *(by.node for by in each.required_by)],
            (each.from_, each.to, each.layout, tuple(by.operand for by in each.required_by)),
            each,
        )
        for each in transfers
    )
    firsts = ((group, group.items[0]) for group in groups)
    return dearest_first(
        [_entry(group, f"{first.from_} -> {first.to}, {first.layout}".removesuffix(", ")) for group, first in firsts]
    )


def dearest_first(entries: Sequence[ListEntry]) -> list[ListEntry]:
    """Equal ones stay in the order of the graph."""
    return sorted(entries, key=lambda entry: -(entry.size or 0))


def _entry(group: Group[_Moved], change: str) -> ListEntry:
    value, *names = group.names
    first = group.items[0]
    places = [([name], (operand_text(by), by.layout), by) for name, by in zip(names, first.required_by, strict=True)]
    readers = [
        (f"{counted(alike)} {alike.names[0]}{operand_text(by)}".lstrip(), by.layout)
        for alike in grouped(places)
        for by in alike.items[:1]
    ]
    size = sum(each.bytes for each in group.items)
    return ListEntry(counted(group), f"{value}: {change}", details_of("required by", readers), size)


def operand_text(by: RequiredBy) -> str:
    """The operand of a node, such as `, input 0`; an output of the graph has none."""
    return f", input {by.operand}" if " '" in by.node else ""


_REMARKS = {
    "operator": "",
    "decomposition": "decomposed into others",
    "reorder": "a reorder of the source",
    "pad": "a pad of the source",
}


def charge_entries(charges: Sequence[Charge]) -> list[ListEntry]:
    """One entry for each group of nodes that differ in the numbers of their names and in their cost only, the dearest
    first; the size of an entry is the cost."""
    groups = grouped(([each.node], (each.layout, each.kind), each) for each in charges)
    entries = []
    for group in groups:
        first = group.items[0]
        text = f"{group.names[0]} in {first.layout}" if first.layout else group.names[0]
        remark = _REMARKS[first.kind]
        cost = sum(each.cost for each in group.items)
        entries.append(ListEntry(counted(group), f"{text}: {remark}" if remark else text, size=cost))
    return dearest_first(entries)


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"


def _operands(conversion: Conversion) -> tuple[tuple[int, str], ...]:
    return tuple((by.operand, by.layout) for by in conversion.required_by)


def factors_explained(report: Report) -> str:
    """A line that explains the factors of axes, where a format of the report's text has any, else ""."""
    running = [each for each in report.conversions if each.kind != "folded"]
    formats = [text for each in running for text in (each.from_, each.to, *(by.layout for by in each.required_by))]
    formats += [*(each.layout for each in report.charges), *(each.layout for each in report.transfers)]
    factor = next((found for found in map(_FACTOR.search, formats) if found), None)
    if factor is None:
        return ""
    axis, size = factor.groups()
    return f"axis {axis} in blocks of {size}: {axis}/{size} counts the blocks, {axis}%{size} the positions in a block"
