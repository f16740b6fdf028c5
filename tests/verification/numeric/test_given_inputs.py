"""Inputs that the caller gives take the place of random ones."""

from __future__ import annotations

import bz2
from io import BytesIO
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_LZMA, ZIP_STORED, ZipFile

import numpy as np
import onnx
import pytest
from verified_models import rules

import relayout
from relayout.errors import InputError, UsageError
from relayout.verification.numeric.given_inputs import read_arrays

RANDOM = np.random.default_rng(0)
# Random lengths are seldom those of the parts of `x`: their sum has to be its number of rows.
SPLIT = """<ir_version: 10, opset_import: ["" : 20]>
    g (int64[n] lengths, float[m,4] x, float[1,3,6,6] image, float s) => (float[1,4,6,6] y, float[p,4] z)
    <float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float s = {1.0}> {
        a = Conv (image, w)
        y = Mul (a, s)
        parts = SplitToSequence <axis = 0> (x, lengths)
        z = ConcatFromSequence <axis = 0> (parts)
    }"""


def sample(*lengths: int, **others: Any) -> dict[str, Any]:
    rows = RANDOM.normal(size=(sum(lengths), 4)).astype(np.float32)
    image = RANDOM.normal(size=(1, 3, 6, 6)).astype(np.float32)
    return {"lengths": np.array(lengths), "x": rows, "image": image, **others}


def test_both_models_run_on_the_inputs_that_are_given() -> None:
    source = onnx.parser.parse_model(SPLIT)
    legal, _ = relayout.legalize(source, "nhwc")
    given = [sample(40, 57, 3), sample(1, 2, 5, s=np.float32(3))]
    found = relayout.verify(legal, "nhwc", against=source, inputs=given)
    assert found.passed
    assert found.numeric is not None
    assert found.numeric.not_compared == ()
    assert {each.name for each in found.numeric.outputs} == {"y", "z"}


def test_legalization_compares_on_the_inputs_that_are_given() -> None:
    source = onnx.parser.parse_model(SPLIT)
    _, report = relayout.legalize(source, "nhwc", inputs=[sample(40, 57, 3)])
    assert report.ok
    assert report.verification is not None
    numeric = report.verification.numeric
    assert numeric is not None
    assert ({each.name for each in numeric.outputs}, numeric.samples) == ({"y", "z"}, 1)
    with pytest.raises(UsageError, match="do not fit the original"):
        relayout.legalize(source, "nhwc", inputs=[{"none": np.zeros(3)}])


def test_a_fault_that_random_numbers_do_not_reach_is_found_on_given_ones() -> None:
    source = onnx.parser.parse_model(SPLIT)
    wrong = onnx.parser.parse_model(SPLIT.replace("a = Conv (image, w)", "c = Clip (image, s) a = Conv (c, w)"))
    del wrong.graph.node[0].input[1]
    wrong.graph.node[0].input.extend(["", "most"])
    wrong.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1000, np.float32), "most"))
    assert "numeric" not in rules(relayout.verify(wrong, "onnx", against=source))
    assert "numeric" not in rules(relayout.verify(wrong, "onnx", against=source, inputs=[sample(2, 5), sample(2, 5)]))
    large = [sample(2, 5), sample(2, 5, image=np.full((1, 3, 6, 6), 5000, np.float32))]
    assert "numeric" in rules(relayout.verify(wrong, "onnx", against=source, inputs=large))


