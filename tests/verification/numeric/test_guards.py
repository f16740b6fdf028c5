"""Guards of the operators with which onnxruntime may end the process."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from onnx import TensorProto

from relayout import legalize
from relayout.model.io import read_model
from relayout.verification.numeric.guards import doubtful_divisions, doubtful_scans
from relayout.verification.numeric.runtimes import Session, runtimes_for

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


def windows(opset: int = 17, axis: int = 1) -> onnx.ModelProto:
    """Sums of pairs of samples, in a Scan over all but the first 100 samples."""
    chosen = f", scan_input_axes = [{axis}], scan_output_axes = [1]"
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[b,n] sound) => (float[b,m] sums)
        <int64[1] first = {{100}}, int64[1] last = {{5000}}, int64[1] one = {{1}}> {{
            start = Slice (sound, first, last, one)
            state = ReduceMax <axes = [1], keepdims = 0> (sound)
            end, sums = Scan <num_scan_inputs = 1{chosen}, body = body (float[b] before, float[b] now)
                => (float[b] after, float[b] sum) {{ after = Identity (now)  sum = Add (before, now) }}> (state, start)
        }}""")


@pytest.mark.parametrize(("opset", "axis"), [(17, 1), (17, -1), (12, 1)])
def test_a_scan_over_no_elements_is_the_fault_of_a_run_in_onnxruntime(opset: int, axis: int) -> None:
    model = read_model(windows(opset, axis))
    assert doubtful_scans(model) == {"end"}
    session = Session(model, "onnxruntime")
    (sums,) = session.run({"sound": np.ones((2, 103), np.float32)}).values()
    assert sums.tolist() == [[2.0] * 3] * 2
    with pytest.raises(ValueError, match="a Scan goes over start, which has no elements along its axis"):
        session.run({"sound": np.ones((2, 100), np.float32)})


def test_a_model_that_scans_no_elements_at_small_sizes_runs_at_larger_ones() -> None:
    _, report = legalize(windows(), check=True)
    assert report.verification is not None
    assert report.verification.numeric is not None
    assert report.verification.numeric.runtime == "onnxruntime"


def test_a_scan_inside_a_node_is_guarded_too() -> None:
    scan = """Scan <num_scan_inputs = 1, body = body (float a, float b) => (float c, float d) {
        c = Add (a, b)  d = Identity (c) }> (zero, part)"""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (bool which, float[n] x) => (float[m] y)
        <float zero = {{0}}, int64[1] one = {{1}}, int64[1] most = {{99}}> {{
            part = Slice (x, one, most)
            y = If (which) <then_branch = n () => (float[k] w) {{ v, w = {scan} }},
                else_branch = n () => (float[k] u) {{ u = Identity (x) }}> }}""")
    session = Session(read_model(model), "onnxruntime")
    (sums,) = session.run({"which": np.array(True), "x": np.arange(4, dtype=np.float32)}).values()
    assert sums.tolist() == [1.0, 3.0, 6.0]
    with pytest.raises(ValueError, match="a Scan goes over part"):
        session.run({"which": np.array(True), "x": np.arange(1, dtype=np.float32)})


def test_a_scan_over_an_axis_of_an_input_needs_no_guard() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float zero, float[n] x, float[3] z) => (float[n] y, float[3] v)
        {
            s, y = Scan <num_scan_inputs = 1, body = b (float a, float b) => (float c, float d) {
                c = Add (a, b)  d = Identity (c) }> (zero, x)
            t, v = Scan <num_scan_inputs = 1, body = b (float a, float b) => (float c, float d) {
                c = Add (a, b)  d = Identity (c) }> (zero, z)
        }""")
    assert doubtful_scans(read_model(model)) == frozenset()
