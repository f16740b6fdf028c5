"""Models that onnx's reference evaluator runs for the verifier: Scans along any axis, and operators that it lacks."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from relayout.verification import verify
from relayout.verification.numeric.runtimes import Session

pytest.importorskip("onnxruntime")


def scan(kind: str, before: str = "Identity", **attributes: int) -> onnx.ModelProto:
    """Running sums of x, forwards or backwards along some axis, and what goes into them along another."""
    chosen = "".join(f", scan_{name} = [{number}]" for name, number in attributes.items())
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        g ({kind}[3] start, {kind}[3,3,3] x) => ({kind}[3] last, {kind}[3,3,3] y) {{
            read = {before} (x)
            last, y = Scan <num_scan_inputs = 1{chosen}, body = body ({kind}[3] state, {kind}[3,3] part)
                => ({kind}[3] next, {kind}[3,3] given) {{
                    weights = Constant <value_floats = [1.0, 2.0, 4.0]> ()
                    same = CastLike (weights, state)
                    product = MatMul (same, part)
                    next = Add (state, product)
                    given = Add (next, part)
                }}> (start, read)
        }}""")


@pytest.mark.parametrize(
    ("input_axes", "input_directions", "output_axes", "output_directions"),
    [*itertools.product((0, 1, -1), (0, 1), (0, 2, -2), (0, 1))],
)
def test_the_reference_scans_as_onnxruntime_does(
    input_axes: int, input_directions: int, output_axes: int, output_directions: int
) -> None:
    model = ir.from_proto(
        scan(
            "float",
            input_axes=input_axes,
            input_directions=input_directions,
            output_axes=output_axes,
            output_directions=output_directions,
        )
    )
    feeds = {"start": np.zeros(3, np.float32), "x": np.arange(27, dtype=np.float32).reshape(3, 3, 3)}
    expected, found = (Session(model, runtime).run(feeds) for runtime in ("onnxruntime", "onnx.reference"))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_scan_along_another_axis_is_compared_where_onnxruntime_lacks_an_operator() -> None:
    source, moved = scan("double", "Mish"), scan("double", "Mish", output_axes=1)
    moved.graph.node[1].name, moved.graph.node[1].output[1] = "moved", "along"
    for perm, passed in (([1, 0, 2], True), ([2, 0, 1], False)):
        turned = onnx.ModelProto.FromString(moved.SerializeToString())
        turned.graph.node.append(onnx.helper.make_node("Transpose", ["along"], ["y"], perm=perm))
        verification = verify(turned, "onnx", against=source)
        assert verification.numeric is not None
        assert (verification.numeric.status, verification.numeric.runtime) == ("compared", "onnx.reference")
        assert verification.passed is passed


def test_an_operator_that_the_reference_lacks_is_no_error_of_the_model() -> None:
    upsampled = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 9]>
        g (float[1,1,2,2] x) => (y) <float[4] scales = {1, 1, 2, 2}> { y = Upsample <mode = "linear"> (x, scales) }""")
    session = Session(ir.from_proto(upsampled), "onnx.reference")
    with pytest.raises(NotImplementedError, match="Not implemented"):
        session.run({"x": np.zeros((1, 1, 2, 2), np.float32)})
