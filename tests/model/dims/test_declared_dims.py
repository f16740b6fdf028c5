"""Numbers that a model declares for dims inside it, where the operators give an open dim of an input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import Net, assert_same_numbers
from onnx import TensorProto, helper

from relayout import legalize, read_model
from relayout.model.dims.declared_dims import correct_declared_dims
from relayout.model.shape_inference import infer_shapes

Dims = Sequence[int | str | None]

BATCH_OF_THREE = {"x": np.random.default_rng(0).standard_normal((3, 8, 4, 6)).astype(np.float32)}


def products(batch: int | str | None, **declared: Dims) -> onnx.ModelProto:
    """Products of the planes of an image with each other, as in attention, with these `declared` shapes inside."""
    net = Net(17)
    image = net.input("x", (batch, 8, 4, 6))
    value = net.node("Conv", image, net.weight(8, 8, 1, 1))
    scores = net.node("MatMul", value, net.transpose(value, 0, 1, 3, 2))
    weights = net.node("Softmax", scores, axis=-1)
    net.output(net.node("Conv", net.node("MatMul", weights, value), net.weight(8, 8, 1, 1)))
    model = net.model()
    results = {"scores": scores, "weights": weights, "values": value}
    for name, dims in declared.items():
        if name == "output":
            model.graph.output[0].CopyFrom(helper.make_tensor_value_info(model.graph.output[0].name, 1, dims))
        else:
            model.graph.value_info.append(helper.make_tensor_value_info(results[name], TensorProto.FLOAT, dims))
    return model


@pytest.mark.parametrize("batch", ["n", None])
@pytest.mark.parametrize("backend", ["nhwc", "onnx", "tpu"])
def test_a_batch_of_one_that_an_exporter_declares_is_as_open_as_the_inputs(backend: str, batch: str | None) -> None:
    model = products(batch, scores=(1, 8, 4, 4), weights=(1, 8, 4, 4))
    legal, report = legalize(model, backend)
    (warning,) = report.warnings
    assert f"dim 0 is {batch or 'open'}, not 1, and 1 more values" in warning
    assert_same_numbers(model, legal, BATCH_OF_THREE)


def test_a_batch_opened_by_hand_is_open_everywhere() -> None:
    shapes = {value.name: value.shape for node in read_model(products(2)).graph for value in node.outputs}
    model = products("n")
    for name, shape in shapes.items():
        assert shape is not None
        if name != model.graph.output[0].name:
            model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
    read = read_model(model).graph
    assert all(value.shape is not None and str(value.shape[0]) == "n" for node in read for value in node.outputs)


def test_an_output_that_is_declared_too_narrow_is_read_as_it_is_computed() -> None:
    model = products("n", output=(1, 8, 4, 6))
    legal, _ = legalize(model, "nhwc")
    assert legal.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "n"
    assert_same_numbers(model, legal, BATCH_OF_THREE)


def of_scalar(batch: int | str, nodes: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{batch}, 3, 8, 8] x, float[4, 3, 1, 1] w) => (float[] y) {{ c = Conv(x, w)  {nodes} }}"""
    )
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    return model


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
@pytest.mark.parametrize("batch", [2, "n"])
def test_an_output_that_is_declared_as_a_scalar_has_the_dims_of_its_operators(batch: int | str, backend: str) -> None:
    """PaddlePaddle's exporter declares outputs so, and runtimes return what is computed."""
    model = of_scalar(batch, "y = Sigmoid(c)")
    legal, report = legalize(model, backend, check=True)
    assert len(legal.graph.output[0].type.tensor_type.shape.dim) == 4
    assert report.verification is not None
    assert report.verification.passed
    dims = f"[{batch}, 4, 8, 8]"
    note = f"output 'y' is declared with dims [], and those that follow from the operators are used: {dims}"
    assert report.warnings == (note,)
    assert legalize(legal, backend)[1].warnings == ()


def test_an_output_that_is_a_scalar_stays_one() -> None:
    legal, report = legalize(of_scalar("n", "y = ReduceSum<keepdims = 0>(c)"), "nhwc")
    kind = legal.graph.output[0].type.tensor_type
    assert (kind.HasField("shape"), len(kind.shape.dim), report.warnings) == (True, 0, ())


@pytest.mark.parametrize(
    "model",
    [
        products(1, scores=(1, 8, 4, 4)),
        products("n", scores=("n", 8, 4, 4)),
        products("n", scores=("m", 8, 4, 4)),
        products("n"),
    ],
)
def test_what_no_operator_contradicts_stays(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    assert correct_declared_dims(model, infer_shapes) is None
    assert model.SerializeToString(deterministic=True) == before


def test_a_number_to_which_a_reshape_ties_the_batch_is_kept() -> None:
    """An exporter writes the batch of its example into a Reshape, and the model runs with no other."""
    net = Net(17)
    image = net.node("Relu", net.input("x", ("n", 8, 4, 6)))
    rows = net.node("Softmax", net.node("Reshape", image, net.constant([1, 8, 24])), axis=1)
    net.output(net.node("MatMul", rows, net.weight(24, 8)))
    model = net.model()
    model.graph.value_info.append(helper.make_tensor_value_info(image, TensorProto.FLOAT, [1, 8, 4, 6]))
    assert correct_declared_dims(model, infer_shapes) is None


def test_a_number_that_a_reshape_tells_is_kept_in_the_legal_model() -> None:
    """The rows and columns of a square, of which a Reshape tells that the rows are four."""
    net = Net(17)
    value = net.node("Sigmoid", net.input("x", (2, "n", 6, 6)))
    squares = net.transpose(net.node("Reshape", value, net.constant([2, 4, 3, 2, 3, 2])), 0, 3, 5, 1, 2, 4)
    net.output(net.node("GlobalLpPool", net.node("Reshape", net.node("Relu", squares), net.constant([2, 16, 3, 3]))))
    legal, report = legalize(net.model(), "nhwc")
    again, second = legalize(legal, "nhwc")
    assert (second.cost, second.warnings) == (report.cost, ())
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_the_result_of_an_unknown_operator_has_the_dims_that_are_declared() -> None:
    nodes = [
        helper.make_node("Pooled", ["x"], ["a"], domain="acme"),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        value_info=[helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)])
    assert correct_declared_dims(model, infer_shapes) is None


