"""Repeated blocks of a network in one row: names that differ in their numbers only are written with `*`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_NUMBER = re.compile(r"\d+")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Group(Generic[_Item]):
    """Items that differ only in the numbers of their names; `names` are the first item's, `*` where they differ."""

    names: tuple[str, ...]
    items: tuple[_Item, ...]


def grouped(items: Iterable[tuple[Sequence[str], Hashable, _Item]]) -> list[Group[_Item]]:
    """Group items, each with its names and everything else that must be equal, in the order of the first of each.

    >>> [group.names for group in grouped([(["h.0/Add_1"], 8, "a"), (["h.1/Add_1"], 8, "b"), (["y"], 8, "c")])]
    [('h.*/Add_1',), ('y',)]
    """
    found: dict[Hashable, list[tuple[Sequence[str], _Item]]] = {}
    for names, rest, item in items:
        key = tuple(_NUMBER.sub("*", name) for name in names), rest
        found.setdefault(key, []).append((names, item))
    return [
        Group(
            tuple(merged([names[place] for names, _ in alike]) for place in range(len(alike[0][0]))),
            tuple(item for _, item in alike),
        )
        for alike in found.values()
    ]


def merged(names: Sequence[str]) -> str:
    """One text for names that differ in their numbers only.

    >>> merged(["layers.0/conv_2", "layers.1/conv_2"])
    'layers.*/conv_2'
    """
    columns = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    numbers = iter([column[0] if len(set(column)) == 1 else "*" for column in columns])
    return _NUMBER.sub(lambda _: next(numbers), names[0])


def counted(group: Group[_Item]) -> str:
    """`12 x` for a group of several, nothing for one.

    >>> counted(Group(("h.*",), (1, 2))), counted(Group(("y",), (1,)))
    ('2 x', '')
    """
    return f"{len(group.items)} x" if len(group.items) > 1 else ""
