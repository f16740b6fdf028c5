"""Layout strings: what is one, what it says, and what is said of a text that is none."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import inspect
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from relayout import layout_syntax
from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout import CANONICAL, COMMON, Dim, Layout, default_layout
from relayout.layout_faults import MAX_NUMBER, MAX_RANK

MANUAL = Path(__file__).parents[2] / "docs" / "layouts.md"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

numbers = st.builds(
    lambda zeros, value: "0" * zeros + str(value), st.sampled_from([0, 0, 1, 3]), st.integers(1, MAX_NUMBER)
)
namespaces = st.from_regex(r"[A-Za-z_.\-][A-Za-z0-9_.\-]{0,6}", fullmatch=True)
data = st.text(st.characters(exclude_characters="]"), max_size=12)
boxes = st.builds(lambda namespace, data: f"{namespace}:{data}", namespaces.filter(lambda name: name != "tile"), data)


@st.composite
def dims(draw: st.DrawFn) -> list[Dim]:
    """Dimensions that make a layout, blocked ones and all kinds of extensions among them."""
    letters = draw(st.lists(st.sampled_from("NCHWnchw") | st.sampled_from(LETTERS), unique=True, max_size=MAX_RANK))
    names = [letter if draw(st.integers(0, 4)) else "*" for letter in letters]
    chosen = []
    for name in names:
        extensions = draw(st.lists(boxes, max_size=2))
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
    """A layout with blanks wherever they may stand, and without."""
    chosen = draw(dims())
    pieces = [piece for dim in chosen for piece in (dim.name, *[f"[{extension}]" for extension in dim.extensions])]
    return draw(blanks) + "".join([piece + draw(blanks) for piece in pieces]), "".join(pieces)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A layout's text with one character too few, too many, or another."""
    text: str = str(draw(layouts))
    place = draw(st.integers(0, len(text)))
    insertion: str = draw(st.sampled_from(["", *"[]a=:019Nc*t x-\n"]))
    return text[:place] + insertion + text[place + draw(st.integers(0, 1)) :]


texts = st.text(st.characters()) | st.text("NCHWchw*[]a=:0123456789 \ttile.", max_size=30) | damaged()


def refusal(text: str, read: Callable[[str], Layout] = Layout.parse) -> LayoutSyntaxError:
    with pytest.raises(LayoutSyntaxError) as caught:
        read(text)
    return caught.value


def assert_points_into(error: LayoutSyntaxError, text: str) -> None:
    """The error has all its parts, and its caret stands under a character of the text or just after it."""
    assert error.text == text
    assert 1 <= error.column <= len(text) + 1
    assert error.expected
    assert error.found
    assert error.where == f"layout, column {error.column}"
    shown, caret = str(error).split("\n")[-2:]
    assert len(shown) == len(text) + 4
    assert caret == " " * (error.column + 3) + "^"


# What a layout says


def test_a_layout_has_names_alignments_and_attributes() -> None:
    layout = Layout.parse("N[a=32][after:align]C[mal:reynolds][answer:42]HW[before:alignment][a=64]")
    assert layout.rank == 4
    assert layout.names == "NCHW"
    assert [dim.name for dim in layout.dims] == ["N", "C", "H", "W"]
    assert [layout.alignment(index) for index in range(4)] == [32, 1, 1, 64]
    assert layout.attribute(0, "after") == "align"
    assert layout.attribute(1, "answer") == "42"
    assert layout.attribute(1, "after") is None
    assert layout.boxes(1) == (("mal", "reynolds"), ("answer", "42"))
    assert layout.boxes(2) == ()


def test_the_example_of_glows_document_is_read_as_its_text_says() -> None:
    layout = Layout.parse("N[a=32][namespace_for_unsupported:<bla>]HWC")
    assert layout.names == "NHWC"
    assert layout.alignment(0) == 32
    assert layout.attribute(0, "namespace_for_unsupported") == "<bla>"
    wildcards = Layout.parse("N[a=32]*H*[a=64]")
    assert wildcards.names == "N*H*"
    assert wildcards.alignment(3) == 64


