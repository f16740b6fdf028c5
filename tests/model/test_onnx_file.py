"""The data of large constants stay in the bytes of the file, and all else is what protobuf makes of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayout.errors import InputError
from relayout.model import onnx_file
from relayout.model.io import read_model, write_whole
from relayout.model.onnx_file import Parsed, parse

WEIGHT = np.random.default_rng(0).standard_normal((160, 128)).astype(np.float32)


def model(*constants: TensorProto, nodes: int = 1, opset: int = 20) -> onnx.ModelProto:
    """A chain of products with one large weight, which more constants follow."""
    value = helper.make_tensor_value_info
    names = ["x", *(f"x{number}" for number in range(1, nodes)), "y"]
    steps = [helper.make_node("Relu", [one], [other]) for one, other in pairwise(names[1:])]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], names[1:2]), *steps],
        "g",
        [value("x", TensorProto.FLOAT, [2, 160])],
        [value("y", TensorProto.FLOAT, [2, 128])],
        [numpy_helper.from_array(WEIGHT, "w"), *constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_a_large_weight_is_no_part_of_the_protobuf_but_of_the_file() -> None:
    file = model(numpy_helper.from_array(WEIGHT[:4], "small")).SerializeToString()
    parsed = parse(file)
    weight, small = parsed.proto.graph.initializer
    assert (weight.name, weight.HasField("raw_data"), [*parsed.data]) == ("w", False, [0])
    assert parsed.data[0] == WEIGHT.tobytes()
    assert parsed.data[0].obj is file
    assert small.raw_data == WEIGHT[:4].tobytes()
    assert parsed.whole() == onnx.load_from_string(file)


def test_a_weight_that_is_read_is_not_copied_and_not_writable() -> None:
    file = model().SerializeToString()
    weight = read_model(file).graph.initializers["w"].const_value
    assert weight is not None
    assert np.shares_memory(weight.numpy(), np.frombuffer(file, np.uint8))
    assert not weight.numpy().flags.writeable
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)


def test_a_weight_keeps_its_description() -> None:
    source = model()
    source.graph.initializer[0].doc_string = "trained"
    source.graph.initializer[0].metadata_props.add(key="by", value="hand")
    file = io.BytesIO()
    write_whole(read_model(source.SerializeToString()), file)
    [written] = onnx.load_from_string(file.getvalue()).graph.initializer
    assert (written.doc_string, [(each.key, each.value) for each in written.metadata_props]) == (
        "trained",
        [("by", "hand")],
    )


@pytest.mark.parametrize("dtype", [each for each in ir.DataType if each.name not in ("UNDEFINED", "STRING")])
def test_a_weight_of_each_type_is_the_same_as_one_that_is_parsed(
    dtype: ir.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 320 * 256
    data = np.random.default_rng(1).integers(0, 2, count * dtype.bitwidth // 8, np.uint8).tobytes()
    file = model(TensorProto(name="v", data_type=dtype.value, dims=[320, 256], raw_data=data)).SerializeToString()
    assert set(parse(file).data) == ({0, 1} if dtype.bitwidth >= 8 else {0})
    ours = read_model(file)
    monkeypatch.setattr(onnx_file, "LARGE", len(file) + 1)
    theirs = read_model(file)
    one, other = (each.graph.initializers["v"].const_value for each in (ours, theirs))
    assert one is not None
    assert other is not None
    assert (one.dtype, one.tobytes(), one.numpy().dtype) == (other.dtype, data, other.numpy().dtype)
    assert written(file) == bytes_of(ours) == bytes_of(theirs)


def test_a_file_that_is_parsed_is_a_source_that_can_be_read_again() -> None:
    parsed = parse(model().SerializeToString())
    first, second = (written(parsed) for _ in range(2))
    assert first == second == written(model().SerializeToString())


@pytest.mark.parametrize(
    "constant",
    [
        numpy_helper.from_array(np.arange(20_000), "indices"),
        helper.make_tensor("half", TensorProto.INT4, [400, 400], bytes(80_000), raw=True),
        TensorProto(name="more", data_type=TensorProto.FLOAT, dims=[20_000], float_data=[0.5] * 20_000),
        TensorProto(name="none", data_type=TensorProto.FLOAT, dims=[400, 400]),
    ],
    ids=lambda constant: constant.name,
)
def test_data_that_a_stage_reads_or_that_are_no_whole_bytes_are_parsed(constant: TensorProto) -> None:
    parsed = parse(model(constant).SerializeToString())
    assert parsed.proto.graph.initializer[1] == constant
    assert [*parsed.data] == [0]


@pytest.mark.parametrize(
    "source",
    [
        model(nodes=40),  # the walk would end before the weight
        model(opset=6),
        model(*(numpy_helper.from_array(WEIGHT[:100], f"w{number}") for number in range(2))),  # most data are small
    ],
    ids=["many nodes", "of an old opset", "small weights"],
)
def test_other_files_are_parsed_whole(source: onnx.ModelProto) -> None:
    parsed = parse(source.SerializeToString())
    assert parsed.data == {}
    assert parsed.proto == source


def test_the_constants_of_a_second_graph_follow_those_of_the_first() -> None:
    more = onnx.ModelProto()
    more.graph.initializer.append(numpy_helper.from_array(WEIGHT[:4] + 1, "more"))
    file = model().SerializeToString() + more.SerializeToString()
    assert [each.name for each in parse(file).proto.graph.initializer] == ["w", "more"]
    assert written(file) == written(onnx.load_from_string(file).SerializeToString())


FAULTS: dict[str, Callable[[TensorProto], object]] = {
    "bytes fewer than the shape has": lambda tensor: setattr(tensor, "raw_data", tensor.raw_data[1:]),
    "data twice": lambda tensor: tensor.float_data.append(1.0),
    "a part of a tensor": lambda tensor: setattr(tensor.segment, "end", 4),
    "strings as bytes": lambda tensor: setattr(tensor, "data_type", TensorProto.STRING),
    "no type": lambda tensor: tensor.ClearField("data_type"),
    "a negative extent": lambda tensor: tensor.dims.append(-1),
    "data in a file too": lambda tensor: setattr(tensor, "data_location", TensorProto.EXTERNAL),
}


@pytest.mark.parametrize("break_", FAULTS.values(), ids=FAULTS)
def test_the_fault_of_a_large_weight_is_reported_as_that_of_a_small_one(
    break_: Callable[[TensorProto], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = model(), tmp_path / "model.onnx"
    break_(source.graph.initializer[0])
    path.write_bytes(source.SerializeToString())
    errors = []
    for large in (onnx_file.LARGE, 1 << 30):
        monkeypatch.setattr(onnx_file, "LARGE", large)
        with pytest.raises(InputError) as error:
            read_model(path)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("end", [1, 1_000, 81_920, 81_950])
def test_a_file_that_is_cut_off_is_no_model(end: int) -> None:
    with pytest.raises(InputError, match="not an ONNX model"):
        read_model(model().SerializeToString()[:-end])


def written(source: bytes | Parsed) -> bytes:
    return bytes_of(read_model(source))


def bytes_of(model: ir.Model) -> bytes:
    file = io.BytesIO()
    write_whole(model, file)
    return file.getvalue()
