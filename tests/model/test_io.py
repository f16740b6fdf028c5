"""Models are read from every supported form and written without loss, and no file stays open."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from model_files import conv, large, outside, parse, same, shapes
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import relayout
from relayout.errors import InputError, InternalError, UsageError
from relayout.layout.relaid_constant import AbsentTensor, relaid
from relayout.model import onnx_file
from relayout.model.io import read_model, to_json, to_proto, warnings_of, write_model
from relayout.ops import extents_of

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


def test_operators_of_other_domains_are_kept() -> None:
    model = parse("g (float[2] x) => (float[7] y) <float[3] v> { v = mine.Odd <a = 1.5> (x)  y = mine.Odder (v) }")
    read = read_model(model)
    assert [(node.domain, node.op_type) for node in read.graph] == [("mine", "Odd"), ("mine", "Odder")]
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
    assert shapes(read_model(model)) == {"y": ["x_dim_0", 3]}


# --- constants without data ------------------------------------------------------------------------------------------


def absent() -> ir.Model:
    model = large(1)
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].doc_string = "seeded:0:1:0.5:0.3"
    return read_model(model)


def test_an_absent_constant_has_a_type_and_a_shape_and_raises_when_read() -> None:
    tensor = absent().graph.initializers["w0"].const_value
    assert isinstance(tensor, AbsentTensor)
    assert (tensor.dtype, list(tensor.shape), tensor.doc_string) == (ir.DataType.FLOAT, [32, 32], "seeded:0:1:0.5:0.3")
    for read in (tensor.numpy, tensor.tobytes):
        with pytest.raises(InputError, match="data of this constant is absent"):
            read()


def test_an_absent_constant_keeps_its_steps(tmp_path: Path) -> None:
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
    with pytest.raises(InternalError, match="a step does not fit its constant"):
        relaid(AbsentTensor(ir.DataType.FLOAT, [2, 3], "w"), [{"op": "reshape", "shape": [7]}])
    with pytest.raises(InternalError, match="a step does not fit its constant"):
        relaid(ir.tensor(np.zeros((2, 3))), [{"op": "transpose", "perm": [0, 0]}])


# --- what goes out ---------------------------------------------------------------------------------------------------


def test_a_written_model_passes_onnx_and_computes_the_same(tmp_path: Path) -> None:
    source = conv()
    write_model(read_model(source), tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    x = np.random.default_rng(2).random((1, 3, 8, 8), np.float32)
    expected, found = (
        ReferenceEvaluator(model).run(None, {"x": x})[0] for model in (source, onnx.load(tmp_path / "model.onnx"))
    )
    np.testing.assert_array_equal(found, expected)


def test_a_legal_model_of_any_kind_is_written(tmp_path: Path) -> None:
    for name in ("out.onnx", "out.json"):
        for source in (conv(), ir.from_proto(conv()), to_json(read_model(conv()))):
            legal, _ = relayout.legalize(source, "nhwc")
            write_model(legal, tmp_path / name)
            assert relayout.verify(tmp_path / name, "nhwc", against=conv()).passed


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
    monkeypatch.setattr("relayout.layout.relaid_constant.SLAB_BYTES", 1000)
    model = read_model(outside(tmp_path))
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = relaid(value.const_value, [{"op": "transpose", "perm": [1, 0]}])
    write_model(model, tmp_path / "turned.onnx")
    source = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in large().graph.initializer}
    for tensor in onnx.load(tmp_path / "turned.onnx").graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), source[tensor.name].T)


@pytest.mark.parametrize("external", [False, True])
def test_a_failure_keeps_only_the_old_file(tmp_path: Path, external: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_data_that_does_not_fit_is_an_internal_error(tmp_path: Path) -> None:
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


def test_a_dim_of_an_input_without_a_name_gets_one_that_no_other_has() -> None:
    model = parse("""g (float[?,3] x, float["2*x_dim_0",?] y) => (a, b, c) {
        a = Relu (x)  b = Relu (y)  c = Transpose (x) }""")
    assert shapes(read_model(model)) == {"a": ["x_dim_0_1", 3], "b": ["2*x_dim_0", "y_dim_1"], "c": [3, "x_dim_0_1"]}


def test_a_symbol_without_a_name_is_an_unknown_extent() -> None:
    model = parse("g (float[N,3] x) => (float[N,3] y) { y = Relu (x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = ""
    read = read_model(model)
    assert to_json(read)["inputs"][0]["shape"] == ["x_dim_0", 3]
    assert same(read, read_model(to_json(read)))


def test_an_inferred_map_is_rejected_by_name() -> None:
    zipped = onnx.helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2])
    graph = onnx.helper.make_graph([zipped], "g", [given], [onnx.ValueInfoProto(name="y")])
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    with pytest.raises(InputError, match="maps are not supported") as caught:
        read_model(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert caught.value.where == "graph 'g', value 'y'"


@pytest.mark.parametrize(
    ("convolution", "data", "result"),
    [
        ("Conv <group = 2> (a, w)", ("unk__3", 8, "unk__4", "unk__5"), ("unk__0", 6, "unk__4", "unk__5")),
        ("ConvTranspose <group = 2> (a, w)", ("unk__3", 6, "unk__4", "unk__5"), ("unk__0", 8, "unk__4", "unk__5")),
    ],
)
def test_a_convolution_behind_an_unknown_operator_has_the_rank_type_and_channels_of_its_kernel(
    convolution: str, data: tuple[int | str, ...], result: tuple[int | str, ...]
) -> None:
    source = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[1,4,9,9] x, float[6,4,1,1] w) => (float[a,b,c,d] y) {{
            a = com.acme.Magic (x)
            b = {convolution}
            c = Relu (b)
            y = com.acme.Magic (c)
        }}""")
    a, b, c = (node.outputs[0] for node in list(read_model(source).graph)[:3])
    assert [value.dtype for value in (a, b, c)] == [ir.DataType.FLOAT] * 3
    assert [extents_of(value) for value in (a, b, c)] == [data, result, result]


