"""The conversions and dear operators of a report as entries for a person: repeated blocks of a network are one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from relayout.report.grouping import Group, counted, grouped
from relayout.report.schema import Charge, Conversion, Report, RequiredBy, Transfer

__all__ = [
    "ListEntry",
    "charge_entries",
    "conversion_entries",
    "factors_explained",
    "megabytes",
    "operand_text",
    "transfer_entries",
]

_Moved = TypeVar("_Moved", Conversion, Transfer)

# A part of a format that is a factor of an axis: the axis by its number, and the size of the blocks.
_FACTOR = re.compile(r"(?<![^,])(\d+)[/%](\d+)(?![^,])", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListEntry:
    """Similar conversions, transfers or operators.

    `count` is `12 x`, or "" for one. `readers` are the nodes that require it, each with its layout. `size` is the bytes
    of all, or their cost.
    """

    count: str
    text: str
    readers: tuple[tuple[str, str], ...]
    size: int


def conversion_entries(conversions: Sequence[Conversion]) -> list[ListEntry]:
    """One entry for each group of conversions that differ in the numbers of their names only, in the order of the first
    of each."""
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
    return entries


def transfer_entries(transfers: Sequence[Transfer]) -> list[ListEntry]:
    """One entry for each group of similar transfers, of whatever sizes, in the order of the first of each: from one
    device to another, with the layout for a kind."""
    groups = grouped(
        (
            [each.value, *(by.node for by in each.required_by)],
            (each.from_, each.to, each.layout, tuple(by.operand for by in each.required_by)),
            each,
        )
        for each in transfers
    )
    firsts = ((group, group.items[0]) for group in groups)
    return [_entry(group, f"{first.from_} -> {first.to}, {first.layout}".removesuffix(", ")) for group, first in firsts]


def _entry(group: Group[_Moved], change: str) -> ListEntry:
    value, *names = group.names
    first = group.items[0]
    places = [([name], (operand_text(by), by.layout), by) for name, by in zip(names, first.required_by, strict=True)]
    readers = tuple(
        (f"{counted(alike)} {alike.names[0]}{operand_text(by)}".lstrip(), by.layout)
        for alike in grouped(places)
        for by in alike.items[:1]
    )
    return ListEntry(counted(group), f"{value}: {change}", readers, sum(each.bytes for each in group.items))


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
        entries.append(ListEntry(counted(group), f"{text}: {remark}" if remark else text, (), cost))
    return sorted(entries, key=lambda entry: -entry.size)


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
