"""The axes by which operators work are compared without a run, or a note says that they were not."""

from __future__ import annotations

import onnx.parser
import pytest

from relayout import legalize
from relayout.report.schema import Finding
from relayout.verification import verify

SQUARE = "g (float[4,4] x, float[4,4] u, int64[4,4] i, int64[4] n, int8[4,4] q) => (float[a,b] y)"
CUBE = "g (float[4,4,4] x, float[1,16,4] w, float[1,12,4] v) => (float[a,b,c] y)"
STACK = "g (float[4,4,4] x, float[4,4,4] u) => (float[4,4,4] y)"
IMAGE = "g (float[1,4,4,4] x, float[1,4,4,2] grid, float[4,4] rois, int64[4] n) => (float[a,b,c,d] y)"
COMPLEX = "g (float[1,4,4,1] x) => (float[a,b,c,d] y)"
NUMBERS = """int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 four = {4}, float[4] s = {1,2,3,4},
    float[2] ends = {0,1}, int64[2] low = {0,1}, int64[2] first = {1,0}, int64[2] high = {4,3}, int64[2] counts = {2,1},
    int64[2] others = {1,2}, int64[6] widths = {1,0,0,-1,0,0}, int64[6] turned = {0,1,0,0,-1,0},
    int64[4,1] rows = {3,2,1,0}"""

# The nodes of the original, what is replaced in them, and the replacement.
WRONG_AXES = {
    "DequantizeLinear": (SQUARE, "y = DequantizeLinear <axis = 0> (q, s)", "axis = 0", "axis = 1"),
    "QuantizeLinear": (SQUARE, "z = QuantizeLinear <axis = 0> (x, s) y = Cast <to = 1> (z)", "axis = 0", "axis = 1"),
    "ReverseSequence": (
        SQUARE,
        "y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, n)",
        "batch_axis = 1, time_axis = 0",
        "batch_axis = 0, time_axis = 1",
    ),
    "OneHot": (SQUARE, "y = OneHot <axis = 0> (n, four, ends)", "axis = 0", "axis = 1"),
    "Unique": (SQUARE, "y = Unique <axis = 0> (x)", "axis = 0", "axis = 1"),
    "Gather": (CUBE, "y = Gather <axis = 0> (x, low)", "axis = 0", "axis = 2"),
    "DFT": (COMPLEX, 'y = DFT (x, "", one)', "one", "two"),
    "SimplifiedLayerNormalization": (SQUARE, "y = SimplifiedLayerNormalization <axis = 1> (x, s)", "= 1", "= 0"),
    "FusedMatMul": (STACK, "y = com.microsoft.FusedMatMul <transB = 1> (x, u)", "transB = 1", "transB = 0"),
    "FusedMatMul, batch": (
        STACK,
        "y = com.microsoft.FusedMatMul <transBatchA = 1> (x, u)",
        "transBatchA = 1",
        "transBatchA = 0",
    ),
    "Pad": (STACK, "y = Pad (x, widths)", "widths", "turned"),
    "Slice, starts": (SQUARE, "z = Slice (x, low, high) y = Relu (z)", "(x, low", "(x, first"),
    "Tile": (SQUARE, "y = Tile (x, counts)", "counts", "others"),
}


@pytest.mark.parametrize("fault", WRONG_AXES)
def test_another_axis_is_found(fault: str) -> None:
    assert "error" in {each.severity for each in unrun(*WRONG_AXES[fault])}