@pytest.mark.parametrize("data", ["", " ", "a b\tc", "[", "a=7", "x:y:z", "*", "é", "<bla>", "\n", "\0"])
def test_a_black_box_is_kept_verbatim(data: str) -> None:
    layout = Layout.parse(f"N[acme:{data}]HWC")
    assert layout.attribute(0, "acme") == data
    assert layout.alignment(0) == 1
    assert str(layout) == f"N[acme:{data}]HWC"


def test_a_black_box_takes_in_an_opening_bracket_and_ends_at_the_first_closing_one() -> None:
    layout = Layout.parse("N[ns:xHW[a=4]C")
    assert layout.names == "NC"
    assert layout.boxes(0) == (("ns", "xHW[a=4"),)


def test_a_namespace_called_a_is_no_alignment() -> None:
    layout = Layout.parse("N[a:32]HWC")
    assert layout.alignment(0) == 1
    assert layout.boxes(0) == (("a", "32"),)


def test_several_boxes_of_one_namespace_stay_and_the_first_is_its_data() -> None:
    layout = Layout.parse("N[x:1][x:2]HWC")
    assert layout.boxes(0) == (("x", "1"), ("x", "2"))
    assert layout.attribute(0, "x") == "1"
    assert str(layout.with_attribute(0, "x", "3")) == "N[x:3]HWC"


@pytest.mark.parametrize("digits", ["1", "3", "032", str(MAX_NUMBER), "0" * 5000 + "64"])
def test_an_alignment_is_any_positive_number_below_2_to_63(digits: str) -> None:
    layout = Layout.parse(f"N[a={digits}]")
    assert layout.alignment(0) == int(digits[-19:])
    assert str(layout) == f"N[a={digits}]"


@pytest.mark.parametrize(("text", "is_any"), [("", True), ("***", True), ("**[a=64]", False), ("*C*", False)])
def test_any_is_a_layout_that_asks_nothing(text: str, is_any: bool) -> None:
    assert Layout.parse(text).is_any is is_any


def test_blanks_around_dimensions_and_brackets_mean_nothing() -> None:
    assert Layout.parse("\tN [a=32]\t[x: y ] H W C ") == Layout.parse("N[a=32][x: y ]HWC")
    assert Layout.parse(" \t").rank == 0


@given(spaced())
def test_a_layout_prints_as_it_was_written_without_its_blanks(written: tuple[str, str]) -> None:
    with_blanks, without = written
    assert str(Layout.parse(with_blanks)) == without
    assert Layout.parse(with_blanks) == Layout.parse(without)


@given(layouts)
def test_reading_what_was_printed_gives_the_same_layout(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout
    assert eval(repr(layout), {"Layout": Layout}) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert copy.deepcopy(layout) == layout


def test_a_layout_finds_itself_in_a_set_of_another_process() -> None:
    code = "import pickle, sys; layout, known = pickle.load(sys.stdin.buffer); print(layout in known)"
    layout = Layout.parse("N[a=32][acme:x]HWC")
    for seed in ("1", "2"):
        answer = subprocess.run(
            [sys.executable, "-c", code],
            input=pickle.dumps((layout, {layout})),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert answer.stdout.strip() == b"True"


# Comparing


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("NHWC", "N H W C", True),
        ("N[a=032]", "N[a=32]", True),
        ("Cc[tile:16]", "Cc[tile:0016]", True),
        ("N[x:016]", "N[x:16]", False),
        ("N[a=32]HWC", "NHWC", False),
        ("N[a=32]HWC", "N[a=64]HWC", False),
        ("N[a=1]HWC", "NHWC", False),
        ("N[x:1]", "N[x:2]", False),
        ("N[a:32]", "N[a=32]", False),
        ("N[x:1][y:2]", "N[y:2][x:1]", False),
        ("NHWC", "nhwc", False),
        ("NHWC", "NCHW", False),
        ("****", "NHWC", False),
    ],
)
def test_layouts_are_equal_when_names_and_extensions_are(one: str, other: str, equal: bool) -> None:
    left, right = Layout.parse(one), Layout.parse(other)
    assert (left == right) is equal
    assert len({left, right}) == (1 if equal else 2)


