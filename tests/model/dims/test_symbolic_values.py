"""Shape arithmetic over dims without a number: what is known of its values, and what folds because of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import Net, assert_same_numbers

from relayout import legalize, verify
from relayout.model.dims.constant_propagation import infer_with_values
from relayout.model.dims.symbolic_values import Symbols
from relayout.model.io import read_model


def shuffled(shape: tuple[int | str, ...], *, in_floats: bool = False, from_static: bool = False) -> onnx.ModelProto:
    """Two convolutions around a channel shuffle of two groups, as torch's older exporter writes it."""
    net = Net()
    axes = net.constant([0])

    def size(value: str, axis: int) -> str:
        return net.node("Gather", net.node("Shape", value), net.constant(axis))

    def vector(*parts: str | int) -> str:
        each = [net.constant([p]) if isinstance(p, int) else net.node("Unsqueeze", p, axes) for p in parts]
        return net.node("Concat", *each, axis=0)

    value = net.conv(net.input("x", shape), shape[1], 8)  # type: ignore[arg-type]
    batch, channels, height, width = (size(value, axis) for axis in range(4))
    if in_floats:
        quotient = net.node("Div", net.node("Cast", channels, to=1), net.constant(np.float32(2)))
        half = net.node("Cast", net.node("Floor", quotient), to=7)
    else:
        half = net.node("Div", channels, net.constant(2))
    split = vector(batch, 2, half, height, width)
    turned = net.transpose(net.node("Reshape", value, split), 0, 2, 1, 3, 4)
    joined = net.node("Reshape", turned, vector(batch, -1, height, width))
    net.output(net.node("Relu", net.conv(joined, 8, 8)))
    return net.model()


@pytest.mark.parametrize("in_floats", [False, True], ids=["integers", "floats"])
@pytest.mark.parametrize("shape", [(2, 3, 6, 6), ("batch", 3, 6, 6), ("batch", 3, "height", "width")], ids=str)
def test_a_channel_shuffle_folds_whatever_dims_are_known(shape: tuple[int | str, ...], in_floats: bool) -> None:
    model = shuffled(shape, in_floats=in_floats)
    legal, report = legalize(model, "nchw")
    assert (report.before.transposes, report.after.transposes) == (1, 0)
    assert verify(legal, "nchw", against=model, samples=1).passed


def test_terms_that_are_numbers_are_constants_and_quotients_are_cut_off() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[N,7,H] x) => (int64[5] y) <int64 one = {1}, int64[1] two = {2}, int64[2] ends = {0,2}> {
            s = Shape (x)
            c = Gather (s, one)
            half = Div (c, two)
            both = Gather (s, ends)
            size = Size (x)
            all = Unsqueeze (size, ends)
            y = Concat <axis = 0> (half, both, s) }"""
    )
    graph = onnx.shape_inference.infer_shapes(model).graph
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    symbols = Symbols(graph, known)
    values = symbols.values
    assert {name: array.tolist() for name, array in symbols.constants().items() if name not in known} == {
        "c": 7,
        "half": [3],
    }
    assert [term and term.names for term in values["both"].terms] == [("N",), ("H",)]
    assert values["size"].terms[0] == (7, ("H", "N"))
    assert values["y"].terms[0] == (3, ())


@pytest.mark.parametrize("opset", [12, 13, 14])
def test_products_of_extents_are_known_in_every_opset(opset: int) -> None:
    """Before opset 14, onnx's inference does not know the rank of what is reshaped by a computed shape."""
    net = Net(opset=opset)
    image = net.node("Conv", net.input("x", ("n", 8, "h", "w")), net.input("k", (8, 8, 2, 2)), strides=[2, 2])
    size = net.node("Shape", image)
    n, h, w = (net.node("Gather", size, net.constant([place])) for place in (0, 2, 3))
    columns = net.node("Concat", net.node("Mul", n, w), net.constant([8]), h, axis=0)
    lines = net.node("Reshape", net.transpose(image, 0, 3, 1, 2), columns)
    first = net.node("Gather", net.node("Shape", lines), net.constant([0]))
    parts = net.node("Reshape", lines, net.node("Concat", first, net.constant([2, 4, -1]), axis=0))
    one, other = net.node("Split", parts, axis=-2, results=2)
    net.output(net.node("Relu", net.node("Einsum", one, other, equation="ngci, ngcj -> ngij")))
    nodes = [node for node in read_model(net.model()).graph if node.op_type in ("Einsum", "Reshape", "Split")]
    shapes = [str(value.shape) for node in nodes for value in node.outputs]
    half = "[n*(w//2),2,2,h//2]"
    assert shapes == ["[n*(w//2),8,h//2]", "[n*(w//2),2,4,h//2]", half, half, "[n*(w//2),2,h//2,h//2]"]


def test_formulas_that_an_exporter_has_written_are_spelled_alike() -> None:
    net = Net()
    image = net.node("MaxPool", net.input("x", (1, 3, "h", "w")), kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.node("Relu", image))
    model = net.model()
    for dim, text in zip(model.graph.output[0].type.tensor_type.shape.dim[2:], ("(h//2)", "((w//2))"), strict=True):
        dim.dim_param = text
    shapes = [str(value.shape) for node in read_model(model).graph for value in node.outputs]
    assert shapes == ["[1,3,h//2,w//2]"] * 2


