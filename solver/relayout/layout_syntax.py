"""The grammar of layout strings: text to names and extensions, and what is wrong with a text that is no layout.

    layout    := ( blank | dim )*            at most 8 dims; blank = space or tab, outside brackets only
               | '{' axes '}'                XLA's minor to major: numbers of axes, commas between them, innermost first
    dim       := name blank* ( '[' extension ']' blank* )*
    name      := A-Z | a-z | '*'             case-sensitive; a letter names one dimension, '*' any
               | digits a-z                  TVM's inner part: 16c is c[tile:16]
    extension := 'a=' digits                 alignment in bytes of that dimension's stride, 1 to 2^63-1
               | namespace ':' data          a black box, kept verbatim; data is anything but ']'
    namespace := letters, digits, '_', '.', '-'; the first is no digit

Nothing here knows of `Layout`: a dimension is a name and its extensions as written between the brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relayout.errors import LayoutSyntaxError

__all__ = [
    "MAX_NUMBER",
    "MAX_RANK",
    "Dimensions",
    "Fault",
    "dims_fault",
    "extension_fault",
    "name_fault",
    "namespace_fault",
    "number",
    "read",
    "read_tvm",
]

Dimensions = list[tuple[str, tuple[str, ...]]]

MAX_RANK = 8
MAX_NUMBER = 2**63 - 1

_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*")
_NUMBERS = frozenset("01234567")
_SIZED = re.compile(r"([0-9]+)([a-z])")
_AXIS = re.compile(r"[ \t]*([0-9]*)[ \t]*")
_NAMESPACE = re.compile(r"(?:[A-Za-z_.\-][A-Za-z0-9_.\-]*)?")
_DIGITS = re.compile(r"[0-9]*")
_END = "the end of the layout"


class Fault(NamedTuple):
    """What is wrong at `place`: an offset into the text at hand, or the index of a dimension."""

    place: int
    expected: str
    found: str
    hint: str = ""

    def error(self, text: str, place: int) -> LayoutSyntaxError:
        return LayoutSyntaxError(text, place + 1, expected=self.expected, found=self.found, hint=self.hint)


def read(text: str) -> Dimensions:
    """The dimensions that `text` writes. Raises LayoutSyntaxError if it writes none."""
    if text.lstrip(" \t").startswith("{"):
        return _read_minor_to_major(text)
    dims: Dimensions = []
    places: list[int] = []
    inner: list[int] = []
    place = 0
    # One dimension too many is enough to know that there are too many.
    while place < len(text) and len(dims) <= MAX_RANK:
        character = text[place]
        if character in _NAMES:
            dims.append((character, ()))
            places.append(place)
        elif sized := _SIZED.match(text, place):
            fault = _number_fault(sized[1], 0, "elements", f"'{sized[2]}'")
            if fault is not None:
                raise fault.error(text, place + fault.place)
            inner.append(len(dims))
            dims.append((sized[2], (f"tile:{number(sized[1])}",)))
            place = sized.end() - 1
            places.append(place)
        elif character == "[":
            extension = _read_extension(text, place, dims)
            dims[-1] = (dims[-1][0], (*dims[-1][1], extension))
            place += len(extension) + 1
        elif character not in " \t":
            raise _unexpected(character).error(text, place)
        place += 1
    fault = dims_fault(dims) or _orphan_fault([name for name, _ in dims], inner)
    if fault is not None:
        raise fault.error(text, places[fault.place])
    return dims


def _read_minor_to_major(text: str) -> Dimensions:
    """The dimensions of XLA's notation, outermost first; each is named by the number of its axis."""
    axes: list[str] = []
    places: list[int] = []
    place = text.index("{") + 1
    end = re.compile(r"[ \t]*\}[ \t]*").match(text, place)
    while end is None:
        token = _AXIS.match(text, place)
        assert token is not None
        if token[1] not in _NUMBERS:
            found = repr(token[1] or text[token.end() : token.end() + 1]) if token.end() < len(text) else _END
            raise Fault(0, f"the number of an axis, 0 to {MAX_RANK - 1}", found).error(text, token.start(1))
        axes.append(token[1])
        places.append(token.start(1))
        place = token.end() + 1
        if text[token.end() : place] == "}":
            break
        if text[token.end() : place] != ",":
            found = repr(text[token.end()]) if token.end() < len(text) else _END
            hint = "XLA's tiles and memory spaces have no word here" if found == "':'" else ""
            raise Fault(0, "',' or '}' after the number of an axis", found, hint).error(text, token.end())
    rest = text[place if end is None else end.end() :]
    if rest.strip(" \t"):
        raise Fault(0, "nothing after '}'", repr(rest.strip(" \t")[0])).error(text, len(text) - len(rest.lstrip(" \t")))
    dims: Dimensions = [(axis, ()) for axis in reversed(axes)]
    fault = dims_fault(dims)
    if fault is not None:
        raise fault.error(text, places[len(places) - 1 - fault.place])
    return dims


def _read_extension(text: str, bracket: int, dims: Dimensions) -> str:
    if not dims:
        raise Fault(0, "a dimension before its extensions", "'['").error(text, bracket)
    end = text.find("]", bracket)
    body = text[bracket + 1 : end if end >= 0 else len(text)]
    fault = extension_fault(body, dims[-1][1], after="']'" if end >= 0 else _END)
    if fault is not None:
        raise fault.error(text, bracket + 1 + fault.place)
    if end < 0:
        raise Fault(0, "']'", _END, f"the bracket in column {bracket + 1} is open").error(text, len(text))
    return body


