"""Differences by rounding alone are told from real ones by running both models in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from relayout.report.schema import OutputDifference, Verification
from relayout.verification.numeric.baseline import Baseline, Trial
from relayout.verification.numeric.deadline import Deadline, UndecidedError
from relayout.verification.numeric.float64.casts import casts_of
from relayout.verification.numeric.float64.convolution import average, convolve, convolve_transposed, is_plain
from relayout.verification.numeric.float64.run import run_wide
from relayout.verification.numeric.float64.steps import steps_of
from relayout.verification.numeric.float64.verdict import Side, Verdict, in_float64
from relayout.verification.numeric.judgement import Runs, _differences, judged
from relayout.verification.numeric.preparation import Prepared
from relayout.verification.verifier import verify

HEADER = '<ir_version: 10, opset_import: ["" : 20, "relayout" : 1, "com.microsoft" : 1]>'
CONV = "a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)"
BODY = """<domain: "relayout", opset_import: ["" : 20]>
Conv <kernel_shape, pads, data_layout> (X, W) => (Y) {
    Xn = Transpose <perm = [0,3,1,2]> (X)
    Yn = Conv <kernel_shape: ints = @kernel_shape, pads: ints = @pads> (Xn, W)
    Y = Transpose <perm = [0,2,3,1]> (Yn) }"""
NATIVE = """t = Transpose <perm = [0,2,3,1]> (x)
    c = relayout.Conv <kernel_shape = [3,3], pads = [1,1,1,1], data_layout = "NHWC"> (t, w)
    a = Transpose <perm = [0,3,1,2]> (c)"""


def model_of(nodes: str, functions: str = "") -> ir.Model:
    text = f"{HEADER} net (float[1,3,6,6] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {{ {nodes} }} {functions}"
    proto = onnx.parser.parse_model(text)
    data = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(data, "w"))
    del proto.graph.input[1]
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def lossy(before: str = CONV) -> ir.Model:
    """The last bits of `a` are lost in a sum: float32 is off by 3e-4 where 1e-4 is allowed."""
    return model_of(f"""{before}
        large = Constant <value = float {{100000.0}}> ()
        b = Add (a, large)
        y = Sub (b, large)""")


def kept(before: str = CONV, factor: str = "1.0", functions: str = "") -> ir.Model:
    """The result of the lossy model, for a factor of one."""
    nodes = f"{before} factor = Constant <value = float {{{factor}}}> () y = Mul (a, factor)"
    return model_of(nodes, functions)


def float64_of(verification: Verification) -> str:
    assert verification.numeric is not None
    assert verification.numeric.float64 is not None
    return verification.numeric.float64


def rules(verification: Verification) -> set[tuple[str, str]]:
    return {(finding.rule, finding.severity) for finding in verification.findings}


def test_a_difference_that_vanishes_in_float64_is_rounding() -> None:
    verification = verify(kept(), "onnx", against=lossy())
    assert verification.passed
    assert rules(verification) == {("rounding", "note")}
    assert "agree" in float64_of(verification)
    assert verification.numeric is not None
    (output,) = verification.numeric.outputs
    assert output.passed
    assert output.max_rel > output.tolerance
    assert output.in_float64 is not None
    assert output.tolerance_in_float64 is not None
    assert output.in_float64 <= output.tolerance_in_float64 < 1e-10


@pytest.mark.parametrize("factor", ["1.0000002", "1.00001", "0.5"])
def test_a_difference_that_remains_in_float64_is_an_error(factor: str) -> None:
    verification = verify(kept(factor=factor), "onnx", against=lossy())
    assert not verification.passed
    assert ("numeric", "error") in rules(verification)
    assert float64_of(verification) == "the two differ"


def half(after: str, before: str = CONV) -> ir.Model:
    """A model that computes between its convolution and its result in float16."""
    return model_of(f"{before} h = Cast <to = 10> (a) {after} y = Cast <to = 1> (i)")


def constant(name: str, value: float) -> str:
    return f"{name}c = Constant <value = float {{{value}}}> () {name} = Cast <to = 10> ({name}c) "


# Added and taken away again: lost in float16, and off by 1e-4 in the float32 that onnxruntime has for it.
LOSSY_HALF = constant("large", 16384.0) + "b = Add (h, large) i = Sub (b, large)"


def test_rounding_in_float16_before_a_result_in_float32_is_rounding() -> None:
    plain = half(constant("factor", 1.0) + "i = Mul (h, factor)")
    verification = verify(plain, "onnx", against=half(LOSSY_HALF))
    assert rules(verification) == {("rounding", "note")}
    assert verification.numeric is not None
    assert all((each.tolerance_in_float64 or 0) < 1e-9 for each in verification.numeric.outputs)


def test_a_fault_in_float16_remains_in_float64() -> None:
    wrong = half(constant("factor", 1.001) + "i = Mul (h, factor)")
    verification = verify(wrong, "onnx", against=half(LOSSY_HALF))
    assert ("numeric", "error") in rules(verification)
    assert float64_of(verification) == "the two differ"


def test_a_cast_to_float16_in_one_model_alone_is_no_rounding() -> None:
    once = model_of(f"{CONV} h = Cast <to = 10> (a) y = Cast <to = 1> (h)")
    verification = verify(once, "onnx", against=model_of(f"{CONV} y = Identity (a)"))
    assert ("numeric", "error") in rules(verification)
    assert "casts between float types" in float64_of(verification)


ONES = "sc = Constant <value = float[6] {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}> () s = Cast <to = 10> (sc) "


def test_a_sum_of_float16_may_be_written_in_float32() -> None:
    """A normalization that is written in other operators rounds its result once, as one operator does."""
    lossy_sum = LOSSY_HALF.replace("i = ", "c = ") + f" {ONES} i = LayerNormalization <axis = -1> (c, s)"
    wider = f"""{constant("factor", 1.0)} c = Mul (h, factor) {ONES} f = Cast <to = 1> (c) t = Cast <to = 1> (s)
        n = LayerNormalization <axis = -1> (f, t) i = Cast <to = 10> (n)"""
    verification = verify(half(wider), "onnx", against=half(lossy_sum))
    assert rules(verification) == {("rounding", "note")}
    assert "agree" in float64_of(verification)


def test_a_cast_to_float16_between_operators_in_float32_is_no_rounding() -> None:
    """Nor where both models cast the same values back to float16 in the end."""
    plain = "f = Cast <to = 1> (h) g = Sin (f) k = Mul (g, g) i = Cast <to = 10> (k)"
    cut = plain.replace("k = Mul (g, g)", "q = Cast <to = 10> (g) r = Cast <to = 1> (q) k = Mul (r, r)")
    verification = verify(half(cut), "onnx", against=half(plain))
    assert ("numeric", "error") in rules(verification)
    assert "casts between float types" in float64_of(verification)


def test_a_cast_that_nothing_reads_is_no_difference() -> None:
    verification = verify(kept(), "onnx", against=lossy(f"{CONV} unread = Cast <to = 10> (a)"))
    assert verification.passed
    assert "agree" in float64_of(verification)


def test_an_overflow_in_float16_is_one_in_float64_too() -> None:
    """As in the sum of two masks, of which a Softmax makes zeros."""
    steps = steps_of(half("i = Mul (h, h)"), ["y"], lambda node, opset: None)
    feed = {"x": np.full((1, 3, 6, 6), 1e3, np.float32)}
    (found,) = run_wide(steps, [feed], ["y"], Deadline(60))
    assert np.isinf(found["y"]).any()
    mask = constant("mask", -40000.0)
    masked = f"{mask} m = Add (h, mask) n = Add (m, mask) s = Concat <axis = 3> (h, n) i0 = Softmax (s)"
    masked += (
        " a0 = Constant <value_ints = [0]> () a6 = Constant <value_ints = [6]> () a3 = Constant <value_ints = [3]> ()"
    )
    masked += " k = Slice (i0, a0, a6, a3)"
    lossy_half = constant("large", 16384.0) + "b = Add (k, large) i = Sub (b, large)"
    plain = half(masked + constant("factor", 1.0) + "i = Mul (k, factor)")
    assert rules(verify(plain, "onnx", against=half(masked + lossy_half))) == {("rounding", "note")}
    wrong = half(masked.replace("n = Add (m, mask)", "n = Sub (m, mask)") + "i = Identity (k)")
    assert not verify(wrong, "onnx", against=half(masked + lossy_half)).passed


def test_an_overflow_in_float32_beside_float16_is_no_rounding() -> None:
    before = f"{CONV} f = Constant <value = float {{100000.0}}> () g = Mul (a, f)"
    steps = steps_of(half("i = Neg (h)", before), ["y", "g"], lambda node, opset: None)
    feed = {"x": np.full((1, 3, 6, 6), 1e3, np.float32)}
    with pytest.raises(UndecidedError, match="65504"):
        run_wide(steps, [feed], ["y", "g"], Deadline(60))


def test_constants_are_computed_in_the_models_own_types() -> None:
    """The legal model may have the rounded result in place of the nodes, such as angles of positions."""
    chain = constant("angle", 0.7) + "wave = Cos (angle) k = Mul (h, wave)"
    rounded = np.cos(np.float16(0.7)).astype(np.float16)
    stored = f"wc = Constant <value = float {{{rounded!s}}}> () wave = Cast <to = 10> (wc) k = Mul (h, wave)"
    lossy_half = constant("large", 16384.0) + "b = Add (k, large) i = Sub (b, large)"
    ends = constant("factor", 1.0) + "i = Mul (k, factor)"
    assert rules(verify(half(stored + ends), "onnx", against=half(chain + lossy_half))) == {("rounding", "note")}
    other = stored.replace(str(rounded), str(np.nextafter(rounded, np.float16(1))))
    verification = verify(half(other + ends), "onnx", against=half(chain + lossy_half))
    assert float64_of(verification) == "the two differ"


def test_a_sum_inside_a_function_rounds_as_one_outside_does() -> None:
    """The values inside a function have no declared types."""
    call = "relayout.InstanceNormalization"
    function = """<domain: "relayout", opset_import: ["" : 20]>
        InstanceNormalization (X, s, b) => (Y) {
            Xn = Transpose <perm = [0,3,1,2]> (X) Yn = InstanceNormalization (Xn, s, b)
            Y = Transpose <perm = [0,2,3,1]> (Yn) }"""
    four = "four = Constant <value_ints = [4]> ()" + constant("o", 0.5) + "os = Expand (o, four)"
    plain = f"{four} k = InstanceNormalization (h, os, os)"
    own = f"""{four} l = Transpose <perm = [0,2,3,1]> (h) n = {call} (l, os, os) k = Transpose <perm = [0,3,1,2]> (n)"""
    lossy_half = constant("large", 16384.0) + "b = Add (k, large) i = Sub (b, large)"
    ends = constant("factor", 1.0) + "i = Mul (k, factor)"

    def model(after: str) -> ir.Model:
        return model_of(f"{CONV} h = Cast <to = 10> (a) {after} y = Cast <to = 1> (i)", function)

    verification = verify(model(own + ends), "onnx", against=model(plain + lossy_half))
    assert "agree" in float64_of(verification)


def test_the_bodies_of_functions_and_of_branches_run_in_float64_too() -> None:
    branch = f"""yes = Constant <value = bool {{1}}> ()
        a = If (yes) <then_branch = t () => (float[1,4,6,6] p) {{ {CONV.replace("a =", "p =")} }},
                      else_branch = e () => (float[1,4,6,6] q) {{ r = {CONV.split(" = ", 1)[1]} q = Neg (r) }}>"""
    assert verify(kept(NATIVE, functions=BODY), "onnx", against=lossy()).passed
    assert not verify(kept(NATIVE, "1.0000002", BODY), "onnx", against=lossy()).passed
    assert verify(kept(branch), "onnx", against=lossy(branch)).passed
    assert not verify(kept(branch, "1.0000002"), "onnx", against=lossy(branch)).passed


def test_functions_of_another_opset_are_a_reason_and_no_failure() -> None:
    model = ir.to_proto(kept(NATIVE, functions=BODY))
    model.functions[0].opset_import[0].version = 19
    verification = verify(model, "onnx", against=lossy())
    assert float64_of(verification).startswith("not run: the functions cannot be inlined")
    assert ("numeric", "error") in rules(verification)


@pytest.mark.parametrize("condition", ["1", "0"])
def test_the_nodes_of_a_branch_without_a_kernel_for_float64_run_one_by_one(condition: str) -> None:
    def boxes(p: str, factor: str) -> str:
        # ONNX has NonMaxSuppression in float32 alone, so no runtime runs the whole branch in float64.
        return f"""<int64[3] {p}0 = {{1, 36, 4}}, int64[1] {p}1 = {{2}}, int64[1] {p}2 = {{1}}, int64[1] {p}3 = {{5}},
                    float {p}4 = {{{factor}}}> {{
            {p}boxes = Reshape (c, {p}0)
            {p}mean = ReduceMean <keepdims = 0> ({p}boxes, {p}1)
            {p}scores = Unsqueeze ({p}mean, {p}2)
            {p}found = NonMaxSuppression ({p}boxes, {p}scores, {p}3)
            {p}cast = Cast <to = 1> ({p}found)
            {p}least = ReduceMin <keepdims = 0> ({p}cast)
            {p}scaled = Mul (c, {p}4)
            {p} = Add ({p}scaled, {p}least) }}"""

    def before(factor: str = "1.0") -> str:
        return f"""{CONV.replace("a =", "c =")} yes = Constant <value = bool {{{condition}}}> ()
            a = If (yes) <then_branch = t () => (float[1,4,6,6] p) {boxes("p", factor)},
                          else_branch = e () => (float[1,4,6,6] q) {boxes("q", factor)}>"""

    verification = verify(kept(before()), "onnx", against=lossy(before()))
    assert verification.passed
    assert "agree" in float64_of(verification)
    assert not verify(kept(before("1.0000002")), "onnx", against=lossy(before())).passed


def test_operators_of_onnxruntime_without_a_kernel_for_float64_run_as_their_bodies() -> None:
    """The nodes that onnxruntime's optimizer for transformers writes."""
    fused = f"""{CONV.replace("a =", "c =")} n = Transpose <perm = [0,2,3,1]> (c)
        t = Constant <value_ints = [1, 36, 4]> () k = Reshape (n, t)
        v = Constant <value = float[4] {{0.5, 1.5, 2.0, 0.1}}> ()
        g = com.microsoft.BiasGelu (k, v) q = com.microsoft.QuickGelu (g) f = com.microsoft.FastGelu (q)
        s, m, d, r = com.microsoft.SkipLayerNormalization (f, k, v)
        e = com.microsoft.SkipSimplifiedLayerNormalization (s, r, v)
        l = com.microsoft.MultiHeadAttention <num_heads = 2> (e, k, f)
        u = Constant <value_ints = [1, 6, 6, 4]> () o = Reshape (l, u) a = Transpose <perm = [0,3,1,2]> (o)"""
    verification = verify(kept(fused), "onnx", against=lossy(fused))
    assert verification.passed
    assert "agree" in float64_of(verification)
    assert not verify(kept(fused, "1.0000002"), "onnx", against=lossy(fused)).passed


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        ("p = Cast <to = 11> (c) a = Cast <to = 1> (p)", "float64 of its own"),
        (
            "p = RandomNormalLike <scale = 1e-20, seed = 1.0> (c) a = Add (c, p)",
            "the result of RandomNormalLike is float32",
        ),
        ("a = com.microsoft.SampleOp (c)", "no runtime has SampleOp"),
        # The reference pads otherwise than onnxruntime where the last window is not whole: it may not decide.
        (
            "p = LpPool <kernel_shape = [3,3], p = 2, ceil_mode = 1, strides = [2,2]> (c) "
            "z = ReduceMax <keepdims = 0> (p) a = Add (c, z)",
            "LpPool in float64 differs from onnxruntime",
        ),
        ("s = SequenceConstruct (c) a = ConcatFromSequence <axis = 0> (s)", "s is not a tensor"),
        (
            "n = Shape (c) s = SequenceConstruct (n) m = ConcatFromSequence <axis = 0> (s) a = Reshape (c, m)",
            "s is not a tensor",
        ),
    ],
)
def test_a_difference_that_float64_cannot_decide_stays_an_error_with_a_reason(operator: str, reason: str) -> None:
    before = f"{CONV.replace('a =', 'c =')} {operator}"
    verification = verify(kept(before), "onnx", against=lossy(before))
    assert not verification.passed
    assert float64_of(verification).startswith("not run: ")
    assert reason in float64_of(verification)
    assert any(reason in str(finding.found) for finding in verification.findings)