def test_names_are_compared_without_extensions() -> None:
    layout = Layout.parse("N[a=32]HWC")
    assert layout.same_names(Layout.parse("NHWC[x:y]"))
    assert not layout.same_names(Layout.parse("N[a=32]CHW"))


def test_a_layout_cannot_be_changed() -> None:
    layout = Layout.parse("N[a=32]HWC")
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.names = "NCHW"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.dims[0].name = "C"  # type: ignore[misc]
    assert not hasattr(layout, "__dict__")


def test_a_backends_words_are_parsed_once() -> None:
    assert Layout.parse("N[a=32]HWC") is Layout.parse("N[a=32]HWC")


# Setting


def test_a_set_alignment_replaces_the_old_one_and_comes_last() -> None:
    layout = Layout.parse("N[a=16][answer:42]HW[answer:42]C")
    assert str(layout.with_alignment(0, 32)) == "N[answer:42][a=32]HW[answer:42]C"
    assert str(layout) == "N[a=16][answer:42]HW[answer:42]C"
    assert str(layout.with_alignment(-1, 64)) == "N[a=16][answer:42]HW[answer:42]C[a=64]"
    assert str(layout.with_alignment(0, 1)) == "N[answer:42][a=1]HW[answer:42]C"


def test_a_set_attribute_replaces_its_own_namespace_only() -> None:
    layout = Layout.parse("N[a=16][ans:1][answer:42]HWC")
    assert str(layout.with_attribute(0, "ans", "2")) == "N[a=16][answer:42][ans:2]HWC"
    assert str(layout.with_attribute(0, "a", "2")) == "N[a=16][ans:1][answer:42][a:2]HWC"


@given(layouts, st.data(), st.integers(1, MAX_NUMBER))
def test_an_alignment_that_is_set_is_the_only_thing_that_changes(layout: Layout, data: st.DataObject, n: int) -> None:
    assume(layout.rank > 0)
    index = data.draw(st.integers(0, layout.rank - 1))
    changed = layout.with_alignment(index, n)
    assert changed.alignment(index) == n
    assert changed.same_names(layout)
    assert [changed.boxes(i) for i in range(layout.rank)] == [layout.boxes(i) for i in range(layout.rank)]
    others = [i for i in range(layout.rank) if i != index]
    assert [changed.dims[i] for i in others] == [layout.dims[i] for i in others]
    assert changed.with_alignment(index, n) == changed


@given(layouts, st.data(), namespaces.filter(lambda name: name != "tile"), data)
def test_an_attribute_that_is_set_can_be_got(layout: Layout, choice: st.DataObject, namespace: str, text: str) -> None:
    assume(layout.rank > 0)
    index = choice.draw(st.integers(0, layout.rank - 1))
    changed = layout.with_attribute(index, namespace, text)
    assert changed.attribute(index, namespace) == text
    assert changed.boxes(index).count((namespace, text)) == 1
    assert changed.alignment(index) == layout.alignment(index)
    assert Layout.parse(str(changed)) == changed


@pytest.mark.parametrize("alignment", [0, -1, MAX_NUMBER + 1, 2**64, 32.0, True, None])
def test_an_alignment_that_is_no_positive_number_below_2_to_63_cannot_be_set(alignment: int) -> None:
    with pytest.raises(LayoutSyntaxError) as caught:
        Layout.parse("NHWC").with_alignment(1, alignment)
    assert_points_into(caught.value, f"H[a={alignment}]")


@pytest.mark.parametrize(
    ("namespace", "column"), [("", 1), ("1x", 1), ("x y", 2), ("x:", 2), ("a=", 2), ("x]", 2), ("x[", 2), ("é", 1)]
)
def test_an_attribute_cannot_be_set_in_a_namespace_that_is_none(namespace: str, column: int) -> None:
    with pytest.raises(LayoutSyntaxError, match="expected: a namespace") as caught:
        Layout.parse("NHWC").with_attribute(0, namespace, "data")
    assert_points_into(caught.value, namespace)
    assert caught.value.column == column


