"""Values and shapes that are known before the model runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers, run
from onnx import TensorProto, helper

from relayout import legalize, verify
from relayout.model.io import read_model


def test_a_shape_from_a_computed_value_replaces_a_generated_dim() -> None:
    net = Net()
    token = net.constant(np.zeros((1, 1, 4), np.float32))
    wanted = net.constant([-1, 1, 4])
    is_open = net.node("Equal", wanted, net.constant([-1, -1, -1]))
    size = net.node("Where", is_open, net.constant([1, 1, 1]), wanted)
    expanded = net.node("Expand", token, size)
    joined = net.node("Concat", expanded, net.input("x", (1, 9, 4)), axis=1)
    net.output(net.node("Relu", joined))
    model = net.model()
    # As inference leaves them on a larger graph, before it knows what the arithmetic gives.
    for name, shape in ((expanded, ["unk__0", "unk__1", 4]), (joined, [1, "unk__2", 4])):
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    shapes = {v.name: list(v.shape or ()) for node in read_model(model).graph for v in node.outputs}
    assert shapes[joined] == [1, 10, 4]


def test_a_long_chain_of_layers_that_pad_by_what_they_compute_is_known_to_its_end() -> None:
    net = Net()
    x = net.input("x", (1, 3, 8))
    for _ in range(24):
        extent = net.node("Gather", net.node("Shape", x), net.constant([2]))
        odd = net.node("Mod", extent, net.constant([2]))
        x = net.node("Pad", x, net.node("Concat", net.constant([0, 0, 1, 0, 0]), odd, axis=0))
    net.output(net.node("Relu", x))
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (shape,) = (value.shape for value in read_model(model).graph.outputs)
    assert list(shape or ()) == [1, 3, 8 + 24 + 23]


def test_such_a_chain_whose_open_dims_have_a_name_a_layer_is_known_to_its_end() -> None:
    """As onnxslim writes a codec of sound. No value is computed, but each layer has the batch of the one before."""
    net = Net()
    x = net.input("x", (1, 3, "t"))
    padded = []
    for _ in range(24):
        extent = net.node("Gather", net.node("Shape", x), net.constant([2]))
        odd = net.node("Mod", extent, net.constant([2]))
        x = net.node("Pad", x, net.node("Concat", net.constant([0, 0, 1, 0, 0]), odd, axis=0))
        padded.append(x)
        x = net.node("Relu", x)
    net.output(x)
    model = net.model()
    for name in padded:
        dims = [f"{name}_d{axis}" for axis in range(3)]
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    read = read_model(model)
    assert {tuple(v.shape or ())[:2] for node in read.graph for v in node.outputs if node.op_type == "Pad"} == {(1, 3)}


@pytest.mark.parametrize("stop", [1, np.iinfo(np.int64).max])
def test_a_slice_from_an_unknown_start_has_an_unknown_length(stop: int) -> None:
    """onnx's inference takes 0 for the start."""
    net = Net()
    shape, start = net.node("Shape", net.input("x", (5, 1, 6))), net.input("start", (1,), TensorProto.INT64)
    sizes = net.node("Slice", shape, start, net.constant([stop]))
    net.output(net.node("Relu", net.node("Expand", net.input("y", (1,)), sizes)))
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (shape,) = (value.shape for value in read_model(model).graph.outputs)
    assert shape is None


def test_a_model_is_valid_in_which_an_extent_is_sliced_from_a_computed_start() -> None:
    """As PyTorch writes `unflatten(-1, ...)`."""
    net = Net()
    x = net.node("Relu", net.input("x", (5, 1, 12)))
    shape = net.node("Shape", x)
    last = net.node("Mod", net.constant([2]), net.constant([3]))
    after = net.node("Add", last, net.constant([1]))
    before = net.node("Slice", shape, net.constant([0]), last)
    rest = net.node("Slice", shape, after, net.constant([np.iinfo(np.int64).max]))
    split = net.node("Reshape", x, net.node("Concat", before, net.constant([3, 4]), rest, axis=0))
    net.output(net.node("Transpose", split, perm=[0, 1, 3, 2]))
    model = net.model()
    legal, report = legalize(model)
    assert report.verification is not None
    assert report.verification.passed, report.verification.findings
    assert_same_numbers(model, legal)


