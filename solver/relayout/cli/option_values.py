"""Option values of several parts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from relayout.errors import UsageError

__all__ = ["layouts_by_operator"]

_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])(?![^{]*})")


def layouts_by_operator(texts: Sequence[str]) -> dict[str, list[str]]:
    """`OP=LAYOUT[,KERNEL]` by operator. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        operator, _, layouts = text.partition("=")
        where = f"--desired-layout {text}"
        if not (operator and layouts):
            expected = "OP=LAYOUT[,KERNEL], such as Conv=NHWC,OHWI"
            raise UsageError("not an operator and its layouts", where=where, expected=expected, found=text)
        if operator in found:
            raise UsageError("the option is given twice", where=where, expected="once an operator", found=text)
        found[operator] = _COMMA_OUTSIDE_BRACKETS.split(layouts)
    return found
