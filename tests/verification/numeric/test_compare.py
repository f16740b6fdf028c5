"""Both models on the same random inputs: what is drawn, compared and told."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net, random_feeds
from verified_models import annotate, kernel, legal, model_of, raw, rules

from relayout import legalize
from relayout.errors import UsageError
from relayout.layout.relaid_constant import AbsentTensor
from relayout.model.io import read_model
from relayout.verification.numeric.runtimes import Session
from relayout.verification.numeric.symbolic_sizes import plans
from relayout.verification.verifier import verify


@pytest.mark.parametrize("samples", [0, -1, 1.5, "2"])
def test_a_comparison_needs_a_sample(samples: Any) -> None:
    with pytest.raises(UsageError, match="samples"):
        verify(legal(), "nhwc", against=raw(), samples=samples)


def test_a_model_that_takes_none_of_the_sizes_tried_says_how_to_set_them() -> None:
    net = Net()
    image, mask = net.input("image", (1, "past")), net.input("mask", (1, "total"))
    net.output(net.node("Concat", net.node("Concat", image, image, net.weight(1, 131), axis=1), mask, axis=0))
    model = net.model()
    verification = verify(model, "onnx", against=model)
    assert "--dim (options.dims) sets the sizes of past, total" in verification.findings[-1].message
    assert "--inputs (the argument inputs) gives others" in verification.findings[-1].message
    assert verify(model, "onnx", against=model, dims={"past": 6, "total": 143}).passed


def test_a_model_that_no_runtime_runs_passes_only_where_the_static_part_is_enough() -> None:
    model = model_of("net (float[2,3] x) => (float[2,3] y) { [odd] y = mine.Odd (x) }")
    verification = verify(model, "nhwc", against=model)
    assert not verification.passed
    assert rules(verification) == {"not-compared"}
    assert rules(verification, "note") == {"function-missing"}
    assert verification.numeric is not None
    assert verification.numeric.status == "skipped"
    verification = verify(model, "nhwc", against=model, static=True)
    assert verification.passed
    assert rules(verification, "note") == {"function-missing", "not-compared"}


def test_the_static_part_is_left_out_on_request() -> None:
    assert legalize(raw(), "nhwc", verify=False)[1].verification is None


def test_onnxruntime_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout.verification.verifier.find_spec", lambda name: None)
    model = model_of("net (float[2,3] x) => (float[2,3] y) { [odd] y = mine.Odd (x) }")
    (finding,) = (each for each in verify(model, "nhwc", against=model).findings if each.severity == "error")
    assert 'pip install "relayout[check]"' in finding.found


def test_a_comparison_without_evidence_is_reported() -> None:
    constant = model_of("net (float[2,3] x) => (float[2,3] y) { z = Sub (x, x)  y = Exp (z) }")
    verification = verify(constant, "onnx", against=constant)
    assert verification.passed
    assert rules(verification, "warning") == {"vacuous"}


def test_inner_values_are_compared_where_the_output_is_saturated() -> None:
    text = "net (float[2,3] x) => (float[2,3] y) {{ a = {} (x)  b = Relu (a)  c = Sub (b, b)  y = Exp (c) }}"
    verification = verify(model_of(text.format("Sin")), "onnx", against=model_of(text.format("Cos")))
    assert rules(verification) == {"numeric"}


def test_nan_at_the_same_index_is_equal_and_elsewhere_is_not() -> None:
    logarithm = model_of("net (float[4,5] x) => (float[4,5] y) { y = Log (x) }")
    assert verify(logarithm, "onnx", against=logarithm).passed
    other = model_of("net (float[4,5] x) => (float[4,5] y) { z = Abs (x)  y = Log (z) }")
    assert "numeric" in rules(verify(other, "onnx", against=logarithm))


def test_inputs_and_outputs_may_arrive_in_a_declared_order() -> None:
    original = model_of("net (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }")
    model = model_of("net (float[2,4,3] x) => (float[2,4,3] y) { y = Softmax <axis = 2> (x) }")
    assert rules(verify(model, "onnx", against=original)) == {"boundary"}
    annotate(model, "x", order="0,2,1")
    annotate(model, "y", order="0,2,1")
    assert verify(model, "onnx", against=original).passed


def test_symbolic_dims_and_integers_are_given_small_sizes() -> None:
    model = model_of(
        """net (int64[N,L] ids, float[10,6] table) => (y) {
            e = Gather (table, ids)
            y = Transpose <perm = [0,2,1]> (e) }"""
    )
    verification = verify(model, "onnx", against=model)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


def test_absent_weights_are_drawn_for_both_models_with_the_transform_that_was_noted() -> None:
    original, model = raw(), legal()
    original.graph.initializers["w"].const_value = AbsentTensor(ir.DataType.FLOAT, [4, 3, 3, 3], "w")
    moved = AbsentTensor(ir.DataType.FLOAT, [4, 3, 3, 3], "w").relaid([{"op": "transpose", "perm": [2, 3, 1, 0]}])
    model.graph.initializers["w"].const_value = moved
    verification = verify(model, "nhwc", against=original)
    assert verification.findings == ()
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


def test_the_reference_runs_what_onnxruntime_cannot() -> None:
    model = model_of("net (bfloat16[2,3] x) => (bfloat16[2,3] y) { z = Mul (x, x)  y = Add (z, x) }")
    verification = verify(model, "onnx", against=model)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.runtime == "onnx.reference"


def test_a_number_is_fed_as_an_array_that_onnxruntime_takes() -> None:
    one, other = "then () => (float[2] t) { t = Neg (x) }", "other () => (float[2] o) { o = Abs (x) }"
    branches = f"<then_branch = {one}, else_branch = {other}>"
    model = model_of(f"net (bool c, float[2] x) => (float[2] y) {{ y = If (c) {branches} }}")
    verification = verify(model, "onnx", against=model)
    assert verification.numeric is not None
    assert verification.numeric.runtime == "onnxruntime"


def test_a_run_does_not_change_its_inputs() -> None:
    """onnxruntime writes over the running mean and variance where the BatchNormalization comes out of a function."""
    net = Net()
    image = net.input("x", (2, 3, 4, 5))
    vectors = [net.input(name, (3,)) for name in ("scale", "bias", "mean", "var")]
    for result in net.node("BatchNormalization", image, *vectors, results=3, training_mode=1):
        net.output(result)
    legal, _ = legalize(net.model(), "nhwc")
    session = Session(read_model(legal), "onnxruntime")
    feeds = random_feeds(net.model())
    kept = {name: array.copy() for name, array in feeds.items()}
    session.run(feeds)
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, kept[name])


@pytest.mark.parametrize("is_seeded", [False, True])
@pytest.mark.parametrize("operator", ["Bernoulli", "Dropout", "RandomNormalLike"])
def test_what_is_behind_unseeded_random_operators_is_compared_on_the_same_numbers(
    operator: str, is_seeded: bool
) -> None:
    """Two runs of the original itself give it differently."""
    net = Net()
    image = net.node("Sigmoid", net.input("x", (2, 3)))
    training = [net.constant(np.array(0.5, np.float32)), net.constant(np.array(True))] if operator == "Dropout" else []
    seed = {"seed": 1 if operator == "Dropout" else 1.0} if is_seeded else {}
    drawn = net.node("Neg", net.node(operator, image, *training, **seed))
    net.output(drawn)
    net.output(image)
    found = verify(net.model(), "onnx", against=net.model())
    assert found.numeric is not None
    assert [each.name for each in found.numeric.outputs] == [drawn, image]
    assert [(each.rule, each.severity, each.found) for each in found.findings] == (
        [] if is_seeded else [("random", "note", operator)]
    )


NOISY = """net (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z) {{
    r = {} (x)
    a = Add (x, r)
    t = Transpose <perm = [{}]> (a)
    y = Sigmoid (t)
    z = Relu (x) }}"""


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_a_fault_behind_numbers_drawn_without_a_seed_is_found(operator: str) -> None:
    original, model = (model_of(NOISY.format(operator, perm)) for perm in ("0,1,2,3", "0,1,3,2"))
    assert verify(original, "onnx", against=original).passed
    found = verify(model, "onnx", against=original)
    assert {each.node for each in found.findings if each.rule == "numeric"} == {"t", "y"}


def test_an_output_that_is_itself_drawn_without_a_seed_is_not_compared() -> None:
    model = model_of("net (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = RandomNormalLike (x)  z = Relu (x) }")
    found = verify(model, "onnx", against=model)
    assert found.numeric is not None
    assert [(each.name, each.reason) for each in found.numeric.not_compared] == [
        ("y", "it depends on numbers drawn without a seed")
    ]


def test_an_output_that_only_the_model_draws_is_an_error() -> None:
    text = """net (float[2,3] x) => (float[2,3] y, float[2,3] z) {{
        r = RandomNormalLike (x)
        z = Add (x, r)
        {} }}"""
    original, model = (model_of(text.format(y)) for y in ("y = Relu (x)", "s = RandomNormalLike (x)  y = Relu (s)"))
    found = verify(model, "onnx", against=original)
    assert not found.passed
    assert found.numeric is not None
    assert [(each.name, each.reason) for each in found.numeric.not_compared] == [
        ("y", "it depends on RandomNormalLike")
    ]


def test_numbers_that_no_others_may_replace_stay_as_they_are_drawn() -> None:
    """Others than those between 0 and 1 lead to indices of no row."""
    model = model_of(
        """net (float[40] x, float[3,6] w) => (float[40,6] y, float[40] z) {
            u = RandomUniformLike (x)
            three = Constant <value_float = 3.0> ()
            n = Mul (u, three)
            k = Cast <to = 7> (n)
            y = Gather (w, k)
            z = Relu (x) }"""
    )
    found = verify(model, "onnx", against=model)
    assert found.numeric is not None
    assert [each.name for each in found.numeric.outputs] == ["z"]
    assert [each.name for each in found.numeric.not_compared] == ["y"]


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("float", "y = Clip (NAME, low, high)"),
        ("float", "y = Greater (NAME, high)"),
        ("int64", "y = Greater (NAME, high)"),
    ],
    ids=["saturated", "a threshold", "a threshold of integers"],
)
def test_inputs_are_drawn_that_change_an_output_which_others_leave_as_it_is(kind: str, operator: str) -> None:
    text = f"""net ({kind}[4,8,8] x, {kind}[4,8,8] v) => (y, w) {{
        low = Constant <value = {kind}[1] {{100}}> ()
        high = Constant <value = {kind}[1] {{200}}> ()
        NAME = Transpose <perm = [PERM]> (x)
        {operator}
        w = Neg (v) }}"""
    # Under one name the two would be compared themselves.
    original, model = (
        model_of(text.replace("NAME", name).replace("PERM", perm)) for name, perm in (("s", "0,1,2"), ("t", "0,2,1"))
    )
    assert verify(original, "onnx", against=original).passed
    found = verify(model, "onnx", against=original)
    assert {each.node for each in found.findings if each.rule == "numeric"} == {"y"}


def test_an_output_that_no_input_was_seen_to_change_is_named() -> None:
    model = model_of(
        """net (float[4,8] x, float[n] v) => (y, w, z, s, k) {
            r = Relu (x)
            k = NonZero (r)
            far = Constant <value_float = 1e30> ()
            two = Constant <value_float = 2.0> ()
            n = Shape (v)
            y = Greater (x, far)
            w = Neg (x)
            z = Mul (two, far)
            s = ConstantOfShape (n) }"""
    )
    found = verify(model, "onnx", against=model)
    assert [(each.rule, each.severity, each.found) for each in found.findings] == [("vacuous", "warning", "y")]


def test_text_made_of_other_numbers_is_another_text() -> None:
    text = "net (float[4,8,8] x) => (string[4,8,8] y) {{ {0} = Transpose <perm = [{1}]> (x)  y = Cast <to = 8> ({0}) }}"
    original, model = model_of(text.format("s", "0,1,2")), model_of(text.format("t", "0,2,1"))
    assert verify(original, "onnx", against=original).passed
    assert not verify(model, "onnx", against=original).passed


BESIDE = """net ({kind}[1,4,8,8] x) => ({kind}[1,8,8,8] y) {{
    by = Constant <value = {kind}[1] {{640}}> ()
    large = Mul (x, by)
    small = Sigmoid (x)
    {turn}
    y = Concat <axis = 1> (large, {name}) }}"""


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_large_channels_do_not_hide_a_fault_in_small_ones(kind: str) -> None:
    original = model_of(BESIDE.format(kind=kind, turn="", name="small"))
    turn = "turned = Transpose <perm = [0,1,3,2]> (small)"
    model = model_of(BESIDE.format(kind=kind, turn=turn, name="turned"))
    assert verify(original, "onnx", against=original).passed
    assert not verify(model, "onnx", against=original).passed


def test_sizes_that_a_model_mentions_are_not_tried_where_they_would_fill_the_memory() -> None:
    net = Net()
    net.output(net.node("Relu", net.input("x", ("a", "b", "c", "d"))))
    net.output(net.node("Relu", net.input("y", (4096, 3))))
    model = read_model(net.model())
    extents = [plan.extents for plan in plans(model, None)]
    assert dict.fromkeys("abcd", 3) in extents
    assert all(np.prod(list(each.values())) <= 1 << 20 for each in extents)


@pytest.mark.parametrize(("factor", "passed"), [("100.0", True), ("100.01", False)])
def test_where_no_input_is_a_float_noise_in_the_constants_shows_rounding(factor: str, passed: bool) -> None:
    # The sine of large numbers amplifies the last bits, and no runtime has this Gelu in float64.
    def scaled_by(scaled: str) -> ir.Model:
        text = f"""<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
            net (int64[2,5] ids) => (float[2,5,8] y) <float[10,8] table> {{
                words = Gather (table, ids)
                a = com.microsoft.Gelu (words)
                {scaled} }}"""
        proto = onnx.parser.parse_model(text)
        table = np.random.default_rng(0).uniform(1, 2, size=(10, 8)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto))

    hundred = "h = Constant <value = float {100.0}> ()"
    original = scaled_by("t = Constant <value = float {10000.0}> () c = Mul (a, t) y = Sin (c)")
    model = scaled_by(
        f"{hundred} k = Constant <value = float {{{factor}}}> () b = Mul (a, h) d = Mul (b, k) y = Sin (d)"
    )
    verification = verify(model, "onnx", against=original)
    assert ("numeric" not in rules(verification)) is passed


QUANTIZED = """net (float[2,4,6,6] x, float[4,4,3,3] w) => (float[2,4,6,6] y) {
    s = Constant <value = float {0.03}> ()
    z = Constant <value = uint8 {128}> ()
    scales = Constant <value = float[4] {0.011, 0.021, 0.029, 0.043}> ()
    zeros = Constant <value = int8[4] {1, 2, -3, 4}> ()
    [q] a = QuantizeLinear (x, s, z)
    [d] b = DequantizeLinear (a, s, z)
    [c] c = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (b, w)
    [qs] e = QuantizeLinear <axis = 1> (c, scales, zeros)
    [ds] f = DequantizeLinear <axis = 1> (e, scales, zeros)
    [r] y = Relu (f) }"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("y = Relu (f)", "y = Gelu (f)"), ("zeros = Constant <value = int8[4] {1, 2, -3, 4}>", "{1, -3, 2, 4}")],
)
def test_a_fault_behind_a_quantizer_is_no_step_of_its_grid(right: str, wrong: str) -> None:
    """Each is off by less than a step of the grid behind many layers may be."""
    wrong = wrong if "=" in wrong else right.replace("{1, 2, -3, 4}", wrong)
    weights = {"w": kernel(4, 4, 3, 3)}
    original = model_of(QUANTIZED, weights)
    assert verify(original, "onnx", against=original).passed
    verification = verify(model_of(QUANTIZED.replace(right, wrong), weights), "onnx", against=original)
    assert "numeric" in rules(verification)


def test_a_step_of_a_quantizer_is_rounding_where_float32_alone_rounds_to_another() -> None:
    """Every other element is nearly halfway between two steps."""
    text = """net (float[2,4,6,6] x) => (float[2,4,6,6] y) {
        s = Constant <value = float {0.03125}> ()
        t = Constant <value = float {0.001875}> ()
        z = Constant <value = uint8 {128}> ()
        k = Constant <value = float {0.1}> ()
        l = Constant <value = float {0.3}> ()
        [q] a = QuantizeLinear (x, s, z)
        [d] b = DequantizeLinear (a, s, z)
        cFIRST = Mul (b, FIRST)
        e = Mul (cFIRST, SECOND)
        [p] f = QuantizeLinear (e, t, z)
        [r] y = DequantizeLinear (f, t, z) }"""
    one, other = (text.replace("FIRST", first).replace("SECOND", second) for first, second in ("kl", "lk"))
    verification = verify(model_of(one), "onnx", against=model_of(other))
    assert "numeric" not in rules(verification)
    assert rules(verification, "note") == {"rounding"}
    assert verification.numeric is not None
    assert "agree" in str(verification.numeric.float64)