def test_data_that_would_close_its_bracket_cannot_be_set() -> None:
    with pytest.raises(LayoutSyntaxError, match=r"expected: data without '\]'") as caught:
        Layout.parse("N[a=32]HWC").with_attribute(0, "x", "a]b")
    assert_points_into(caught.value, "N[a=32][x:a]b]")
    assert caught.value.column == 12


@pytest.mark.parametrize("index", [4, -5])
def test_a_dimension_that_is_not_there_is_an_index_error(index: int) -> None:
    layout = Layout.parse("NHWC")
    with pytest.raises(IndexError):
        layout.alignment(index)
    with pytest.raises(IndexError):
        layout.with_alignment(index, 32)


# Building without a text


@given(st.lists(st.builds(Dim, st.sampled_from(LETTERS + "*")), max_size=MAX_RANK + 2))
def test_dimensions_make_a_layout_that_can_be_read_back_or_none_at_all(chosen: list[Dim]) -> None:
    try:
        layout = Layout(tuple(chosen))
    except LayoutSyntaxError as error:
        assert_points_into(error, "".join(map(str, chosen)))
        with pytest.raises(LayoutSyntaxError):
            Layout.parse(error.text)
    else:
        assert Layout.parse(str(layout)) == layout


@given(st.text(st.characters(), max_size=3), st.lists(texts, max_size=3))
def test_a_dimension_is_one_that_can_be_read_back_or_none_at_all(name: str, extensions: list[str]) -> None:
    try:
        dim = Dim(name, tuple(extensions))
    except LayoutSyntaxError as error:
        assert_points_into(error, error.text)
    else:
        assert dim.name.isdecimal() or Layout.parse(str(dim)).dims == (dim,)


@pytest.mark.parametrize(
    ("name", "extensions", "column"),
    [
        ("", (), 1),
        ("NC", (), 1),
        ("10", (), 1),
        ("8", (), 1),
        ("é", (), 1),
        ("N", ("x:a]b",), 6),
        ("N", ("a=32", "a=64"), 9),
        ("N", ("a=32", "x:", "b"), 13),
        ("N", ("a=0",), 5),
    ],
)
def test_a_dimension_that_could_not_be_parsed_cannot_be_built(
    name: str, extensions: tuple[str, ...], column: int
) -> None:
    with pytest.raises(LayoutSyntaxError) as caught:
        Dim(name, extensions)
    assert_points_into(caught.value, caught.value.text)
    assert caught.value.column == column


def test_a_fault_among_dimensions_is_pointed_at_behind_their_extensions() -> None:
    with pytest.raises(LayoutSyntaxError, match="names dimension 0") as caught:
        Layout((Dim("N", ("a=32",)), Dim("H"), Dim("N")))
    assert caught.value.text == "N[a=32]HN"
    assert caught.value.column == 9


def test_lists_are_taken_where_tuples_are_kept() -> None:
    layout = Layout([Dim("N", ["a=32"]), Dim("C")])  # type: ignore[arg-type]
    assert layout == Layout.parse("N[a=32]C")
    assert hash(layout) == hash(Layout.parse("N[a=32]C"))


def test_names_make_a_layout_without_extensions() -> None:
    assert Layout.from_names("N*wC") == Layout.parse("N*wC")
    assert Layout.from_names("").rank == 0
    for text, column in (("N[a=32]C", 2), ("N C", 2), ("N1", 2)):
        error = refusal(text, Layout.from_names)
        assert_points_into(error, text)
        assert error.column == column


# Blocked layouts


def test_a_lower_case_letter_beside_its_upper_case_one_is_its_inner_part() -> None:
    layout = Layout.parse("NCHWc[tile:16][a=64][acme:x]")
    assert layout.rank == 5
    assert layout.names == "NCHWc"
    assert layout.tile(4) == 16
    assert layout.outer(4) == 1
    assert layout.attribute(4, "tile") == "16"
    assert layout.boxes(4) == (("acme", "x"),)
    assert [layout.tile(index) for index in range(4)] == [None] * 4
    assert [layout.outer(index) for index in range(4)] == [None] * 4