def test_a_result_of_a_custom_operator_keeps_its_declared_shape() -> None:
    """Where its dims have the names that inference makes up, and computed values make other shapes known."""
    net = Net()
    packed = net.node("Pack", net.input("x", ("n", 8, 3)), domain="acme")
    extent = net.node("Gather", net.node("Shape", net.input("y", ("m", 4))), net.constant(np.int64(1)))
    size = net.node("Concat", net.constant([-1]), net.node("Unsqueeze", extent, net.constant([0])), axis=0)
    net.output(net.node("Relu", packed))
    net.output(net.node("Relu", net.node("Reshape", net.input("z", ("k", 8)), size)))
    model = net.model()
    model.graph.value_info.append(helper.make_tensor_value_info(packed, TensorProto.FLOAT, ["unk__0", 2, 3, 4]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(model.graph.output[0].name, TensorProto.FLOAT, None))
    shapes = {v.name: v.shape for node in read_model(model).graph for v in node.outputs}
    assert [len(shapes[name] or ()) for name in (packed, model.graph.output[0].name)] == [4, 4]


def test_the_target_of_a_reshaped_constant_determines_the_shape_of_its_reader() -> None:
    """Where it is told in the model that it has a shape which nobody knows."""
    net = Net()
    like = net.weight(1, 3, 2)
    reshaped = net.node("Reshape", net.weight(3, 2, 1), net.node("Shape", like))
    added = net.node("Add", net.input("x", ("n", 3, "m")), reshaped)
    net.output(added)
    model = net.model()
    model.graph.value_info.append(
        helper.make_value_info(reshaped, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(added, TensorProto.FLOAT, [None] * 3))
    shapes = {v.name: v.shape for node in read_model(model).graph for v in node.outputs}
    assert shapes[reshaped] == [1, 3, 2]
    assert [shapes[added][axis] for axis in (1, 2)] == [3, 2]  # type: ignore[index]


def test_the_target_of_a_reshaped_constant_determines_shapes_inside_a_branch() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 12]>
        net (float[n,1,1,4] x, bool b) => (y)
            <float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2,1,1,4] like = {1, 2, 3, 4, 5, 6, 7, 8},
             float[1,1,1,3] k = {1, 2, 3}> {
            shape = Shape (like)
            r = Reshape (w, shape)
            s = Sub (x, r)
            y = If (b) <then_branch = one () => (float[2,1,1,4] p) {
                            c = Conv <pads = [0,1,0,1]> (s, k)
                            p = Relu (c) },
                        else_branch = two () => (float[2,1,1,4] q) { q = Relu (s) }> }"""
    )
    shapes = {v.name: v.shape for node in read_model(model).graph.all_nodes() for v in node.outputs}
    assert shapes["s"] == shapes["c"] == [2, 1, 1, 4]


@pytest.mark.parametrize("axes", [[-2, -1], [3, 2], [2, 3]])
def test_a_small_constant_gets_unit_axes_where_they_belong(axes: list[int]) -> None:
    """In whatever order an attribute names them."""
    net = Net(11)
    image = net.transpose(net.input("x", (2, 3, 4, 6)), 0, 3, 1, 2)
    factor = net.node("Unsqueeze", net.weight(2, 6), axes=axes)
    net.output(net.transpose(net.node("Mul", image, factor), 0, 2, 3, 1))
    model = net.model()
    legal, report = legalize(model)
    assert report.after.transposes == 0
    assert_same_numbers(model, legal)


def test_a_squeeze_takes_out_the_axes_of_its_attribute_alone() -> None:
    net = Net(opset=11)
    kept = net.node("Squeeze", net.constant(np.ones((1, 1), np.float32)), axes=[1])
    shape = net.node("Mul", net.constant([3, 2]), net.constant([1]))
    net.output(net.node("Add", net.node("Reshape", net.input("x", (2, 3)), shape), kept))
    model = read_model(net.model())
    assert next(node for node in model.graph if node.op_type == "Squeeze").outputs[0].shape == [1]


def test_an_unknown_index_is_no_error() -> None:
    net = Net(opset=10)
    x = net.input("x", (6, 4, 4, 1))
    places = net.node("Concat", net.node("Gather", net.node("Shape", x), net.constant([0])), net.constant([-1]), axis=0)
    net.output(net.node("OneHot", places, net.constant(3), net.constant(np.array([0.25, 1.5], np.float32)), axis=1))
    net.output(net.node("Reshape", net.transpose(x, 0, 3, 1, 2), places))
    model = net.model()
    legal, _ = legalize(model)
    assert verify(legal, "onnx", against=model).passed


BEHIND_A_STRANGER = """<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    net (float[1,2,3,1] x) => (y) <float[2,2,3,1] one, float[2,2,3,1] other> {
        rounds = Constant <value = int64 {2}> ()
        turned = Transpose <perm = [0,3,2,1]> (x)
        given = com.microsoft.SampleOp (turned)
        state = Transpose <perm = [0,3,2,1]> (given)
        y = Loop (rounds, "", state) <
            body = body (int64 i, bool going, float[1,2,3,1] in) => (bool on, float[1,2,?,?] out) {
                on = Identity (going)
                kernel = Mul (one, other)
                out = Conv <auto_pad = "SAME_UPPER"> (in, kernel)
            }
        > }"""


def test_the_declared_state_of_a_body_determines_the_rank_of_its_operand() -> None:
    model = onnx.parser.parse_model(BEHIND_A_STRANGER)
    for name in ("one", "other"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 2, 3, 1), np.float32), name))
    legal, _ = legalize(model, "nhwc")
    assert_same_numbers(model, legal)
    assert verify(legal, "nhwc", against=model).passed


def crossed(net: Net, row: str, column: str) -> str:
    """[1, n] and [m, 1], added."""
    row = net.node("Unsqueeze", row, net.constant([0]))
    return str(net.node("Add", row, net.node("Unsqueeze", column, net.constant([1]))))


@pytest.mark.parametrize("is_constant", [True, False])
def test_integers_that_broadcast_in_two_dimensions_are_no_contradiction(is_constant: bool) -> None:
    """onnx's inference propagates the values of both as vectors of 3 and 2, which cannot be added."""
    net = Net(18)
    row = net.constant([1, 2, 3]) if is_constant else net.input("row", (3,), TensorProto.INT64)
    table = net.node("Cast", crossed(net, row, net.constant([4, 5])), to=TensorProto.FLOAT)
    net.output(net.node("Mul", table, net.input("x", (2, 3))))
    model = net.model()
    legal, _ = legalize(model)
    assert_same_numbers(model, legal)
    assert verify(legal, "onnx", against=model).passed
    again, report = legalize(legal)
    assert again == legal
    assert report.after == report.before


