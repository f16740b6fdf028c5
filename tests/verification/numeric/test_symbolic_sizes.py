"""The verifier handles symbolic dims: axis names, and the sizes of its runs."""

from __future__ import annotations

from math import prod

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.report.schema import Numeric
from relayout.verification.numeric.symbolic_sizes import Plan, light_plan, other_plans, plans
from relayout.verification.verifier import verify

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'

BRANCHES = """net (float[N,2,1] x, bool c) => (float[3,1,2] y) <float[3,2,1] a> {
    a = If (c) <
        then_branch = one () => (float[N,2,1] u) { u = Neg (x) },
        else_branch = other () => (float[N,2,1] v) { v = Abs (x) }
    >
    b = Transpose <perm = [0,2,1]> (a)
    y = Relu (b) }"""

ROUNDS = """net (float[2,N,1] x) => (y) {
    rounds = Constant <value = int64 {2}> ()
    y = Loop (rounds, "", x) <body = body (int64 i, bool going, float[2,5,1] state) => (bool on, float[2,5,1] next) {
        on = Identity (going)
        turned = Transpose <perm = [2,1,0]> (state)
        more = Exp (turned)
        next = Transpose <perm = [2,1,0]> (more)
    }> }"""

# onnxruntime has no kernel that multiplies bfloat16.
POOLS = """net (float[1,4,6,2] x, bfloat16[2] z) => (y, w) {
    w = Mul (z, z)
    turned = Transpose <perm = [0,3,1,2]> (x)
    pooled, places = MaxPool <kernel_shape = [2,2], strides = [2,2]> (turned)
    large = MaxUnpool <kernel_shape = [2,2], strides = [2,2]> (pooled, places)
    y = Transpose <perm = [0,2,3,1]> (large) }"""


def model_of(text: str) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(f"{HEADER} {text}"))


def compared(model: onnx.ModelProto | ir.Model, original: onnx.ModelProto) -> Numeric:
    verification = verify(model, "onnx", against=original)
    assert verification.passed, verification.findings
    assert verification.numeric is not None
    assert verification.numeric.status == "compared", verification.numeric.reason
    return verification.numeric


@pytest.mark.parametrize("text", [BRANCHES, ROUNDS], ids=["a result is declared", "a body declares"])
def test_a_model_that_runs_with_one_size_alone_is_run_with_that(text: str) -> None:
    source = model_of(text)
    legal, _ = legalize(source)
    assert compared(legal, source).runtime == "onnxruntime"


def test_a_run_that_is_not_as_declared_is_no_baseline() -> None:
    """The legal model may rely on the seven rounds that it declares, of which it makes two."""
    source = model_of(
        """net (float[2] x) => (float[7,2] y) {
            rounds = Constant <value = int64 {2}> ()
            z = Loop (rounds, "") <body = body (int64 i, bool going) => (bool on, float[2] taken) {
                on = Identity (going)
                taken = Neg (x)
            }>
            y = Relu (z) }"""
    )
    verification = verify(source, "onnx", against=source)
    assert not verification.passed
    assert verification.numeric is not None
    assert verification.numeric.status == "skipped"
    assert "is declared as [7,2] and comes out as [2, 2]" in str(verification.numeric.reason)


@pytest.mark.parametrize(("total", "kept"), [("P + S", "S"), ("P + 1", "1")])
def test_a_mask_is_as_long_as_earlier_and_new_tokens(total: str, kept: str) -> None:
    """A decoder with keys and values of earlier tokens, and a mask whose length has a name of its own."""
    source = onnx.parser.parse_model(
        f"""{HEADER} net (float[B,1,T] m, float[B,{kept},4] x, float[B,P,4] past) => (y) <float[B,"{total}",4] keys> {{
            keys = Concat <axis = 1> (past, x)
            y = MatMul (m, keys) }}"""
    )
    assert not compared(source, source).untried


def test_onnxruntime_runs_what_divides_by_an_extent_of_an_input() -> None:
    """No extent is drawn as 0, by which onnxruntime would divide an integer and end the process."""
    source = model_of(
        """net (float[N,6] x, int64[3] i) => (y) {
            n = Shape <start = 0, end = 1> (x)
            two = Constant <value = int64 {2}> ()
            more = Mul (n, two)
            y = Div (i, more) }"""
    )
    assert compared(source, source).runtime == "onnxruntime"


def test_the_reference_runs_functions_whose_attributes_are_not_all_given() -> None:
    source = model_of(POOLS)
    legal, _ = legalize(source, "nhwc")
    assert {"pads", "strides"} <= {name for function in legal.functions for name in function.attribute}
    assert compared(legal, source).runtime == "onnx.reference"


def turned(declared: str = "", perm: str = "0,3,1,2") -> onnx.ModelProto:
    return model_of(f"""net (float[2,4,5,U] x, float[3,1,1,1] w) => (y) <{declared}> {{
        [pool] pooled = AveragePool <kernel_shape = [1,1]> (x)
        [turn] turned = Transpose <perm = [{perm}]> (pooled)
        [conv] y = Conv (turned, w) }}""")


def test_an_axis_known_as_a_unit_in_one_of_two_models_may_be_one_in_the_other() -> None:
    known = turned("float[2,1,4,5] turned")
    for model, original in ((turned(), known), (known, turned())):
        [note] = verify(model, "onnx", against=original, run=False).findings
        assert (note.rule, note.severity) == ("element-order", "note")


def test_no_axis_is_taken_for_another_beside_a_unit_that_one_of_two_models_knows() -> None:
    known = turned("float[2,1,4,5] turned")
    findings = verify(turned(perm="0,3,2,1"), "onnx", against=known, run=False).findings
    assert [(each.rule, each.node) for each in findings if each.severity == "error"] == [("boundary", "y")]


