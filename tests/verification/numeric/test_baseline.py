"""The runtime in which the original is run."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from onnx import TensorProto

from relayout import legalize, verify
from relayout.model.io import read_model
from relayout.verification.numeric import baseline
from relayout.verification.numeric.baseline import Baseline, baseline_of
from relayout.verification.numeric.deadline import Budget, UndecidedError
from relayout.verification.numeric.divisors import doubtful_divisions
from relayout.verification.numeric.runtimes import Session, runtimes_for
from relayout.verification.numeric.symbolic_sizes import Sampling

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("row", [0, 1])
def test_an_integer_is_divided_by_a_dim_of_an_input_in_onnxruntime(row: int) -> None:
    net = Net()
    x = net.input("x", ("batch", 4, 6))
    count = [net.node("Gather", net.node("Shape", value), net.constant(np.int64(row))) for value in (x, x)]
    times = net.node("Unsqueeze", net.node("Div", *count), net.constant([0]))
    net.output(net.node("Tile", x, net.node("Concat", net.constant([1, 1]), times, axis=0)))
    _, report = legalize(net.model(), check=True)
    assert report.verification is not None
    assert report.verification.numeric is not None
    assert report.verification.numeric.runtime == "onnxruntime"


@pytest.mark.parametrize(("batch", "runtime"), [(None, "onnxruntime"), (1, "onnx.reference")])
def test_a_model_that_divides_an_integer_by_zero_does_not_end_the_process(batch: int | None, runtime: str) -> None:
    net = Net()
    x = net.input("x", ("batch", 4, 6))
    size = net.node("Gather", net.node("Shape", x), net.constant(np.int64(0)))
    count = net.node("Div", size, net.node("Sub", size, net.constant(np.int64(1))))
    net.output(net.node("Add", x, net.node("Cast", count, to=1)))
    _, report = legalize(net.model(), check=True, dims={"batch": batch} if batch else {})
    assert report.verification is not None
    assert report.verification.numeric is not None
    assert report.verification.numeric.runtime == runtime


def test_an_integer_divided_by_zero_is_the_fault_of_a_run_in_onnxruntime() -> None:
    net = Net()
    divisor = net.node("Sub", net.input("x", (2,), TensorProto.INT64), net.constant([1, 2]))
    net.output(net.node("Mod", net.input("y", (2,), TensorProto.INT64), divisor), TensorProto.INT64)
    session = Session(read_model(net.model()), "onnxruntime")
    seven = np.array([7, 7])
    (remainder,) = session.run({"x": np.array([6, 5]), "y": seven}).values()
    assert remainder.tolist() == [2, 1]
    with pytest.raises(ZeroDivisionError, match="an integer is divided by sub_0, which is 0"):
        session.run({"x": np.array([6, 2]), "y": seven})


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_an_integer_divided_by_zero_inside_a_node_is_the_fault_of_a_run_too(kind: str) -> None:
    """A detector of key points divides by the width of each region, in a Loop."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (int64 times, {kind}[3] x, {kind}[3] y) => ({kind}[n,3] rest) <bool yes = {{1}}> {{
            rest = Loop (times, yes) <body = b (int64 i, bool c) => (bool d, {kind}[3] each) {{
                d = Identity (c)  own = Identity (y)  each = Mod (x, own)  more = Mod (y, own)
            }}> }}""")
    session = Session(read_model(model), "onnxruntime")
    seven, own = np.full(3, 7, kind), np.array([4, 5, 100], kind)
    (rest,) = session.run({"times": np.array(2), "x": seven, "y": own}).values()
    assert rest.tolist() == [[3, 2, 7]] * 2
    with pytest.raises(ZeroDivisionError, match="an integer is divided by own, which is 0"):
        session.run({"times": np.array(2), "x": seven, "y": own - own})


def test_divisions_whose_results_have_one_name_do_not_run_in_onnxruntime() -> None:
    branch = "n () => (int64[3] b) { own = Identity (y)  b = Mod (x, own) }"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (bool c, int64[3] x, int64[3] y) => (int64[3] a) {{
            a = If (c) <then_branch = {branch}, else_branch = {branch}> }}""")
    assert doubtful_divisions(ir.from_proto(model)) is None
    assert runtimes_for(ir.from_proto(model)) == ["onnx.reference"]


@pytest.mark.parametrize(("kind", "is_safe"), [("INT64", True), ("INT32", True), ("UINT8", False)])
def test_an_extent_in_eight_bits_may_be_zero(kind: str, is_safe: bool) -> None:
    net = Net()
    extent = net.node("Cast", net.node("Shape", net.input("x", ("n",))), to=getattr(TensorProto, kind))
    net.output(net.node("Div", net.input("y", (1,), getattr(TensorProto, kind)), extent), getattr(TensorProto, kind))
    model = read_model(net.model())
    assert doubtful_divisions(model) == ({} if is_safe else {"div_2": ir.DataType.UINT8})


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