def test_an_inner_part_may_stand_before_its_dimension() -> None:
    assert Layout.parse("Nc[tile:4]HWC").outer(1) == 4


def test_a_lower_case_letter_alone_is_a_dimension_of_its_own() -> None:
    layout = Layout.parse("nhwc")
    assert layout.rank == 4
    assert [layout.outer(index) for index in range(4)] == [None] * 4


def test_a_size_on_what_is_no_inner_part_is_a_black_box_and_so_not_ignored() -> None:
    layout = Layout.parse("NCHW[tile:16]")
    assert layout.tile(3) is None
    assert layout.boxes(3) == (("tile", "16"),)


@given(layouts)
def test_no_extension_goes_unmentioned(layout: Layout) -> None:
    for index, dim in enumerate(layout.dims):
        aligned = sum(extension.startswith("a=") for extension in dim.extensions)
        blocked = layout.tile(index) is not None
        assert len(layout.boxes(index)) + aligned + blocked == len(dim.extensions)


# TVM's strings


@pytest.mark.parametrize(
    ("tvm", "text"),
    [
        ("NCHW", "NCHW"),
        ("NCHW16c", "NCHWc[tile:16]"),
        ("N4cHWC", "Nc[tile:4]HWC"),
        ("OIHW16i4o", "OIHWi[tile:16]o[tile:4]"),
        ("C", "C"),
    ],
)
def test_tvm_writes_the_size_of_an_inner_part_before_its_letter(tvm: str, text: str) -> None:
    assert Layout.from_tvm(tvm) == Layout.parse(text)
    assert str(Layout.from_tvm(tvm)) == text
    assert Layout.parse(text).to_tvm() == tvm


def test_tvms_leading_zeros_are_dropped() -> None:
    assert str(Layout.from_tvm("NCHW016c")) == "NCHWc[tile:16]"
    assert Layout.parse("NCHWc[tile:016]").to_tvm() == "NCHW16c"
    assert str(Layout.from_tvm("NCHW" + "0" * 5000 + "8c")) == "NCHWc[tile:8]"


@given(layouts)
def test_what_tvm_can_write_it_reads_back(layout: Layout) -> None:
    try:
        text = layout.to_tvm()
    except InputError:
        return
    assert Layout.from_tvm(text) == layout


@given(st.lists(st.sampled_from("NCHWDOI"), unique=True, min_size=1, max_size=4), st.data())
def test_tvms_blocked_strings_survive_the_way_there_and_back(outer: list[str], choice: st.DataObject) -> None:
    inner = choice.draw(st.lists(st.sampled_from([name.lower() for name in outer]), unique=True))
    words = outer + [f"{choice.draw(st.integers(1, 512))}{name}" for name in inner]
    text = "".join(choice.draw(st.permutations(words)))
    assert Layout.from_tvm(text).to_tvm() == text


@given(st.lists(st.sampled_from("NCHWDOI"), unique=True, min_size=1, max_size=4), st.data())
def test_what_tvm_writes_is_a_layout_as_it_stands(outer: list[str], choice: st.DataObject) -> None:
    inner = choice.draw(st.lists(st.sampled_from([name.lower() for name in outer]), unique=True))
    words = outer + [f"{choice.draw(numbers)}{name}" for name in inner]
    text = "".join(choice.draw(st.permutations(words)))
    assert Layout.parse(text) == Layout.from_tvm(text)


def test_tvms_sizes_and_glows_extensions_mix() -> None:
    assert Layout.parse("N[a=64]CHW 16c[x:y]") == Layout.parse("N[a=64]CHWc[tile:16][x:y]")


