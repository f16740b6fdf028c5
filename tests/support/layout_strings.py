"""Hypothesis strategies for layouts and for strings, and checks of syntax errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from relayout.errors import LayoutSyntaxError
from relayout.layout.grammar_faults import MAX_NUMBER, MAX_RANK
from relayout.layout.layout import Dim, Layout

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

numbers = st.builds(
    lambda zeros, value: "0" * zeros + str(value), st.sampled_from([0, 0, 1, 3]), st.integers(1, MAX_NUMBER)
)
namespaces = st.from_regex(r"[A-Za-z_.\-][A-Za-z0-9_.\-]{0,6}", fullmatch=True)
data = st.text(st.characters(exclude_characters="]"), max_size=12)
black_boxes = st.builds(
    lambda namespace, data: f"{namespace}:{data}", namespaces.filter(lambda name: name != "tile"), data
)


@st.composite
def dims(draw: st.DrawFn) -> list[Dim]:
    """Dimensions of a valid layout, including blocked ones and all kinds of extensions."""
    letters = draw(st.lists(st.sampled_from("NCHWnchw") | st.sampled_from(LETTERS), unique=True, max_size=MAX_RANK))
    names = [letter if draw(st.integers(0, 4)) else "*" for letter in letters]
    chosen = []
    for name in names:
        extensions = draw(st.lists(black_boxes, max_size=2))
        if draw(st.booleans()):
            extensions.append("a=" + draw(numbers))
        if (name.islower() and name.upper() in names) or draw(st.integers(0, 9)) == 0:
            extensions.append("tile:" + draw(numbers))
        chosen.append(Dim(name, tuple(draw(st.permutations(extensions)))))
    return chosen


layouts = st.builds(lambda chosen: Layout(tuple(chosen)), dims())
blanks = st.sampled_from(["", "", " ", "\t", "  \t "])


@st.composite
def spaced(draw: st.DrawFn) -> tuple[str, str]:
    """A layout string with blanks wherever they are allowed, and the same without blanks."""
    chosen = draw(dims())
    parts = [part for dim in chosen for part in (dim.name, *[f"[{extension}]" for extension in dim.extensions])]
    return draw(blanks) + "".join([part + draw(blanks) for part in parts]), "".join(parts)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A layout string with one character removed, added or changed."""
    text: str = str(draw(layouts))
    position = draw(st.integers(0, len(text)))
    insertion: str = draw(st.sampled_from(["", *"[]a=:019Nc*t x-\n"]))
    return text[:position] + insertion + text[position + draw(st.integers(0, 1)) :]


texts = st.text(st.characters()) | st.text("NCHWchw*[]a=:0123456789 \ttile.", max_size=30) | damaged()


def refusal(text: str, read: Callable[[str], Layout] = Layout.parse) -> LayoutSyntaxError:
    with pytest.raises(LayoutSyntaxError) as caught:
        read(text)
    return caught.value


def assert_points_into(error: LayoutSyntaxError, text: str) -> None:
    """The error is complete, and its caret points to a character of the text or just after its end."""
    assert error.text == text
    assert 1 <= error.column <= len(text) + 1
    assert error.expected
    assert error.found
    assert error.where == f"layout, column {error.column}"
    shown, caret = str(error).split("\n")[-2:]
    assert len(shown) == len(text) + 4
    assert caret == " " * (error.column + 3) + "^"