@pytest.mark.parametrize(
    ("given", "expected", "found"),
    [
        ({"y": np.zeros(3)}, "one of ", "no input of the original"),
        ({"x": None}, "an array for each input", "none"),
        ({"x": np.zeros((3, 4))}, "elements of type float32", "float64"),
        ({"x": np.zeros((3, 5), np.float32)}, "the shape [m,4]", "[3,5]"),
        ({"x": np.zeros(3, np.float32)}, "the shape [m,4]", "[3]"),
        ({"x": [[1, 2], [3]]}, "elements of type float32", "setting an array element with a sequence."),
        ({"x": "abc"}, "elements of type float32", "could not convert string to float: 'abc'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(given: dict[str, Any], expected: str, found: str) -> None:
    source = onnx.parser.parse_model(SPLIT)
    inputs = {name: data for name, data in {**sample(1, 2), **given}.items() if data is not None}
    with pytest.raises(UsageError, match="do not fit") as caught:
        relayout.verify(source, "onnx", against=source, inputs=[inputs])
    assert caught.value.where == f"inputs, {next(iter(given))}"
    assert expected in caught.value.expected
    assert caught.value.found.startswith(found)


def test_numbers_of_python_and_bytes_in_another_order_are_inputs() -> None:
    source = onnx.parser.parse_model(SPLIT)
    lists = {name: data.tolist() for name, data in sample(1, 2).items()}
    turned = {name: data.astype(data.dtype.newbyteorder(">")) for name, data in sample(2, 1).items()}
    assert relayout.verify(source, "onnx", against=source, inputs=[lists, turned]).passed


def test_one_dim_has_one_extent() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[n] a, float[n] b) => (float[n] y) { y = Add (a, b) }'
    source = onnx.parser.parse_model(text)
    with pytest.raises(UsageError, match="do not fit") as caught:
        relayout.verify(source, "onnx", against=source, inputs=[{"a": [1.0], "b": [1.0, 2.0]}])
    assert (caught.value.expected, caught.value.found) == ("1 for the dim n, as in another input", "2")


@pytest.mark.parametrize("given", [sample(1, 2), [None], ["x"], 3])
def test_inputs_are_a_list_of_mappings(given: Any) -> None:
    source = onnx.parser.parse_model(SPLIT)
    with pytest.raises(UsageError, match="no list of samples"):
        relayout.verify(source, "onnx", against=source, inputs=given)


def test_a_sequence_is_no_array() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (seq(float[2]) s) => (float[2] y) <int64 n = {0}> { y = SequenceAt (s, n) }"""
    source = onnx.parser.parse_model(text)
    with pytest.raises(UsageError, match="do not fit") as caught:
        relayout.verify(source, "onnx", against=source, inputs=[{"s": [[1.0, 2.0]]}])
    assert caught.value.found == "another kind of input"


def test_inputs_need_a_comparison() -> None:
    source = onnx.parser.parse_model(SPLIT)
    with pytest.raises(UsageError, match="without a comparison"):
        relayout.verify(source, "onnx", inputs=[sample(1, 2)])


def test_an_original_that_does_not_take_the_inputs_is_not_run_on_others() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (int64[n] ids) => (float[n,2] y) <float[3,2] table = {1,2,3,4,5,6}> { y = Gather (table, ids) }"""
    source = onnx.parser.parse_model(text)
    assert rules(relayout.verify(source, "onnx", against=source, inputs=[{"ids": np.array([2, 0, 1])}])) == set()
    found = relayout.verify(source, "onnx", against=source, inputs=[{"ids": np.array([99])}])
    assert rules(found) == {"not-compared"}
    assert "99" in next(str(each.found) for each in found.findings if each.rule == "not-compared")


@pytest.mark.parametrize("sizes", [[(2,)], [(2,), (3,)]])
def test_samples_of_other_sizes_are_not_said_to_prove_nothing(sizes: list[tuple[int, ...]]) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]> g (float[n,2] x) => (float[n,2] y) { y = Neg (x) }"""
    source = onnx.parser.parse_model(text)
    given = [{"x": RANDOM.normal(size=(*size, 2)).astype(np.float32)} for size in sizes]
    (finding,) = relayout.verify(source, "onnx", against=source, inputs=given).findings
    assert (finding.rule, finding.severity) == ("vacuous", "warning")
    assert "proves nothing" not in finding.message
    assert "same shapes" in str(finding.expected)


def packed(content: bytes, method: int = ZIP_STORED) -> bytearray:
    """A ZIP file with one array."""
    file = BytesIO()
    with ZipFile(file, "w", method) as archive:
        archive.writestr("image.npy", content)
    return bytearray(file.getvalue())


def array_file() -> bytes:
    file = BytesIO()
    np.save(file, np.arange(64, dtype="f4"))
    return file.getvalue()


def headed(header: str) -> bytes:
    """An array file with this header, and no data."""
    return b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header.encode() + b"\n"


def encrypted() -> bytearray:
    """The flag is in the file's entry and again in the list of all."""
    content = packed(array_file())
    for start, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(start) + place] |= 1
    return content


def damaged(method: int, magic: bytes) -> bytearray:
    content = packed(array_file(), method)
    place = content.find(magic) + len(magic) + 8
    content[place : place + 8] = bytes(8)
    return content


@pytest.mark.parametrize(
    "content",
    [
        b"no ZIP file",
        packed(array_file())[:-30],
        encrypted(),
        damaged(ZIP_BZIP2, bz2.compress(b"")[:3]),
        damaged(ZIP_LZMA, b"\x09\x04\x05\x00"),
        packed(headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 70},)}}")),
        packed(headed("(" * 9000)),
        packed(headed("-" * 5000 + "1")),
        packed(headed("{1: 2, 'a': 3}")),
    ],
    ids=["no ZIP", "cut off", "encrypted", "bz2", "lzma", "large", "open", "deep", "keys"],
)
def test_a_file_that_is_damaged_is_an_error_of_its_author(content: bytes | bytearray) -> None:
    with pytest.raises(InputError, match="the inputs cannot be read"):
        read_arrays(BytesIO(bytes(content)), "sample.npz")


def test_a_disk_that_fails_is_no_error_of_the_author() -> None:
    class Failing(BytesIO):
        """It fails when it is read for its arrays, from the start."""

        is_broken = False

        def seek(self, offset: int, whence: int = 0) -> int:
            self.is_broken = (offset, whence) == (0, 0)
            return super().seek(offset, whence)

        def read(self, size: int | None = -1) -> bytes:
            if self.is_broken:
                raise OSError(5, "Input/output error")
            return super().read(size)

    with pytest.raises(OSError, match="Input/output error"):
        read_arrays(Failing(bytes(packed(array_file()))), "sample.npz")
