"""Reshapes that merge and split axes of unknown extents, as in models of images of any size, stand in the way of no
layout: the legal model has no more Transposes than with known extents."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from graphs import Net, assert_close, assert_same_numbers, run
from legalization_checks import checked
from model_files import parse
from random_named_extents import BACKENDS, EVEN_SIZES, SIZES, NamedNet, faults_of_named

from relayout import legalize, read_model, verify

Part = Callable[[NamedNet, str], str]


def patches(net: NamedNet, image: str) -> str:
    """The pixels as rows of a matrix, a linear layer, and the image again."""
    rows = net.transpose(net.reshape(image, [["n"], [8], ["h", "w"]]), 0, 2, 1)
    columns = net.transpose(net.node("MatMul", rows, net.weight(8, 8)), 0, 2, 1)
    return net.reshape(columns, [["n"], [8], ["h"], ["w"]])


def group_norm(net: NamedNet, image: str) -> str:
    """GroupNormalization as exporters write it before opset 18: groups as channels, the rest as one axis."""
    groups = net.reshape(image, [["n"], [2], [4, "h", "w"]], infers=2)
    groups = net.node("InstanceNormalization", groups, net.weight(2), net.weight(2))
    return net.reshape(groups, [["n"], [8], ["h"], ["w"]])


def columns_last(net: NamedNet, image: str) -> str:
    """Rows and batch as one axis, as attention along the rows of an image has it."""
    pixels = net.reshape(net.transpose(image, 0, 2, 3, 1), [["n", "h"], ["w"], [8]])
    pixels = net.node("Softmax", net.node("MatMul", pixels, net.weight(8, 8)), axis=1)
    return net.transpose(net.reshape(pixels, [["n"], ["h"], ["w"], [8]]), 0, 3, 1, 2)


def squares(net: NamedNet, image: str) -> str:
    """The pixels of 2x2 squares as channels, and a convolution."""
    cut = net.reshape(image, [["n"], [8], ["h//2"], [2], ["w//2"], [2]])
    turned = net.transpose(cut, 0, 1, 3, 5, 2, 4)
    return net.conv(net.reshape(turned, [["n"], [32], ["h//2"], ["w//2"]]), 32, 8, 1)


def windows(net: NamedNet, image: str, rows: str = "h", columns: str = "w", *, infers: int | None = None) -> str:
    """Products in each window of 2x2 pixels, as in Swin. The first axis of number `infers` is -1."""
    down, across = f"{rows}//2", f"{columns}//2"
    pixels = net.transpose(image, 0, 2, 3, 1)
    cut = net.transpose(net.reshape(pixels, [["n"], [down], [2], [across], [2], [8]]), 0, 1, 3, 2, 4, 5)
    inside = net.reshape(cut, [["n", down, across], [4], [8]], infers=infers)
    inside = net.node("MatMul", inside, net.weight(8, 8))
    cut = net.reshape(net.node("Softmax", inside, axis=1), [["n"], [down], [across], [2], [2], [8]], infers=infers)
    pixels = net.reshape(net.transpose(cut, 0, 1, 3, 2, 4, 5), [["n"], [rows], [columns], [8]], infers=infers)
    return net.transpose(pixels, 0, 3, 1, 2)


def attention(net: NamedNet, image: str) -> str:
    return net.attention(image, 8)


PARTS = {"patches": patches, "group norm": group_norm, "columns": columns_last}
HALVES = {"squares": squares, "windows": windows, "attention": attention}


def around(part: Part, opset: int = 17) -> onnx.ModelProto:
    """The part between two convolutions."""
    net = NamedNet(opset)
    net.output(net.conv(part(net, net.conv(net.image, 8, 8)), 8, 8))
    return net.model()


def at(model: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """The model for one size of its inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for dim in fixed.graph.input[0].type.tensor_type.shape.dim:
        if dim.dim_param:
            dim.dim_value = sizes[dim.dim_param]
    fixed.graph.output[0].type.tensor_type.ClearField("shape")
    return fixed


# The batch and rows of `columns` are one axis, which only stays whole: where a backend takes any layout, known extents
# are cheaper, for they let the two apart. The same holds for the products of `xla-cpu`, whose operands have orders of
# their own. The transposes and the cost of each with unknown extents:
LET_APART = {
    ("windows", "xla-cpu"): (2, 524288),
    ("attention", "xla-cpu"): (2, 524288),
}


