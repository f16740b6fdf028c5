"""Filters and sorts that choose by scores: rounding alone may move a score over a threshold or past another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from relayout.report.schema import Verification
from relayout.verification.numeric import judgement
from relayout.verification.numeric.float64 import verdict
from relayout.verification.numeric.float64.verdict import Verdict
from relayout.verification.numeric.inputs import draw_inputs
from relayout.verification.numeric.preparation import Prepared
from relayout.verification.numeric.runtimes import Session
from relayout.verification.numeric.symbolic_sizes import Plan
from relayout.verification.numeric.tolerance import Arrays, difference, is_rounding_possible
from relayout.verification.verifier import verify

pytest.importorskip("onnxruntime")

EXTENT, CHANNELS = 24, 64
"""Those of the image: each pixel has one score."""
CONVOLVED = "map = Conv (x, kernel)"
SUMMED = """last = Transpose <perm = [0, 2, 3, 1]> (x)
    reversed = Gather <axis = 3> (last, order)
    sum = MatMul (reversed, columns)
    map = Transpose <perm = [0, 3, 1, 2]> (sum)"""
"""The same convolution in another layout, with another order of summation."""
EXCHANGED = SUMMED.replace("perm = [0, 3, 1, 2]", "perm = [0, 3, 2, 1]")

PLAIN = "scored = Sigmoid (map)"
AMPLIFIED = "large = Mul (map, factor) scored = Sin (large)"
"""In float32 the last bits of the input move each score by about 0.001."""

LIKELY = "at = NonZero (likely) places = Reshape (at, flat)"
FILTERS = {
    "NonZero": f"likely = Greater (score, limit) {LIKELY} y = Gather (score, places)",
    "indices": f"likely = Greater (score, limit) {LIKELY} y = Neg (places)",
    "axes": "likely = Greater (scored, limit) y = NonZero (likely)",
    "Compress": "likely = Greater (score, limit) y = Compress <axis = 0> (score, likely)",
    "NonMaxSuppression": """batch = Reshape (score, batch_of_scores)
        y = NonMaxSuppression (boxes, batch, most, overlap, limit)""",
}

TYPES = dict.fromkeys(FILTERS, "float[found]") | {
    "indices": "int64[found]",
    "axes": "int64[4,found]",
    "NonMaxSuppression": "int64[found,3]",
}


def detector(scores: str, kind: str, limit: float, changes: Mapping[str, str] = MappingProxyType({})) -> ir.Model:
    filtered = FILTERS[kind]
    for old, new in changes.items():
        assert old in filtered
        filtered = filtered.replace(old, new)
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        detector (float[1,{CHANNELS},{EXTENT},{EXTENT}] x) => ({TYPES[kind]} y, int64[40] best)
        <int64[1] flat = {{-1}}, int64[1] few = {{40}}, int64[1] most = {{100000}}, float[1] overlap = {{0.3}},
         int64[4] exchanged = {{0, 1, 3, 2}}, int64[4] corners = {{0, 2, 1, 3}},
         int64[3] batch_of_scores = {{1, 1, -1}}, float factor = {{10000.0}}> {{
            {scores}
            score = Reshape (scored, flat)
            highest, best = TopK (score, few)
            {filtered} }}"""
    proto = onnx.parser.parse_model(text)
    kernel = (np.random.default_rng(0).normal(size=(1, CHANNELS, 1, 1)) / 8).astype(np.float32)
    corners = np.random.default_rng(1).uniform(0, 50, size=(1, EXTENT * EXTENT, 2)).astype(np.float32)
    stored = {
        "kernel": kernel,
        "columns": kernel.reshape(CHANNELS, 1)[::-1],
        "order": np.arange(CHANNELS)[::-1],
        "boxes": np.concatenate([corners, corners + np.float32([1, 3])], axis=2),
        "limit": np.array([limit], np.float32),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array.copy(), name) for name, array in stored.items())
    return ir.from_proto(proto)