def test_an_overflow_in_one_model_is_no_rounding() -> None:
    plain = model_of(f"{CONV} y = Identity (a)")
    high = (
        f"{CONV} h = Constant <value = float {{1e38}}> () b = Mul (a, h) c = Mul (b, h) d = Div (c, h) y = Div (d, h)"
    )
    verification = verify(model_of(high), "onnx", against=plain)
    assert not verification.passed
    assert "rounding" not in {finding.rule for finding in verification.findings}
    saturated = f"{high.replace('y =', 'e =')} s = Constant <value = float {{2}}> () i = IsInf (e) y = Where (i, s, e)"
    verification = verify(model_of(saturated), "onnx", against=plain)
    assert not verification.passed
    assert "beyond the range of the model's floats, 3.4028e+38" in float64_of(verification)


def test_the_time_that_float64_may_take_is_limited() -> None:
    steps = steps_of(kept(), ["y"], lambda node, opset: None)
    feed = {"x": np.ones((1, 3, 6, 6), np.float32)}
    (result,) = run_wide(steps, [feed], ["y"], Deadline(60))
    assert result["y"].dtype == np.float64
    with pytest.raises(UndecidedError, match="more than 0 seconds"):
        run_wide(steps, [feed], ["y"], Deadline(0))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_a_grid_sample_of_an_older_opset_runs_in_float64(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime has it, as of a newer opset. The evaluator would need minutes for a picture."""
    monkeypatch.setattr("relayout.verification.numeric.float64.run._by_reference", None)
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1,2,5,5] x, float[1,3,4,2] grid) => (float[1,2,3,4] y) {{
            y = GridSample <mode = "{mode}"> (x, grid) }}""")
    generator = np.random.default_rng(0)
    feed = {"x": generator.normal(size=(1, 2, 5, 5)), "grid": generator.uniform(-0.9, 0.9, size=(1, 3, 4, 2))}
    steps = steps_of(ir.from_proto(proto), ["y"], lambda node, opset: None)
    (result,) = run_wide(steps, [{name: data.astype(np.float32) for name, data in feed.items()}], ["y"], Deadline(60))
    assert result["y"].dtype == np.float64