def test_integers_that_broadcast_in_a_body_are_no_contradiction() -> None:
    inner = Net(18, prefix="then_")
    inner.output(crossed(inner, inner.constant([1, 2, 3]), inner.constant([4, 5])), TensorProto.INT64)
    other = Net(18, prefix="else_")
    other.output(other.node("Neg", "table"), TensorProto.INT64)
    then, orelse = (helper.make_graph(n.nodes, "branch", [], n.outputs, n.constants) for n in (inner, other))
    net = Net(18)
    net.input("table", (2, 3), TensorProto.INT64)
    which = net.input("which", (), TensorProto.BOOL)
    net.output(net.node("If", which, then_branch=then, else_branch=orelse), TensorProto.INT64)
    model = net.model()
    legal, _ = legalize(model)
    assert_same_numbers(model, legal)
    assert verify(legal, "onnx", against=model).passed


def test_a_matrix_of_values_is_not_taken_for_a_shape() -> None:
    """Of [[2, 3], [3, 4]] onnx's inference makes [2, 4], and its first entry is no row."""
    net = Net(18)
    vector = net.node("Identity", net.node("Shape", net.input("x", (1, "n"))))
    table = crossed(net, vector, net.constant([1, 2]))
    row = net.node("Squeeze", net.node("Gather", table, net.constant([0]), axis=0), net.constant([0]))
    net.output(net.node("Expand", net.input("y", (1, 1)), row))
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (value,) = read_model(model).graph.outputs
    assert value.shape is not None
    assert len(value.shape) == 2
    assert not any(isinstance(extent, int) for extent in value.shape)
    # The second run reads what the first has noted.
    legal, _ = legalize(model)
    feeds = {"x": np.zeros((1, 4), np.float32), "y": np.ones((1, 1), np.float32)}
    assert_same_numbers(model, legal, feeds)


def test_values_of_a_vector_are_propagated_through_an_added_and_removed_axis() -> None:
    net = Net(18)
    shape = net.node("Unsqueeze", net.node("Shape", net.input("x", ("n", 3))), net.constant([0]))
    net.output(net.node("Expand", net.input("y", (1, 1)), net.node("Squeeze", shape, net.constant([0]))))
    (value,) = read_model(net.model()).graph.outputs
    assert value.shape == ["n", 3]