def test_a_pool_before_a_convolution_has_the_channels_of_its_kernel() -> None:
    source = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[1,4,9,9] x, float[2,4,1,1] w) => (float[1,2,9,9] y) {
            a = com.acme.Magic (x)
            b = MaxPool <kernel_shape = [2, 2]> (a)
            y = Conv (b, w)
        }""")
    a = next(iter(read_model(source).graph)).outputs[0]
    assert extents_of(a) == (1, 4, "unk__4", "unk__5")


@pytest.mark.parametrize(
    "between", ["MaxPool <kernel_shape = [1, 1]>", "Relu", "Identity", "Transpose <perm = [0, 1, 3, 2]>"]
)
def test_what_lies_between_an_unknown_operator_and_a_convolution_is_made_legal(between: str) -> None:
    source = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[1,4,9,9] x) => (float[1,2,9,9] y)
        <float[2,4,1,1] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
            a = com.acme.Magic (x)
            b = {between} (a)
            y = Conv (b, w)
        }}""")
    _, report = relayout.legalize(source, "nhwc", check=True, static=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.after.transposes == 2


def test_what_rules_know_of_values_behind_a_custom_operator_is_known_to_inference() -> None:
    """The legal model declares it, and reading that tells no more."""
    net = Net()
    x = net.input("x", ("n", 8, 6, 6))
    image = net.node("Conv", net.node("Gate", x, domain="acme"), net.weight(8, 8, 1, 1))
    net.output(net.node("Concat", image, x, axis=1))
    rows = net.node("Reshape", net.node("Gate", x, domain="acme"), net.constant([6, 48]))
    net.output(net.node("Add", net.node("Relu", rows), net.weight(48)))
    turned = net.node("Transpose", net.node("Neg", net.node("Gate", x, domain="acme")), perm=[0, 3, 1, 2])
    net.output(net.node("Conv", turned, net.weight(8, 8, 1, 1)))
    first = read_model(net.model())
    again = read_model(ir.to_proto(first))
    shapes, same = ({v.name: v.shape for node in model.graph for v in node.outputs} for model in (first, again))
    assert shapes == same
    joined, added, _ = (value.shape for value in first.graph.outputs)
    assert joined is not None
    assert joined.dims[1:] == (16, 6, 6)
    assert added == ir.Shape([6, 48])


def test_whether_a_constant_is_small_does_not_depend_on_its_name() -> None:
    net = Net()
    largest = net.constant(np.ones(256, np.float32), "a_name_that_takes_some_bytes_of_its_own")
    net.output(net.node("Add", net.input("x", (256,)), net.node("Identity", largest)))
    first = read_model(net.model())
    for model in (first, read_model(first)):
        copy = model.graph.node(0).outputs[0].const_value
        assert copy is not None
        assert copy.size == 256


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\x03\x04 and more", "a zip archive"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(100), "TFLite"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "a web page"),
        (b'ir_version: 8\ngraph {\n\tname: "net"\n}\n', "text"),
        (b"\xff\xfe\x00 bytes", "truncated, or of another format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_taken_for_a_model_is_named(content: bytes, kind: str) -> None:
    with pytest.raises(InputError, match="not an ONNX model") as caught:
        read_model(content)
    assert caught.value.found.startswith(f"{len(content)} bytes that do not parse: {kind}")
    assert bool(caught.value.hint) == (kind != "truncated, or of another format")