@pytest.mark.parametrize(
    ("part", "backend"),
    [
        *[(part, backend) for part in PARTS for backend in ("nhwc", "tpu", "x86-nchwc", "onnx")][:-2],
        *[(part, backend) for part in HALVES for backend in ("nhwc", "tpu", "onnx", "xla-cpu")],
    ],
)
def test_axes_of_unknown_extents_cost_as_many_transposes_as_known_ones(part: str, backend: str) -> None:
    model, all_sizes = (around(PARTS[part]), SIZES) if part in PARTS else (around(HALVES[part]), EVEN_SIZES)
    legal, report = legalize(model, backend)
    _, known = legalize(at(model, {"n": 1, "h": 64, "w": 64}), backend)
    assert report.status == known.status == "optimal"
    if (part, backend) in LET_APART:
        assert (report.after.transposes, report.cost) == LET_APART[part, backend]
        assert known.cost < report.cost
    else:
        assert (report.after.transposes, report.cost) == (known.after.transposes, known.cost)
    again, second = legalize(legal, backend)
    assert second.cost == report.cost
    assert again.SerializeToString() == legal.SerializeToString()
    assert verify(legal, backend, model, dims=all_sizes[1]).passed
    for sizes in all_sizes:
        shape = [sizes["n"], 8, sizes["h"], sizes["w"]]
        x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        assert_close(run(model, {"x": x}), run(legal, {"x": x}))


@pytest.mark.parametrize("backend", ["auto-nhwc", "canonical", "nhwc", "x86-nchwc"])
def test_an_order_of_open_strides_is_told_by_the_shape(backend: str) -> None:
    """The elements of one group may be in any order: with the channels behind the pixels, the value has the same shape.
    No annotation tells such an order, so that operators take and give it only where the shape is another."""
    net = NamedNet()
    groups = net.reshape(net.conv(net.image, 8, 8), [["n"], [1], [8, "h", "w"]])
    groups = net.node("InstanceNormalization", groups, net.weight(1), net.weight(1))
    image = net.reshape(groups, [["n"], [8], ["h"], ["w"]])
    net.output(net.conv(net.node("Mul", image, net.weight(8, 1, 1)), 8, 8))
    legal, _ = checked(net.model(), backend)
    for sizes in SIZES:
        x = np.random.default_rng(7).standard_normal((sizes["n"], 8, sizes["h"], sizes["w"])).astype(np.float32)
        assert_close(run(net.model(), {"x": x}), run(legal, {"x": x}))


@pytest.mark.parametrize("backend", ["canonical", "nhwc", "onnx"])
def test_rows_of_a_gemm_are_exchanged_at_no_open_stride(backend: str) -> None:
    """torch.onnx writes so the last layer of an attention whose texts come first: the rows are texts and places."""
    model = parse("""g (float[n,2,6,4] x, float[n,6,8] r, float[8,8] w) => (float[n,6,8] y)
        <int64[2] rows = {-1,8}, int64[3] texts = {6,-1,8}> {
            p = Transpose <perm = [2,0,1,3]> (x)  q = Reshape (p, rows)  g = Gemm (q, w)
            s = Reshape (g, texts)  t = Transpose <perm = [1,0,2]> (s)  y = Add (r, t) }""")
    checked(model, backend)


@pytest.mark.parametrize("backend", ["nhwc", "onnx", "xla-cpu"])
def test_windows_of_a_convolved_image_are_quotients_of_formulas(backend: str) -> None:
    """The rows behind a stride are `(h - 1)//2 + 1`. Reshapes with -1 for the batch show that the windows are all."""
    net = NamedNet()
    value = net.node("Conv", net.image, net.weight(8, 8, 3, 3), pads=[1] * 4, strides=[2, 2])
    net.places |= {"r": (value, 2), "c": (value, 3)}
    for _ in range(2):
        value = net.node("Add", value, windows(net, value, "r", "c", infers=0))
    net.output(net.conv(value, 8, 8))
    model = net.model()
    shapes = [value.shape for node in read_model(model).graph for value in node.outputs]
    assert not [shape for shape in shapes if shape is None or "unk__" in str(shape)]
    legal, report = legalize(model, backend)
    _, known = legalize(at(model, {"n": 1, "h": 64, "w": 64}), backend)
    assert (report.after.transposes, report.cost) == (known.after.transposes, known.cost)
    assert legalize(legal, backend)[1].cost == report.cost
    for sizes in ((2, 8, 7, 4), (3, 8, 12, 3)):
        x = np.random.default_rng(7).standard_normal(sizes).astype(np.float32)
        assert_close(run(model, {"x": x}), run(legal, {"x": x}))