def test_a_normalization_has_its_operands_shape_where_a_reader_tells_no_more_than_the_rank() -> None:
    net = Net(opset=21)
    image = net.conv(net.input("x", (1, 8, 6, 8)), 8, 16)
    normal = net.node("GroupNormalization", image, net.weight(16), net.weight(16), num_groups=2)
    net.output(net.conv(normal, 16, 8))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[normal] == shapes[image] == "[1,16,6,8]"


@pytest.mark.parametrize("operator", ["GroupNormalization <num_groups = 2> (x, s, s)", "MeanVarianceNormalization (x)"])
@pytest.mark.parametrize("declared", ["", "float[N,C,H,W] "])
def test_an_output_without_a_shape_has_that_of_the_normalized_operand(declared: str, operator: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[1,16,6,8] x, float[16] s) => ({declared}y) {{ y = {operator} }}""")
    (output,) = read_model(model).graph.outputs
    assert str(output.shape) == "[1,16,6,8]"


def test_an_extent_that_follows_from_names_unified_later_is_a_number() -> None:
    """The two convolutions have the same height and width, which only their formulas say."""
    net = Net()
    image = net.node("NonZero", net.input("x", ("n", "m")))
    image = net.node("Cast", net.node("Unsqueeze", image, net.constant([0, 1])), to=TensorProto.FLOAT)
    scores, centre = (net.conv(image, 1, channels) for channels in (4, 1))
    shape = net.node("Shape", scores)
    batch, height, width = (net.node("Gather", shape, net.constant([place])) for place in (0, 2, 3))
    target = net.node("Concat", batch, net.constant([-1]), net.constant([1]), height, width, axis=0)
    reshaped = net.node("Reshape", centre, target)
    net.output(net.node("Relu", reshaped))
    (extents,) = (node.outputs[0].shape for node in read_model(net.model()).graph if node.outputs[0].name == reshaped)
    assert list(extents or ())[:3] == [1, 1, 1]


@pytest.mark.parametrize("bounds", [["lowest"], ["", "highest"], ["lowest", "highest"]], ids="-".join)
def test_a_size_is_kept_in_bounds_before_it_pads_an_image(bounds: list[str]) -> None:
    net = Net()
    image = net.conv(net.input("x", ("batch", 8, 7, 7)), 8, 8, strides=[2, 2])
    height = net.node("Slice", net.node("Shape", image), net.constant([2]), net.constant([3]))
    named = {"": "", "lowest": net.constant(np.int64(1)), "highest": net.constant(np.int64(3))}
    size = net.node("Clip", net.node("Sub", height, net.constant([1])), *(named[bound] for bound in bounds))
    zeros = net.constant([0, 0, 0])
    padded = net.node("Pad", image, net.node("Concat", zeros, size, net.constant([0]), zeros, axis=0))
    net.output(net.conv(padded, 8, 4))
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (result,) = read_model(model).graph.outputs
    expected = run(model, {"x": np.zeros((2, 8, 7, 7), np.float32)})
    assert result.shape is not None
    assert list(result.shape) == ["batch", *expected[0].shape[1:]]


# onnx propagates the results of Shape inside nodes from opset 15 on.
SHAPES_INSIDE = {
    "If": """If <then_branch = one () => (float[] t) { r = Reshape (x, k) n = Softmax <axis = 1> (r) s = Shape (x)
                    q = Reshape (n, s) t = Transpose <perm = [0, 3, 2, 1]> (q) },
                else_branch = two () => (float[] u) { u = Transpose <perm = [0, 3, 2, 1]> (x) }> (c)""",
    "Loop": """Loop <body = body (int64 i, bool ci) => (bool co, float[] t) { co = Identity (ci)
                    e = Gather <axis = 0> (x, i) r = Reshape (e, k) n = Softmax <axis = 1> (r) s = Shape (e)
                    q = Reshape (n, s) t = Transpose <perm = [2, 1, 0]> (q) }> (m, c)""",
    "Scan": """Scan <body = body (float[] e) => (float[] t) { r = Reshape (e, k)
                    n = Softmax <axis = 1> (r) s = Shape (e)
                    q = Reshape (n, s) t = Transpose <perm = [2, 1, 0]> (q) }, num_scan_inputs = 1> (x)""",
}


@pytest.mark.parametrize("operator", SHAPES_INSIDE)
def test_a_shape_that_is_computed_inside_a_node_determines_the_shape_of_a_reshape(operator: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 13]> g (float[4,2,3,4] x, bool c) => (float[?,?,?,?] y)
            <int64[2] k = {{8, -1}}, int64 m = {{4}}> {{ y = {SHAPES_INSIDE[operator]} }}"""
    )
    shapes = {v.name: v.shape for node in read_model(model).graph.all_nodes() for v in node.outputs}
    assert shapes["q"] == ([4, 2, 3, 4] if operator == "If" else [2, 3, 4])
    legal, report = legalize(model)
    assert verify(legal, "onnx", against=model, report=report, run=False).passed


