"""Models with every kind of layout change, each small enough to mutate every part of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from relayout.backend import Backend, Implementation
from relayout.layout.layout import Layout
from relayout.model.io import read_model

RESIDUAL = """net (float[1,3,12,10] x, float[6,3,3,3] w, float[6] scale, float[6] shift, float[6] mean, float[6] var,
                  float[6,6,3,3] v, float[6,1,3,3] d, float[5,6] m, float[5] bias) => (float[1,5] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,0,1,2]> (x, w)
    b = BatchNormalization (a, scale, shift, mean, var)
    c = Relu (b)
    e = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (c, v)
    f = Add (e, c)
    g = MaxPool <kernel_shape = [3,2], strides = [2,1], pads = [0,1,1,0]> (f)
    h = Conv <kernel_shape = [3,3], group = 6, strides = [1,2]> (g, d)
    i = GlobalAveragePool (h)
    j = Flatten <axis = 1> (i)
    y = Gemm <transB = 1> (j, m, bias) }"""

KERAS = """net (float[1,9,11,3] x, float[8,3,3,3] w, float[4,8,1,1] v, float[8,4,1,1] u, float[8,8,3,1] t,
               float[8] bias) => (float[1,9,11,8] y, float[1,9,8] z) {
    axes = Constant <value = int64[2] {1, 2}> ()
    rows = Constant <value = int64[1] {2}> ()
    a = Transpose <perm = [0,3,1,2]> (x)
    b = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (a, w)
    c = Transpose <perm = [0,2,3,1]> (b)
    d = Add (c, bias)
    e = Sigmoid (d)
    f = Mul (d, e)
    g = ReduceMean <keepdims = 1> (f, axes)
    h = Transpose <perm = [0,3,1,2]> (g)
    i = Conv <kernel_shape = [1,1]> (h, v)
    j = Relu (i)
    k = Conv <kernel_shape = [1,1]> (j, u)
    l = Transpose <perm = [0,2,3,1]> (k)
    m = Mul (f, l)
    n = Transpose <perm = [0,3,1,2]> (m)
    o = Conv <kernel_shape = [3,1], pads = [1,0,1,0]> (n, t)
    p = Transpose <perm = [0,2,3,1]> (o)
    q = Concat <axis = 3> (p, m)
    r, s = Split <axis = 3, num_outputs = 2> (q)
    t1 = Sub (r, s)
    y = Softmax <axis = 3> (t1)
    z = ReduceMax <keepdims = 0> (t1, rows) }"""

MIXED = """net (float[1,4,8,6] x, float[4,5,2,2] w, float[5,5,1,3] v, float[1,5,1,1] gate)
               => (float[1,5,2,9] y, float[1,2,16,12] k) {
    pads = Constant <value = int64[8] {0, 0, 1, 0, 0, 0, 0, 2}> ()
    starts = Constant <value = int64[2] {1, 2}> ()
    ends = Constant <value = int64[2] {9, 14}> ()
    axes = Constant <value = int64[2] {2, 3}> ()
    scales = Constant <value = float[4] {1.0, 1.0, 0.25, 1.0}> ()
    two = Constant <value = int64[1] {2}> ()
    a = ConvTranspose <kernel_shape = [2,2], strides = [2,2]> (x, w)
    b = Pad (a, pads)
    c = Slice (b, starts, ends, axes)
    d = Conv <kernel_shape = [1,3], dilations = [1,2]> (c, v)
    e = PRelu (d, gate)
    f = LRN <size = 3> (e)
    g = InstanceNormalization (f, one, zero)
    h = CumSum (g, along)
    i = Resize <mode = "nearest"> (h, , scales)
    y = AveragePool <kernel_shape = [1,2], pads = [0,1,0,1]> (i)
    j = LeakyRelu (a)
    k, index = TopK <axis = 1> (j, two) }"""

SEQUENCE = """net (float[1,4,14] x, float[6,4,3] w, float[6] gain, float[6] shift, float[5,6,1] v, float[6,6] m)
                  => (float[1,14,6] y, float[1,14] best) {
    a = Conv <kernel_shape = [3], pads = [2,0]> (x, w)
    b = Transpose <perm = [0,2,1]> (a)
    c = LayerNormalization <axis = -1> (b, gain, shift)
    d = MatMul (c, m)
    y = Softmax <axis = -1> (d)
    e = Transpose <perm = [0,2,1]> (d)
    f = Conv <kernel_shape = [1]> (e, v)
    best = ReduceMax <keepdims = 0> (f, one_axis) }"""

QUANTIZED = """net (float[1,3,9,7] x, float[4,3,3,2] w, float[4,4,1,1] v) => (float[1,4,7,6] y) {
    s = Constant <value = float {0.03125}> ()
    z = Constant <value = uint8 {128}> ()
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    a = Conv <kernel_shape = [3,2]> (d, w)
    b = Clip (a, low, high)
    c = Conv <kernel_shape = [1,1]> (b, v)
    y = Add (c, b) }"""

SHUFFLE = """net (float[1,6,5,4] x, float[8,6,1,1] w, float[8,1,3,3] d, float[8,8,1,1] u, float[8,8,1,1] v)
                 => (float[1,8,5,4] y) {
    cut = Constant <value = int64[5] {1, 2, 4, 5, 4}> ()
    whole = Constant <value = int64[4] {1, 8, 5, 4}> ()
    halves = Constant <value = int64[2] {4, 4}> ()
    a = Conv <kernel_shape = [1,1]> (x, w)
    b = Relu (a)
    c = Reshape (b, cut)
    e = Transpose <perm = [0,2,1,3,4]> (c)
    f = Reshape (e, whole)
    g = Conv <kernel_shape = [3,3], pads = [1,1,1,1], group = 8> (f, d)
    h = Conv <kernel_shape = [1,1]> (g, u)
    h2 = Concat <axis = 1> (h, b)
    i = Reshape (h2, cut2)
    j = Transpose <perm = [0,2,1,3,4]> (i)
    k = Reshape (j, whole2)
    l, l2 = Split <axis = 1> (k, eights)
    m = Conv <kernel_shape = [1,1]> (l2, v)
    n = Relu (m)
    y = Add (n, l) }"""

# Each scale and zero point has values of its own, so that no operand can stand in for another.
CONTRIBUTED = """net (float[1,7,6,3] x, float[4,3,3,3] w, float[3,1,1] v) => (float[1,6,6,7] y, float[1,7] z) {
    s = Constant <value = float {0.03}> ()
    t = Constant <value = float {0.05}> ()
    r = Constant <value = float {0.02}> ()
    k = Constant <value = float {0.01}> ()
    m = Constant <value = uint8 {128}> ()
    n = Constant <value = uint8 {101}> ()
    p = Constant <value = uint8 {90}> ()
    none = Constant <value = uint8 {0}> ()
    qw = QuantizeLinear (w, s, m)
    qv = QuantizeLinear (v, t, n)
    q = QuantizeLinear (x, s, m)
    a = Transpose <perm = [0,3,1,2]> (q)
    b = com.microsoft.QLinearMul (a, s, m, qv, t, n, r, p)
    c = QLinearConv <kernel_shape = [3,3], pads = [1,1,1,1]> (b, r, p, qw, s, m, t, n)
    d = com.microsoft.QLinearSigmoid (c, t, n, k, none)
    e = com.microsoft.QLinearConcat <axis = 1> (s, m, d, k, none, a, s, m)
    f = com.microsoft.QLinearAveragePool <kernel_shape = [2,1]> (e, s, m, r, p)
    g = com.microsoft.QLinearSoftmax <axis = 1, opset = 13> (f, r, p, k, none)
    h = Transpose <perm = [0,2,3,1]> (g)
    y = DequantizeLinear (h, k, none)
    i = com.microsoft.QLinearGlobalAveragePool (f, r, p, t, n)
    j = Flatten (i)
    z = DequantizeLinear (j, t, n) }"""

# With the objective transposes, the norms and the global pool are decomposed on channels last.
NORMS = """net (float[1,7,6,4] x, float[4] scale, float[4] shift, float[4] mean)
               => (float[1,7,6,4] y, float[1,4,1,1] z) {
    a = Transpose <perm = [0,3,1,2]> (x)
    b = BatchNormalization (a, scale, shift, mean, variance)
    c = InstanceNormalization (b, lift, offset)
    z = GlobalAveragePool (c)
    d = Transpose <perm = [0,2,3,1]> (c)
    e = Transpose <perm = [0,3,1,2]> (d)
    f = Transpose <perm = [0,2,3,1]> (e)
    y = LayerNormalization <axis = -1> (f, offset, lift) }"""

PACKED = """net (float[1,8,5,3] x, float[8,8,3,3] w, float[8] bias, float[8] shift, float[12,8,1,1] v)
                => (float[1,12,5,3] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias)
    b = Relu (a)
    y = Conv <kernel_shape = [1,1]> (b, v) }"""

# No number of channels is a multiple of four.
FILLED = """net (float[1,6,5,3] x, float[10,6,3,3] w, float[10] bias) => (float[1,10,5,3] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias)
    y = Relu (a) }"""

# Height and width are odd, so that the last blocks of the image are half empty.
STRIDED = """net (float[1,3,13,15] x, float[4,3,5,5] w) => (float[1,4,5,6] y) {
    a = Conv <kernel_shape = [5,5], strides = [2,2]> (x, w)
    y = Sigmoid (a) }"""


class Fours(Backend):
    """Convolutions on blocks of four channels, with padding where four does not divide the channels."""

    name = "fours"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "Conv" or node.domain:
            return super().implementations(node)
        data, kernel = Layout.parse("NCHWc[tile:4]"), Layout.parse("OIHWi[tile:4]o[tile:4]")
        others = [Layout.any(1)] * (len(node.inputs) - 2)
        return [Implementation((data, kernel, *others), (data,), pads=True)]


CONSTANTS = {
    "one": np.linspace(0.5, 1.5, 5, dtype=np.float32),
    "zero": np.linspace(-1, 1, 5, dtype=np.float32),
    "along": np.array(3),
    "variance": np.linspace(0.5, 2, 4, dtype=np.float32),
    "lift": np.linspace(-1, 2, 4, dtype=np.float32),
    "offset": np.linspace(3, -2, 4, dtype=np.float32),
    "cut2": np.array([1, 2, 8, 5, 4]),
    "whole2": np.array([1, 16, 5, 4]),
    "eights": np.array([8, 8]),
    "one_axis": np.array([1]),
    "low": np.array(-2, np.float32),
    "high": np.array(2, np.float32),
    "var": np.linspace(0.5, 2, 6, dtype=np.float32),
}


def build(text: str) -> ir.Model:
    domains = '"" : 20, "com.microsoft" : 1' if "com.microsoft" in text else '"" : 20'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> {text}")
    generator = np.random.default_rng(0)
    used = {name for node in proto.graph.node for name in node.input}
    for entry in list(proto.graph.input)[1:]:
        shape = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        data = CONSTANTS.get(entry.name, generator.normal(size=shape).astype(np.float32))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, entry.name))
        proto.graph.input.remove(entry)
    for name in sorted(used & set(CONSTANTS) - {tensor.name for tensor in proto.graph.initializer}):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(CONSTANTS[name], name))
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{number}"
    return read_model(proto)