def test_branches_may_have_values_of_one_name() -> None:
    """A dim is corrected where the branches agree about it, and left alone where they do not."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[n,4] x, bool c) => (float[?,4] y) {
            y = If (c) <
                then_branch = a () => (float[?,4] r) { v = Relu (x)   r = Neg (v) },
                else_branch = b () => (float[?,4] s) { v = ReduceSum <keepdims = 1> (x, zero)   s = Neg (v) }
            >
        }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    for attribute in model.graph.node[0].attribute:
        attribute.g.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [1, 4]))
    correct_declared_dims(model, infer_shapes)
    dims = [attribute.g.value_info[0].type.tensor_type.shape.dim[0] for attribute in model.graph.node[0].attribute]
    assert [dim.dim_value for dim in dims] == [1, 1]


@pytest.mark.parametrize("backend", ["nhwc", "x86-nchwc", "xla-cpu"])
def test_a_number_in_the_body_of_a_loop_over_an_open_batch_is_open(backend: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        net (float[n,8,4,6] x, int64 k) => (float[n,8,4,6] y) <bool t = {1}> {
            a = Conv (x, w)
            y = Loop <body = body (int64 i, bool c, float[?,8,4,6] s) => (bool co, float[?,8,4,6] so)
                <float[1,8,4,4] z> { co = Identity (c) st = Transpose <perm = [0,1,3,2]> (s) z = MatMul (s, st)
                zz = Softmax <axis = 1> (z) zs = MatMul (zz, s) so = Conv (zs, w) }> (k, t, a) }"""
    model = onnx.parser.parse_model(text)
    kernel = np.random.default_rng(1).standard_normal((8, 8, 1, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "w"))
    legal, report = legalize(model, backend)
    assert [text for text in report.warnings if "value 'z', dim 0 is open, not 1" in text]
    assert_same_numbers(model, legal, {**BATCH_OF_THREE, "k": np.array(2)})


@pytest.mark.parametrize(("rows", "columns"), [("h", "w"), ("- floordiv(- h, 2)", "- floordiv(- w, 2)")])
@pytest.mark.parametrize("backend", ["nhwc", "onnx", "x86-nchwc"])
def test_names_of_channels_last_for_a_value_that_has_channels_second_tell_nothing(
    backend: str, rows: str, columns: str
) -> None:
    """As jax2onnx declares a value between convolutions from which it has removed the Transposes."""
    strides = {"auto_pad": "SAME_UPPER", "strides": [1, 1] if rows == "h" else [2, 2]}
    net = Net(18)
    image = net.transpose(net.input("x", ("n", "h", "w", 3)), 0, 3, 1, 2)
    first = net.node("Conv", image, net.weight(16, 3, 3, 3), **strides)
    left = net.node("Relu", net.node("Conv", first, net.weight(8, 16, 1, 1)))
    right = net.node("Conv", left, net.weight(16, 8, 3, 3), auto_pad="SAME_UPPER")
    total = net.transpose(net.node("Add", first, right), 0, 2, 3, 1)
    front = net.node("Shape", total, end=3)
    groups = net.node("Reshape", total, net.node("Concat", front, net.constant([4, 4]), axis=0))
    net.output(net.node("ReduceMean", net.node("Exp", groups), net.constant([1, 2, 4]), keepdims=0))
    model = net.model()
    for name, dims in {first: ("n", 16, rows, columns), left: ("n", rows, columns, 8)}.items():
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    legal, report = legalize(model, backend)
    for height in (8, 12):
        image_of_size = np.random.default_rng(height).standard_normal((2, height, 16, 3)).astype(np.float32)
        assert_same_numbers(model, legal, {"x": image_of_size})
    assert [text for text in report.warnings if f"dim 1 is 8, not '{rows}'" in text]


def behind_a_choice(declared: str, after: str) -> onnx.ModelProto:
    """An If on a constant, one of whose branches has no rank, as PyTorch's exporter writes it for `scatter_reduce`."""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 4] x) => (float{declared} y) <bool is_scalar = {{0}}> {{
            c = If (is_scalar) <
                then_branch = scalar () => (float a) {{ a = Squeeze (x) }},
                else_branch = whole () => (float b) {{ b = Identity (x) }}>
            y = {after} (c) }}"""
    )


@pytest.mark.parametrize("after", ["Transpose", "Relu"])
@pytest.mark.parametrize("declared", ["[m]", "[1, m, 4]", "[]"])
def test_an_output_behind_an_if_has_the_dims_of_its_operators(declared: str, after: str) -> None:
    model = behind_a_choice(declared, after)
    if declared == "[]":
        model.graph.output[0].type.tensor_type.shape.SetInParent()
    legal, report = legalize(model, "onnx", check=True)
    onnx.checker.check_model(legal, full_check=True)
    assert len(legal.graph.output[0].type.tensor_type.shape.dim) == 2
    assert report.verification is not None
    assert report.verification.passed
    assert any(note.startswith("output 'y' is declared with") for note in report.warnings)
    again, second = legalize(legal, "onnx")
    assert second.warnings == ()
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
