"""The sizes that are counted for dims that are not known before the run."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from relayout import InputError, legalize
from relayout.model.io import read_model
from relayout.model.tensor_sizes import DYNAMIC, DimSizes


@pytest.mark.parametrize(("operator", "kernel"), [("Conv", "16, 3, 1, 1"), ("ConvTranspose", "3, 16, 1, 1")])
def test_a_batch_that_is_named_anew_behind_a_convolution_keeps_its_size(operator: str, kernel: str) -> None:
    model = read_model(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, 3, 8, 8] x, float[{kernel}] w) => (float[k, 16, 8, 8] y) <float[m, 16, 8, 8] c> {{
              c = {operator}(x, w)  y = Relu(c) }}"""
        )
    )
    counted = DimSizes(model, {"n": 5})
    assert [counted(ir.Shape([name])) for name in ("m", "k")] == [5, 5]


def test_a_loop_counts_the_dims_that_its_body_names_like_those_it_reads() -> None:
    # As tf2onnx writes a loop over images: the body and the results have names of their own for the batch.
    model = read_model(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, 3, 8, 8] x, int64 rounds, bool go) => (float[last, 3, 8, 8] y, float[steps, each, 8, 8, 3] z) {
              y, z = Loop (rounds, go, x) <body =
                b (int64 i, bool going, float[before, 3, 8, 8] taken)
                  => (bool going_on, float[behind, 3, 8, 8] made, float[shown, 8, 8, 3] seen) {
                  going_on = Identity(going)  made = Relu(taken)  seen = Transpose <perm = [0, 2, 3, 1]> (made) }> }"""
        )
    )
    counted = DimSizes(model, {"n": 5})
    (loop,) = model.graph
    body = loop.attributes["body"].as_graph()
    image = 3 * 8 * 8
    within = [body.inputs[2], *body.outputs[1:]]
    assert [counted(value.shape) for value in within] == [5 * image] * 3
    assert [counted(value.shape) for value in loop.outputs] == [5 * image, DYNAMIC * 5 * image]


def test_a_scan_and_an_if_count_the_dims_that_they_name_anew() -> None:
    model = read_model(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, m, 4] x, bool go) => (float[p, q, 4] y, float[r, s, 4] z) {
              y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], body =
                b (float[before, 4] taken) => (float[behind, 4] made) { made = Relu(taken) }> (x)
              z = If (go) <then_branch = t () => (float[a, c, 4] one) { one = Relu(x) },
                           else_branch = e () => (float[d, f, 4] other) { other = Sin(x) }> }"""
        )
    )
    counted = DimSizes(model, {"n": 5, "m": 3})
    scan, either = model.graph
    body = scan.attributes["body"].as_graph()
    assert [counted(value.shape) for value in (*body.inputs, *body.outputs)] == [5 * 4] * 2
    assert [counted(node.outputs[0].shape) for node in (scan, either)] == [5 * 3 * 4] * 2


@pytest.mark.parametrize(
    ("view", "sizes"), [("Identity(x)", [5, 3]), ("Transpose <perm = [1, 0, 2]> (x)", [3, 5]), ("Transpose(x)", [7, 3])]
)
def test_the_dims_of_a_view_that_are_named_anew_keep_their_sizes(view: str, sizes: list[int]) -> None:
    model = read_model(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, m, c] x) => (y) <float[k, l, d] v> {{ v = {view}  y = Relu(v) }}"""
        )
    )
    counted = DimSizes(model, {"n": 5, "m": 3, "c": 7})
    assert [counted(ir.Shape([name])) for name in ("k", "l")] == sizes
    assert [counted.bounds(ir.SymbolicDim(name)) for name in ("k", "l", "d")] == [None] * 3


@pytest.mark.parametrize(("extent", "given"), [(str(1 << 62), {}), ("n", {"n": 1 << 62})])
def test_more_elements_than_64_bits_count_are_an_error(extent: str, given: dict[str, int]) -> None:
    """The product of extents that are each below that, known or given."""
    model = read_model(
        onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
            net (float[{extent},{extent}] x) => (float[{extent},{extent}] y) {{ t = Transpose (x)  y = Relu (t) }}""")
    )
    with pytest.raises(InputError, match="a value has more elements than 64 bits count"):
        DimSizes(model, given)(model.graph.inputs[0].shape)
    with pytest.raises(InputError, match="a value has more elements than 64 bits count"):
        legalize(model, "nhwc", dims=given)