def padded_windows(net: NamedNet, image: str, *, as_torch: bool) -> str:
    """Products in windows of 3x3 pixels of an image that is padded to multiples of 3, and cropped again.

    `as_torch`: the pads are in the order of PyTorch, last axis first, and its exporter turns them around.
    """
    pixels = net.transpose(image, 0, 2, 3, 1)
    three = net.constant([3])

    def extent(value: str, place: int) -> str:
        return str(net.node("Gather", net.node("Shape", value), net.constant([place])))

    rows, columns = extent(pixels, 1), extent(pixels, 2)
    down, across = (
        net.node("Mod", net.node("Sub", three, net.node("Mod", each, three)), three) for each in (rows, columns)
    )
    zero, two = net.constant([0]), net.constant([0, 0])
    if as_torch:
        pairs = net.node("Concat", two, zero, across, zero, down, two, axis=0)
        pairs = net.node("Reshape", pairs, net.constant([-1, 2]))
        backward = [net.constant([each]) for each in (-1, -(1 << 63) + 1, 0, -1)]
        pads = net.node("Reshape", net.transpose(net.node("Slice", pairs, *backward), 1, 0), net.constant([-1]))
    else:
        pads = net.node("Concat", two, two, zero, down, across, zero, axis=0)
    padded = net.node("Pad", pixels, pads)
    batch, high, wide = extent(padded, 0), *(net.node("Div", extent(padded, place), three) for place in (1, 2))
    cut = net.node("Reshape", padded, net.node("Concat", batch, high, three, wide, three, net.constant([8]), axis=0))
    inside = net.node("Reshape", net.transpose(cut, 0, 1, 3, 2, 4, 5), net.constant([-1, 9, 8]))
    inside = net.node("Softmax", net.node("MatMul", inside, net.weight(8, 8)), axis=1)
    cut = net.node("Reshape", inside, net.node("Concat", batch, high, wide, net.constant([3, 3, 8]), axis=0))
    whole = [net.node("Mul", each, three) for each in (high, wide)]
    shape = net.node("Concat", batch, *whole, net.constant([8]), axis=0)
    value = net.node("Reshape", net.transpose(cut, 0, 1, 3, 2, 4, 5), shape)
    for axis, size in ((1, rows), (2, columns)):
        value = net.node("Slice", value, zero, size, net.constant([axis]))
    return net.transpose(value, 0, 3, 1, 2)


@pytest.mark.parametrize("as_torch", [False, True])
@pytest.mark.parametrize("backend", ["nhwc", "onnx", "xla-cpu", "x86-nchwc"])
def test_windows_of_a_padded_image_are_rounded_up(backend: str, as_torch: bool) -> None:
    net = NamedNet()
    first = net.conv(net.image, 8, 8)
    net.output(net.conv(net.node("Add", first, padded_windows(net, first, as_torch=as_torch)), 8, 8))
    model = net.model()
    shapes = [str(value.shape) for node in read_model(model).graph for value in node.outputs]
    assert "[n,3*((h + 2)//3),3*((w + 2)//3),8]" in shapes
    assert not [shape for shape in shapes if "None" in shape or "unk__" in shape]
    legal, report = legalize(model, backend)
    if backend == "nhwc" and not as_torch:
        # Others would move the Pad too, whose operand is computed in the source's order of axes.
        _, known = legalize(at(model, {"n": 1, "h": 64, "w": 64}), backend)
        assert (report.after.transposes, report.cost) == (known.after.transposes, known.cost)
    assert legalize(legal, backend)[1].cost == report.cost
    for sizes in ((2, 8, 3, 5), (1, 8, 6, 3), (3, 8, 1, 2)):
        x = np.random.default_rng(7).standard_normal(sizes).astype(np.float32)
        assert_close(run(model, {"x": x}), run(legal, {"x": x}))