def _unexpected(character: str) -> Fault:
    hint = ""
    if character.isdigit():
        hint = "a size stands before the letter of an inner part, as in NCHW16c"
    if character == "]":
        hint = "an extension ends at its first ']'"
    return Fault(0, "a letter, '*' or, after one of them, '['", repr(character), hint)


def name_fault(name: str) -> Fault | None:
    """What is wrong with the name of a dimension, if anything."""
    if name in _NAMES or name in _NUMBERS:
        return None
    return Fault(0, f"one letter, '*', or the number of an axis, 0 to {MAX_RANK - 1}", _quote(name))


def namespace_fault(namespace: str) -> Fault | None:
    """What is wrong with a namespace, if anything."""
    if namespace and _NAMESPACE.fullmatch(namespace):
        return None
    place = _leading(_NAMESPACE, namespace)
    found = repr(namespace[place]) if namespace else "an empty one"
    return Fault(place, "a namespace: letters, digits, '_', '.', '-', the first no digit", found)


def extension_fault(body: str, before: Sequence[str], after: str = "']'") -> Fault | None:
    """What is wrong with an extension, if anything; `before` are those of its dimension, `after` what follows it."""
    if body.startswith("a="):
        if any(other.startswith("a=") for other in before):
            return Fault(0, "one alignment a dimension", f"a second one, {_quote(body)}")
        return _number_fault(body, 2, "bytes", after)
    if ":" not in body:
        return Fault(0, "'a=BYTES' or 'namespace:data'", _quote(body) if body else after)
    end = _leading(_NAMESPACE, body)
    if end == 0 or body[end] != ":":
        expected = "a namespace before ':' (letters, digits, '_', '.', '-', the first no digit)"
        return Fault(end, expected, repr(body[end]))
    if "]" in body:
        return Fault(body.index("]"), "data without ']'", _quote(body[end + 1 :]))
    if not body.startswith("tile:"):
        return None
    if any(other.startswith("tile:") for other in before):
        return Fault(0, "one tile size a dimension", f"a second one, {_quote(body)}")
    return _number_fault(body, len("tile:"), "elements", after)


def _number_fault(body: str, start: int, unit: str, after: str) -> Fault | None:
    end = _leading(_DIGITS, body, start)
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
    if any(name in _NUMBERS for name in names):
        return _numbers_fault(names, dims)
    for index, (name, extensions) in enumerate(dims):
        if name != "*" and name in names[:index]:
            found = f"'{name}', which names dimension {names.index(name)}"
            return Fault(index, "another letter", found, "a letter names one dimension, '*' any number")
        inner = name.islower() and name.upper() in names
        if inner and not any(extension.startswith("tile:") for extension in extensions):
            expected = f"'{name}[tile:SIZE]', since '{name}' beside '{name.upper()}' is its inner part"
            return Fault(index, expected, f"'{name}' without a size")
    return None


def _numbers_fault(names: list[str], dims: Sequence[tuple[str, Sequence[str]]]) -> Fault | None:
    for index, name in enumerate(names):
        if name not in _NUMBERS or dims[index][1]:
            found = f"'{name}'" if name not in _NUMBERS else f"an extension of '{name}'"
            return Fault(index, "numbers of axes throughout, or names", found)
        if int(name) >= len(names):
            return Fault(index, f"the axes of {len(names)} dimensions, 0 to {len(names) - 1}", f"'{name}'")
        if name in names[index + 1 :]:
            return Fault(index, "each axis once", f"'{name}' twice")
    return None


def read_tvm(text: str) -> Dimensions:
    """The dimensions that `text` means in TVM, sizes in the namespace `tile`. Raises LayoutSyntaxError."""
    dims: Dimensions = []
    places: list[int] = []
    place = 0
    while place < len(text) and len(dims) <= MAX_RANK:
        end = _leading(_DIGITS, text, place)
        size, letter = text[place:end], text[end : end + 1]
        fault = _tvm_fault(size, letter)
        if fault is not None:
            raise fault.error(text, place + fault.place)
        dims.append((letter, (f"tile:{number(size)}",) if size else ()))
        places.append(end)
        place = end + 1
    if not dims:
        hint = "TVM's undefined layout asks for nothing; say that with '*' for each dimension"
        raise Fault(0, "at least one dimension", _END, hint).error(text, 0)
    fault = dims_fault(dims) or _orphan_fault([name for name, _ in dims], range(len(dims)))
    if fault is not None:
        raise fault.error(text, places[fault.place])
    return dims


def _tvm_fault(size: str, letter: str) -> Fault | None:
    if letter not in _NAMES or letter == "*":
        expected = "a lower-case letter after the size" if size else "a letter, or a size and a lower-case letter"
        return Fault(len(size), expected, repr(letter) if letter else _END)
    if letter.isupper():
        expected = "a lower-case letter after the size; an upper-case one has none"
        return Fault(len(size), expected, f"'{letter}'") if size else None
    if not size:
        return Fault(0, f"a size before '{letter}', as in 16{letter}", f"'{letter}' without one")
    return _number_fault(size, 0, "elements", f"'{letter}'")


def _orphan_fault(names: list[str], indices: Iterable[int]) -> Fault | None:
    """An inner part, among the dimensions of these indices, of a dimension that is not there."""
    for index in indices:
        outer = names[index].upper()
        if outer not in names:
            return Fault(index, f"'{outer}' too, since '{names[index]}' is the inner part of it", "none")
    return None


def _leading(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Where the longest match of a pattern, which may be empty, ends."""
    match = pattern.match(text, start)
    return match.end() if match else start


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
