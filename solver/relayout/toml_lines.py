"""On which line of a TOML text a key stands: tomllib does not say, and a person who looks for a fault wants to know."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["line_of"]

_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')"
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_PART}(?:\s*\.\s*{_PART})*)\s*\]")
_MULTI_LINE = re.compile(r'"""|' + "'''")

Place = tuple[int | str, ...]


def line_of(text: str, place: Place) -> int | None:
    """The line, from 1, of the key at `place`, or of the innermost table around it that has a line of its own.

    `text` must be valid TOML. What stands inside an inline table has the line of the key before it.

    >>> line_of('name = "a"\\n[[rule]]\\nop = "Conv"\\nwhen.rank = 4', ("rule", 0, "when", "rank"))
    4
    """
    best, line = 0, None
    for number, found in _places(text):
        shared = len(found)
        if shared > best and place[:shared] == found:
            best, line = shared, number
    return line


def _places(text: str) -> Iterator[tuple[int, Place]]:
    """(line, place) of every header and key that begins a line."""
    table: Place = ()
    counts: dict[Place, int] = {}
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        was_inside = bool(quote)
        quote = _quote_after(line, quote)
        if was_inside:
            continue
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            table = _indexed(_parts(header[2]), counts, is_array=header[1] == "[[")
            yield number, table
        elif key is not None:
            yield number, (*table, *_parts(key[1]))


def _indexed(parts: Place, counts: dict[Place, int], *, is_array: bool) -> Place:
    """A header's place: `rule` of the third [[rule]] is ("rule", 2), and what hangs below goes by the last one."""
    place: Place = ()
    for part in parts[:-1]:
        place = (*place, part)
        if place in counts:
            place = (*place, counts[place] - 1)
    place = (*place, parts[-1])
    if not is_array:
        return place
    counts[place] = counts.get(place, 0) + 1
    return (*place, counts[place] - 1)


def _parts(key: str) -> Place:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))


def _quote_after(line: str, quote: str) -> str:
    """The multi-line string that is open at the end of a line, given the one at its start."""
    for match in _MULTI_LINE.finditer(line):
        if not quote:
            quote = match[0]
        elif quote == match[0]:
            quote = ""
    return quote