def step(n: int) -> int:
    return n + 1


def count_for_ever() -> None:
    n = 0
    while True:
        n = step(n)


def test_python_that_runs_past_the_deadline_is_stopped() -> None:
    with pytest.raises(UndecidedError), Deadline(0.01):
        count_for_ever()
    assert step(1) == 2


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize(
    ("padding", "dilations"),
    [
        ("pads = [0, 1, 2, 3]", (2, 3)),
        ("pads = [0, 1, 2, 3]", (1, 1)),
        ('auto_pad = "SAME_UPPER"', (1, 1)),
        ('auto_pad = "SAME_LOWER"', (1, 1)),
        ('auto_pad = "VALID"', (3, 1)),
        ("", (1, 1)),
    ],
)
@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_convolution_is_what_onnxruntime_computes(
    dilations: tuple[int, int], strides: tuple[int, int], padding: str, group: int
) -> None:
    given = f"dilations = {list(dilations)}, strides = {list(strides)}, group = {group}" + (
        f", {padding}" if padding else ""
    )
    text = f"(float[2,4,13,14] x, float[8,{4 // group},3,2] w, float[8] b) => (y) {{ y = Conv <{given}> (x, w, b) }}"
    _assert_as_in_onnxruntime(convolve, text)


@pytest.mark.parametrize(
    "text",
    [
        "(float[0,4,7,6] x, float[8,2,3,2] w, float[8] b) => (y) { y = Conv <group = 2> (x, w, b) }",
        "(float[0,4,7,6] x, float[4,3,3,2] w, float[6] b) => (y) { y = ConvTranspose <group = 2> (x, w, b) }",
        "(float[0,4,7,6] x) => (y) { y = AveragePool <kernel_shape = [3, 2]> (x) }",
    ],
)
def test_a_batch_of_none_has_results_of_none(text: str) -> None:
    """A detector that finds nothing has no regions to look at."""
    kernels = {"Conv": convolve, "ConvTranspose": convolve_transposed, "AveragePool": average}
    _assert_as_in_onnxruntime(next(kernels[word] for word in text.split() if word in kernels), text)


