from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from relayout import onnx_file
from relayout.errors import InputError, InternalError, RelayoutError, UsageError
from relayout.external_data import FileTensor
from relayout.model_io import read_model, to_json, to_proto, warnings_of, write_model
from relayout.tensors import AbsentTensor, relaid


def parse(text: str, ir_version: int = 10, opset: int = 20) -> onnx.ModelProto:
    imports = f'["" : {opset}, "relayout" : 1, "mine" : 1]'
    return onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: {imports}> {text}")


def conv() -> onnx.ModelProto:
    """A convolution, and a Reshape by a constant."""
    model = parse(
        """g (float[1,3,8,8] x) => (y) <int64[3] shape = {1, 4, -1}> {
            c = Conv (x, w)
            y = Reshape (c, shape)
        }"""
    )
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def large(count: int = 3) -> onnx.ModelProto:
    """A chain of matrix products with weights of 4 KiB each."""
    rng = np.random.default_rng(1)
    weights = [onnx.numpy_helper.from_array(rng.random((32, 32), np.float32), f"w{i}") for i in range(count)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"m{i}") for i in range(count)]
    value = helper.make_tensor_value_info
    ends = [value("x0", TensorProto.FLOAT, [1, 32])], [value(f"x{count}", TensorProto.FLOAT, [1, 32])]
    graph = helper.make_graph(nodes, "chain", *ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def outside(folder: Path, model: onnx.ModelProto | None = None) -> Path:
    """The model saved with all its weights in a second file."""
    path = folder / "model.onnx"
    onnx.save(
        model or large(),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


def same(one: onnx.ModelProto | ir.Model, other: onnx.ModelProto | ir.Model) -> bool:
    protos = [to_proto(model) if isinstance(model, ir.Model) else model for model in (one, other)]
    first, second = (proto.SerializeToString(deterministic=True) for proto in protos)
    return first == second


def shapes(model: ir.Model) -> dict[str, list[int | str | None]]:
    values = [value for node in model.graph.all_nodes() for value in node.outputs]
    return {
        str(value.name): [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for value in values
        if value.shape is not None
    }


# --- what comes in ---------------------------------------------------------------------------------------------------


def test_every_kind_of_source_gives_the_same_model(tmp_path: Path) -> None:
    proto = large()
    onnx.save(proto, tmp_path / "model.onnx")
    models = [read_model(source) for source in (proto, tmp_path / "model.onnx", proto.SerializeToString())]
    models += [read_model(models[0]), read_model(to_json(models[0]))]
    write_model(models[0], tmp_path / "model.json")
    models.append(read_model(str(tmp_path / "model.json")))
    assert all(same(models[0], model) for model in models)


def test_the_callers_protobuf_is_left_alone() -> None:
    proto = large()
    before = proto.SerializeToString(deterministic=True)
    model = read_model(proto)
    model.graph.initializers["w0"].name = "renamed"
    model.graph[0].name = "renamed"
    assert proto.SerializeToString(deterministic=True) == before


def test_the_callers_onnx_ir_model_is_left_alone() -> None:
    source = ir.from_proto(large())
    before = to_proto(source).SerializeToString(deterministic=True)
    tensor = source.graph.initializers["w0"].const_value
    model = read_model(source)
    model.graph.initializers["w0"].name = "renamed"
    assert tensor is not None
    assert tensor.name == "w0"
    assert to_proto(source).SerializeToString(deterministic=True) == before
    assert not {id(node) for node in source.graph} & {id(node) for node in model.graph}


def test_shapes_are_inferred_through_the_values_of_constants() -> None:
    assert shapes(read_model(conv())) == {"c": [1, 4, 6, 6], "y": [1, 4, 36]}


def test_shapes_are_inferred_in_subgraphs() -> None:
    model = parse(
        """g (bool c, float[N,4] x) => (y) {
            y = If (c) <then_branch = t () => (a) { p = Relu (x)  a = Transpose (p) },
                        else_branch = e () => (b) { b = Transpose (x) }>
        }"""
    )
    assert shapes(read_model(model)) == {"y": [4, "N"], "p": ["N", 4], "a": [4, "N"], "b": [4, "N"]}


def test_absent_shape_data_leaves_a_shape_open_and_is_no_error() -> None:
    model = parse("g (float[2,6] x) => (y) { a = Reshape (x, s)  y = Gather <axis=1> (x, i)  z = Add (a, y) }")
    for name, count in (("i", 200), ("s", 2)):
        model.graph.initializer.add(name=name, data_type=TensorProto.INT64, dims=[count])
    read = read_model(model)
    assert shapes(read)["y"] == [2, 200]
    assert all(isinstance(value.const_value, AbsentTensor) for value in read.graph.initializers.values())


def test_local_functions_are_inlined() -> None:
    model = parse(
        """g (float[2,3] x) => (float[3,2] y) { y = mine.outer <n = 2> (x) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> outer <n> (a) => (b) {
            t = mine.inner (a)  b = Identity (t) }
        <domain: "mine", opset_import: ["" : 20]> inner (a) => (b) { r = Relu (a)  b = Transpose (r) }"""
    )
    read = read_model(model)
    assert [node.op_type for node in read.graph] == ["Relu", "Transpose", "Identity"]
    assert not read.functions
    assert [value.name for value in read.graph.outputs] == ["y"]


def test_a_function_of_another_opset_is_inlined_where_its_operators_mean_the_same() -> None:
    text = """g (float[2,3] x) => (y) {{ y = mine.f (x) }}
        <domain: "mine", opset_import: ["" : 17]> f (a) => (b) {{ r = Relu (a)  b = {} (r) }}"""
    assert [node.op_type for node in read_model(parse(text.format("Tanh"))).graph] == ["Relu", "Tanh"]
    with pytest.raises(InputError, match="cannot be inlined") as caught:
        read_model(parse(text.format("ReduceMean")))
    assert "17" in caught.value.found


def test_a_function_that_passes_its_input_on_keeps_the_outputs_name() -> None:
    model = parse(
        """g (float[2,3] x) => (float[2,3] y) { y = mine.same (x) }
        <domain: "mine", opset_import: ["" : 20]> same (a) => (b) { b = Identity (a) }"""
    )
    assert [value.name for value in read_model(model).graph.outputs] == ["y"]


def test_functions_of_the_domain_relayout_are_operators() -> None:
    model = parse(
        """g (float[1,4,4,3] x) => (y) { y = relayout.MaxPool <data_layout = "NHWC", kernel_shape = [2, 2]> (x) }
        <domain: "relayout", opset_import: ["" : 20]> MaxPool <data_layout, kernel_shape> (x) => (y) {
            a = Transpose <perm = [0, 3, 1, 2]> (x)
            b = MaxPool <kernel_shape: ints = @kernel_shape> (a)
            y = Transpose <perm = [0, 2, 3, 1]> (b) }"""
    )
    read = read_model(model)
    assert [node.domain for node in read.graph] == ["relayout"]
    assert shapes(read)["y"] == [1, 3, 3, 3]
    assert same(read, read_model(to_json(read)))


def test_before_ir_version_4_constants_are_no_inputs() -> None:
    model = parse("g (float[2] x, float[2] k) => (y) <float[2] k = {1, 2}> { y = Add (x, k) }", ir_version=3, opset=8)
    read = read_model(model)
    assert [value.name for value in read.graph.inputs] == ["x"]
    assert read.ir_version == 4
    assert warnings_of(read) == ("IR version 3 lists constants as inputs: 1 became plain constants",)
    assert warnings_of(read_model(read)) == warnings_of(read)


def test_from_ir_version_4_a_constant_that_is_an_input_can_be_overridden() -> None:
    model = parse("g (float[2] x, float[2] k) => (y) <float[2] k = {1, 2}> { y = Add (x, k) }")
    read = read_model(model)
    assert [value.name for value in read.graph.inputs] == ["x", "k"]
    again = read_model(to_json(read))
    assert [value.name for value in again.graph.inputs] == ["x", "k"]
    assert [value.const_value.numpy().tolist() for value in again.graph.initializers.values()] == [[1, 2]]


def test_operators_that_onnx_does_not_know_are_kept() -> None:
    model = parse("g (float[2] x) => (float[7] y) <float[3] v> { v = mine.Odd <a = 1.5> (x)  y = Unheard (v) }")
    read = read_model(model)
    assert [(node.domain, node.op_type) for node in read.graph] == [("mine", "Odd"), ("", "Unheard")]
    assert shapes(read)["v"] == [3]


def test_nodes_are_put_into_order() -> None:
    model = parse("g (float[2] x) => (y) { a = Relu (x)  b = Neg (a)  y = Abs (b) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [node.op_type for node in read_model(model).graph] == ["Relu", "Neg", "Abs"]


def test_the_standard_domain_has_one_name() -> None:
    model = parse("g (float[2] x) => (y) { y = Relu (x) }")
    model.opset_import[0].domain = "ai.onnx"
    model.graph.node[0].domain = "ai.onnx"
    read = read_model(model)
    assert read.opset_imports[""] == 20
    assert read.graph[0].domain == ""


def test_a_graph_without_standard_operators_gets_an_opset() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = mine.Odd (x) }", ir_version=8)
    del model.opset_import[0]
    assert read_model(model).opset_imports[""] == 18


def test_an_old_exporters_minus_one_is_an_unknown_extent() -> None:
    model = parse("g (float[2,3] x) => (y) { y = Relu (x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert shapes(read_model(model)) == {"y": ["unk__0", 3]}


# --- constants without data ------------------------------------------------------------------------------------------


def absent() -> ir.Model:
    model = large(1)
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].doc_string = "seeded:0:1:0.5:0.3"
    return read_model(model)


def test_an_absent_constant_has_a_type_and_a_shape_and_says_so_when_read() -> None:
    tensor = absent().graph.initializers["w0"].const_value
    assert isinstance(tensor, AbsentTensor)
    assert (tensor.dtype, list(tensor.shape), tensor.doc_string) == (ir.DataType.FLOAT, [32, 32], "seeded:0:1:0.5:0.3")
    for read in (tensor.numpy, tensor.tobytes):
        with pytest.raises(InputError, match="data of this constant is absent"):
            read()


def test_an_absent_constant_remembers_what_to_do_to_its_data(tmp_path: Path) -> None:
    model = parse("g (float[8] x) => (float[8] y) { y = mine.Odd (x, w) }")
    model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[32, 16])
    read = read_model(model)
    value = read.graph.initializers["w"]
    for step in ({"op": "transpose", "perm": [1, 0]}, {"op": "reshape", "shape": [4, 128]}):
        assert value.const_value is not None
        value.const_value = relaid(value.const_value, [step])
    value.shape = ir.Shape([4, 128])
    write_model(read, tmp_path / "model.onnx")
    again = read_model(tmp_path / "model.onnx").graph.initializers["w"].const_value
    assert isinstance(again, AbsentTensor)
    assert list(again.shape) == [4, 128]
    reshape = {"op": "reshape", "shape": [4, 128], "from": [16, 32]}
    assert again.transform == ({"op": "transpose", "perm": [1, 0]}, reshape)


def test_a_constant_cannot_be_relaid_into_another_size() -> None:
    with pytest.raises(InternalError, match="cannot be re-laid"):
        relaid(AbsentTensor(ir.DataType.FLOAT, [2, 3], "w"), [{"op": "reshape", "shape": [7]}])
    with pytest.raises(InternalError, match="cannot be re-laid"):
        relaid(ir.tensor(np.zeros((2, 3))), [{"op": "transpose", "perm": [0, 0]}])


# --- weights in files ------------------------------------------------------------------------------------------------


def test_weights_in_a_file_stay_there_until_they_are_read(tmp_path: Path) -> None:
    read = read_model(outside(tmp_path))
    tensors = [value.const_value for value in read.graph.initializers.values()]
    assert all(isinstance(tensor, FileTensor) for tensor in tensors)
    expected = [onnx.numpy_helper.to_array(tensor) for tensor in large().graph.initializer]
    assert all(np.array_equal(tensor.numpy(), array) for tensor, array in zip(tensors, expected, strict=True) if tensor)


def test_shapes_in_a_file_are_followed(tmp_path: Path) -> None:
    assert shapes(read_model(outside(tmp_path, conv())))["y"] == [1, 4, 36]


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
        ("weights.bin", {"length": "many"}, "the external data has no place"),
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


# --- what goes out ---------------------------------------------------------------------------------------------------


def test_what_is_written_passes_onnx_and_computes_the_same(tmp_path: Path) -> None:
    source = conv()
    write_model(read_model(source), tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    x = np.random.default_rng(2).random((1, 3, 8, 8), np.float32)
    expected, found = (
        ReferenceEvaluator(model).run(None, {"x": x})[0] for model in (source, onnx.load(tmp_path / "model.onnx"))
    )
    np.testing.assert_array_equal(found, expected)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.onnx", "two.onnx"):
        write_model(read_model(large()), tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_weights_beyond_one_protobuf_go_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST_FILE", 10_000)
    write_model(read_model(large()), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size < 2_000
    assert same(read_model(onnx.load(tmp_path / "model.onnx")), read_model(large()))


def test_one_weight_is_in_memory_at_a_time(tmp_path: Path) -> None:
    model = read_model(large(4))
    alive: list[weakref.ref[np.ndarray]] = []

    def draw() -> ir.TensorProtocol:
        gc.collect()
        assert not any(reference() is not None for reference in alive)
        array = np.ones((32, 32), np.float32)
        alive.append(weakref.ref(array))
        return ir.Tensor(array)

    for value in model.graph.initializers.values():
        lazy = ir.LazyTensor(draw, ir.DataType.FLOAT, ir.Shape([32, 32]), name=value.name)
        value.const_value = relaid(lazy, [{"op": "transpose", "perm": [1, 0]}])
    write_model(model, tmp_path / "model.onnx")
    assert len(alive) == 4


def test_a_large_relaid_weight_is_written_in_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout.tensors.SLAB_BYTES", 1000)
    model = read_model(outside(tmp_path))
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = relaid(value.const_value, [{"op": "transpose", "perm": [1, 0]}])
    write_model(model, tmp_path / "turned.onnx")
    source = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in large().graph.initializer}
    for tensor in onnx.load(tmp_path / "turned.onnx").graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), source[tensor.name].T)


@pytest.mark.parametrize("external", [False, True])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, external: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST_FILE", 0 if external else 1 << 40)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    model = read_model(large())

    def fail() -> ir.TensorProtocol:
        raise KeyboardInterrupt

    model.graph.initializers["w2"].const_value = ir.LazyTensor(fail, ir.DataType.FLOAT, ir.Shape([32, 32]), name="w2")
    with pytest.raises(KeyboardInterrupt):
        write_model(model, path)
    assert path.read_bytes() == b"old"
    assert [child.name for child in tmp_path.iterdir()] == ["model.onnx"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    os.symlink("real.onnx", tmp_path / "link.onnx")
    write_model(read_model(large()), tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    assert same(read_model(tmp_path / "real.onnx"), read_model(large()))


def test_data_that_does_not_fit_is_our_own_fault(tmp_path: Path) -> None:
    model = read_model(large())
    short = ir.LazyTensor(lambda: ir.tensor(np.ones(3, np.float32)), ir.DataType.FLOAT, ir.Shape([32, 32]), name="w0")
    model.graph.initializers["w0"].const_value = short
    with pytest.raises(InternalError, match="data does not fit its shape"):
        write_model(model, tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere/model.onnx", "the file cannot be written"),
        ("nowhere/model.json", "the file cannot be written"),
        ("model.txt", "unknown kind of file"),
    ],
)
def test_a_path_that_cannot_be_written_is_an_error_of_usage(tmp_path: Path, path: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        write_model(read_model(large()), tmp_path / path)


def test_weights_too_large_for_one_protobuf_have_no_protobuf() -> None:
    model = absent()
    model.graph.initializers["w0"].const_value = AbsentTensor(ir.DataType.FLOAT, [1 << 20, 1 << 10], "w0")
    with pytest.raises(InputError, match="too large for one protobuf"):
        to_proto(model)


DTYPES = [dtype for dtype in ir.DataType if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("count", [3, 3000])
def test_constants_of_every_dtype_survive(tmp_path: Path, dtype: ir.DataType, count: int) -> None:
    array = np.random.default_rng(3).integers(0, 2, count).astype(dtype.numpy())
    tensor = ir.to_proto(ir.Tensor(array, dtype=dtype, name="k"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Odd", ["k"], ["y"], domain="mine")], "g", [], [value("y", 1, [1])], [tensor]
    )
    imports = [helper.make_opsetid("mine", 1)]
    read = read_model(helper.make_model(graph, opset_imports=imports, ir_version=onnx.IR_VERSION))
    for suffix in ("onnx", "json"):
        write_model(read, tmp_path / f"model.{suffix}")
        kept = read_model(tmp_path / f"model.{suffix}").graph.initializers["k"].const_value
        assert kept is not None
        assert (kept.dtype, list(kept.shape)) == (dtype, [count])
        assert kept.tobytes() == tensor.raw_data


def test_constants_of_strings_survive(tmp_path: Path) -> None:
    model = parse('g () => (string[2] y) <string[2] k = {"a", "ä"}> { y = Identity (k) }')
    write_model(read_model(model), tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").graph.initializer[0].string_data == [b"a", "ä".encode()]


# --- shapes that onnx does not look at --------------------------------------------------------------------------------

CONTRADICTIONS = {
    "y = Transpose <perm = [0]> (x)": "a permutation of 4 axes",
    "w = Transpose (x)  y = Conv (x, k)": "9 input channels, as the kernel has",
    "y = Conv <group = 0> (x, k)": "channels in equal groups",
    "y = ConvTranspose (x, k)": "2 input channels, as the kernel has",
    "y = Reshape (x, s)": "as many elements as [1, 4, 6, 6] has",
    "y = DepthToSpace <blocksize = 3> (x)": "extents that 9 divides",
    "y = SpaceToDepth <blocksize = 4> (x)": "extents that 4 divides",
    "y = LayerNormalization <axis = 4> (x, x)": "an axis of 4 dimensions",
}


@pytest.mark.parametrize("body", CONTRADICTIONS)
def test_shapes_that_contradict_each_other_are_an_error_with_the_node(body: str) -> None:
    model = parse(f"g (float[1,4,6,6] x, float[2,9,1,1] k) => (y) <int64[2] s = {{7, 7}}> {{ {body} }}")
    with pytest.raises(InputError, match="shapes contradict each other") as caught:
        read_model(model)
    assert caught.value.expected == CONTRADICTIONS[body]
    assert "of 'y'" in caught.value.where


# --- what is no model ------------------------------------------------------------------------------------------------

Change = Callable[[onnx.ModelProto], object]
RELU = "g (float[2,3] x) => (float[2,3] y) { a = Relu (x)  y = Neg (a) }"


def _duplicate_constant(model: onnx.ModelProto) -> None:
    for _ in range(2):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "k"))


def _nested(model: onnx.ModelProto) -> None:
    graph = model.graph
    for _ in range(30):
        graph.node[0].op_type = "Deep"
        graph.node[0].domain = "mine"
        attribute = graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
        attribute.g.node.add(op_type="Relu", input=["x"], output=["z"])
        attribute.g.output.add(name="z")
        graph = attribute.g


FAULTS: dict[str, tuple[Change, str, str]] = {
    "cyclic graph": (lambda m: m.graph.node[0].input.__setitem__(0, "y"), "the graph has a cycle", "graph 'g'"),
    "dangling input": (
        lambda m: m.graph.node[1].input.__setitem__(0, "gone"),
        "an operand does not exist",
        "graph 'g', node 1 (Neg), input 0",
    ),
    "duplicate node outputs": (
        lambda m: m.graph.node[1].output.__setitem__(0, "a"),
        "a name is used twice",
        "graph 'g', name 'a'",
    ),
    "result named like an input": (
        lambda m: m.graph.node[0].output.__setitem__(0, "x"),
        "a name is used twice",
        "graph 'g', name 'x'",
    ),
    "duplicate inputs": (lambda m: m.graph.input.add().CopyFrom(m.graph.input[0]), "a name is used twice", "'x'"),
    "duplicate outputs": (lambda m: m.graph.output.add().CopyFrom(m.graph.output[0]), "a name is used twice", "'y'"),
    "duplicate constants": (_duplicate_constant, "a name is used twice", "'k'"),
    "duplicate attributes": (
        lambda m: m.graph.node[0].attribute.extend([helper.make_attribute("k", 1)] * 2),
        "a name is used twice",
        "name 'k'",
    ),
    "dangling output": (
        lambda m: setattr(m.graph.output[0], "name", "gone"),
        "an output does not exist",
        "graph 'g', output 0",
    ),
    "shape contradiction": (
        lambda m: m.graph.output[0].type.tensor_type.shape.dim[1].__setattr__("dim_value", 5),
        "shapes or types contradict each other",
        "node",
    ),
    "rank contradiction": (
        lambda m: m.graph.output[0].type.tensor_type.shape.dim.add(),
        "shapes or types contradict each other",
        "node",
    ),
    "type contradiction": (
        lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.INT64),
        "shapes or types contradict each other",
        "node",
    ),
    "unknown dtype": (
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99),
        "unknown dtype",
        "graph 'g', value 'x'",
    ),
    "input without a dtype": (lambda m: m.graph.input[0].ClearField("type"), "an input has no dtype", "input 'x'"),
    "negative extent": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -5),
        "a negative extent",
        "value 'x', axis 0",
    ),
    "empty graph": (lambda m: m.ClearField("graph"), "the graph is empty", "graph"),
    "old opset": (lambda m: setattr(m.opset_import[0], "version", 6), "unsupported opset", "opset_import"),
    "opset of the future": (lambda m: setattr(m.opset_import[0], "version", 999), "unsupported opset", "opset_import"),
    "no opset": (lambda m: m.ClearField("opset_import"), "opset is not imported", "opset_import"),
    "two opsets": (
        lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 19)),
        "one domain is imported twice",
        "opset_import",
    ),
    "no IR version": (lambda m: m.ClearField("ir_version"), "unsupported IR version", "ir_version"),
    "too many operands": (
        lambda m: m.graph.node[0].input.append("x"),
        "an operator with the wrong number of inputs",
        "node 0 (Relu)",
    ),
    "attribute of another type": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Transpose", ["x"], ["a"], perm="10")),
        "an attribute has the wrong type",
        "attribute 'perm'",
    ),
    "missing attribute": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Cast", ["x"], ["a"])),
        "an operator lacks an attribute",
        "node 0 (Cast)",
    ),
    "huge nesting": (_nested, "subgraphs are nested too deep", "attribute 'body'"),
    "sparse constant": (lambda m: m.graph.sparse_initializer.add(), "sparse constants are not supported", "graph 'g'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_graph_is_an_error_with_its_place(fault: str) -> None:
    model = parse(RELU)
    change, problem, where = FAULTS[fault]
    change(model)
    with pytest.raises(InputError) as caught:
        read_model(model)
    assert problem in caught.value.problem
    assert where in caught.value.where
    assert caught.value.expected or caught.value.found
    with pytest.raises(InputError):
        read_model(model.SerializeToString())


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (TensorProto(name="k", data_type=1, dims=[2], raw_data=b"123"), "data does not fit its shape"),
        (TensorProto(name="k", data_type=1, dims=[2], float_data=[1]), "data does not fit its shape"),
        (TensorProto(name="k", data_type=1, dims=[2], int64_data=[1, 2]), "data is of another type"),
        (TensorProto(name="k", data_type=1, dims=[2], float_data=[1, 2], raw_data=bytes(8)), "does not fit its shape"),
        (TensorProto(name="k", data_type=1, dims=[-2]), "a negative extent"),
        (TensorProto(name="k", data_type=1, dims=[1 << 40, 1 << 40]), "too large for any memory"),
        (TensorProto(name="k", data_type=77, dims=[2]), "unknown dtype"),
        (TensorProto(name="k", dims=[2]), "a tensor has no dtype"),
        (TensorProto(data_type=1, dims=[2]), "a constant has no name"),
        (TensorProto(name="k", data_type=8, dims=[2], raw_data=b"ab"), "strings are no raw bytes"),
    ],
)
def test_a_constants_data_has_to_fit_it(tensor: TensorProto, problem: str) -> None:
    model = parse(RELU)
    model.graph.initializer.append(tensor)
    with pytest.raises(InputError, match=problem):
        read_model(model)