def test_names_with_dots_are_names() -> None:
    net = Net()
    net.output(net.node("MaxPool", net.input("x", (1, 3, "ids.2", 8)), kernel_shape=[2, 2], strides=[2, 2]))
    (node,) = read_model(net.model()).graph
    assert str(node.outputs[0].shape) == "[1,3,ids.2//2,4]"


def test_the_sizes_that_were_assumed_are_reported() -> None:
    model = shuffled(("batch", 3, "height", "width"))
    _, report = legalize(model, "nhwc")
    assert report.assumed == {"batch": 1, "height": 64, "width": 64}
    _, report = legalize(model, "nhwc", dims={"batch": 2, "height": 8, "width": 8})
    assert report.assumed == {}


def test_a_bias_by_position_keeps_the_extents_of_each_layer() -> None:
    """T5 makes it of ranges and slices it by the lengths; the shape that ends a layer is that of its operands."""
    net = Net()
    axis, x = net.constant([0]), net.input("x", ("batch", "length", 8))
    zero, one = net.constant(np.int64(0)), net.constant(np.int64(1))
    for _ in range(2):
        length = net.node("Gather", net.node("Shape", x), one)
        places = net.node("Range", zero, length, one)
        apart = net.node("Sub", net.node("Unsqueeze", places, axis), net.node("Unsqueeze", places, net.constant([1])))
        bias = net.node("Unsqueeze", net.node("Cast", apart, to=1), axis)
        start = net.node("Unsqueeze", net.node("Neg", length), axis)
        bias = net.node("Slice", bias, start, net.constant([(1 << 31) - 1]), net.constant([1]), net.constant([1]))
        scores = net.node("Add", net.node("MatMul", x, net.transpose(x, 0, 2, 1)), bias)
        batch = net.node("Unsqueeze", net.node("Gather", net.node("Shape", x), zero), axis)
        shape = net.node("Concat", batch, net.constant([-1, 8]), axis=0)
        x = net.node("Add", net.node("Reshape", net.node("MatMul", net.node("Softmax", scores), x), shape), x)
    net.output(x)
    graph = read_model(net.model()).graph
    named = {str(extent) for node in graph for value in node.outputs for extent in value.shape or ()}
    assert named <= {"batch", "length", "1", "2", "3", "8"}


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ("y = Transpose <perm = [1,0]> (a)", ["open", 2]),
        ("y = Unsqueeze (a, ones)", [2, 1, "open"]),
        ("b = Unsqueeze (a, ones)  y = Squeeze (b, ones)", [2, "open"]),
        ("y = Identity (a)", [2, "open"]),
        ("y = Neg (a)", [2, "open"]),
        ("f = Cast <to = 1> (a)  d = Dropout (f)  y = Cast <to = 7> (d)", [2, "open"]),
    ],
)
def test_a_generated_name_that_an_output_declares_is_that_of_the_operand(nodes: str, shape: list[int | str]) -> None:
    declared = ["unk__7" if dim == "open" else dim for dim in shape]
    text = f"g (float[n,m] x) => (int64[{','.join(map(str, declared))}] y) <int64[1] ones = {{1}}>"
    source = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["":17]> {text} {{ a = NonZero (x)  {nodes} }}')
    graph = read_model(source).graph
    found, read = graph.outputs[0].shape, graph[0].outputs[0].shape
    assert found is not None
    assert read is not None
    assert [*found] == [read[1] if dim == "open" else dim for dim in shape]


def test_the_extent_that_a_computed_shape_leaves_open_is_what_the_others_leave() -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["":17]>
           g (float[n,16,4] x, int64[1] k) => (float[?,?,?,?] z)
           <int64[1] two = {2}, int64[1] four = {4}, int64[1] zero = {0}> {
           s = Shape (x)  b = Gather (s, zero)  v = Concat <axis = 0> (b, two, k, four)
           y = Reshape (x, v)  z = Relu (y) }"""
    )
    assert str(read_model(source).graph[-1].outputs[0].shape) == "[n,2,8,4]"


def test_numbers_are_rounded_up_and_kept_between_bounds_and_symbols_are_not() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[N,7] x) => (float[2] up, float[2] bounded, int64[2] most, int64[2] least)
        <float[1] two = {2.0}, float low = {3.0}, float high = {3.25}, int64[1] five = {5}> {
            s = Shape (x)
            f = Cast <to = 1> (s)
            half = Div (f, two)
            up = Ceil (half)
            bounded = Clip (half, low, high)
            most = Min (s, five)
            least = Max (s, five) }"""
    )
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = Symbols(graph, {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}).values
    numbers = {name: values[name].terms[1].factor for name in ("up", "bounded", "most", "least")}
    assert numbers == {"up": 4, "bounded": 3.25, "most": 5, "least": 7}
    assert all(values[name].terms[0] is None for name in ("up", "bounded", "most", "least"))