# In another order these read other elements, and no fact tells what the operators do with them.
MOVED = {
    "GridSample": (IMAGE, "y = GridSample (x, grid)", "Transpose <perm = [0,2,1,3]> (grid)", "(x, grid)"),
    "RoiAlign": (IMAGE, "y = RoiAlign (x, rois, n)", "Transpose <perm = [1,0]> (rois)", "(x, rois"),
    "Gather": (
        SQUARE,
        "z = Gather (x, i) y = ReduceSum <keepdims = 0> (z, one)",
        "Transpose <perm = [1,0]> (i)",
        "(x, i",
    ),
    "ScatterND": (SQUARE, "y = ScatterND (x, rows, u)", "Transpose <perm = [1,0]> (u)", "rows, u"),
    "LSTM": (CUBE, "z, y = LSTM <hidden_size = 4> (x, w, w)", "Transpose <perm = [1,0,2]> (x)", "(x"),
    "Det": (CUBE, "z = Det (x) y = Unsqueeze (z, low)", "Transpose <perm = [1,0,2]> (x)", "(x"),
}


@pytest.mark.parametrize("fault", MOVED)
def test_a_note_says_that_no_run_compares_an_operand_in_another_order(fault: str) -> None:
    header, nodes, turn, read = MOVED[fault]
    operand = turn.rpartition("(")[2][:-1]
    found = unrun(header, nodes, nodes, f"t = {turn} " + nodes.replace(read, read.replace(operand, "t")))
    assert ("element-order", "note") in {(each.rule, each.severity) for each in found}


OUT_OF_RANGE = {
    "LpNormalization": (SQUARE, "y = LpNormalization <axis = 1> (x)", "= 1", "= 7"),
    "GatherElements": (SQUARE, "y = GatherElements <axis = 1> (x, i)", "= 1", "= -3"),
    "CumSum": (SQUARE, "y = CumSum (x, one)", "one", "four"),
    "MeanVarianceNormalization": (SQUARE, "y = MeanVarianceNormalization <axes = [0]> (x)", "[0]", "[2]"),
}


@pytest.mark.parametrize("fault", OUT_OF_RANGE)
def test_the_number_of_an_axis_that_an_operand_lacks_is_found(fault: str) -> None:
    found = unrun(*OUT_OF_RANGE[fault])
    assert ("shape", "error") in {(each.rule, each.severity) for each in found}


@pytest.mark.parametrize("stated", [1, 2, -1])
def test_any_number_but_zero_transposes_a_matrix(stated: int) -> None:
    model = parsed(
        f"""g (float[4,5] x, float[4,6] u) => (float[5,6] y) {{ a = Transpose <perm = [1,0]> (x)
            b = Transpose <perm = [1,0]> (u)  y = Gemm <transB = {stated}> (a, b) }}"""
    )
    legal, _ = legalize(model)
    assert [node.op_type for node in legal.graph.node] == ["Gemm"]
    assert verify(legal, "onnx", against=model).passed


def unrun(header: str, nodes: str, old: str, new: str) -> tuple[Finding, ...]:
    """The findings on the nodes with a replacement, against the nodes as they are."""
    original, model = (parsed(f"{header} <{NUMBERS}> {{ {text} }}") for text in (nodes, nodes.replace(old, new)))
    assert original != model
    assert verify(original, "onnx", against=original, run=False).findings == ()
    return verify(model, "onnx", against=original, run=False).findings


def parsed(text: str) -> onnx.ModelProto:
    versions = '"" : 20, "com.microsoft" : 1'
    model: onnx.ModelProto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{versions}]> {text}")
    return model


@pytest.mark.parametrize(("known", "wanted"), [("4,4", "h,w"), ("h,w", "4,4"), ("4,w", "h,4")])
def test_one_model_may_know_an_extent_that_the_other_computes(known: str, wanted: str) -> None:
    def model(extents: str, first: str) -> onnx.ModelProto:
        return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17, "acme" : 1]>
            g (float[4,4] x) => (float[a,b] z)
            <int64[2] first = {{{first}}}, int64[2] last = {{3,9}}, float[{extents}] y> {{
                y = acme.Same (x)
                z = Slice (y, first, last)
            }}""")

    original = model(wanted, "0,1")
    assert verify(model(known, "0,1"), "onnx", against=original, run=False).passed
    wrong = verify(model(known, "1,1"), "onnx", against=original, run=False)
    assert {each.rule for each in wrong.findings} & {"axis-mismatch", "constant"}