def test_a_cycle_through_a_subgraph_is_found_and_named() -> None:
    model = parse(
        """g (bool c, float[2] x) => (y) {
            a = If (c) <then_branch = t () => (float[2] p) { p = Relu (y) },
                        else_branch = e () => (float[2] q) { q = Relu (x) }>
            y = Neg (a)
        }"""
    )
    with pytest.raises(InputError) as caught:
        read_model(model)
    assert caught.value.found == "node 0 (If) <- node 1 (Neg) <- node 0 (If)"


def test_functions_that_call_themselves_are_refused() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> f (a) => (b) { b = mine.h (a) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> h (a) => (b) { b = mine.f (a) }"""
    )
    with pytest.raises(InputError, match="a function calls itself"):
        read_model(model)


def test_functions_that_stand_for_too_many_nodes_are_refused() -> None:
    calls = " ".join(f"v{i} = mine.f{{0}} (a)" for i in range(10)) + " b = Neg (v9)"
    functions = [
        f'<domain: "mine", opset_import: ["" : 20, "mine" : 1]> f{n} (a) => (b) {{ {calls.format(n + 1)} }}'
        for n in range(7)
    ]
    functions.append('<domain: "mine", opset_import: ["" : 20]> f7 (a) => (b) { b = Relu (a) }')
    model = parse("g (float[2] x) => (float[2] y) { y = mine.f0 (x) }" + "\n".join(functions))
    with pytest.raises(InputError, match="stand for too many nodes"):
        read_model(model)


def test_an_onnx_ir_model_out_of_order_is_an_error_with_a_hint() -> None:
    source = ir.from_proto(parse(RELU))
    first = source.graph[0]
    source.graph.remove(first)
    source.graph.append(first)
    with pytest.raises(InputError, match="is not a graph") as caught:
        read_model(source)
    assert "sort" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("model.onnx", b"", "the file is empty"),
        ("model.onnx", large().SerializeToString()[:-100], "not an ONNX model"),
        ("model.onnx", b"PK\x03\x04 a zip file", "not an ONNX model"),
        ("model.onnx", b'{"opset": 20}', "not an ONNX model"),
        ("model.json", b"{", "not JSON"),
        ("model.json", b"\xff\xfe", "not JSON"),
        ("model.json", b"[" * 100_000, "not JSON"),
        ("model.json", b"[1]", "not graph JSON"),
        ("model.json", b'{"opset": NaN}', "not JSON"),
    ],
)
def test_a_file_that_is_no_model_is_an_error_with_its_name(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_model(tmp_path / name)
    assert str(tmp_path / name) in caught.value.where


def test_a_folder_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read") as caught:
        read_model(tmp_path)
    assert caught.value.found == "a folder"
    with pytest.raises(InputError, match="cannot be read"):
        read_model(tmp_path / "nothing.onnx")


def test_something_else_altogether_is_an_error_of_usage() -> None:
    with pytest.raises(UsageError, match="not a model"):
        read_model(3.5)  # type: ignore[arg-type]


# --- anything --------------------------------------------------------------------------------------------------------

SEEDS = [
    conv().SerializeToString(),
    parse(
        """g (bool c, float[N,4] x) => (float[N,4] y) {
            z = If (c) <then_branch = t () => (float[N,4] a) { a = Relu (x) },
                        else_branch = e () => (float[N,4] b) {
                            k = Constant <value = float[4] {1,2,3,4}> ()  b = Add (x, k) }>
            y = mine.f (z)
        }
        <domain: "mine", opset_import: ["" : 20]> f (a) => (b) { b = Relu (a) }"""
    ).SerializeToString(),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        cut = draw(st.integers(0, 3))
        data[at : at + cut] = draw(st.binary(max_size=3))
        data = data or bytearray(b"\0")
    return bytes(data)


@given(damaged())
def test_damaged_bytes_are_a_model_or_one_clear_error(data: bytes) -> None:
    try:
        model = read_model(data, external_data=False)
    except RelayoutError:
        return
    assert same(read_model(to_json(model)), read_model(to_json(read_model(to_json(model)))))


@given(st.binary(max_size=200))
def test_random_bytes_are_one_clear_error(data: bytes) -> None:
    with pytest.raises(RelayoutError):
        read_model(data)
