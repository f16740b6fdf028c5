"""The parser reads Glow's, TVM's and XLA's notations, and layouts are printed in each of them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strings import (
    assert_points_into,
    layouts,
    numbers,
    refusal,
)

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout.grammar import read, read_tvm
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Dim, Layout

# The parser alone


def test_dimensions_are_pairs_of_a_name_and_extensions() -> None:
    assert read(" N[a=32] [acme:x]C ") == [("N", ("a=32", "acme:x")), ("C", ())]
    assert read("NC16c") == [("N", ()), ("C", ()), ("c", ("tile:16",))]
    assert read("{0,1}") == [("1", ()), ("0", ())]
    assert read_tvm("C4c") == [("C", ()), ("c", ("tile:4",))]


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


def test_a_size_on_a_dimension_that_is_not_an_inner_part_is_a_black_box() -> None:
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
def test_tvm_writes_the_size_of_a_tile_before_its_letter(tvm: str, text: str) -> None:
    assert Layout.from_tvm(tvm) == Layout.parse(text)
    assert str(Layout.from_tvm(tvm)) == text
    assert Layout.parse(text).to_tvm() == tvm


def test_tvms_leading_zeros_are_dropped() -> None:
    assert str(Layout.from_tvm("NCHW016c")) == "NCHWc[tile:16]"
    assert Layout.parse("NCHWc[tile:016]").to_tvm() == "NCHW16c"
    assert str(Layout.from_tvm("NCHW" + "0" * 5000 + "8c")) == "NCHWc[tile:8]"


@given(layouts)
def test_a_string_written_for_tvm_is_read_back(layout: Layout) -> None:
    try:
        text = layout.to_tvm()
    except InputError:
        return
    assert Layout.from_tvm(text) == layout


@given(st.lists(st.sampled_from("NCHWDOI"), unique=True, min_size=1, max_size=4), st.data())
def test_tvms_blocked_strings_are_read_and_written_back(outer: list[str], choice: st.DataObject) -> None:
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
def test_a_string_that_tvm_rejects_is_rejected(text: str, column: int, expected: str, found: str) -> None:
    error = refusal(text, Layout.from_tvm)
    assert_points_into(error, text)
    assert error.column == column
    assert expected in error.expected
    assert error.found == found


@given(st.text(st.characters()) | st.text("NCHWOIchwoi0123456789*[] ", max_size=12))
def test_any_text_is_a_tvm_layout_or_a_layout_error(text: str) -> None:
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
def test_a_layout_that_tvm_cannot_express_is_an_error(text: str, found: str) -> None:
    with pytest.raises(InputError, match="TVM cannot express this layout") as caught:
        Layout.parse(text).to_tvm()
    assert found in caught.value.found


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
def test_minor_to_major_is_read_and_written_back(axes: list[int]) -> None:
    text = f"{{{','.join(map(str, axes))}}}"
    layout = Layout.parse(f" {{ {' , '.join(map(str, axes))} }} ")
    assert layout.to_minor_to_major() == text
    assert layout == Layout.from_minor_to_major(text) == Layout.from_names("".join(map(str, reversed(axes))))
    names = "ABCDEFGH"[: len(axes)]
    assert layout.with_names(names).to_minor_to_major(names) == text
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_a_layout_of_numbers_requires_an_order_only() -> None:
    layout = Layout.parse("{0,2,1}")
    assert (layout.is_numbered, layout.is_any, layout.rank, layout.names) == (True, False, 3, "120")
    assert [layout.alignment(i) for i in range(3)] == [1, 1, 1]
    assert [layout.boxes(i) for i in range(3)] == [(), (), ()]
    assert not Layout.parse("NCW").is_numbered


@pytest.mark.parametrize(
    ("text", "axes"), [("NHWC", None), ("NHWC", "NCDW"), ("N[a=4]C", "NC"), ("N*", "N*"), ("NCHW4c", "NCHW")]
)
def test_a_layout_that_xla_cannot_express_is_an_error(text: str, axes: str | None) -> None:
    with pytest.raises(InputError, match="XLA cannot express this layout"):
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