def test_shapes_are_followed_through_any_operator_whose_operands_have_known_shapes() -> None:
    """Each stage pads its image to a multiple of 4, by what it computes from the extents."""
    net = Net()
    image, one = net.input("x", (1, 3, 30, 30)), net.constant([0])
    for channels in (3, 8, 8):
        image = net.node("Softmax", net.conv(image, channels, 8), axis=1)
        read = net.node("Cast", net.node("Gather", net.node("Shape", image), net.constant(2)), to=1)
        blocks = net.node("Ceil", net.node("Div", read, net.constant(np.float32(4))))
        missing = net.node("Sub", net.node("Mul", blocks, net.constant(np.float32(4))), read)
        pad = net.node("Unsqueeze", net.node("Cast", net.node("Clip", missing, net.constant(np.float32(0))), to=7), one)
        image = net.node("Pad", image, net.node("Concat", net.constant([0] * 6), pad, pad, axis=0))
    net.output(image)
    rounds = 0

    def infer(proto: onnx.ModelProto) -> onnx.ModelProto:
        nonlocal rounds
        rounds += 1
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)

    inferred = infer_with_values(net.model(), infer, has_graphs=False).proto.graph
    (result,) = (v.type.tensor_type.shape.dim for v in (*inferred.value_info, *inferred.output) if v.name == image)
    assert [dim.dim_value for dim in result] == [1, 8, 32, 32]
    assert rounds <= 3


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_the_greatest_of_equal_extents_is_the_extent(operator: str) -> None:
    """Of different ones it is not known. tf2onnx writes the batch of an Einsum as the Max of its operands'."""
    source = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["":17]>
           g (float[n,4,m] x, float[n,4,2] z) => (float[?,?,?,?] y, float[?,?,?,?] w)
           <int64[2] first = {{0,1}}, int64[2] ends = {{0,2}}, int64[2] one = {{1,1}}, float[1,1,1,1] c = {{1}}> {{
           s = Shape (x)  a = Gather (s, first)  t = Shape (z)  b = Gather (t, first)  d = Gather (s, ends)
           same = {operator} (a, b, a)  e = Concat <axis = 0> (same, one)  y = Expand (c, e)
           other = {operator} (a, d)  f = Concat <axis = 0> (other, one)  w = Expand (c, f) }}"""
    )
    shapes = {str(node.outputs[0].name): node.outputs[0].shape for node in read_model(source).graph}
    assert str(shapes["y"]) == "[n,4,1,1]"
    assert str(shapes["w"]).startswith("[n,")
    assert not str(shapes["w"]).startswith(("[n,4,", "[n,m,"))


def test_extents_with_one_formula_of_a_generated_name_are_equal() -> None:
    """The channels behind blocks are four times what the padding makes, and the Reshape's are as many."""
    read = read_model(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, 1, h, w] x, int64[8] pads) => (float[r, s, t, u, v] y)
            <int64[5] shape = {0, 1, -1, 0, 0}, int64[1] one = {1}> {
              a = Pad(x, pads)  b = SpaceToDepth<blocksize = 2>(a)  c = Unsqueeze(b, one)  d = Reshape(c, shape)
              e = Relu(d)  y = Relu(e) }"""
        )
    )
    blocks, row, reshaped = (value.shape for node in list(read.graph)[1:4] for value in node.outputs)
    assert blocks is not None
    assert row is not None
    assert reshaped is not None
    assert reshaped[2] == row[2] == blocks[1]


@pytest.mark.parametrize(("index", "shape"), [([1], [2, "n", 3]), ([-1], None), ([7], [2, 1, 3])])
def test_the_repeats_of_one_axis_are_followed(index: list[int], shape: list[Any] | None) -> None:
    """As PyTorch's older exporter writes `repeat_interleave`."""
    net = Net()
    x, like = net.input("x", (2, 1, 3)), net.input("like", ("n", 4))
    count = net.node("Gather", net.node("Shape", like), net.constant([0]))
    values = net.node("Concat", net.constant([1]), count, axis=0)
    row = net.node("OneHot", net.constant(index), net.constant(3), values)
    result = net.node("Tile", x, net.node("Reshape", row, net.constant([-1])))
    net.output(net.node("Relu", result))
    found = next(
        value.shape for node in read_model(net.model()).graph for value in node.outputs if value.name == result
    )
    assert found is not None
    assert shape is None or found == shape
    assert shape is not None or not any(isinstance(dim, int) for dim in found)
    feeds = {"x": np.ones((2, 1, 3), np.float32), "like": np.ones((5, 4), np.float32)}
    assert_same_numbers(net.model(), legalize(net.model())[0], feeds)


def test_a_table_of_one_hot_rows_is_not_computed() -> None:
    net = Net()
    rows = net.node("OneHot", net.constant(list(range(4000))), net.constant(1 << 40), net.constant([0, 1]))
    net.output(net.node("Shape", rows), onnx.TensorProto.INT64)
    assert legalize(net.model())[1].status == "optimal"
