"""The runtime in which the original is run."""

from __future__ import annotations

import onnx
import pytest
from graphs import Net

from relayout import verify
from relayout.model.io import read_model
from relayout.verification.numeric import baseline
from relayout.verification.numeric.baseline import Baseline, baseline_of
from relayout.verification.numeric.deadline import Budget, UndecidedError
from relayout.verification.numeric.symbolic_sizes import Sampling

pytest.importorskip("onnxruntime")


def test_a_model_whose_results_contradict_it_is_run_in_one_runtime() -> None:
    source = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[n] x) => (int64[1,1000003] y) { y = NonZero (x) }""")
    (fault,) = baseline_of(read_model(source), (), Sampling(1, 0, None))
    assert fault.startswith("onnxruntime: y is declared as [1,1000003] and comes out as [1, ")


def test_the_time_that_the_reference_evaluator_may_take_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    net.output(net.node("Relu", net.input("x", (4, 6))))
    sampling = Sampling(1, 0, None, budget=Budget(0))
    assert isinstance(baseline_of(read_model(net.model()), (), sampling), Baseline)
    monkeypatch.setattr(baseline, "runtimes_for", lambda model: ["onnx.reference"])
    assert isinstance(baseline_of(read_model(net.model()), (), Sampling(1, 0, None)), Baseline)
    assert baseline_of(read_model(net.model()), (), sampling) == ["onnx.reference: it takes more than 0 seconds"]


def test_several_runs_have_one_budget() -> None:
    budget = Budget(0.02)

    def run() -> None:
        for _ in range(1_000_000):
            with budget.limited():
                step()

    def step() -> None:
        pass

    with pytest.raises(UndecidedError, match=r"more than 0\.02 seconds"):
        run()


def test_a_model_that_no_runtime_runs_has_the_fault_of_each() -> None:
    net = Net()
    net.output(net.node("Gather", net.input("x", (4, 6)), net.constant([9]), axis=0))
    faults = baseline_of(read_model(net.model()), (), Sampling(1, 0, None))
    assert isinstance(faults, list)
    assert [fault.partition(":")[0] for fault in faults] == ["onnxruntime", "onnx.reference"]
    verification = verify(net.model(), "onnx", against=net.model())
    assert not verification.passed
    assert all(fault in str(verification.findings) for fault in ("onnxruntime: Invalid", "onnx.reference: Index"))


ATTENTION = """<ir_version: 10, opset_import: ["" : 20]>
    net (float[1,1,h,w] x) => (y) {
        start = Constant <value = int64[3] {1, -1, 1}> ()
        tokens = Reshape (x, start)
        keys = Transpose <perm = [0, 2, 1]> (tokens)
        scores = MatMul (tokens, keys)
        weights = Softmax (scores)
        y = MatMul (weights, tokens) }"""


@pytest.mark.parametrize(
    ("needed", "kept"),
    [((), ("scores", "keys", "tokens")), (("weights",), ("weights", "scores", "keys", "tokens"))],
    ids=["none is needed", "one is needed"],
)
def test_inner_values_that_are_large_in_the_run_are_left_out(needed: tuple[str, ...], kept: tuple[str, ...]) -> None:
    """Scores of 3072 tokens are 36 MiB, which no shape in the file tells."""
    source = read_model(onnx.parser.parse_model(ATTENTION))
    inner = tuple(dict.fromkeys((*needed, "scores", "weights", "keys", "tokens")))
    found = baseline_of(source, inner, Sampling(2, 0, {"h": 64, "w": 48}), {*needed})
    assert isinstance(found, Baseline)
    assert found.inner == kept
    assert all({*sample} == {"y", *kept} for trial in found.trials for sample in trial.results)


def test_a_large_inner_value_that_is_an_output_too_is_kept() -> None:
    net = Net()
    net.output(net.node("Relu", net.node("Tile", net.input("x", (1, "n")), net.constant([1 << 20, 1]))))
    (name,) = [value.name for value in net.model().graph.output]
    found = baseline_of(read_model(net.model()), (name,), Sampling(1, 0, {"n": 32}))
    assert isinstance(found, Baseline)
    assert found.inner == ()
    assert [list(sample) for trial in found.trials for sample in trial.results] == [[name]]


@pytest.mark.parametrize("kind", ["int64", "float"])
@pytest.mark.parametrize(("extent", "is_large"), [(4, False), (32, True)])
def test_a_few_numbers_are_never_drawn_large(extent: int, is_large: bool, kind: str) -> None:
    """They may be a shape, or the scales of one, which would fill the memory."""
    source = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        net ({kind}[{extent}] i) => (bool[{extent}] y) {{
            far = Constant <value = {kind}[1] {{100}}> ()
            y = Greater (i, far) }}"""
    )
    found = baseline_of(read_model(source), (), Sampling(2, 0, None))
    assert isinstance(found, Baseline)
    assert any(feed["i"].max() > 100 for feed in found.trials[0].feeds) is is_large
