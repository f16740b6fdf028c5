"""Weights in files beside the model: the folders that are searched, and the callers that may name a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers
from model_files import conv, large, outside, parse, same, shapes
from onnx import TensorProto, numpy_helper

from relayout import legalize
from relayout.errors import InputError
from relayout.model.external_data import FileTensor
from relayout.model.io import read_model, to_proto, write_model
from relayout.verification.verifier import verify


def test_weights_in_a_file_stay_there_until_they_are_read(tmp_path: Path) -> None:
    read = read_model(outside(tmp_path))
    tensors = [value.const_value for value in read.graph.initializers.values()]
    assert all(isinstance(tensor, FileTensor) for tensor in tensors)
    expected = [onnx.numpy_helper.to_array(tensor) for tensor in large().graph.initializer]
    assert all(np.array_equal(tensor.numpy(), array) for tensor, array in zip(tensors, expected, strict=True) if tensor)


def test_shapes_in_a_file_are_followed(tmp_path: Path) -> None:
    assert shapes(read_model(outside(tmp_path, conv())))["y"] == [1, 4, 36]


SIZED = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[1,2,3,4] x, bool c) => (float[a,b,d,e] y, float[p,q] z) {
      sizes = Constant<value = int64[4] {1,2,6,8}>()  y = Resize(x, , , sizes)
      z = If (c) <
        then_branch = t () => (float[r,s] f) <int64[2] to = {4,6}> { f = Reshape(x, to) },
        else_branch = e () => (float[r,s] k) { to = Constant<value = int64[2] {4,6}>()  k = Reshape(x, to) }> }"""


def test_sizes_inside_nodes_may_be_in_a_file(tmp_path: Path) -> None:
    model, path = onnx.parser.parse_model(SIZED), tmp_path / "model.onnx"
    saved = onnx.ModelProto.FromString(model.SerializeToString())
    branches = [attribute.g for attribute in saved.graph.node[2].attribute]
    inside = [branches[0].initializer[0], branches[1].node[0].attribute[0].t, saved.graph.node[0].attribute[0].t]
    for tensor in inside:
        # onnx moves raw bytes only.
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(saved, path, save_as_external_data=True, size_threshold=0, convert_attribute=True)
    assert all(tensor.data_location == TensorProto.EXTERNAL for tensor in inside)
    found = {value.name: str(value.shape) for value in read_model(path).graph.outputs}
    assert found == {"y": "[1,2,6,8]", "z": "[4,6]"}
    legal, _ = legalize(path, "nhwc")
    assert verify(legal, "nhwc", against=model).passed


IN_FUNCTION = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    g (float[1,2,3,4] x) => (float[u,v] y) { y = own.Flat(x) }
    <domain: "own", opset_import: ["" : 18]> Flat (a) => (b) {
      to = Constant<value = int64[2] {2,12}>()  b = Reshape(a, to) }"""


def test_sizes_inside_functions_may_be_in_a_file(tmp_path: Path) -> None:
    model, path = onnx.parser.parse_model(IN_FUNCTION), tmp_path / "model.onnx"
    tensor = model.functions[0].node[0].attribute[0].t
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, convert_attribute=True)
    assert onnx.load(path, load_external_data=False).functions[0].node[0].attribute[0].t.external_data
    assert [str(value.shape) for value in read_model(path).graph.outputs] == ["[2,12]"]


def test_a_model_with_weights_in_a_file_is_written_as_one(tmp_path: Path) -> None:
    read = read_model(outside(tmp_path))
    (tmp_path / "out").mkdir()
    write_model(read, tmp_path / "out" / "model.onnx")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.onnx", "model.onnx.data"]
    assert same(to_proto(read_model(tmp_path / "out" / "model.onnx")), to_proto(read_model(large())))


def test_a_model_can_be_written_over_itself(tmp_path: Path) -> None:
    path = outside(tmp_path)
    write_model(read_model(path), path)
    write_model(read_model(path), path)
    assert same(read_model(path), read_model(large()))


def test_data_that_changed_since_it_was_read_is_an_error(tmp_path: Path) -> None:
    read = read_model(outside(tmp_path))
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes() + b"more")
    tensor = read.graph.initializers["w0"].const_value
    assert tensor is not None
    with pytest.raises(InputError, match="the file changed"):
        tensor.numpy()


def _relocate(path: Path, location: str, **entries: str) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
        for key, text in {"location": location, **entries}.items():
            tensor.external_data.add(key=key, value=text)
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("location", "entries", "problem"),
    [
        ("nowhere.bin", {}, "the external data file is missing"),
        ("../weights.bin", {}, "external data outside the model's folder"),
        ("/etc/hostname", {}, "external data outside the model's folder"),
        ("link.bin", {}, "external data outside the model's folder"),
        (".", {}, "the external data file is missing"),
        ("weights.bin", {"offset": "-1"}, "the external data does not fit the constant"),
        ("weights.bin", {"offset": "99999"}, "the external data does not fit the constant"),
        ("weights.bin", {"length": "5"}, "the external data does not fit the constant"),
        ("weights.bin", {"length": "many"}, "the external data has no place in its file"),
        ("", {}, "the external data file is missing"),
    ],
)
def test_weights_are_looked_for_in_the_models_folder_only(
    tmp_path: Path, location: str, entries: dict[str, str], problem: str
) -> None:
    (tmp_path / "model").mkdir()
    path = outside(tmp_path / "model")
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 16))
    os.symlink(tmp_path / "weights.bin", tmp_path / "model" / "link.bin")
    _relocate(path, location, **entries)
    with pytest.raises(InputError, match=problem):
        read_model(path)


@pytest.mark.parametrize("location", ["weights.bin", "nowhere.bin", "/etc/hostname"])
def test_an_upload_cannot_name_a_file(tmp_path: Path, location: str) -> None:
    path = outside(tmp_path)
    _relocate(path, location)
    for source in (path, path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(InputError, match="external data is not accepted here"):
            read_model(source, external_data=False)


def in_file() -> TensorProto:
    """A tensor of the numbers 1 and 2, which are said to lie in weights.bin."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    return tensor


