"""Option values of several parts, and the check of names against the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from relayout.errors import UsageError

__all__ = ["check_known", "layouts_by_operator"]

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


def check_known(option: str, names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise UsageError for a name that is not in the model."""
    there = sorted(set(known))
    for name in names:
        if name not in there:
            near = get_close_matches(name, there, n=3)
            raise UsageError(
                f"the model has no {what} of this name",
                where=f"{option} {name}",
                expected=", ".join(there[:8]) + (", ..." if len(there) > 8 else "") or f"a model with {what}s",
                found=name,
                hint=f"did you mean {' or '.join(near)}?" if near else "",
            )