def test_an_extent_that_equal_dims_make_a_number_determines_those_behind_it() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]> g (float[2,3,9,9] x, int64[1] ends) => (float[a,b,c,d] y)
           <int64[1] start = {0}, int64[1] axis = {1}> {
             s = Slice (x, start, ends, axis)
             p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (s)
             y = Transpose <perm = [0,2,3,1]> (p) }"""
    )
    shapes = {v.name: list(v.shape or ())[2:] for node in read_model(model).graph for v in node.outputs}
    assert (shapes["s"], shapes["p"]) == ([9, 9], [4, 4])
    legal, report = legalize(model)
    assert verify(legal, "onnx", against=model, report=report, run=False).passed


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(
    "target",
    [
        "k = Constant <value_ints = [8, 3]> ()",
        "k = Constant <value = int64[2] {8, 3}> ()",
        # onnx's own inference does not follow a Mod.
        "d = Constant <value_int = 11> () e = Constant <value_ints = [19, 14]> () k = Mod (e, d)",
    ],
)
def test_values_around_a_graph_determine_shapes_inside(target: str, is_nested: bool) -> None:
    inner = """If (c) <then_branch = one () => (float[a,b] t) { r = Reshape (x, k) t = Relu (r) },
                       else_branch = two () => (float[d,e] u) { q = Reshape (x, k) u = Neg (q) }>"""
    outer = f"""If (c) <then_branch = three () => (float[f,g] v) {{ v = {inner} }},
                       else_branch = four () => (float[h,i] w) {{ w = Reshape (x, k) }}>"""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (float[n] x, bool c) => (float[j,l] y) {{
            {target} y = {outer if is_nested else inner} }}"""
    )
    shapes = {v.name: v.shape for node in read_model(model).graph.all_nodes() for v in node.outputs}
    assert (shapes["r"], shapes["q"]) == ([8, 3], [8, 3])


def test_a_body_that_does_not_run_may_contradict_what_it_computes() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 13]> g (float[4,2,3] x, float[2,3] w, bool c) => (float[?,?,?] y)
            <int64 m = {0}> {
            y = Loop <body = body (int64 i, bool ci) => (bool co, float[] t) { co = Identity (ci)
                e = Gather <axis = 0> (x, i) s = Shape (e) q = Reshape (e, s) t = MatMul (q, w) }> (m, c) }"""
    )
    shapes = {v.name: v.shape for node in read_model(model).graph.all_nodes() for v in node.outputs}
    assert shapes["e"] == [2, 3]
    assert shapes["q"] is not None
    assert [isinstance(dim, int) for dim in shapes["q"]] == [False, False]


TILE = """<ir_version: 10, opset_import: ["" : 17]>
    net (float[{n},24,{h},{w}] x, float[1,24,8,8] window) => (float[a,b,c,d] y)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64 two = {{2}}, int64 three = {{3}}, int64 four = {{4}},
     int64 eight = {{8}}> {{
        s = Shape (x)
        h0 = Gather (s, two)
        w0 = Gather (s, three)
        h1 = Div (h0, eight)
        w1 = Div (w0, eight)
        h2 = Unsqueeze (h1, zero)
        w2 = Unsqueeze (w1, zero)
        repeats = Concat <axis = 0> (one, one, h2, w2)
        rank = Size (repeats)
        lacking = Sub (four, rank)
        nought = Constant <value = int64 {{0}}> ()
        is_short = Greater (lacking, nought)
        all = If (is_short) <
            then_branch = longer () => (int64[k] t) {{
                ones = Constant <value = int64[1] {{1}}> ()
                r = Reshape (lacking, ones)
                e = Expand (ones, r)
                t = Concat <axis = 0> (e, repeats) }},
            else_branch = same () => (int64[l] u) {{ u = Identity (repeats) }}>
        tiled = Tile (window, all)
        first = Transpose <perm = [0, 2, 3, 1]> (x)
        second = Transpose <perm = [0, 2, 3, 1]> (tiled)
        y = Add (first, second) }}"""


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ((2, 16, 24), [2, 16, 24, 24]),
        (("N", "h", "w"), ["N", "8*(h//8)", "8*(w//8)", 24]),
        ((2, "h", 24), [2, "8*(h//8)", 24, 24]),
    ],
)
def test_an_if_whose_condition_is_known_gives_what_its_branch_does(
    extents: tuple[int | str, ...], expected: list[int | str]
) -> None:
    """PyTorch's exporter writes `tile` so. The other branch has one axis more."""
    n, h, w = extents
    model = read_model(onnx.parser.parse_model(TILE.format(n=n, h=h, w=w)))
    [added] = (node for node in model.graph if node.op_type == "Add")
    assert added.outputs[0].shape == expected


