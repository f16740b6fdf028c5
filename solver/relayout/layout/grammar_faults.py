"""Syntax errors of layout strings: names, extensions, numbers, and dimensions that do not go together.

A `Fault` has a position and no text; the caller, which has the text, makes the error of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relayout.errors import LayoutSyntaxError
from relayout.layout.extensions import TILE, extension_of

__all__ = [
    "DIGITS",
    "END",
    "MAX_NUMBER",
    "MAX_RANK",
    "NAMES",
    "NUMBERS",
    "Fault",
    "dims_fault",
    "extension_fault",
    "leading",
    "name_fault",
    "namespace_fault",
    "number",
    "number_fault",
    "orphan_fault",
]

MAX_RANK = 8
MAX_NUMBER = 2**63 - 1
NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*")
NUMBERS = frozenset("01234567")
_NAMESPACE = re.compile(r"(?:[A-Za-z_.\-][A-Za-z0-9_.\-]*)?")
DIGITS = re.compile(r"[0-9]*")
END = "the end of the layout"


class Fault(NamedTuple):
    """What is wrong at `place`: an offset into the text at hand, or the index of a dimension."""

    place: int
    expected: str
    found: str
    hint: str = ""

    def error(self, text: str, place: int) -> LayoutSyntaxError:
        return LayoutSyntaxError(text, place + 1, expected=self.expected, found=self.found, hint=self.hint)


def name_fault(name: str) -> Fault | None:
    """What is wrong with the name of a dimension, if anything."""
    if name in NAMES or name in NUMBERS:
        return None
    return Fault(0, f"one letter, '*', or the number of an axis, 0 to {MAX_RANK - 1}", _quote(name))


def namespace_fault(namespace: str) -> Fault | None:
    """What is wrong with a namespace, if anything."""
    if namespace and _NAMESPACE.fullmatch(namespace):
        return None
    place = leading(_NAMESPACE, namespace)
    found = repr(namespace[place]) if namespace else "an empty one"
    return Fault(place, "a namespace: letters, digits, '_', '.', '-', the first no digit", found)


def extension_fault(body: str, before: Sequence[str], after: str = "']'") -> Fault | None:
    """What is wrong with an extension, if anything; `before` are those of its dimension, `after` what follows it."""
    row = extension_of(body)
    if row is None or ":" in row.prefix:
        if ":" not in body:
            return Fault(0, "'a=BYTES' or 'namespace:data'", _quote(body) if body else after)
        end = leading(_NAMESPACE, body)
        if end == 0 or body[end] != ":":
            expected = "a namespace before ':' (letters, digits, '_', '.', '-', the first no digit)"
            return Fault(end, expected, repr(body[end]))
        if "]" in body:
            return Fault(body.index("]"), "data without ']'", _quote(body[end + 1 :]))
    if row is None:
        return None
    if any(other.startswith(row.prefix) for other in before):
        return Fault(0, f"one {row.subject} a dimension", f"a second one, {_quote(body)}")
    return number_fault(body, len(row.prefix), row.unit, after)


def number_fault(body: str, start: int, unit: str, after: str) -> Fault | None:
    end = leading(DIGITS, body, start)
    if end == start or end < len(body):
        expected = f"a number of {unit} (decimal digits)" if end == start else "']' after the number"
        return Fault(end, expected, repr(body[end]) if end < len(body) else after)
    digits = body[start:].lstrip("0")
    # The length first: Python refuses to convert thousands of digits.
    if not digits or len(digits) > len(str(MAX_NUMBER)) or int(digits) > MAX_NUMBER:
        return Fault(start, f"a number of {unit} from 1 to {MAX_NUMBER}", _quote(body[start:]))
    return None


def number(digits: str) -> int:
    """The value of digits that were found right, however many zeros they start with."""
    return int(digits.lstrip("0"))


def dims_fault(dims: Sequence[tuple[str, Sequence[str]]]) -> Fault | None:
    """What is wrong with dimensions that are each right, if anything; `place` is an index into them."""
    if len(dims) > MAX_RANK:
        return Fault(MAX_RANK, f"at most {MAX_RANK} dimensions", f"one more, '{dims[MAX_RANK][0]}'")
    names = [name for name, _ in dims]
    if any(name in NUMBERS for name in names):
        return _numbers_fault(names, dims)
    for index, (name, extensions) in enumerate(dims):
        if name != "*" and name in names[:index]:
            found = f"'{name}', which names dimension {names.index(name)}"
            return Fault(index, "another letter", found, "a letter names one dimension, '*' any number")
        inner = name.islower() and name.upper() in names
        if inner and not any(extension.startswith(TILE.prefix) for extension in extensions):
            expected = f"'{name}[tile:SIZE]', since '{name}' beside '{name.upper()}' is its inner part"
            return Fault(index, expected, f"'{name}' without a size")
    return None


def _numbers_fault(names: list[str], dims: Sequence[tuple[str, Sequence[str]]]) -> Fault | None:
    for index, name in enumerate(names):
        if name not in NUMBERS or dims[index][1]:
            found = f"'{name}'" if name not in NUMBERS else f"an extension of '{name}'"
            return Fault(index, "numbers of axes throughout, or names", found)
        if int(name) >= len(names):
            return Fault(index, f"the axes of {len(names)} dimensions, 0 to {len(names) - 1}", f"'{name}'")
        if name in names[index + 1 :]:
            return Fault(index, "each axis once", f"'{name}' twice")
    return None


def orphan_fault(names: list[str], indices: Iterable[int]) -> Fault | None:
    """An inner part, among the dimensions of these indices, of a dimension that is not there."""
    for index in indices:
        outer = names[index].upper()
        if outer not in names:
            return Fault(index, f"'{outer}' too, since '{names[index]}' is the inner part of it", "none")
    return None


def leading(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Where the longest match of a pattern, which may be empty, ends."""
    match = pattern.match(text, start)
    return match.end() if match else start


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
