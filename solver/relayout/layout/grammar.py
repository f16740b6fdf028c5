"""The grammar of layout strings: a parser from text to names and extensions. `grammar_faults` has the syntax errors.

    layout    := ( blank | dim )*            at most 8 dims; blank = space or tab, outside brackets only
               | '{' axes '}'                XLA's minor to major: numbers of axes, commas between them, innermost first
    dim       := name blank* ( '[' extension ']' blank* )*
    name      := A-Z | a-z | '*'             case-sensitive; a letter names one dimension, '*' any
               | digits a-z                  TVM's inner part: 16c is c[tile:16]
    extension := 'a=' digits                 alignment in bytes of that dimension's stride, 1 to 2^63-1
               | namespace ':' data          a black box, kept verbatim; data is anything but ']'
    namespace := letters, digits, '_', '.', '-'; the first is no digit

The parser does not depend on `Layout`: a dimension is a name and its extensions, each the text between its brackets.
"""

from __future__ import annotations

import re

from relayout.layout.grammar_faults import (
    DIGITS,
    END,
    MAX_RANK,
    NAMES,
    NUMBERS,
    Fault,
    dims_fault,
    extension_fault,
    leading,
    number,
    number_fault,
    orphan_fault,
)

Dimensions = list[tuple[str, tuple[str, ...]]]

_SIZED = re.compile(r"([0-9]+)([a-z])")
_AXIS = re.compile(r"[ \t]*([0-9]*)[ \t]*")


def read(text: str) -> Dimensions:
    """Parse a layout string to its dimensions, outermost first. Raises LayoutSyntaxError."""
    if text.lstrip(" \t").startswith("{"):
        return _read_minor_to_major(text)
    dims: Dimensions = []
    places: list[int] = []
    inner: list[int] = []
    place = 0
    # The loop ends after one dimension too many, however long the text is.
    while place < len(text) and len(dims) <= MAX_RANK:
        character = text[place]
        if character in NAMES:
            dims.append((character, ()))
            places.append(place)
        elif sized := _SIZED.match(text, place):
            fault = number_fault(sized[1], 0, "elements", f"'{sized[2]}'")
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
    fault = dims_fault(dims) or orphan_fault([name for name, _ in dims], inner)
    if fault is not None:
        raise fault.error(text, places[fault.place])
    return dims


def _read_minor_to_major(text: str) -> Dimensions:
    """Parse XLA's notation to its dimensions, outermost first, each named by the number of its axis."""
    axes: list[str] = []
    places: list[int] = []
    place = text.index("{") + 1
    end = re.compile(r"[ \t]*\}[ \t]*").match(text, place)
    while end is None:
        token = _AXIS.match(text, place)
        assert token is not None
        if token[1] not in NUMBERS:
            found = repr(token[1] or text[token.end() : token.end() + 1]) if token.end() < len(text) else END
            raise Fault(0, f"the number of an axis, 0 to {MAX_RANK - 1}", found).error(text, token.start(1))
        axes.append(token[1])
        places.append(token.start(1))
        place = token.end() + 1
        if text[token.end() : place] == "}":
            break
        if text[token.end() : place] != ",":
            found = repr(text[token.end()]) if token.end() < len(text) else END
            hint = "relayout does not support XLA's tiles and memory spaces" if found == "':'" else ""
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
    fault = extension_fault(body, dims[-1][1], after="']'" if end >= 0 else END)
    if fault is not None:
        raise fault.error(text, bracket + 1 + fault.place)
    if end < 0:
        raise Fault(0, "']'", END, f"the bracket in column {bracket + 1} is open").error(text, len(text))
    return body


def _unexpected(character: str) -> Fault:
    hint = ""
    if character.isdigit():
        hint = "a size is written before the letter of an inner part, as in NCHW16c"
    if character == "]":
        hint = "an extension ends at its first ']'"
    return Fault(0, "a letter, '*' or, after one of them, '['", repr(character), hint)


def read_tvm(text: str) -> Dimensions:
    """Parse TVM's notation to its dimensions, sizes in the namespace `tile`. Raises LayoutSyntaxError."""
    dims: Dimensions = []
    places: list[int] = []
    place = 0
    while place < len(text) and len(dims) <= MAX_RANK:
        end = leading(DIGITS, text, place)
        size, letter = text[place:end], text[end : end + 1]
        fault = _tvm_fault(size, letter)
        if fault is not None:
            raise fault.error(text, place + fault.place)
        dims.append((letter, (f"tile:{number(size)}",) if size else ()))
        places.append(end)
        place = end + 1
    if not dims:
        hint = "for TVM's undefined layout, write '*' for each dimension"
        raise Fault(0, "at least one dimension", END, hint).error(text, 0)
    fault = dims_fault(dims) or orphan_fault([name for name, _ in dims], range(len(dims)))
    if fault is not None:
        raise fault.error(text, places[fault.place])
    return dims


def _tvm_fault(size: str, letter: str) -> Fault | None:
    if letter not in NAMES or letter == "*":
        expected = "a lower-case letter after the size" if size else "a letter, or a size and a lower-case letter"
        return Fault(len(size), expected, repr(letter) if letter else END)
    if letter.isupper():
        expected = "a lower-case letter after the size; an upper-case one has none"
        return Fault(len(size), expected, f"'{letter}'") if size else None
    if not size:
        return Fault(0, f"a size before '{letter}', as in 16{letter}", f"'{letter}' without one")
    return number_fault(size, 0, "elements", f"'{letter}'")
