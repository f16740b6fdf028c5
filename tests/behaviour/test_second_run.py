"""A second run on a legal model changes nothing, for every backend, from ONNX and from graph JSON."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from equivalence import node_texts
from graphs import Net
from legalization_checks import checked
from onnx import TensorProto, helper, numpy_helper

from relayout import legalize, load_backend, read_model, verify
from relayout.model.io import to_json
from relayout_backends.x86_nchwc.backend import X86Nchwc

PLAIN = ("auto-nhwc", "canonical", "nchw", "nhwc", "onnx", "opencl", "tpu", "x86-nchwc", "xla-cpu")
TVM = {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4o"], "MaxPool": ["NHWC"]}}
BACKENDS: dict[str, dict[str, Any]] = {"convert-layout": TVM} | {name: {} for name in PLAIN}


@cache
def model() -> onnx.ModelProto:
    """An exporter's mixture: channels last outside, convolutions, a skip, a shuffle, a normalization, a product."""
    net = Net(18)
    image = net.transpose(net.input("x", ("n", 12, 12, 8)), 0, 3, 1, 2)
    value = net.node("Relu", net.conv(image, 8, 24, strides=[2, 2]))
    skip = net.node("MaxPool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    value = net.node("Add", skip, net.conv(value, 24, 24))
    split = net.node("Reshape", value, net.constant([0, 2, 12, 6, 6]))
    value = net.node("Reshape", net.transpose(split, 0, 2, 1, 3, 4), net.constant([0, 24, 6, 6]))
    value = net.node("InstanceNormalization", net.conv(value, 24, 20, 1), net.weight(20), net.weight(20))
    pooled = net.node("GlobalAveragePool", net.node("Mul", value, net.node("Sigmoid", value)))
    net.output(net.transpose(value, 0, 2, 3, 1))
    net.output(net.node("MatMul", net.node("Flatten", pooled), net.weight(20, 5)))
    return net.model()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_legal_model_stays_as_it_is(backend: str) -> None:
    options: dict[str, Any] = {"backend_options": BACKENDS[backend]}
    legal, report = legalize(model(), backend, **options)
    again, second = legalize(legal, backend, **options)
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    assert second.after == second.before == report.after
    # The report lists the conversions and operators that the account charges.
    chosen = load_backend(backend, options=BACKENDS[backend])
    assert verify(again, chosen, against=legal, report=second, static=True).passed


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_legal_graph_in_json_stays_as_it_is(backend: str) -> None:
    options: dict[str, Any] = {"backend_options": BACKENDS[backend]}
    legal, report = legalize(to_json(read_model(model())), backend, **options)
    again, second = legalize(legal, backend, **options)
    assert again == legal
    assert second.after == second.before == report.after


def test_an_input_whose_batch_has_no_name_stays_as_it_is() -> None:
    net = Net()
    image = net.input("image", (None, 8, 6, 6))
    net.output(net.conv(net.node("Relu", image), 8, 8))
    net.output(net.conv(image, 8, 8))
    legal, _ = legalize(net.model(), "nhwc")
    again, _ = legalize(legal, "nhwc")
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


@pytest.mark.parametrize("backend", ["nhwc", "onnx", "tpu"])
def test_a_batch_that_an_output_calls_otherwise_counts_as_much(backend: str) -> None:
    net = Net()
    turned = net.transpose(net.input("x", ("n", 12, 4, 3)), 0, 1, 3, 2)
    norm = net.node("BatchNormalization", turned, *[net.constant(np.ones(12, np.float32)) for _ in range(4)])
    net.output(turned)
    net.output(norm)
    model = net.model()
    for value in model.graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = "m"
    legal, report = legalize(model, backend)
    again, second = legalize(legal, backend)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


def test_a_kernel_in_a_node_is_a_constant() -> None:
    """The legal model has it among the initializers, and the blocks of `tpu` are for constant kernels."""
    net = Net()
    kernel = net.node("Constant", value=numpy_helper.from_array(net.rng.standard_normal((8, 3, 3, 3), np.float32)))
    net.output(net.node("Conv", net.input("image", (1, 3, 16, 16)), kernel, strides=[2, 2], pads=[1] * 4))
    legal, report = legalize(net.model(), "tpu")
    again, second = legalize(legal, "tpu")
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    assert second.cost == report.cost


def test_an_output_that_is_a_shape_stays_as_it_is() -> None:
    """The legal model gathers it from the shape of channels last, under a name that the first run noted."""
    net = Net(18)
    image = net.conv(net.input("image", ("n", 8, 6, "w")), 8, 8)
    net.output(net.node("Shape", image, start=0, end=2), TensorProto.INT64)
    net.output(net.conv(image, 8, 8))
    legal, _ = legalize(net.model(), "nhwc")
    again, second = legalize(legal, "nhwc", check=True)
    assert second.verification is not None
    assert second.verification.passed
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


@pytest.mark.parametrize("extents", [(6, 5), (8, 8)])
@pytest.mark.parametrize(("backend", "layout"), [("nhwc", "NHWC"), ("convert-layout", "any")])
def test_a_boundary_that_is_no_longer_in_the_sources_layout_is_compared(
    backend: str, layout: str, extents: tuple[int, int]
) -> None:
    """Both models note the order of the first source's axes, which is not that between the two."""
    net = Net(18)
    result = net.conv(net.node("Relu", net.input("image", (1, 8, *extents))), 8, 8)
    net.output(result)
    options: dict[str, Any] = {"backend_options": BACKENDS[backend], "check": True}
    layouts = {"input_layouts": {"image": layout}, "output_layouts": {result: layout}}
    legal, first = legalize(net.model(), backend, **layouts, **options)
    assert all(item.order or item.transform for item in first.boundary)
    again, second = legalize(legal, backend, **options)
    assert second.verification is not None
    assert second.verification.passed
    assert second.verification.numeric is not None
    assert second.verification.numeric.status == "compared"
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_an_inner_value_with_exchanged_axes_of_one_extent_is_compared() -> None:
    """As the scores of an attention: as many queries as keys, so that no shape shows the exchange."""
    net = Net(18)
    image = net.conv(net.input("image", ("n", 8, 3, 2)), 8, 8)
    tokens = net.transpose(net.node("Reshape", image, net.constant([0, 0, -1])), 0, 2, 1)
    scores = net.node("Softmax", net.node("MatMul", tokens, net.transpose(tokens, 0, 2, 1)), axis=-1)
    mixed = net.transpose(net.node("MatMul", scores, tokens), 0, 2, 1)
    net.output(net.conv(net.node("Reshape", mixed, net.constant([0, 8, 3, 2])), 8, 8))
    legal, _ = legalize(net.model(), "onnx")
    again, second = legalize(legal, "onnx", check=True)
    assert second.verification is not None
    assert second.verification.passed
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
def test_a_padded_reorder_of_unknown_extents_costs_the_same(objective: str) -> None:
    """It is noted at what was charged for it, with the sizes assumed: those behind the strides are not that of `h`."""
    net = Net(18)
    image = net.conv(net.input("image", ("n", 3, "h", "w")), 3, 90, strides=[2, 2])
    net.output(net.conv(net.node("Softmax", image, axis=1), 90, 90, group=90, strides=[2, 2]))
    legal, report = legalize(net.model(), "x86-nchwc", objective=objective)
    # Without a Transpose both have no cost: the plain formats, and the reorders.
    assert objective == "transposes" or any(node.op_type == "Pad" for node in legal.graph.node)
    again, second = legalize(legal, "x86-nchwc", objective=objective)
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_an_innermost_axis_that_is_repeated_stays_innermost() -> None:
    """Steps of a selective scan: the time may come before the channels, and the states stay behind them."""
    net = Net(18)
    steps = net.node("Unsqueeze", net.transpose(net.input("steps", ("n", 5, 6)), 0, 2, 1), net.constant([3]))
    decay = net.node("Exp", net.node("Mul", steps, net.weight(6, 1, 4)))
    state = net.input("state", ("n", 6, 4))
    for time in range(3):
        state = net.node("Mul", state, net.node("Gather", decay, net.constant(np.array(time)), axis=2))
    net.output(state)
    legal, report = legalize(net.model())
    assert report.cost == 0
    again, second = legalize(legal)
    assert second.cost == 0
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_split_features_stay_together_behind_rows_in_another_order() -> None:
    """Queries and keys of windows, by token first: the source lies as windows, tokens, parts, heads, features. The
    parts stay with heads and features, so that the rows alone are permuted, which are a third of the results."""
    net = Net(18)
    image = net.node("Relu", net.input("x", ("n", 2, 4, 2, 4, 32)))
    rows = net.node("Reshape", net.transpose(image, 0, 1, 3, 2, 4, 5), net.constant([-1, 32]))
    parts = net.node("Reshape", net.node("MatMul", rows, net.weight(32, 96)), net.constant([-1, 16, 3, 4, 8]))
    split = net.node("Split", net.transpose(parts, 2, 0, 3, 1, 4), net.constant([1, 1, 1]), axis=0, results=3)
    query, key = (net.node("Squeeze", each, net.constant([0])) for each in split[:2])
    net.output(net.node("MatMul", query, net.transpose(key, 0, 1, 3, 2)))
    legal, report = legalize(net.model(), "x86-nchwc")
    again, second = legalize(legal, "x86-nchwc")
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_a_product_sums_in_any_order_where_the_backend_writes_it() -> None:
    """Of positions, in the order of columns: both images have them in the order of rows, and stay as they are."""
    net = Net(18)
    image = net.conv(net.input("x", (1, 8, 5, 6)), 8, 8)
    other = net.conv(image, 8, 6)
    left = net.node("Reshape", net.transpose(image, 0, 1, 3, 2), net.constant([1, 8, 30]))
    right = net.node("Reshape", net.transpose(other, 0, 1, 3, 2), net.constant([1, 6, 30]))
    net.output(net.node("MatMul", left, net.transpose(right, 0, 2, 1)))
    legal, report = legalize(net.model(), "x86-nchwc", check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert [node.op_type for node in legal.graph.node if node.op_type in ("Transpose", "FusedMatMul")] == [
        "FusedMatMul"
    ]
    again, second = legalize(legal, "x86-nchwc")
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


SLICED = "s = Slice (x, zeros, e, axes)  r = Relu (s)"
WITH_OPEN_NAMES = {
    "a product of a view": (
        f"""g (float[6,4,2,9] x, int64[1] e) => (float[5,4,2,k] y)
           <int64[1] zeros = {{0}}, int64[1] axes = {{3}}> {{
           {SLICED}  t = Transpose <perm = [2,1,3,0]> (r)  v = MatMul (t, w)
           y = Transpose <perm = [3,1,0,2]> (v) }}""",
        (6, 5),
    ),
    "blocks of an open image": (
        f"""g (float[1,8,8,8] x, int64[2] e) => (float[1,4,h,w] y)
           <int64[2] zeros = {{0,0}}, int64[2] axes = {{1,2}}> {{
           {SLICED}  t = Transpose <perm = [0,3,1,2]> (r)  u = SpaceToDepth <blocksize = 2> (t)  y = Conv (u, w) }}""",
        (4, 32, 1, 1),
    ),
    "blocks that Reshapes make": (
        f"""g (float[1,8,8,8] x, int64[2] e) => (float[1,4,h,w] y)
           <int64[2] zeros = {{0,0}}, int64[2] axes = {{1,2}}, int64[1] three = {{3}}, int64[5] rows = {{0,0,-1,2,0}},
            int64[6] columns = {{0,0,0,0,-1,2}}, int64[6] channels = {{0,-1,1,1,0,0}}, int64[2] units = {{2,3}}> {{
           {SLICED}  t = Transpose <perm = [0,3,1,2]> (r)  a = Unsqueeze (t, three)  b = Reshape (a, rows)
           c = Reshape (b, columns)  d = Transpose <perm = [0,1,3,5,2,4]> (c)  f = Reshape (d, channels)
           u = Squeeze (f, units)  y = Conv (u, w) }}""",
        (4, 32, 1, 1),
    ),
    "a Pad that lists its axes": (
        """g (float[n,4,3,5] x) => (float[?,?,?,?] y) <int64[4] pads = {1,0,2,1}, int64[2] axes = {-1,1}> {
           a = Conv (x, w)  t = Transpose <perm = [0,2,3,1]> (a)  p = Pad <mode = "edge"> (t, pads, , axes)
           y = Transpose <perm = [3,0,1,2]> (p) }""",
        (4, 4, 1, 1),
    ),
}


@pytest.mark.parametrize("backend", ["nhwc", "onnx", "tpu", "x86-nchwc", "xla-cpu"])
@pytest.mark.parametrize("case", WITH_OPEN_NAMES)
def test_extents_and_names_are_found_in_the_first_run(case: str, backend: str) -> None:
    text, weight = WITH_OPEN_NAMES[case]
    source = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["":18]> {text}')
    source.graph.initializer.append(numpy_helper.from_array(np.ones(weight, np.float32), "w"))
    legal, report = legalize(source, backend)
    again, second = legalize(legal, backend)
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    assert second.cost == report.cost


def test_a_reduced_axis_may_stay_innermost_in_memory() -> None:
    """It is the first axis of the operand, a view. Its rows stay whole where only the other axes are permuted, which is
    cheaper than to transpose the result."""
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["":18]>
        g (float[4,2,5,2] x) => (float[4,2,5,2] r, float[1,10,4] y)
          <int64[3] joined = {2,10,4}, int64[1] first = {0}> {
          r = Relu (x)  t = Transpose <perm = [3,2,1,0]> (r)  v = Reshape (t, joined)  y = ReduceProd (v, first) }"""
    )
    legal, report = legalize(source, "x86-nchwc", backend_options={"block": 16}, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert [(each.value, each.to) for each in report.conversions] == [("r", "2,1,0,3")]
    again, second = legalize(legal, "x86-nchwc", backend_options={"block": 16})
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    assert second.cost == report.cost


def test_channels_of_two_blocks_that_are_interleaved_stay_in_blocks() -> None:
    """A unit of ShuffleNet as flax writes it: the parts are stacked in front of their channels, and swapped with them.
    In blocks, the stack lies behind the channels of a block, where the shuffled network has it, at once."""
    # The models run, which blocked operators do with the blocks of this machine alone.
    half = 2 * X86Nchwc().blocks.size
    net = Net(17)
    value = net.input("x", (2, 8, 8, 3))
    value = net.node("Relu", net.conv(net.transpose(value, 0, 3, 1, 2), 3, 2 * half))
    for _ in range(2):
        value = net.transpose(value, 0, 2, 3, 1)
        left, right = net.node("Split", value, net.constant([half, half]), results=2, axis=3)
        right = net.node("Relu", net.conv(net.transpose(right, 0, 3, 1, 2), half, half))
        both = net.node("Concat", left, net.transpose(right, 0, 2, 3, 1), axis=3)
        stacked = net.node("Reshape", both, net.constant([2, 8, 8, 2, half]))
        value = net.node("Reshape", net.transpose(stacked, 0, 1, 2, 4, 3), net.constant([2, 8, 8, 2 * half]))
        value = net.transpose(value, 0, 3, 1, 2)
    net.output(net.conv(value, 2 * half, 8))
    legal, report = checked(net.model(), X86Nchwc())
    again, second = legalize(legal, X86Nchwc())
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_a_resize_keeps_the_names_of_its_axes() -> None:
    """It changes the last two axes of the source. In the required order, these are not the last ones."""
    source = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["":18]>
        g (float[5,4,2,3] x) => (float[5,4,3,6] y) <int64[4] sizes = {5,4,3,6}> {
          r = Resize <mode = "nearest"> (x, , , sizes)  y = HardSwish (r) }"""
    )
    table = {"name": "drawn", "rule": [{"op": "HardSwish", "inputs": ["CWHN"], "results": ["*"]}]}
    legal, report = legalize(source, table)
    again, second = legalize(legal, table, check=True)
    assert second.verification is not None
    assert second.verification.passed
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


RESIZES = {
    "sizes": (13, "<int64[4] sizes = {1,3,12,20}> { t = Resize <mode = 'linear'> (x, , , sizes)"),
    "axes": (18, "<float[2] scales = {2.5,2}> { t = Resize <mode = 'linear', axes = [3,-2]> (x, , scales)"),
    "scales": (9, "<float[4] scales = {1,1,2,2.5}> { t = Upsample <mode = 'linear'> (x, scales)"),
    "attribute": (7, "{ t = Upsample <mode = 'linear', scales = [1.0,1.0,2.0,2.5]> (x)"),
}


@pytest.mark.parametrize("numbers", RESIZES)
@pytest.mark.parametrize("backend", ["onnx", "nchw"])
def test_a_resize_in_another_layout_costs_as_much_as_the_one_of_onnx(numbers: str, backend: str) -> None:
    """The `relayout::` operator has its numbers in ONNX's order, whatever the order of its data."""
    opset, text = RESIZES[numbers]
    image = "(float[1,3,6,8] x) => (float[1,12,20,3] y)"
    body = text.replace("'", '"')
    source = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["":{opset}]> g {image} {body} y = Transpose <perm = [0,2,3,1]> (t) }}'
    )
    laid, _ = checked(source, "nhwc")
    assert [node.domain for node in laid.graph.node if node.op_type in ("Resize", "Upsample")] == ["relayout"]
    _, direct = checked(source, backend)
    _, report = checked(laid, backend)
    assert report.cost == direct.cost