@pytest.mark.parametrize("backend", ["nhwc", "onnx", "tpu", "xla-cpu"])
def test_a_size_that_leaves_no_window_costs_nothing(backend: str) -> None:
    """No alternative of a product of no windows costs less than nothing."""
    _, report = legalize(around(attention), backend, dims={"n": 1, "h": 1, "w": 1})
    assert report.status == "optimal"
    assert report.cost >= 0


@pytest.mark.parametrize("opset", [8, 11, 13, 18])
def test_the_legal_model_reads_extents_at_run_time_in_every_opset(opset: int) -> None:
    model = around(patches, opset)
    legal, report = legalize(model, "nhwc")
    assert report.after.transposes == 2
    x = np.random.default_rng(7).standard_normal((2, 8, 3, 5)).astype(np.float32)
    assert_close(run(model, {"x": x}), run(legal, {"x": x}))


def test_two_reshapes_may_split_one_axis_alike() -> None:
    net = NamedNet()
    pixels = net.node("Relu", net.reshape(net.image, [["n"], [8], ["h", "w"]]))
    for _ in range(2):
        net.output(net.conv(net.reshape(pixels, [["n"], [8], ["h"], ["w"]]), 8, 8))
    legal, report = legalize(net.model(), "nhwc")
    assert report.after.transposes == 3  # the input and both outputs
    x = np.random.default_rng(7).standard_normal((2, 8, 3, 5)).astype(np.float32)
    assert_close(run(net.model(), {"x": x}), run(legal, {"x": x}))


def test_reshapes_that_split_one_axis_differently_are_not_both_views() -> None:
    """Rows and columns, and then their numbers exchanged: 3 x 5 and 5 x 3 have no common factors."""
    net = NamedNet()
    pixels = net.node("Relu", net.reshape(net.image, [["n"], [8], ["h", "w"]]))
    net.output(net.conv(net.reshape(pixels, [["n"], [8], ["h"], ["w"]]), 8, 8))
    net.output(net.conv(net.reshape(pixels, [["n"], [8], ["w"], ["h"]]), 8, 8))
    legal, _ = legalize(net.model(), "nhwc")
    assert verify(legal, "nhwc", net.model(), dims={"h": 5, "w": 3}).passed
    x = np.random.default_rng(7).standard_normal((2, 8, 3, 5)).astype(np.float32)
    assert_close(run(net.model(), {"x": x}), run(legal, {"x": x}))


def test_an_extent_that_no_other_tensor_has_is_not_split_off() -> None:
    """The rows are an input of their own, so that no tensor tells how many there are before the Reshape runs."""
    net = Net()
    x, rows = net.input("x", ("n", 8, "p")), net.input("rows", (1,), onnx.TensorProto.INT64)
    image = net.node("Concat", net.constant([1, 8]), rows, net.constant([-1]), axis=0)
    net.output(net.conv(net.node("Reshape", net.node("Relu", x), image), 8, 8))
    legal, report = legalize(net.model(), "nhwc")
    assert report.status == "optimal"
    feeds = {"x": np.random.default_rng(7).standard_normal((1, 8, 15)).astype(np.float32), "rows": np.array([5])}
    assert_close(run(net.model(), feeds), run(legal, feeds))


def test_an_extent_of_a_tensor_that_is_not_computed_is_not_read() -> None:
    """The pool tells the extents of the Reshape and nothing else: as a view the Reshape would not need it."""
    net = NamedNet()
    _, axes = net.pool(net.node("Relu", net.image), [["n"], [8], ["h"], ["w"]])
    pixels = net.node("Tanh", net.input("pixels", ("n", 8, "p")))
    net.output(net.conv(net.reshape(pixels, axes), 8, 8))
    legal, report = legalize(net.model(), "nhwc")
    assert report.status == "optimal"
    x = np.random.default_rng(7).standard_normal((2, 8, 4, 6)).astype(np.float32)
    feeds = {"x": x, "pixels": np.ascontiguousarray(x.reshape(2, 8, 24)[..., :6])}
    assert_close(run(net.model(), feeds), run(legal, feeds))