TVM_FAULTS = [
    ("NCHW0c", 5, "a number of elements from 1 to", "'0'"),
    ("NCHWc", 5, "a size before 'c', as in 16c", "'c' without one"),
    ("nchw", 1, "a size before 'n', as in 16n", "'n' without one"),
    ("16NCHW", 3, "a lower-case letter after the size", "'N'"),
    ("NCHW16C", 7, "a lower-case letter after the size", "'C'"),
    ("NCHW16", 7, "a lower-case letter after the size", "the end of the layout"),
    ("NCHW16-c", 7, "a lower-case letter after the size", "'-'"),
    ("C4o", 3, "'O' too, since 'o' is the inner part of it", "none"),
    ("C4o4c", 3, "'O' too", "none"),
    ("NNCHW", 2, "another letter", "'N', which names dimension 0"),
    ("NCHW4c4c", 8, "another letter", "'c', which names dimension 4"),
    ("OHWI16i64o2i", 12, "another letter", "'i', which names dimension 4"),
    ("NC HW", 3, "a letter, or a size and a lower-case letter", "' '"),
    ("NCHW-4c", 5, "a letter, or a size and a lower-case letter", "'-'"),
    ("NCHW*", 5, "a letter, or a size and a lower-case letter", "'*'"),
    ("NCHW4*", 6, "a lower-case letter after the size", "'*'"),
    ("NCHW[4c", 5, "a letter, or a size and a lower-case letter", "'['"),
    ("OIHW[4o4i]", 5, "a letter, or a size and a lower-case letter", "'['"),
    ("NCHWc[tile:16]", 5, "a size before 'c'", "'c' without one"),
    ("ABCDEFGHI", 9, "at most 8 dimensions", "one more, 'I'"),
    (f"C{2**63}c", 2, "a number of elements from 1 to", f"'{2**63}'"),
    ("NCHW٣c", 5, "a letter, or a size and a lower-case letter", "'٣'"),
    ("", 1, "at least one dimension", "the end of the layout"),
    ("__undef__", 1, "a letter, or a size and a lower-case letter", "'_'"),
]


@pytest.mark.parametrize(("text", "column", "expected", "found"), TVM_FAULTS)
def test_a_string_that_tvm_would_not_take_is_refused(text: str, column: int, expected: str, found: str) -> None:
    error = refusal(text, Layout.from_tvm)
    assert_points_into(error, text)
    assert error.column == column
    assert expected in error.expected
    assert error.found == found


@given(st.text(st.characters()) | st.text("NCHWOIchwoi0123456789*[] ", max_size=12))
def test_no_text_makes_tvms_reader_fail_otherwise(text: str) -> None:
    try:
        layout = Layout.from_tvm(text)
    except LayoutSyntaxError as error:
        assert_points_into(error, text)
    else:
        assert Layout.from_tvm(layout.to_tvm()) == layout


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "the layout of a scalar"),
        ("N*HW", "'*'"),
        ("nhwc", "'n'"),
        ("Nc[tile:16]", "'c'"),
        ("N[a=32]HWC", "the extensions of 'N[a=32]'"),
        ("NC[acme:x]", "the extensions of 'C[acme:x]'"),
        ("NC[tile:16]", "the extensions of 'C[tile:16]'"),
        ("NCc[tile:16][a=64]", "the extensions of 'c[tile:16][a=64]'"),
    ],
)
def test_what_tvm_has_no_word_for_is_an_error_and_not_dropped(text: str, found: str) -> None:
    with pytest.raises(InputError, match="TVM has no word for this layout") as caught:
        Layout.parse(text).to_tvm()
    assert found in caught.value.found


# Defaults


def test_the_defaults_by_rank_are_glows() -> None:
    assert [str(layout) for layout in COMMON] == ["", "N", "**", "***", "****", "*****", "******"]
    assert [str(layout) for layout in CANONICAL] == ["", "N", "**", "***", "NHWC", "*****", "******"]
    assert [layout.rank for layout in COMMON] == list(range(7))


@pytest.mark.parametrize("rank", range(MAX_RANK + 1))
def test_there_is_a_default_for_every_rank(rank: int) -> None:
    assert default_layout(rank).rank == rank
    assert default_layout(rank, canonical=True).rank == rank
    assert Layout.any(rank).rank == rank
    assert Layout.any(rank).is_any


# XLA's notation