def limit_between(scores: str, others: str, kind: str) -> float:
    """A score near the median over which the other order of summation moves a score, so that more or fewer are kept."""
    both = [scores, others]
    feed = draw_inputs(detector(scores, kind, 0).graph.inputs, Plan({}, 2), 0)
    one, other = (Session(detector(each, kind, 0), "onnxruntime", ["score"]).run(feed)["score"] for each in both)
    (apart,) = np.nonzero(one != other)
    for place in sorted(apart, key=lambda each: abs(one[each] - np.median(one))):
        limit = float(min(one[place], other[place]))
        shapes = [Session(detector(each, kind, limit), "onnxruntime").run(feed)["y"].shape for each in both]
        if shapes[0] != shapes[1]:
            return limit
    raise AssertionError


def found_by_runs(verification: Verification) -> set[tuple[str, str | None]]:
    """The findings of the comparison; the other parts of the verifier know that the operators are others."""
    rules = ("numeric", "rounding", "not-compared")
    return {(each.rule, each.node) for each in verification.findings if each.rule in rules}


@pytest.mark.parametrize("scores", [PLAIN, AMPLIFIED])
@pytest.mark.parametrize("kind", FILTERS)
def test_rounding_over_a_threshold_is_no_fault(kind: str, scores: str) -> None:
    mine, theirs = f"{SUMMED} {scores}", f"{CONVOLVED} {scores}"
    limit = limit_between(theirs, mine, kind)
    found = verify(detector(mine, kind, limit), "onnx", against=detector(theirs, kind, limit))
    assert not found_by_runs(found) - {("rounding", "y"), ("rounding", "best")}
    assert found.numeric is not None
    assert found.numeric.not_compared == ()
    outputs = {each.name: each for each in found.numeric.outputs}
    assert outputs["y"].in_float64 is not None
    assert outputs["y"].max_rel > 0
    assert "agree" in str(found.numeric.float64)


TURNED = "turned = Transpose <perm = [0, 1, 3, 2]> (scored) all = Reshape (turned, flat) "
HIGHER = 0.02
"""A few scores in a hundred are between this and a limit."""
WRONG = {
    "threshold": ("NonZero", HIGHER, {}),
    "threshold of Compress": ("Compress", HIGHER, {}),
    "threshold of boxes": ("NonMaxSuppression", HIGHER, {}),
    "sign": ("NonZero", 0, {"y = Gather (score, places)": "kept = Gather (score, places) y = Neg (kept)"}),
    "comparison": ("NonZero", 0, {"Greater": "Less"}),
    "axes of the result": ("axes", 0, {"y = NonZero (likely)": "z = NonZero (likely) y = Gather (z, exchanged)"}),
    "layout before NonZero": (
        "indices",
        0,
        {"likely = Greater (score, limit)": f"{TURNED} likely = Greater (all, limit)"},
    ),
    "layout before Compress": (
        "Compress",
        0,
        {"y = Compress <axis = 0> (score": f"{TURNED} y = Compress <axis = 0> (all"},
    ),
    "boxes": (
        "NonMaxSuppression",
        0,
        {"y = NonMaxSuppression (boxes": "wrong = Gather <axis = 2> (boxes, corners) y = NonMaxSuppression (wrong"},
    ),
}


@pytest.mark.parametrize("scores", [PLAIN, AMPLIFIED])
@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("summed", [CONVOLVED, SUMMED], ids=["as it is", "summed"])
def test_a_fault_at_a_threshold_stays_one(fault: str, scores: str, summed: str) -> None:
    mine, theirs = f"{summed} {scores}", f"{CONVOLVED} {scores}"
    kind, higher, changes = WRONG[fault]
    limit = limit_between(theirs, f"{SUMMED} {scores}", kind)
    found = verify(detector(mine, kind, limit + higher, changes), "onnx", against=detector(theirs, kind, limit))
    assert ("numeric", "y") in found_by_runs(found)
    assert ("numeric", "best") not in found_by_runs(found)


@pytest.mark.parametrize("scores", [PLAIN, AMPLIFIED])
def test_exchanged_axes_before_a_filter_stay_a_fault(scores: str) -> None:
    theirs = f"{CONVOLVED} {scores}"
    limit = limit_between(theirs, f"{SUMMED} {scores}", "NonZero")
    model = detector(f"{EXCHANGED} {scores}", "NonZero", limit)
    found = verify(model, "onnx", against=detector(theirs, "NonZero", limit))
    assert {("numeric", "y"), ("numeric", "best")} <= found_by_runs(found)


