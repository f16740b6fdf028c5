"""Glow's tensor layouts: the requirements of each node kind, as in its table and lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from backend_tables import answer, node
from graphs import Net, assert_same_numbers, random_feeds

import relayout

# The worked table

ROWS = {
    # Glow's node: (an ONNX node, what canonical answers, what opencl answers)
    "Convolution": (
        "(float[1,8,9,9] x, float[4,8,2,2] w, float[4] b) => (float[1,4,8,8] y) { y = Conv (x, w, b) }",
        "NHWC OHWI * -> NHWC",
        "NCHW OIHW * -> NCHW",
    ),
    "MaxPool": (
        """(float[1,8,9,9] x) => (float[1,8,8,8] y, int64[1,8,8,8] i) {
            y, i = MaxPool <kernel_shape = [2, 2]> (x) }""",
        "NHWC -> NHWC NHWC",
        "NCHW -> NCHW NCHW",
    ),
    "AvgPool": (
        "(float[1,8,9,9] x) => (float[1,8,8,8] y) { y = AveragePool <kernel_shape = [2, 2]> (x) }",
        "NHWC -> NHWC",
        "NCHW -> NCHW",
    ),
    "ConvTranspose": (
        "(float[1,8,9,9] x, float[8,4,2,2] w) => (float[1,4,10,10] y) { y = ConvTranspose (x, w) }",
        "NHWC OHWI -> NHWC",
        "NHWC OHWI -> NHWC",
    ),
    "ResizeNearest": (
        "(float[1,8,9,9] x, float[4] s) => (float[1,8,18,18] y) { y = Resize (x, , s) }",
        "NHWC  * -> NHWC",
        "NHWC  * -> NHWC",
    ),
    "LocalResponseNormalization": (
        "(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = LRN <size = 3> (x) }",
        "NHWC -> NHWC",
        "NHWC -> NHWC",
    ),
    "ROIAlign": (
        """(float[1,8,9,9] x, float[2,4] r, int64[2] i) => (float[2,8,2,2] y) {
            y = RoiAlign <output_height = 2, output_width = 2> (x, r, i) }""",
        "NHWC ** * -> NHWC",
        "NHWC ** * -> NHWC",
    ),
    "AvgPool in three dimensions": (
        "(float[1,8,9,9,9] x) => (float[1,8,8,8,8] y) { y = AveragePool <kernel_shape = [2, 2, 2]> (x) }",
        "NDHWC -> NDHWC",
        "NCDHW -> NCDHW",
    ),
    "BatchNormalization": (
        """(float[1,8,9,9] x, float[8] s, float[8] b, float[8] m, float[8] v) => (float[1,8,9,9] y) {
            y = BatchNormalization (x, s, b, m, v) }""",
        "**** * * * * -> **** or NHWC * * * * -> NHWC",
        "**** * * * * -> **** or NHWC * * * * -> NHWC",
    ),
    "no node of Glow's, with named axes": (
        "(float[1,8,9,9] x) => (float[1,2,18,18] y) { y = DepthToSpace <blocksize = 2> (x) }",
        "NHWC -> NHWC",
        "NHWC -> NHWC",
    ),
    "SoftMax": ("(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = Softmax (x) }", "NHWC -> NHWC", "NHWC -> NHWC"),
    "SoftMax of a matrix": ("(float[8,9] x) => (float[8,9] y) { y = Softmax (x) }", "** -> **", "** -> **"),
    "Relu": ("(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = Relu (x) }", "**** -> ****", "**** -> ****"),
    "Add": (
        "(float[1,8,9,9] x, float[1,8,9,9] z) => (float[1,8,9,9] y) { y = Add (x, z) }",
        "**** **** -> ****",
        "**** **** -> ****",
    ),
    "Concat": (
        "(float[1,8,9,9] x, float[1,8,9,9] z) => (float[1,16,9,9] y) { y = Concat <axis = 1> (x, z) }",
        "**** **** -> ****",
        "**** **** -> ****",
    ),
    "MatMul": (
        "(float[1,8,9,9] x, float[9,5] z) => (float[1,8,9,5] y) { y = MatMul (x, z) }",
        "**** ** -> ****",
        "**** ** -> ****",
    ),
    "Gemm": (
        "(float[3,4] x, float[4,5] z) => (float[3,5] y) { y = Gemm (x, z) }",
        "** ** -> **",
        "** ** -> **",
    ),
    "Quantize": (
        "(float[1,8,9,9] x, float s, uint8 z) => (uint8[1,8,9,9] y) { y = QuantizeLinear (x, s, z) }",
        "****   -> ****",
        "****   -> ****",
    ),
    "ConvertTo": (
        "(float[1,8,9,9] x) => (float16[1,8,9,9] y) { y = Cast <to = 10> (x) }",
        "**** -> ****",
        "**** -> ****",
    ),
}


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("glow", ROWS)
def test_requirements_of_a_node_are_those_of_glows_table(glow: str, backend: str) -> None:
    text, *answers = ROWS[glow]
    assert answer(relayout.load_backend(backend), node(text)) == answers[backend == "opencl"]


# Every node kind that ONNX has an operator for. Glow's lists by name; what is asked of four-dimensional operands

ANY = {
    "Concat": "Concat",
    "BatchedReduceMean": "ReduceMean",
    "BatchedReduceAdd": "ReduceSum",
    "BatchedReduceMin": "ReduceMin",
    "BatchedReduceMax": "ReduceMax",
    "Pad": "Pad",
    "Reshape": "Reshape",
    "MeanVarNormalization": "MeanVarianceNormalization",
    "MatMul": "MatMul",
    "Slice": "Slice",
    "Tile": "Tile",
    "Broadcast": "Expand",
    "GaussianFill": "RandomNormalLike",
    "Transpose": "Transpose",
    "CumSum": "CumSum",
    "PRelu": "PRelu",
    "Select": "Where",
    "NonZero": "NonZero",
    "Clip": "Clip",
    "LeakyRelu": "LeakyRelu",
    **{name: name for name in "Add Sub Mul Div Max Min Pow And Or Xor Not Neg Abs Floor Ceil Round Sqrt".split()},
    **{name: name for name in "Reciprocal Sin Cos Log Acos Asin Atan Erf Exp IsNaN Relu HardSwish Gelu".split()},
    **{name: name for name in "Sigmoid Tanh Softplus Equal Less LessOrEqual Mod Sign BitwiseAnd BitwiseNot".split()},
    "Quantize": "QuantizeLinear",
    "Dequantize": "DequantizeLinear",
    "ConvertTo": "Cast",
    # Beyond Glow's lists: these tell axes by their place only, or are no nodes of Glow's.
    "GatherND": "GatherND",
    "ScatterData": "ScatterND",
    "": "Identity",
}
STRICT = {
    "ArgMax": "ArgMax",
    "ArgMin": "ArgMin",
    "SoftMax": "Softmax",
    "LogSoftMax": "LogSoftmax",
    "LayerNormalization": "LayerNormalization",
    "TopK": "TopK",
    "VectorNorm": "ReduceL2",
    "BatchedReduceSumSquare": "ReduceSumSquare",
    "BatchedReduceProd": "ReduceProd",
    "Gather": "Gather",
    "GatherElements": "GatherElements",
    "ScatterElements": "ScatterElements",
}


def alone(operator: str, rank: int = 4, **attributes: Any) -> ir.Node:
    """An operator by itself, its one operand and its result of `rank` dimensions."""
    shape = ir.Shape([2, 8, 6, 4, 3][:rank])
    made = ir.node(operator, [ir.Value(name="x", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))], attributes)
    made.outputs[0].shape = shape
    return made


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("operator", sorted(ANY.values()))
def test_a_layout_agnostic_node_has_no_requirements(operator: str, backend: str) -> None:
    assert answer(relayout.load_backend(backend), alone(operator)) == "**** -> ****"


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("operator", sorted(STRICT.values()))
def test_a_node_on_no_list_of_glows_is_nhwc_in_four_dimensions_only(operator: str, backend: str) -> None:
    loaded = relayout.load_backend(backend)
    assert answer(loaded, alone(operator)).startswith("NHWC -> ")
    for rank in (2, 3, 5):
        assert answer(loaded, alone(operator, rank)) == f"{'*' * rank} -> {'*' * rank}"


POSITIONS: dict[str, Callable[[Net, str], str]] = {
    "Gather": lambda n, v: n.node("Gather", v, n.input("i", (2,), onnx.TensorProto.INT64), axis=1),
    "Gather of one": lambda n, v: n.node("Gather", v, n.input("i", (), onnx.TensorProto.INT64), axis=1),
    "Gather by a constant": lambda n, v: n.node("Gather", v, n.constant([2, 0]), axis=3),
    "GatherND": lambda n, v: n.node("GatherND", v, n.constant(np.array([[0, 1], [1, 2]]))),
    "ScatterND": lambda n, v: n.node("ScatterND", v, n.constant(np.array([[1]])), n.input("u", (1, 4, 6, 8))),
    "LayerNormalization": lambda n, v: n.node("LayerNormalization", v, n.weight(8), axis=-1),
    "NegativeLogLikelihoodLoss": lambda n, v: n.node(
        "NegativeLogLikelihoodLoss", v, n.node("Cast", n.input("t", (2, 6, 8), onnx.TensorProto.INT32), to=7)
    ),
}


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("what", POSITIONS)
def test_an_operator_by_axis_position_runs_after_a_convolution(what: str, backend: str) -> None:
    net = Net()
    net.output(POSITIONS[what](net, net.conv(net.input("x", (2, 3, 6, 8)), 3, 4)))
    legal, _ = relayout.legalize(net.model(), backend)
    assert relayout.verify(legal, backend=backend).passed
    feeds = random_feeds(net.model()) | ({"i": np.array([3, 1])} if what == "Gather" else {})
    feeds |= {"i": np.array(2)} if what == "Gather of one" else {}
    feeds |= {"t": np.ones((2, 6, 8), np.int32)} if "t" in feeds else {}
    assert_same_numbers(net.model(), legal, feeds)
