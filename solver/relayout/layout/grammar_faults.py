"""Syntax errors of layout strings: names, extensions, numbers, and contradicting dimensions.

A `Fault` has a position but no text; the caller adds the text and raises the error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relayout.errors import LayoutSyntaxError
from relayout.layout.extensions import TILE, extension_of

MAX_RANK = 8
MAX_NUMBER = 2**63 - 1
NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*")
NUMBERS = frozenset("01234567")
_NAMESPACE = re.compile(r"(?:[A-Za-z_.\-][A-Za-z0-9_.\-]*)?")
DIGITS = re.compile(r"[0-9]*")
END = "the end of the layout"


class Fault(NamedTuple):
    """A fault at `place`: an offset into the text that was checked, or the index of a dimension."""

    place: int
    expected: str
    found: str
    hint: str = ""

    def error(self, text: str, place: int) -> LayoutSyntaxError:
        return LayoutSyntaxError(text, place + 1, expected=self.expected, found=self.found, hint=self.hint)


def name_fault(name: str) -> Fault | None:
    """The fault of a dimension's name, or None."""
    if name in NAMES or name in NUMBERS:
        return None
    return Fault(0, f"one letter, '*', or the number of an axis, 0 to {MAX_RANK - 1}", _quote(name))


def namespace_fault(namespace: str) -> Fault | None:
    """The fault of a namespace, or None."""
    if namespace and _NAMESPACE.fullmatch(namespace):
        return None
    place = leading(_NAMESPACE, namespace)
    found = repr(namespace[place]) if namespace else "an empty one"
    return Fault(place, "a namespace: letters, digits, '_', '.', '-', the first no digit", found)


def extension_fault(body: str, before: Sequence[str], after: str = "']'") -> Fault | None:
    """The fault of an extension, or None.

    `before` are the extensions before it in its dimension; `after` is the text behind it, for the message.
    """
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
    """The fault of the number that `body` ends with from index `start`, or None."""
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
    """The value of digits without a `number_fault`; leading zeros are allowed."""
    return int(digits.lstrip("0"))


def dims_fault(dims: Sequence[tuple[str, Sequence[str]]]) -> Fault | None:
    """The first contradiction between dimensions that are each valid, or None; `place` is an index into them."""
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
    """The fault of the first of these dimensions that is the inner part of a missing dimension, or None."""
    for index in indices:
        outer = names[index].upper()
        if outer not in names:
            return Fault(index, f"'{outer}' too, since '{names[index]}' is the inner part of it", "none")
    return None


def leading(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """The index behind the longest match of a pattern at `start`; `start` if there is none."""
    match = pattern.match(text, start)
    return match.end() if match else start


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