@pytest.mark.parametrize("backend", ["x86-nchwc", "nhwc", "tpu"])
def test_a_backend_converts_a_tensor_whose_axis_is_split(backend: str) -> None:
    """The operator of the backend reads and writes the axes of the value, whatever a Reshape behind it splits."""
    net = Net()
    x, y = net.input("x", ("n", 16, "h", "p")), net.input("y", ("n", 1, "h", "a", "b"))
    image = net.conv(net.node("Relu", net.conv(x, 16, 32)), 32, 32)
    n, *rest = (net.node("Gather", net.node("Shape", y), net.constant([axis])) for axis in (0, 2, 3, 4))
    parts = net.node("Reshape", image, net.node("Concat", n, net.constant([32]), *rest, axis=0))
    net.output(net.node("Add", parts, y))
    model = net.model()
    legal, report = legalize(model, backend, dims={"n": 1, "h": 16, "p": 16, "a": 4, "b": 4})
    if backend == "x86-nchwc":
        assert (image, "reorder") in [(each.value, each.kind) for each in report.conversions]
    draw = np.random.default_rng(7)
    feeds = {"x": draw.standard_normal((2, 16, 4, 6)), "y": draw.standard_normal((2, 1, 4, 2, 3))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    assert_close(run(model, feeds), run(legal, feeds))


def test_an_input_may_be_split_too() -> None:
    """The extents of its factors are read off another input."""
    net = NamedNet()
    pixels = net.input("pixels", ("n", "h*w", 8))
    image = net.reshape(net.transpose(pixels, 0, 2, 1), [["n"], [8], ["h"], ["w"]])
    net.output(net.node("Add", net.conv(image, 8, 8), net.image))
    legal, report = legalize(net.model(), "nhwc")
    assert report.after.transposes <= 2
    x = np.random.default_rng(7).standard_normal((2, 8, 3, 5)).astype(np.float32)
    feeds = {"x": x, "pixels": np.ascontiguousarray(x.reshape(2, 8, 15).transpose(0, 2, 1))}
    assert_close(run(net.model(), feeds), run(legal, feeds))


def test_a_tile_may_be_an_axis_of_its_own_behind_a_reshape() -> None:
    """The verifier takes the tile of the channels, which a reader calls depth, for what it is."""
    net = Net()
    value = net.input("x", (1, 8, 6, 4))
    for _ in range(2):
        value = net.node("InstanceNormalization", net.node("Sigmoid", value), net.weight(8), net.weight(8))
    value = net.node("Reshape", net.node("Tanh", value), net.constant([1, 2, 4, 6, 4]))
    net.output(net.node("InstanceNormalization", value, net.weight(2), net.weight(2)))
    legal, _ = legalize(net.model(), "tpu")
    assert verify(legal, "tpu", net.model()).passed


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_of_named_extents(seed: int, halves: bool) -> None:
    assert list(faults_of_named(seed, BACKENDS[seed % len(BACKENDS)], halves=halves)) == []


def unshuffled(sizes: tuple[int, int] | tuple[str, str]) -> onnx.ModelProto:
    """Pixels of 2x2 squares as channels, as PyTorch exports pixel_unshuffle, and a convolution."""
    shape = f"float[b,3,{sizes[0]},{sizes[1]}]"
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        net ({shape} x) => (float[b,8,?,?] y)
        <int64[1] m1 = {{-1}}, int64[1] two = {{2}}, int64[1] c3 = {{3}}, int64[1] c12 = {{12}}> {{
            rows = Shape <start = 2, end = 3> (x)
            columns = Shape <start = 3, end = 4> (x)
            h = Div (rows, two)
            w = Div (columns, two)
            cut = Concat <axis = 0> (m1, c3, h, two, w, two)
            whole = Concat <axis = 0> (m1, c12, h, w)
            squares = Reshape (x, cut)
            turned = Transpose <perm = [0,1,3,5,2,4]> (squares)
            channels = Reshape (turned, whole)
            y = Conv <pads = [1,1,1,1]> (channels, k) }}"""
    model = onnx.parser.parse_model(text)
    kernel = np.random.default_rng(1).normal(size=(8, 12, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "k"))
    return model


def test_halves_of_unknown_extents_are_equal_and_have_a_size() -> None:
    """One Transpose makes the squares channels and these the last axis."""
    source = unshuffled(("H", "W"))
    legal, report = legalize(source, "nhwc", dims={"b": 1, "H": 64, "W": 64})
    assert report.after.transposes == 2
    assert report.cost == legalize(unshuffled((64, 64)), "nhwc")[1].cost == 2 * 4 * (12 + 8) * 32 * 32
    feed = {"x": np.random.default_rng(0).normal(size=(2, 3, 6, 10)).astype(np.float32)}
    assert_close(run(legal, feed), run(source, feed))


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
@pytest.mark.parametrize(
    ("split", "sizes"), [("Split <axis = 0> (r, s)", (3, 1)), ("Split <axis = 0, num_outputs = 2> (r)", (2, 2))]
)
def test_a_split_of_an_axis_of_unknown_extent_takes_it_in_the_sources_order(
    backend: str, split: str, sizes: tuple[int, int]
) -> None:
    model = parse(
        f"""g (float[2, m] x) => (float[{sizes[0]}] y, float[{sizes[1]}] z)
        <int64[1] f = {{-1}}, int64[2] s = {{3, 1}}>
        {{ v = Transpose <perm = [1, 0]> (x) o = Relu (v) r = Reshape (o, f) y, z = {split} }}""",
        opset=18,
    )
    legal, _ = checked(model, backend)
    assert_same_numbers(model, legal, feeds={"x": np.arange(4, dtype=np.float32).reshape(2, 2)})


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "xla-cpu"])
@pytest.mark.parametrize(("shape", "to"), [("5, n, 3", "{10, 3}"), ("n, 4, 3", "{8, 3}")])
def test_an_extent_that_a_reshape_determines_counts_as_much(backend: str, shape: str, to: str) -> None:
    """The batch too: the model runs with no other."""
    rows = to[1:].partition(",")[0]
    text = f"""g (float[{shape}] x) => (float[3, {rows}] y) <int64[2] s = {to}>
        {{ a = Reshape (x, s) y = Transpose <perm = [1, 0]> (a) }}"""
    _, report = checked(parse(text), backend)
    assert (report.cost, report.assumed) == (2 * 4 * 3 * int(rows), {})


# Attention as tf2onnx expands an Einsum: batches and heads become one dim for a product, and two dims again behind it.
EXPANDED = """g (float[BATCH,8,2,3] image) => (float[a,b,c,d] y)
    <int64[3] tokens = {0,6,8}, int64[4] pixels = {-1,2,3,8}, int64[4] heads = {0,6,2,4},
     int64[2] last = {6,4}, int64[2] square = {6,6}, int64[2] both = {0,1},
     int64[3] joined = {-1,6,8}> {
    last_axis = Transpose <perm = [0,2,3,1]> (image)  x = Reshape (last_axis, tokens)  q = Softmax (x)
    q4 = Reshape (q, heads)  qt = Transpose <perm = [0,2,1,3]> (q4)
    k4 = Reshape (q, heads)  kt = Transpose <perm = [0,2,1,3]> (k4)
    v4 = Reshape (q, heads)  vt = Transpose <perm = [0,2,1,3]> (v4)
    qs = Shape (qt)  qb = Gather (qs, both)  qn = ReduceProd (qb)  qf = Concat <axis = 0> (qn, last)
    ks = Shape (kt)  kb = Gather (ks, both)  kn = ReduceProd (kb)  kf = Concat <axis = 0> (kn, last)
    vs = Shape (vt)  vb = Gather (vs, both)  vn = ReduceProd (vb)  vf = Concat <axis = 0> (vn, last)
    q3 = Reshape (qt, qf)  k3 = Reshape (kt, kf)  v3 = Reshape (vt, vf)  turned = Transpose <perm = [0,2,1]> (k3)
    m = MatMul (q3, turned)
    mb = Max (qb, kb)  ms = Concat <axis = 0> (mb, square)  m4 = Reshape (m, ms)  p4 = Softmax (m4)
    ps = Shape (p4)  pb = Gather (ps, both)  pn = ReduceProd (pb)  pf = Concat <axis = 0> (pn, square)
    p3 = Reshape (p4, pf)  o = MatMul (p3, v3)
    ob = Max (pb, vb)  os = Concat <axis = 0> (ob, last)  o4 = Reshape (o, os)
    ot = Transpose <perm = [0,2,1,3]> (o4)  flat = Reshape (ot, joined)
    sum = Add (flat, x)  rows = Reshape (sum, pixels)  y = Transpose <perm = [0,3,1,2]> (rows) }"""


NAMES = [("batch", "batch"), ("unk__783", "unk_783")]
"""Names of the batch, and those under which it is read."""


def expanded(batch: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {EXPANDED.replace("BATCH", batch)}')


@pytest.mark.parametrize(("batch", "name"), NAMES)
def test_batch_and_heads_are_known_behind_a_product_over_both(batch: str, name: str) -> None:
    """tf2onnx names the dims that it does not know as onnx's inference does. The names of an input are given."""
    shapes = {str(node.outputs[0].name): str(node.outputs[0].shape) for node in read_model(expanded(batch)).graph}
    assert shapes["m"] == f"[2*{name},6,6]"
    assert shapes["m4"] == f"[{name},2,6,6]"


def test_attention_costs_the_same_whatever_the_name_of_the_batch() -> None:
    """By default the batch is taken for 1 under each name."""
    first, second = (legalize(expanded(batch), "x86-nchwc")[1] for batch, _ in NAMES)
    assert (first.cost, first.after.transposes) == (second.cost, second.after.transposes)
    assert first.after.transposes < first.before.transposes


@pytest.mark.parametrize("opset", [11, 17])
def test_extents_of_several_reshapes_are_read_once(opset: int) -> None:
    """Group norms, as PyTorch exports them: each takes the shape of its own operand again."""
    net = NamedNet(opset)
    value = net.transpose(net.node("Relu", net.transpose(net.image, 0, 2, 3, 1)), 0, 3, 1, 2)
    for _ in range(3):
        value = net.conv(value, 8, 8)
        groups = net.node("Reshape", value, net.constant([0, 2, -1]))
        groups = net.node("InstanceNormalization", groups, net.weight(2), net.weight(2))
        value = net.node("Reshape", groups, net.node("Shape", value))
    net.output(value)
    legal, report = legalize(net.model())
    assert report.after.transposes == 0
    assert [node.op_type for node in legal.graph.node if node.op_type in ("Shape", "Gather", "Concat")] == ["Shape"]
    assert legalize(legal)[0].SerializeToString() == legal.SerializeToString()
    for sizes in SIZES:
        x = np.random.default_rng(7).standard_normal((sizes["n"], 8, sizes["h"], sizes["w"])).astype(np.float32)
        assert_close(run(net.model(), {"x": x}), run(legal, {"x": x}))


def test_a_shape_is_read_once_for_reshapes_in_another_order() -> None:
    net = NamedNet()
    value = net.image
    for _ in range(3):
        value = group_norm(net, net.conv(value, 8, 8))
    net.output(value)
    legal, report = legalize(net.model(), "nhwc")
    assert report.status == "optimal"
    # The shape of the convolved images, and that in which the last one is transposed for the output.
    read = [node.op_type for node in legal.graph.node if node.op_type in ("Shape", "Gather", "Concat")]
    assert read == ["Shape", "Shape", "Gather", "Gather", "Gather", "Concat"]
    for sizes in SIZES:
        x = np.random.default_rng(7).standard_normal((sizes["n"], 8, sizes["h"], sizes["w"])).astype(np.float32)
        assert_close(run(net.model(), {"x": x}), run(legal, {"x": x}))


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
@pytest.mark.parametrize("reader", ["MatMul", "Mul"])
def test_no_constant_is_cut_where_a_name_says_how_long_its_axis_is(reader: str, backend: str) -> None:
    """The model runs where `n` is 3; the product's operand has the columns `5*n`, and the constant 15."""
    net = Net(opset=21)
    flat = net.node("Flatten", net.node("Sin", net.transpose(net.input("x", ("n", 1, 5, "n")), 3, 2, 0, 1)))
    net.output(net.node(reader, flat, net.weight(15, 3) if reader == "MatMul" else net.weight(15)))
    model = net.model()
    for objective in ("bytes", "transposes"):
        legal, report = legalize(model, backend, objective=objective)
        assert report.status == "optimal"
        assert_same_numbers(model, legal)
