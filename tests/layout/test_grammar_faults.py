"""Invalid layout strings are errors with a column, an expectation and a hint."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from layout_strings import (
    assert_points_into,
    refusal,
    texts,
)

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout

FAULTS = [
    # A character that is none of the language's.
    ("N1", 2, "a letter, '*'", "'1'"),
    ("16NCHW", 1, "a letter, '*'", "'1'"),
    ("NCHW16", 5, "a letter, '*'", "'1'"),
    ("NC{0}", 3, "a letter, '*'", "'{'"),
    ("NH-W", 3, "a letter, '*'", "'-'"),
    ("]", 1, "a letter, '*'", "']'"),
    ("N[a=32]]", 8, "a letter, '*'", "']'"),
    ("N[ns:x[y]z]", 11, "a letter, '*'", "']'"),
    ("NH\nWC", 3, "a letter, '*'", r"'\n'"),
    ("N\0", 2, "a letter, '*'", r"'\x00'"),
    ("N\u00a0C", 2, "a letter, '*'", r"'\xa0'"),
    ("é", 1, "a letter, '*'", "'é'"),
    ("N\ud800", 2, "a letter, '*'", r"'\ud800'"),
    ("N,C", 2, "a letter, '*'", "','"),
    # Extensions of nothing.
    ("[a=1]N", 1, "a dimension before its extensions", "'['"),
    ("  [x:y]", 3, "a dimension before its extensions", "'['"),
    # Neither an alignment nor a black box.
    ("N[]", 3, "'a=BYTES' or 'namespace:data'", "']'"),
    ("N[", 3, "'a=BYTES' or 'namespace:data'", "the end of the layout"),
    ("N[a]", 3, "'a=BYTES' or 'namespace:data'", "'a'"),
    ("N[b=1]", 3, "'a=BYTES' or 'namespace:data'", "'b=1'"),
    ("N[A=32]", 3, "'a=BYTES' or 'namespace:data'", "'A=32'"),
    ("N[ a=4]", 3, "'a=BYTES' or 'namespace:data'", "' a=4'"),
    ("N[a =4]", 3, "'a=BYTES' or 'namespace:data'", "'a =4'"),
    # An alignment that is no number, or none that can be one.
    ("N[a=]", 5, "a number of bytes", "']'"),
    ("N[a=", 5, "a number of bytes", "the end of the layout"),
    ("N[a=x]", 5, "a number of bytes", "'x'"),
    ("N[a=-4]", 5, "a number of bytes", "'-'"),
    ("N[a=+4]", 5, "a number of bytes", "'+'"),
    ("N[a= 4]", 5, "a number of bytes", "' '"),
    ("N[a=:4]", 5, "a number of bytes", "':'"),
    ("N[a=٣]", 5, "a number of bytes", "'٣'"),
    ("N[a=4 ]", 6, "']' after the number", "' '"),
    ("N[a=1_0]", 6, "']' after the number", "'_'"),
    ("N[a=0x10]", 6, "']' after the number", "'x'"),
    ("N[a=32,b=1]", 7, "']' after the number", "','"),
    ("N[a=32:z]", 7, "']' after the number", "':'"),
    ("N[a=32H[z:1]", 7, "']' after the number", "'H'"),
    ("N[a=0]", 5, "a number of bytes from 1 to 9223372036854775807", "'0'"),
    ("N[a=000]", 5, "a number of bytes from 1 to 9223372036854775807", "'000'"),
    (f"N[a={2**63}]", 5, "a number of bytes from 1 to 9223372036854775807", f"'{2**63}'"),
    ("N[a=18446744073709551616]", 5, "a number of bytes from 1 to 9223372036854775807", "'18446744073709551616'"),
    (f"N[a={'9' * 9000}]", 5, "a number of bytes from 1 to 9223372036854775807", f"'{'9' * 39}…'"),
    ("N[a=32][a=32]", 9, "one alignment a dimension", "a second one, 'a=32'"),
    ("N[a=32][x:y][a=64]", 14, "one alignment a dimension", "a second one, 'a=64'"),
    # A namespace that is none.
    ("N[:x]", 3, "a namespace before ':'", "':'"),
    ("N[:]", 3, "a namespace before ':'", "':'"),
    ("N[1x:y]", 3, "a namespace before ':'", "'1'"),
    ("N[x y:z]", 4, "a namespace before ':'", "' '"),
    ("N[ x:y]", 3, "a namespace before ':'", "' '"),
    ("N[b=1:x]", 4, "a namespace before ':'", "'='"),
    ("N[né:x]", 4, "a namespace before ':'", "'é'"),
    # A bracket that nothing closes.
    ("N[a=32", 7, "']'", "the end of the layout"),
    ("N[ns:foo", 9, "']'", "the end of the layout"),
    ("NH[ns:fooWC", 12, "']'", "the end of the layout"),
    # Dimensions that do not go together.
    ("NNCC", 2, "another letter", "'N', which names dimension 0"),
    ("N [a=32] H W N", 14, "another letter", "'N', which names dimension 0"),
    ("nHWn", 4, "another letter", "'n', which names dimension 0"),
    ("*********", 9, "at most 8 dimensions", "one more, '*'"),
    ("ABCDEFGHIJ", 9, "at most 8 dimensions", "one more, 'I'"),
    # Blocked layouts.
    ("NCHWc", 5, "'c[tile:SIZE]', since 'c' beside 'C' is its inner part", "'c' without a size"),
    ("cNCHW", 1, "'c[tile:SIZE]', since 'c' beside 'C' is its inner part", "'c' without a size"),
    ("NC[tile:16]HWc", 14, "'c[tile:SIZE]', since 'c' beside 'C' is its inner part", "'c' without a size"),
    ("NCHWc[tile:0]", 12, "a number of elements from 1 to", "'0'"),
    ("NCHWc[tile:]", 12, "a number of elements", "']'"),
    ("NCHWc[tile:x]", 12, "a number of elements", "'x'"),
    ("NCHWc[tile:4x4]", 13, "']' after the number", "'x'"),
    ("NCHW[tile:-1]", 11, "a number of elements", "'-'"),
    ("NCHWc[tile:4][tile:8]", 15, "one tile size a dimension", "a second one, 'tile:8'"),
    ("NCHW4c[tile:8]", 8, "one tile size a dimension", "a second one, 'tile:8'"),
    ("NCHW0c", 5, "a number of elements from 1 to", "'0'"),
    ("NCHW4c4c", 8, "another letter", "'c', which names dimension 4"),
    ("N4c[x:C]", 3, "'C' too, since 'c' is the inner part of it", "none"),
    # Minor to major.
    ("{", 2, "the number of an axis, 0 to 7", "the end of the layout"),
    ("{1,", 4, "the number of an axis, 0 to 7", "the end of the layout"),
    ("{1,}", 4, "the number of an axis, 0 to 7", "'}'"),
    ("{N,C}", 2, "the number of an axis, 0 to 7", "'N'"),
    ("{10}", 2, "the number of an axis, 0 to 7", "'10'"),
    ("{٣}", 2, "the number of an axis, 0 to 7", "'٣'"),
    ("{1", 3, "',' or '}' after the number of an axis", "the end of the layout"),
    ("{1 0}", 4, "',' or '}' after the number of an axis", "'0'"),
    ("{1,0:T(8,128)}", 5, "',' or '}' after the number of an axis", "':'"),
    ("{1,0} C", 7, "nothing after '}'", "'C'"),
    ("{0,0}", 4, "each axis once", "'0' twice"),
    ("{2,0}", 2, "the axes of 2 dimensions, 0 to 1", "'2'"),
]


@pytest.mark.parametrize(("text", "column", "expected", "found"), FAULTS, ids=[repr(fault[0][:30]) for fault in FAULTS])
def test_text_that_is_no_layout_is_rejected_with_its_column(text: str, column: int, expected: str, found: str) -> None:
    error = refusal(text)
    assert_points_into(error, text)
    assert error.column == column
    assert error.expected.startswith(expected)
    assert error.found == found


def test_the_message_has_a_caret_under_the_fault() -> None:
    assert str(refusal("N\tH[a=4 ]")).splitlines() == [
        "layout, column 8: not a layout",
        "  expected: ']' after the number",
        "  found:    ' '",
        "    N�H[a=4 ]",
        "           ^",
    ]


def test_an_open_bracket_and_tvms_notation_get_a_hint() -> None:
    assert refusal("NH[x:y").hint == "the bracket in column 3 is open"
    assert refusal("NCHW16").hint == "a size is written before the letter of an inner part, as in NCHW16c"
    assert refusal("{1,0:T(8,128)}").hint == "relayout does not support XLA's tiles and memory spaces"
    assert refusal("N[x:[y]]").hint == "an extension ends at its first ']'"


@given(texts)
@example("N[a=" + "0" * 5000 + "]")
@example("*" * 100_000)
def test_any_text_is_a_layout_or_a_syntax_error(text: str) -> None:
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        assert_points_into(error, text)
    else:
        assert Layout.parse(str(layout)) == layout