def test_a_normalization_of_unknown_extents_names_only_its_channels() -> None:
    net = Net(opset=23)
    value = net.node("DeformConv", net.input("x", (3, 3, 2, 2)), net.weight(3, 3, 2, 2), net.weight(3, 8, 1, 1))
    turn = net.transpose(value, 0, 3, 1, 2)
    normal = net.node("GroupNormalization", turn, net.weight(1), net.weight(1), num_groups=1)
    net.output(net.transpose(normal, 0, 2, 3, 1))
    net.output(net.node("Reshape", net.node("ReduceMean", normal, net.constant([1, 2])), net.constant([-1, 1])))
    source = net.model()
    legal, _ = legalize(source, "nhwc")
    compared(legal, source)


def test_an_axis_of_unknown_extent_is_not_matched_with_a_unit_axis() -> None:
    net = Net(opset=21)
    rank = net.node("LayerNormalization", net.input("x", (4, 4, 5)), net.weight(4, 4, 5), axis=0, results=2)
    turn = net.transpose(rank[1], 0, 2, 1)
    net.output(rank[0])
    net.output(net.node("GroupNormalization", turn, net.input("scale", ("C",)), net.weight(1), num_groups=1))
    source = net.model()
    for _ in range(3):
        source.graph.output[1].type.tensor_type.shape.dim.add()
    legal, _ = legalize(source)
    assert "Transpose" not in [node.op_type for node in legal.graph.node]
    compared(legal, source)


def test_a_sound_that_strided_convolutions_shorten_is_long_enough() -> None:
    """One frame takes 400 samples, and a shorter sound is refused."""
    net = Net()
    value, channels = net.input("sound", ("n", 1, "samples")), 1
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
        value = net.node("Conv", value, net.weight(4, channels, kernel), strides=[stride])
        channels = 4
    net.output(net.transpose(value, 0, 2, 1))
    _, report = legalize(net.model(), "nhwc", check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.numeric is not None
    assert report.verification.numeric.untried == ()


def test_a_mask_may_be_as_long_as_past_and_new_tokens_together() -> None:
    """TorchScript's exporter gives the keys' length a name of its own, so that no sum is declared."""
    net = Net()
    past, new = net.input("past", ("n", "earlier", 4)), net.input("new", ("n", "tokens", 4))
    keys = net.node("Concat", past, net.transpose(net.transpose(new, 0, 2, 1), 0, 2, 1), axis=1)
    net.output(net.node("Concat", keys, net.input("mask", ("n", "length", 4)), axis=2))
    model = net.model()
    for dim, name in zip(model.graph.output[0].type.tensor_type.shape.dim, ("a", "b", "c"), strict=True):
        dim.dim_param = name
    _, report = legalize(model, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.numeric is not None
    assert report.verification.numeric.untried == ()


def test_a_second_size_of_an_image_is_not_many_times_the_first() -> None:
    """An attention over its pixels takes memory by the square of their number: 96 x 160 would need gigabytes."""
    model = read_model(model_of("net (float[N,4,H,W] x) => (y) { y = Relu (x) }"))
    first = Plan({"N": 2, "H": 32, "W": 64}, 4)
    sizes = [plan.extents for plan in other_plans(model, None, first)]
    assert {"N": 3, "H": 48, "W": 80} in sizes
    assert all(each["N"] * each["H"] * each["W"] <= 8 * 2 * 32 * 64 for each in sizes)


def test_a_second_size_of_an_image_is_no_multiple() -> None:
    """Of a model that pads images to a multiple of 4, the sizes that most models take show nothing: no pad is made."""
    model = read_model(model_of("net (float[N,4,H,W] x) => (y) { y = Relu (x) }"))
    second = next(other_plans(model, None, next(plans(model, None))))
    rests = [second.extents[name] % 4 for name in ("H", "W")]
    assert 0 not in rests
    assert rests[0] != rests[1]


def test_an_attention_over_an_image_is_tried_with_a_small_one() -> None:
    """With two images of 32 x 64 pixels the weights of the four heads have 2 * 4 * 2048**2 elements, 128 MiB, and the
    original gives them all as results."""
    image = read_model(
        model_of("""g (float[n,8,h,w] x) => (float[?,?,?,?] y) <int64[4] heads = {0,4,2,-1}> {
            pixels = Reshape (x, heads)
            turned = Transpose <perm = [0,1,3,2]> (pixels)
            scores = MatMul (turned, pixels)
            y = Softmax (scores) }""")
    )
    tried = list(plans(image, None))
    first = tried[0]
    assert first.extents == {"n": 1, "h": 32, "w": 64}
    assert {"n": 2, "h": 32, "w": 64} in [plan.extents for plan in tried]
    for other in other_plans(image, None, first):
        n, h, w = other.extents.values()
        assert n * 4 * (h * w) ** 2 <= 1 << 24


def test_integers_are_drawn_again_for_inputs_that_do_not_fill_the_memory() -> None:
    net = Net()
    net.output(net.node("Relu", net.input("x", ("n", "a", "b", "c", "d"))))
    model = read_model(net.model())
    tried = list(plans(model, None))
    found = light_plan(model, tried).extents
    assert prod(tried[0].extents.values()) > 1 << 20
    assert prod(found.values()) <= 1 << 20
    assert len({*found.values()}) > 2


def test_sizes_for_a_model_that_names_dims_otherwise_have_no_others() -> None:
    """A dim without a name may get another one when the legal model is read."""
    net = Net()
    net.output(net.node("Relu", net.input("x", ("n", 4))))
    assert not list(other_plans(read_model(net.model()), None, Plan({"unk_19": 2}, 4)))
