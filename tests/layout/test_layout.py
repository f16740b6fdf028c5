"""Layouts are read, compared, changed and built."""

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
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_strings import (
    LETTERS,
    assert_points_into,
    data,
    layouts,
    namespaces,
    refusal,
    spaced,
)

from relayout.errors import LayoutSyntaxError
from relayout.layout import grammar
from relayout.layout.grammar_faults import MAX_NUMBER, MAX_RANK
from relayout.layout.layout import CANONICAL, COMMON, Dim, Layout, default_layout

MANUAL = Path(__file__).parents[2] / "docs" / "layouts.md"


# The parts of a layout


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


def test_a_black_box_may_hold_an_opening_bracket_and_ends_at_the_first_closing_one() -> None:
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
def test_any_is_a_layout_without_requirements(text: str, is_any: bool) -> None:
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


def test_the_layouts_of_backends_are_parsed_once() -> None:
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
def test_a_layout_of_dimensions_can_be_read_back_or_is_rejected(chosen: list[Dim]) -> None:
    try:
        layout = Layout(tuple(chosen))
    except LayoutSyntaxError as error:
        assert_points_into(error, "".join(map(str, chosen)))
        with pytest.raises(LayoutSyntaxError):
            Layout.parse(error.text)
    else:
        assert Layout.parse(str(layout)) == layout


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


# The manual


def test_the_examples_of_the_manual_are_true() -> None:
    examples = re.findall(r"^```pycon\n(.*?)^```$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(examples), {}, MANUAL.name, None, 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert outcome.attempted > 20
    assert outcome.failed == 0


def test_the_manual_and_the_parser_document_the_same_grammar() -> None:
    told = re.search(r"^layout +:=.*?^namespace .*?$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    assert told is not None
    assert told[0] in inspect.cleandoc(grammar.__doc__ or "").replace("\n    ", "\n")