@pytest.mark.parametrize(
    ("xla", "axes", "text"),
    [("{3,2,1,0}", "NCHW", "NCHW"), ("{1,3,2,0}", "NCHW", "NHWC"), ("{0,1}", "NC", "CN"), ("{0}", "C", "C")],
)
def test_minor_to_major_counts_axes_from_the_innermost(xla: str, axes: str, text: str) -> None:
    assert Layout.from_minor_to_major(xla, axes) == Layout.parse(text)
    assert Layout.parse(text).to_minor_to_major(axes) == xla
    assert Layout.parse(xla).to_minor_to_major() == str(Layout.parse(xla)) == xla


@given(st.integers(0, MAX_RANK).flatmap(lambda rank: st.permutations(range(rank))))
def test_minor_to_major_survives_the_way_there_and_back(axes: list[int]) -> None:
    text = f"{{{','.join(map(str, axes))}}}"
    layout = Layout.parse(f" {{ {' , '.join(map(str, axes))} }} ")
    assert layout.to_minor_to_major() == text
    assert layout == Layout.from_minor_to_major(text) == Layout.from_names("".join(map(str, reversed(axes))))
    names = "ABCDEFGH"[: len(axes)]
    assert layout.with_names(names).to_minor_to_major(names) == text
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_a_layout_of_numbers_asks_for_an_order_and_nothing_else() -> None:
    layout = Layout.parse("{0,2,1}")
    assert (layout.is_numbered, layout.is_any, layout.rank, layout.names) == (True, False, 3, "120")
    assert [layout.alignment(i) for i in range(3)] == [1, 1, 1]
    assert [layout.boxes(i) for i in range(3)] == [(), (), ()]
    assert not Layout.parse("NCW").is_numbered


@pytest.mark.parametrize(
    ("text", "axes"), [("NHWC", None), ("NHWC", "NCDW"), ("N[a=4]C", "NC"), ("N*", "N*"), ("NCHW4c", "NCHW")]
)
def test_what_xla_has_no_word_for_is_an_error_and_not_dropped(text: str, axes: str | None) -> None:
    with pytest.raises(InputError, match="XLA has no word for this layout"):
        Layout.parse(text).to_minor_to_major(axes)


def test_numbers_become_names_of_as_many_axes_only() -> None:
    with pytest.raises(InputError, match="names for 2 axes"):
        Layout.parse("{1,0}").with_names("NCHW")
    with pytest.raises(LayoutSyntaxError, match="as in XLA's"):
        Layout.from_minor_to_major("NCHW")


@pytest.mark.parametrize("dims", [[Dim("0", ("x:y",))], [Dim("0"), Dim("N")], [Dim("*"), Dim("0")], [Dim("1")]])
def test_numbers_stand_alone(dims: list[Dim]) -> None:
    with pytest.raises(LayoutSyntaxError):
        Layout(tuple(dims))


# Texts that are no layouts

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
def test_a_text_that_is_no_layout_is_refused_at_its_fault(text: str, column: int, expected: str, found: str) -> None:
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


def test_a_bracket_left_open_and_tvms_way_of_writing_get_a_hint() -> None:
    assert refusal("NH[x:y").hint == "the bracket in column 3 is open"
    assert refusal("NCHW16").hint == "a size stands before the letter of an inner part, as in NCHW16c"
    assert refusal("{1,0:T(8,128)}").hint == "XLA's tiles and memory spaces have no word here"
    assert refusal("N[x:[y]]").hint == "an extension ends at its first ']'"


@given(texts)
@example("N[a=" + "0" * 5000 + "]")
@example("*" * 100_000)
def test_no_text_makes_the_parser_fail_otherwise(text: str) -> None:
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        assert_points_into(error, text)
    else:
        assert Layout.parse(str(layout)) == layout


# The manual


def test_the_examples_of_the_manual_are_true() -> None:
    examples = re.findall(r"^```pycon\n(.*?)^```$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(examples), {}, MANUAL.name, None, 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert outcome.attempted > 20
    assert outcome.failed == 0


def test_the_manual_and_the_parser_tell_the_same_grammar() -> None:
    told = re.search(r"^layout +:=.*?^namespace .*?$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    assert told is not None
    assert told[0] in inspect.cleandoc(layout_syntax.__doc__ or "").replace("\n    ", "\n")
