"""Reading the table of a declarative backend from TOML, JSON or a dict, with errors that say where."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from relayout.backend.declarative_schema import AssignTable, BackendTable, Condition, DeviceTable, Range, Rule, Way
from relayout.errors import BackendError

__all__ = ["MAX_BYTES", "check_table", "line_of", "read_table"]


MAX_BYTES = 1 << 20
"""How large a file may be."""


def read_table(path: Path) -> BackendTable:
    """The table in a .toml or .json file. Raises BackendError with the line."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BackendError("the backend's file cannot be read", where=str(path), found=str(error)) from error
    if len(data) > MAX_BYTES:
        raise BackendError(
            "the backend's file is too large", where=str(path), expected=f"at most {MAX_BYTES} bytes", found="more"
        )
    is_toml = path.suffix == ".toml"
    try:
        table = tomllib.loads(text) if is_toml else json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if is_toml else "JSON"
        raise BackendError(f"the backend's file is not {kind}", where=str(path), found=str(error)) from error
    if not isinstance(table, Mapping):
        raise BackendError(
            "the backend's file is no table", where=str(path), expected="a JSON object", found=type(table).__name__
        )
    return check_table(table, str(path), text if is_toml else "")


def check_table(table: Mapping[str, Any], where: str = "inline backend", toml: str = "") -> BackendTable:
    """The table that a dict describes. Raises BackendError that names the key, and its line if `toml` is the text."""
    try:
        return BackendTable.model_validate(dict(table))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    place = _written(table, tuple(part for part in faults[0]["loc"] if part != "[key]"))
    line = line_of(toml, place) if toml else None
    expected, found, hint = _explained(faults[0]["type"], faults[0])
    raise BackendError(
        "the backend's table is not right" + (f" ({len(faults)} faults, this is the first)" if faults[1:] else ""),
        where=", ".join(filter(None, [where, f"line {line}" if line else "", _path(place)])),
        expected=expected,
        found=found,
        hint=hint,
    )


def _written(table: Mapping[str, Any], place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """`place` as the table has it: a single value that stands for a list of one has no index."""
    inner: Any = table
    for depth, part in enumerate(place):
        if isinstance(part, int) and not isinstance(inner, list):
            return place[:depth]
        inner = inner.get(part) if isinstance(inner, Mapping) else inner[part] if isinstance(part, int) else None
    return place


def _path(place: tuple[int | str, ...]) -> str:
    """`rule[0].when.rank`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def _explained(kind: str, fault: Mapping[str, Any]) -> tuple[str, str, str]:
    """(expected, found, hint) of one of pydantic's faults."""
    place = fault["loc"]
    if kind == "relayout":
        return fault["ctx"]["expected"], fault["ctx"]["found"], ""
    if kind == "missing":
        return f"the key {place[-1]!r}", "none", ""
    if kind == "extra_forbidden":
        known = sorted(_keys(place))
        near = get_close_matches(str(place[-1]), known, n=1)
        return f"one of the keys {', '.join(known)}", repr(place[-1]), f"did you mean {near[0]}?" if near else ""
    found = repr(fault["input"])
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return message.removeprefix("input should be "), found if len(found) <= 80 else f"{found[:77]}...", ""


def _keys(place: tuple[int | str, ...]) -> set[str]:
    """The keys that the table at the place of an unknown one may have."""
    tables: dict[str, type[BaseModel]] = {
        "": BackendTable,
        "rule": Rule,
        "device": DeviceTable,
        "assign": AssignTable,
        "when": Condition,
        "implementation": Way,
        "channels": Range,
        "kernel": Range,
    }
    owner = next((part for part in reversed(place[:-1]) if isinstance(part, str)), "")
    return set(tables[owner].model_fields)


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