@pytest.mark.parametrize("fault", ["threshold", "sign"])
def test_noise_that_changes_a_shape_leaves_what_float64_does_not_decide_undecided(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(prepared: Prepared) -> Iterator[list[dict[str, Arrays]]]:
        right = [sample for trial in prepared.baseline.trials for sample in trial.results]
        yield [{**sample, "y": [np.append(sample["y"][0], np.float32(1))]} for sample in right]

    monkeypatch.setattr(judgement, "_noisy", noisy)
    monkeypatch.setattr(judgement, "in_float64", lambda differences, *_: (differences, Verdict("not run: no kernel")))
    scores = f"{CONVOLVED} {PLAIN}"
    kind, higher, changes = WRONG[fault]
    found = verify(detector(scores, kind, 0.5 + higher, changes), "onnx", against=detector(scores, kind, 0.5))
    assert found_by_runs(found) == {("not-compared", "y")}
    assert found.numeric is not None
    assert [(each.name, each.reason) for each in found.numeric.not_compared] == [
        ("y", f"{judgement.UNDECIDED}; in float64 not run: no kernel")
    ]


def test_noise_that_changes_a_shape_explains_no_difference() -> None:
    right, noisy = np.ones(5, np.float32), np.ones(6, np.float32)
    for wrong in (np.ones(9, np.float32), np.zeros(5, np.float32)):
        assert not difference("y", [[right]], [[wrong]], [[noisy]], quantized=False).passed
        # Nor may another sample hide it.
        noise = [[right * np.float32(1 + 1e-6)], [noisy]]
        assert not difference("y", [[right]] * 2, [[right], [wrong]], noise, quantized=False).passed
    assert difference("y", [[right]], [[right]], [[noisy]], quantized=False).passed


def test_another_type_or_infinity_is_no_rounding() -> None:
    right = np.ones(5, np.float32)
    assert is_rounding_possible([[right]], [[np.ones(6, np.float32)]])
    assert not is_rounding_possible([[right]], [[np.ones(6, np.float16)]])
    assert not is_rounding_possible([[right]], [[right, right]])
    assert not is_rounding_possible([[right]], [[np.full(5, np.inf, np.float32)]])
    # Nor does the shape of another sample make it so.
    assert not is_rounding_possible([[right], [right]], [[np.ones(6, np.float32)], [np.full(5, np.nan, np.float32)]])


HALF = """<ir_version: 10, opset_import: ["" : 20]> half
    (float[1,512,8,8] x) => (float[1,16,8,8] y, float[1,16,16,16] z) <float16[16,512,1,1] kernel> {
        narrow = Cast <to = 10> (x)
        map = Conv (narrow, kernel)
        y = Cast <to = 1> (map)
        wide = Identity (y)
        scales = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
        z = Resize (wide, , scales) }"""


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.05, False)])
def test_results_in_float32_of_floats_of_16_bits_agree_as_those_do(
    factor: float, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Converters to float16 keep some operators in float32. A run of a large model in float64 takes too long."""
    monkeypatch.setattr(verdict, "SECONDS", 0.0)
    original = onnx.parser.parse_model(HALF)
    order = np.random.default_rng(0).permutation(512)
    kernel = np.random.default_rng(1).standard_normal((16, 512, 1, 1)).astype(np.float16)
    original.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "kernel"))
    model = onnx.ModelProto()
    model.CopyFrom(original)
    # The same convolution, summed in another order.
    others = (kernel[:, order].astype(np.float32) * factor).astype(np.float16)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(others, "kernel"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(order, "order"))
    model.graph.node.insert(1, onnx.helper.make_node("Gather", ["narrow", "order"], ["sorted"], axis=1))
    model.graph.node[2].input[0] = "sorted"
    found = verify(model, "onnx", against=original)
    assert found.numeric is not None
    differing = {each.name for each in found.numeric.outputs if each.max_rel > 1e-4}
    assert differing >= {"y", "z"}
    assert ("numeric" not in {each.rule for each in found.findings}) is passed