def as_tensor(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("t", in_file()))


def as_tensors(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("t", [in_file()]))


def as_tensors_in_a_subgraph(model: onnx.ModelProto) -> None:
    inner = parse("g (float[2] z) => (y) { y = mine.Op (z) }")
    as_tensors(inner)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("g", inner.graph))


def as_default_of_a_function(model: onnx.ModelProto) -> None:
    opsets = [onnx.helper.make_opsetid("", 20)]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    function = onnx.helper.make_function("relayout", "Op", ["x"], ["y"], [node], opsets)
    function.attribute_proto.append(onnx.helper.make_attribute("t", [in_file()]))
    model.functions.append(function)


@pytest.mark.parametrize("place", [as_tensor, as_tensors, as_tensors_in_a_subgraph, as_default_of_a_function])
def test_an_upload_cannot_name_a_file_in_an_attribute(tmp_path: Path, place: Callable[[onnx.ModelProto], None]) -> None:
    model = parse("g (float[2] x) => (y) { y = mine.Op (x) }")
    place(model)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "weights.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    read = read_model(path)
    holders = [*read.graph.all_nodes(), *read.functions.values()]
    found = [holder.attributes["t"].value for holder in holders if "t" in holder.attributes]
    (tensor,) = [each[0] if isinstance(each, Sequence) else each for each in found]
    assert tensor.numpy().tolist() == [1, 2]
    with pytest.raises(InputError, match="external data is not accepted here"):
        read_model(path.read_bytes(), external_data=False)


def test_a_model_in_memory_has_no_folder_for_its_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a folder to look in"):
        read_model(outside(tmp_path).read_bytes())


@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_an_empty_constant_may_be_in_a_file_too(tmp_path: Path, place: str) -> None:
    none = np.zeros((2, 0), np.float32)
    net = Net()
    if place == "initializer":
        nothing = net.constant(none)
    else:
        nothing = net.node("Constant", value=numpy_helper.from_array(none))
    net.output(net.node("Concat", net.input("x", (2, 3)), nothing, axis=1))
    path = tmp_path / "model.onnx"
    onnx.save(net.model(), path, save_as_external_data=True, size_threshold=0, convert_attribute=True)
    legal, _ = legalize(path)
    write_model(legal, path)
    assert_same_numbers(net.model(), onnx.load(path))


@pytest.mark.parametrize("inside", [False, True], ids=["of the graph", "of a node"])
def test_a_file_with_several_hard_links_is_read_and_compared(inside: bool, tmp_path: Path) -> None:
    """onnx.load refuses it. Caches of models and copies of folders have such files."""
    net = Net()
    value = net.conv(net.input("x", (1, 4, 6, 6)), 4, 4)
    net.output(net.node("Add", value, net.node("Constant", value=numpy_helper.from_array(np.ones(6, np.float32)))))
    path = tmp_path / "model.onnx"
    convert = {"convert_attribute": inside, "size_threshold": 0, "location": "weights.bin"}
    onnx.save(net.model(), path, save_as_external_data=True, **convert)
    os.link(tmp_path / "weights.bin", tmp_path / "link.bin")
    legal, _ = legalize(path, "nhwc")
    verification = verify(legal, "nhwc", against=path)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.untried == ()