def test_names_of_open_dims_inside_are_no_part_of_the_nodes() -> None:
    """A second run numbers them anew, at every depth."""

    def nested(dim: str, perm: list[int]) -> onnx.ModelProto:
        graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["t"], perm=perm)], "inner", [], [])
        for _ in range(3):
            graph.output.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [dim, 2]))
            graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [dim, 2]))
            chosen = helper.make_node("If", ["c"], ["t"], then_branch=graph, else_branch=graph)
            graph = helper.make_graph([chosen], "outer", [], [])
        return helper.make_model(graph)

    assert node_texts(nested("unk__1", [1, 0])) == node_texts(nested("unk__2", [1, 0]))
    assert node_texts(nested("unk__1", [1, 0])) != node_texts(nested("unk__1", [0, 1]))


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
def test_a_noted_cost_is_for_the_size_to_which_a_reshape_forces_a_dim(objective: str) -> None:
    """The products of transposes cost more than the products, and a second run sees that by their notes alone."""
    net = Net()
    tokens = net.node("Reshape", net.input("x", (4, 6, 3, "d")), net.constant([4, 6, 6]))
    for _ in range(3):
        net.output(net.transpose(net.node("MatMul", tokens, net.weight(6, 6)), 0, 2, 1))
    legal, report = legalize(net.model(), "onnx", objective=objective)
    assert report.account.operators.bytes == 3 * 432
    assert report.verification is not None
    assert report.verification.findings == ()
    again, second = legalize(legal, "onnx", objective=objective)
    assert (second.cost, second.account.operators.bytes) == (report.cost, report.account.operators.bytes)
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
def test_a_batch_made_of_blocks_has_its_size_behind_a_convolution(operator: str, backend: str) -> None:
    """A dilated convolution as tf2onnx writes it, with the padding and cropping that the run computes. The Reshape
    before it may become a view, which keeps another name for the batch than the convolution's result."""
    net = Net(15)
    pads = net.input("pads", (8,), TensorProto.INT64)
    image = net.transpose(net.node("Pad", net.input("x", ("n", "h", "w", 1)), pads), 3, 0, 1, 2)
    blocks = net.node("Unsqueeze", net.node("SpaceToDepth", image, blocksize=2), net.constant([1]))
    blocks = net.node("Reshape", blocks, net.constant([1, 1, 0, 0, 0, 1]))
    blocks = net.node("Reshape", net.node("Squeeze", blocks, net.constant([0])), net.constant([-1, 1, 0, 0]))
    kernel = net.weight(*((16, 1, 3, 3) if operator == "Conv" else (1, 16, 3, 3)))
    value = net.transpose(net.node(operator, blocks, kernel), 1, 0, 2, 3)
    image = net.transpose(net.node("DepthToSpace", value, blocksize=2), 1, 0, 2, 3)
    net.output(net.node("Relu", image))
    legal, report = legalize(net.model(), backend)
    assert report.after.transposes > 0
    again, second = legalize(legal, backend)
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
