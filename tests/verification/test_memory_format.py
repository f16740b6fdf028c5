"""The verifier's own memory formats: parsed from annotations, and arrays in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest

from relayout.verification.memory_format import MemoryFormat, parse_atoms


def parsed(text: str) -> MemoryFormat:
    format_ = parse_atoms(text)
    assert format_ is not None
    return format_


@pytest.mark.parametrize(
    ("text", "extents", "fault"),
    [
        ("0,1:16:0,2,1:1:16", (1, 64, 7), None),
        ("0,1:1:2+1:2:0,2", (1, 64, 7), None),
        ("0,1:16:32,2,1:1:16", (1, 24, 7), None),
        ("0,2", (3, 1, 7), None),
        ("0,,2", (3, 1, 7), None),
        ("0,2", (3, 4, 7), "no axis 1"),
        ("0,1,2,3", (3, 4, 7), "axis 3 of 3"),
        ("0,1,1", (3, 4), "atoms of axis 1 that overlap at stride 1"),
        ("0,1:4:0,1:1:2", (3, 8), "atoms of axis 1 that have a gap at stride 2"),
        ("0,1:2:0,1:1:4", (3, 8), "atoms of axis 1 that overlap at stride 2"),
        ("0,1:2:0", (3, 8), "atoms of axis 1 that have a gap at stride 1"),
        ("0,1:1:4", (3, 8), "atoms of axis 1 that end at 4 of 8"),
        ("0,1:3:0,1:1:3", (3, 8), "blocks of 3 that do not divide the 8 of axis 1"),
        ("0,1:3:8,1:1:3", (3, 8), "no digits 3:8 of axis 1"),
        ("0,1:4:4,1:1:4", (3, 4), "no digits 4:4 of axis 1"),
    ],
)
def test_atoms_are_all_digits_of_each_axis_once(text: str, extents: Sequence[int], fault: str | None) -> None:
    assert parsed(text).fault(extents) == fault


@pytest.mark.parametrize("text", ["0,1:2", "x", "0,1:2:3:4", "0;1", "0, 1", "0,-1", "0,+1", "0,1:\u0662:0"])
def test_an_invalid_list_of_atoms_is_not_read(text: str) -> None:
    assert parse_atoms(text) is None


@pytest.mark.parametrize(
    ("text", "extents", "shape"),
    [
        ("0,2,3,1", (2, 24, 5, 3), (2, 5, 3, 24)),
        ("0,1:8:0,2,3,1:1:8", (2, 24, 5, 3), (2, 3, 5, 3, 8)),
        ("0,1:16:32,2,3,1:1:16", (2, 24, 5, 3), (2, 2, 5, 3, 16)),
        ("0,2:2:0,3:3:0,2:1:2+3:1:3+1", (2, 5, 4, 9), (2, 2, 3, 30)),
        ("0,2:2:6,1,2:1:2", (2, 5, 5), (2, 3, 5, 2)),
        ("1:1:5,0", (7, 3), (5, 7)),
    ],
)
def test_an_array_is_arranged_and_read_back(text: str, extents: tuple[int, ...], shape: tuple[int, ...]) -> None:
    format_ = parsed(text)
    array = np.arange(1, np.prod(extents) + 1).reshape(extents)
    arranged = format_.of(array)
    assert arranged is not None
    assert arranged.shape == shape == format_.shape(extents)
    assert np.count_nonzero(arranged) == array.size, "what is added are zeros"
    back = format_.back(arranged, extents)
    assert back is not None
    assert np.array_equal(back, array)


def test_an_array_is_arranged_as_its_annotation_states() -> None:
    array = np.arange(2 * 24 * 3).reshape(2, 24, 3)
    blocks = parsed("0,1:8:0,2,1:1:8").of(array)
    assert blocks is not None
    assert np.array_equal(blocks, array.reshape(2, 3, 8, 3).transpose(0, 1, 3, 2))
    shuffled = parsed("0,1:1:4+1:4:0,2").of(array)
    assert shuffled is not None
    assert np.array_equal(shuffled, array.reshape(2, 6, 4, 3).transpose(0, 2, 1, 3).reshape(2, 24, 3))


def test_unknown_extents_remain_unknown_in_tiles() -> None:
    batch = ir.SymbolicDim("batch")
    assert parsed("1,0").shape((batch, 3)) == (3, batch)
    assert parsed("1:2:0,0:2:0,1:1:2+0:1:2").shape((batch, 4)) == (2, None, 4)