def test_a_size_that_is_scaled_by_a_quotient_of_a_constant_is_known() -> None:
    """torchvision's detectors scale their image so that its shorter side has a given length."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,3,30,40] x) => (float[n,c,h,w] y)
        <int64[2] head = {1, 3}, int64[2] image = {30, 40}, float target = {90}> {
            shorter = ReduceMin <keepdims = 0> (image)
            side = Cast <to = 1> (shorter)
            part = Reciprocal (side)
            scale = Mul (part, target)
            sides = Cast <to = 1> (image)
            scaled = Mul (sides, scale)
            rounded = Round (scaled)
            tail = Cast <to = 7> (rounded)
            sizes = Concat <axis = 0> (head, tail)
            y = Resize (x, , , sizes) }""")
    (result,) = read_model(model).graph.outputs
    assert list(result.shape or ()) == [1, 3, 90, 120]


@pytest.mark.parametrize(
    "shape", [{"value_ints": [-1]}, {"value": helper.make_tensor("", TensorProto.INT64, [1], [-1])}]
)
@pytest.mark.parametrize("axis", [{"value_int": 2}, {"value_ints": [2]}])
def test_a_number_that_is_computed_from_constants_in_any_form_is_known(
    axis: dict[str, object], shape: dict[str, object]
) -> None:
    """onnxscript writes the axes of a reduction so."""
    net = Net(18)
    axes = net.node("Reshape", net.node("Constant", **axis), net.node("Constant", **shape))
    x = net.transpose(net.input("x", (2, 5, 7)), 0, 2, 1)
    net.output(net.transpose(net.node("Div", x, net.node("ReduceMean", x, axes)), 0, 2, 1))
    model = net.model()
    legal, report = legalize(model)
    assert report.after.transposes == 0
    assert verify(legal, against=model).passed


def test_a_scale_that_is_computed_from_floats_determines_the_result_of_a_resize() -> None:
    net = Net()
    halves = net.node("Constant", value_floats=[0.5, 0.5, 1.0, 1.0])
    scales = net.node("Mul", halves, net.node("Constant", value_float=2.0))
    net.output(net.node("Relu", net.node("Resize", net.input("x", (1, 3, 4, 6)), "", scales)))
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (shape,) = (value.shape for value in read_model(model).graph.outputs)
    assert list(shape or ()) == [1, 3, 8, 12]


@pytest.mark.parametrize(("exponent", "size"), [(0.5, 4), (2.0, 256)])
def test_a_size_that_is_a_power_of_another_is_known(exponent: float, size: int) -> None:
    """As PyTorch writes the side of a square of `n ** 0.5` patches."""
    assert _raised(16, exponent) == [1, size]


@pytest.mark.parametrize(("base", "exponent"), [(15, 0.5), (27, 1 / 3), (1 << 20, 2)])
def test_a_power_that_runtimes_may_round_differently_is_not_known(base: int, exponent: float) -> None:
    extents = _raised(base, exponent)
    assert extents[0] == 1
    assert not isinstance(extents[1], int)


def _raised(base: int, exponent: float) -> list[int | ir.SymbolicDim]:
    """The shape of a tensor with as many columns as this power says."""
    net = Net()
    power = net.node("Pow", net.constant(np.array(base, np.float32)), net.constant(np.array(exponent, np.float32)))
    columns = net.node("Unsqueeze", net.node("Cast", power, to=TensorProto.INT64), net.constant([0]))
    net.output(net.node("Expand", net.input("x", (1, 1)), net.node("Concat", net.constant([1]), columns, axis=0)))
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (shape,) = (value.shape for value in read_model(model).graph.outputs)
    return list(shape or ())