def _assert_as_in_onnxruntime(kernel: Callable[..., np.ndarray], text: str) -> None:
    proto = onnx.parser.parse_model(f"{HEADER} net {text}")
    draw = np.random.default_rng(1).normal
    feeds = {
        entry.name: draw(size=[dim.dim_value for dim in entry.type.tensor_type.shape.dim]).astype(np.float32)
        for entry in proto.graph.input
    }
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feeds)
    [node] = proto.graph.node
    assert node.op_type == "Conv" or is_plain(node)
    found = kernel(node, *(data.astype(np.float64) for data in feeds.values()))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


WINDOWS = [
    "strides = [1, 1]",
    "strides = [2, 3]",
    "strides = [2, 2], pads = [0, 1, 2, 1]",
    "strides = [2, 3], pads = [1, 0, 1, 1], dilations = [2, 3]",
    "dilations = [3, 1]",
]


@pytest.mark.parametrize("window", [*WINDOWS, "strides = [2, 3], output_padding = [1, 2], pads = [1, 1, 2, 1]"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_transposed_convolution_is_what_onnxruntime_computes(window: str, group: int) -> None:
    operands = f"(float[2,4,7,6] x, float[4,3,3,2] w, float[{3 * group}] b)"
    text = f"{operands} => (y) {{ y = ConvTranspose <{window}, group = {group}> (x, w, b) }}"
    _assert_as_in_onnxruntime(convolve_transposed, text)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("more", ["", ", count_include_pad = 1"])
def test_an_average_pool_is_what_onnxruntime_computes(window: str, more: str) -> None:
    text = f"(float[2,4,13,12] x) => (y) {{ y = AveragePool <kernel_shape = [3, 2], {window}{more}> (x) }}"
    _assert_as_in_onnxruntime(average, text)


@pytest.mark.parametrize(
    "text",
    [
        "AveragePool <kernel_shape = [3], ceil_mode = 1, strides = [2]> (x)",
        'AveragePool <kernel_shape = [3], auto_pad = "SAME_UPPER"> (x)',
        "ConvTranspose <output_shape = [12]> (x, w)",
    ],
)
def test_the_kernels_leave_extents_that_other_attributes_give(text: str) -> None:
    proto = onnx.parser.parse_model(f"{HEADER} net (float[1,3,6] x, float[3,4,3] w) => (y) {{ y = {text} }}")
    assert not is_plain(proto.graph.node[0])


def test_a_cast_of_integers_to_float32_does_not_round() -> None:
    """One model may have a constant extent where the other casts one that it reads."""
    cast = onnx.helper.make_node("Cast", ["extent"], ["number"], to=onnx.TensorProto.FLOAT)
    none = casts_of([], {}, ())
    assert casts_of([cast], {"extent": onnx.TensorProto.INT64}, ()) == none
    assert casts_of([cast], {"extent": onnx.TensorProto.FLOAT16}, ()) != none


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
def test_a_cast_to_the_type_that_a_value_has_does_not_round(kind: int) -> None:
    """PyTorch's exporter writes such casts of constants and of results, and one model may have computed them."""
    cast = onnx.helper.make_node("Cast", ["x"], ["y"], to=kind)
    assert casts_of([cast], {"x": kind}, ()) == casts_of([], {}, ())
    assert casts_of([cast], {}, ()) != casts_of([], {}, ())


def test_a_cast_to_the_type_that_a_value_has_hides_no_cast_behind_it() -> None:
    float16, float32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    kinds = [("x", "wide", float32), ("wide", "same", float32), ("same", "y", float16)]
    nodes = [onnx.helper.make_node("Cast", [given], [result], to=kind) for given, result, kind in kinds]
    found = casts_of(nodes, {"x": float16, "wide": float32, "same": float32}, ())
    assert (dict(found.closed), found.widening, dict(found.others)) == ({float16: 1}, 1, {})


def _given(text: str, **constants: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(f"{HEADER} net {text}")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(data, name) for name, data in constants.items())
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def test_a_value_that_rounding_moves_in_float64_leaves_the_others_decided() -> None:
    """The sine of a number as large as 1e10 has six digits in float64."""
    model = _given("(float[4,32] x) => (float[4,32] y, float[4,32] z) { y = Sin (x) z = Neg (x) }")
    feeds = [{"x": np.random.default_rng(n).uniform(1e10, 2e10, size=(4, 32)).astype(np.float32)} for n in range(2)]
    failed = [
        OutputDifference(name=name, max_abs=1.0, max_rel=0.2, tolerance=0.1, sensitivity=1.0, passed=False)
        for name in ("y", "z")
    ]
    sources = {"y": "y", "z": "z"}
    judge = partial(_differences, model, model, sources, quantized=frozenset(), exact=True)
    pairs = [(Side(model, feeds), Side(model, feeds))]
    (one, other), verdict = in_float64(failed, sources, pairs, judge, lambda node, opset: None)
    assert (one.passed, one.in_float64, other.passed, other.in_float64) == (False, None, True, 0.0)
    assert verdict.text == "the two agree: the difference in narrower floats is rounding"
    assert verdict.about("y").startswith("not decided: rounding in float64 moves it by")
    assert verdict.about("z") == verdict.text


def test_a_fault_beyond_what_rounding_moves_in_float64_is_one() -> None:
    feeds = [{"x": np.random.default_rng(n).uniform(1e10, 2e10, size=(4, 32)).astype(np.float32)} for n in range(2)]
    original, model = (_given(f"(float[4,32] x) => (float[4,32] y) {{ y = {kind} (x) }}") for kind in ("Sin", "Cos"))
    failed = OutputDifference(name="y", max_abs=1.0, max_rel=0.2, tolerance=0.1, sensitivity=1.0, passed=False)
    judge = partial(_differences, model, original, {"y": "y"}, exact=True)
    pairs = [(Side(model, feeds), Side(original, feeds))]
    (found,), verdict = in_float64([failed], {"y": "y"}, pairs, judge, lambda node, opset: None)
    assert (found.passed, verdict.text, verdict.untold) == (False, "the two differ", {})
    assert found.in_float64 is not None
    assert found.in_float64 > 0.1


SCALED = "(float[4,32] x) => (float[4,32] y) {{ a = Mul (x, {0}) {1} y = {2} ({3}) }}"


NEAREST = 'mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"'


def test_noise_in_constants_leaves_the_scales_of_a_resize() -> None:
    """With a scale of 2 less its last bit, other elements would be read."""
    text = f"(float[1,2,8,8] x) => (float[1,2,16,16] y) {{ a = Mul (x, w) y = Resize <{NEAREST}> (a, , s) }}"
    draw = np.random.default_rng(0).uniform
    kernel = draw(1, 2, size=(1, 2, 8, 8)).astype(np.float32)
    model = _given(text, w=kernel, s=np.array([1, 1, 2, 2], np.float32))
    feeds = [{"x": draw(size=(1, 2, 8, 8)).astype(np.float32)} for _ in range(2)]
    failed = OutputDifference(name="y", max_abs=1.0, max_rel=0.2, tolerance=0.1, sensitivity=1.0, passed=False)
    judge = partial(_differences, model, model, {"y": "y"}, quantized=frozenset(), exact=True)
    (found,), _ = in_float64(
        [failed], {"y": "y"}, [(Side(model, feeds), Side(model, feeds))], judge, lambda node, opset: None
    )
    assert found.in_float64 == 0.0


@pytest.mark.parametrize(
    ("operator", "error", "verdict"),
    [
        ("Sin", 0.0, "not run: y: the model has computed constants, and their rounding explains as much"),
        ("Neg", 0.01, "the two differ"),
    ],
    ids=["rounded", "wrong"],
)
def test_the_rounding_of_computed_constants_is_no_fault_in_float64(operator: str, error: float, verdict: str) -> None:
    """A kernel may be multiplied by a scale before the run. A sine of large numbers shows the last bit of each."""
    draw = np.random.default_rng(0).uniform
    kernel, scale = (draw(1, 2, size=(1, 32)).astype(np.float32) for _ in range(2))

    original = _given(SCALED.format("w", "b = Mul (a, s)", operator, "b"), w=kernel, s=scale)
    model = _given(SCALED.format("ws", "", operator, "a"), ws=(kernel * scale * np.float32(1 + error)))
    feeds = [{"x": draw(1e6, 2e6, size=(4, 32)).astype(np.float32)} for _ in range(2)]
    failed = OutputDifference(
        name="y", max_abs=1.0, max_rel=0.02, tolerance=0.1, sensitivity=1.0, passed=False, in_slice=1.0
    )
    judge = partial(_differences, model, original, {"y": "y"}, quantized=frozenset(), exact=True)
    pairs = [(Side(model, feeds), Side(original, feeds))]
    assert in_float64([failed], {"y": "y"}, pairs, judge, lambda node, opset: None)[1].text == verdict


@pytest.mark.parametrize(("error", "verdict"), [(0.0, "agree"), (0.01, "differ")], ids=["rounded", "wrong"])
def test_what_is_computed_from_shapes_is_rounded_as_the_constants_of_the_legal_model(
    error: float, verdict: str
) -> None:
    """Anchors of a detector follow from the extents of its maps. The legal model has them as constants."""
    made = "n = Shape (x) f = Cast <to = 1> (n) roots = Sqrt (f) b = Mul (x, roots) y = Sin (b)"
    original = _given(f"(float[4,2] x) => (float[4,2] y) {{ {made} }}")
    roots = np.sqrt(np.float32([4, 2])) * np.float32(1 + error)
    model = _given("(float[4,2] x) => (float[4,2] y) { b = Mul (x, roots) y = Sin (b) }", roots=roots)
    feeds = [{"x": np.random.default_rng(n).uniform(1e6, 2e6, size=(4, 2)).astype(np.float32)} for n in range(2)]
    failed = OutputDifference(name="y", max_abs=1.0, max_rel=0.02, tolerance=0.01, sensitivity=1.0, passed=False)
    judge = partial(_differences, model, original, {"y": "y"}, quantized=frozenset(), exact=True)
    pairs = [(Side(model, feeds), Side(original, feeds))]
    (found,), told = in_float64([failed], {"y": "y"}, pairs, judge, lambda node, opset: None)
    assert found.passed is (verdict == "agree")
    assert verdict in told.text


def asked_of_float64(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Side, Side]]:
    """The pairs that the judgement of runs has float64 run."""
    asked: list[tuple[Side, Side]] = []

    def in_float64(
        differences: list[OutputDifference], sources: object, pairs: list[tuple[Side, Side]], *_: object
    ) -> object:
        asked.extend(pairs)
        return differences, Verdict("the two differ")

    monkeypatch.setattr("relayout.verification.numeric.judgement._noisy", lambda prepared: [()])
    monkeypatch.setattr("relayout.verification.numeric.judgement._is_moved", lambda *_: True)
    monkeypatch.setattr("relayout.verification.numeric.judgement.in_float64", in_float64)
    judged(runs)
    return asked


def test_a_trial_in_which_a_value_is_a_step_of_a_quantizer_apart_is_run_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another trial in which it differs by more must not hide this one."""
    model = _given("(float[4,32] x) => (float[4,32] y) { y = Relu (x) }")
    feeds = [{"x": np.full((4, 32), 0.5, np.float32)}]
    results = {"y": [np.linspace(-1, 1, 128, dtype=np.float32).reshape(4, 32)]}
    trials = tuple(Trial(None, feeds, [results]) for _ in range(3))
    apart = [{"y": [results["y"][0] + np.float32(each)]} for each in (0.0, 0.02, 0.5)]
    baseline = Baseline("onnxruntime", trials, ())
    prepared = Prepared(model, model, baseline, {})
    runs = Runs(prepared, [feeds] * 3, apart, {"y": "y"}, frozenset("y"), {}, lambda node, opset: None)
    assert len(asked_of_float64(runs, monkeypatch)) == 2


def test_a_sample_in_which_all_values_agree_is_not_run_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _given("(float[4,32] x) => (float[4,32] y) { y = Relu (x) }")
    feeds = [{"x": np.full((4, 32), number, np.float32)} for number in range(3)]
    results = [{"y": [feed["x"] + 1]} for feed in feeds]
    apart = [*results[:2], {"y": [results[2]["y"][0] + np.float32(0.5)]}]
    trials = (Trial(None, feeds, results), Trial(None, feeds, results))
    prepared = Prepared(model, model, Baseline("onnxruntime", trials, ()), {})
    runs = Runs(prepared, [feeds] * 2, [*apart, *results], {"y": "y"}, frozenset(), {}, lambda node, opset: None)
    ((mine, theirs),) = asked_of_float64(runs, monkeypatch)
    assert (mine.feeds, theirs.feeds) == ([feeds[2]], [feeds[2]])
