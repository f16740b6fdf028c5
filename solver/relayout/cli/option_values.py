"""Options that hold more than one word: NAME=LAYOUT, NAME=N, OP=LAYOUT[,KERNEL], NAME=VALUE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from relayout.errors import LayoutSyntaxError, UsageError

__all__ = ["backend_options", "check_known", "dim_sizes", "layouts_by_operator", "named_layouts"]

_Value = TypeVar("_Value")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])(?![^{]*})")


def named_layouts(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """`NAME=LAYOUT` by name; the first `=` parts them, for a layout may hold more of them. Raises UsageError."""
    from relayout.layout.layout import Layout

    found: dict[str, str] = {}
    for pair in pairs:
        name, layout = _split(option, pair, "NAME=LAYOUT, such as x=NHWC or x=any")
        try:
            Layout.parse(layout if layout != "any" else "")
        except LayoutSyntaxError as error:
            error.where = f"{option} {name}, {error.where}"
            raise
        _add(found, option, name, layout)
    return found


def dim_sizes(pairs: Sequence[str]) -> dict[str, int]:
    """`NAME=N` by name. Raises UsageError."""
    found: dict[str, int] = {}
    for pair in pairs:
        name, size = _split("--dim", pair, "NAME=N, such as batch=8")
        if not (size.isascii() and size.isdigit()) or len(size) > 12 or int(size) < 1:
            raise UsageError("not a dim's size", where=f"--dim {pair}", expected="1 or more", found=size)
        _add(found, "--dim", name, int(size))
    return found


def layouts_by_operator(pairs: Sequence[str]) -> dict[str, list[str]]:
    """`OP=LAYOUT[,KERNEL]` by operator. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        operator, layouts = _split("--desired-layout", pair, "OP=LAYOUT[,KERNEL], such as Conv=NHWC,OHWI")
        _add(found, "--desired-layout", operator, _COMMA_OUTSIDE_BRACKETS.split(layouts))
    return found


def backend_options(pairs: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` by name; a value is JSON where it is JSON, else text. Raises UsageError."""
    from relayout.backend.options import option_value

    found: dict[str, Any] = {}
    for pair in pairs:
        name, value = _split("--backend-option", pair, "NAME=VALUE, such as max_batch=16")
        _add(found, "--backend-option", name, option_value(value))
    return found


def check_known(option: str, names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise UsageError for a name that the model does not have."""
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


def _split(option: str, pair: str, expected: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not name or not equals or not value:
        raise UsageError("the option needs a name and a value", where=f"{option} {pair}", expected=expected, found=pair)
    return name, value


def _add(found: dict[str, _Value], option: str, name: str, value: _Value) -> None:
    if name in found:
        raise UsageError(
            "the option is given twice",
            where=f"{option} {name}",
            expected="once a name",
            found=f"{found[name]}, {value}",
        )
    found[name] = value
