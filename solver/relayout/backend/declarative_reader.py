"""The reader of a declarative backend's table, from TOML, JSON or a dict, with errors that name the location."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from relayout.backend.declarative_schema import (
    NAME,
    PATTERN,
    AssignTable,
    BackendTable,
    Condition,
    DeviceTable,
    Range,
    Rule,
    TensorCondition,
    Way,
)
from relayout.errors import BackendError, did_you_mean
from relayout.model.graph_json.json_text import parse_json

MAX_BYTES = 1 << 20
"""How large a file may be."""

KeyPath = tuple[int | str, ...]


def read_table(path: Path) -> BackendTable:
    """The table in a .toml or .json file. Raises BackendError with the line."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        found = error.strerror or str(error)
        raise BackendError("the backend's file cannot be read", where=str(path), found=found) from error
    if len(data) > MAX_BYTES:
        raise BackendError(
            "the backend's file is too large", where=str(path), expected=f"at most {MAX_BYTES} bytes", found="more"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BackendError(
            "the backend's file is not UTF-8",
            where=f"{path}, line {line}",
            expected="text in UTF-8",
            found=f"byte 0x{data[error.start]:02X}",
            hint="save the file as UTF-8, or convert it with iconv",
        ) from error
    is_toml = path.suffix == ".toml"
    try:
        table = tomllib.loads(text) if is_toml else parse_json(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if is_toml else "JSON"
        raise BackendError(f"the backend's file is not {kind}", where=str(path), found=str(error)) from error
    if not isinstance(table, Mapping):
        raise BackendError(
            "the backend's file is not a table", where=str(path), expected="a JSON object", found=type(table).__name__
        )
    return check_table(table, str(path), text if is_toml else "")


def check_table(table: Mapping[str, Any], where: str = "inline backend", toml: str = "") -> BackendTable:
    """The table in a dict. Raises BackendError that names the key, and its line if `toml` is the text."""
    try:
        return BackendTable.model_validate(dict(table))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    key = (*faults[0]["loc"], *faults[0].get("ctx", {}).get("key", ()))
    path = _written(table, tuple(part for part in key if part != "[key]"))
    expected, found, hint = _explained(faults[0]["type"], faults[0])
    raise BackendError(
        "the backend's table is not right" + (f" ({len(faults)} faults, this is the first)" if faults[1:] else ""),
        where=place_of(path, where, toml),
        expected=expected,
        found=found,
        hint=hint,
    )


def place_of(path: KeyPath, where: str, toml: str) -> str:
    """`acme.toml, line 4, rule[0].when.rank`; without a line where `toml`, the text, is empty."""
    line = line_of(toml, path) if toml else None
    return ", ".join(filter(None, [where, f"line {line}" if line else "", _path(path)]))


def _written(table: Mapping[str, Any], path: KeyPath) -> KeyPath:
    """`path` as in the table: a single value in place of a list of one has no index."""
    inner: Any = table
    for depth, part in enumerate(path):
        if isinstance(part, int) and not isinstance(inner, list):
            return path[:depth]
        inner = inner.get(part) if isinstance(inner, Mapping) else inner[part] if isinstance(part, int) else None
    return path


def _path(path: KeyPath) -> str:
    """`rule[0].when.rank`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _explained(kind: str, fault: Mapping[str, Any]) -> tuple[str, str, str]:
    """(expected, found, hint) of one of pydantic's errors."""
    path = fault["loc"]
    if kind == "relayout":
        return fault["ctx"]["expected"], fault["ctx"]["found"], fault["ctx"]["hint"]
    if kind == "missing":
        return f"the key {path[-1]!r}", "none", ""
    if kind == "extra_forbidden":
        known = sorted(_keys(path))
        return f"one of the keys {', '.join(known)}", repr(path[-1]), did_you_mean(str(path[-1]), known)
    found = repr(fault["input"])
    found = found if len(found) <= 80 else f"{found[:77]}..."
    if kind == "list_type":
        is_header = path[-1] in _TABLES and isinstance(fault["input"], Mapping)
        return "a list", found, f"write [[{path[-1]}]], as each is one of several" if is_header else ""
    if kind == "model_type":
        return f"a table with keys of {', '.join(sorted(_keys((*path, ''))))}", found, ""
    if kind == "string_pattern_mismatch":
        return _PATTERNS[fault["ctx"]["pattern"]], found, ""
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return message.removeprefix("input should be "), found, ""


_TABLES: dict[str, type[BaseModel]] = {
    "": BackendTable,
    "rule": Rule,
    "device": DeviceTable,
    "assign": AssignTable,
    "when": Condition,
    "result": TensorCondition,
    "implementation": Way,
    "channels": Range,
    "kernel": Range,
    "spatial": Range,
}
_PATTERNS = {
    NAME: "letters, digits, '_', '.' and '-', of which a letter or digit is first",
    PATTERN: "an operator's name, in which '*' and '?' stand for any letters and for one",
}


def _keys(path: KeyPath) -> set[str]:
    """The keys that the table around an unknown one may have."""
    owner = next((part for part in reversed(path[:-1]) if isinstance(part, str)), "")
    return set(_TABLES[owner].model_fields)


_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')"
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_PART}(?:\s*\.\s*{_PART})*)\s*\]")
_MULTI_LINE = re.compile(r'"""|' + "'''")


def line_of(text: str, path: KeyPath) -> int | None:
    r"""The line, from 1, of the key at `path`, or of the innermost table around it that has a line of its own.

    `text` must be valid TOML. A key inside an inline table has the line of the key before that table.

    >>> line_of('name = "a"\n[[rule]]\nop = "Conv"\nwhen.rank = 4', ("rule", 0, "when", "rank"))
    4
    """
    best, line = 0, None
    for number, found in _paths(text):
        # The first [[rules]] is where the key `rules` is.
        shared = min(len(found), len(path))
        if shared > best and path[:shared] == found[:shared]:
            best, line = shared, number
    return line


def _paths(text: str) -> Iterator[tuple[int, KeyPath]]:
    """(line, path) of every header and key that begins a line."""
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
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


def _indexed(parts: KeyPath, counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    """A header's path with indices: `rule` of the third [[rule]] is ("rule", 2), and nested tables belong to the last
    one."""
    path: KeyPath = ()
    for part in parts[:-1]:
        path = (*path, part)
        if path in counts:
            path = (*path, counts[path] - 1)
    path = (*path, parts[-1])
    if not is_array:
        return path
    counts[path] = counts.get(path, 0) + 1
    return (*path, counts[path] - 1)


def _parts(key: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))


def _quote_after(line: str, quote: str) -> str:
    """The quotes of a multi-line string that is open after a line, given those before it."""
    for match in _MULTI_LINE.finditer(line):
        if not quote:
            quote = match[0]
        elif quote == match[0]:
            quote = ""
    return quote
