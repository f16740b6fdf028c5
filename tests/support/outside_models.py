"""Models to mutate from outside, each with a kind of fault in mind, and the backends that make each legal."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPEN = """net (float[batch,6,8,8] x, float[6,6,3,3] w, float[6] bias, float[6,1,3,3] d, float[10,24] m)
             => (float[batch,10] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias)
    b = LeakyRelu <alpha = 0.1> (a)
    c = Conv <kernel_shape = [3,3], group = 6, strides = [4,4]> (b, d)
    e = Reshape (c, flat)
    y = Gemm <transB = 1> (e, m) }"""

SHAPED = """net (float[batch,time,8] x, float[8,8] w, float[8] bias) => (float[batch,time,8] y) {
    s = Constant <value = int64[4] {0, 0, 2, 4}> ()
    t = Constant <value = int64[3] {0, 0, -1}> ()
    a = MatMul (x, w)
    b = Reshape (a, s)
    c = Transpose <perm = [0,2,1,3]> (b)
    e = Softmax <axis = -1> (c)
    f = Transpose <perm = [0,2,1,3]> (e)
    g = Reshape (f, t)
    y = Add (g, bias) }"""

OVERRIDABLE = """net (float[2,4,5,5] x, float[4,4,1,1] gate, float[4,4,3,3] w) => (float[2,4,5,5] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    b = Relu (a)
    y = Conv <kernel_shape = [1,1]> (b, gate) }"""

BRANCHES = """net (float[2,4,5,5] x, float[4,4,3,3] w) => (float[2,4,5,5] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    most = ReduceMax <keepdims = 0> (a)
    limit = Constant <value = float {1000.0}> ()
    is_high = Greater (most, limit)
    b = If (is_high) <
        then_branch = high () => (float[2,4,5,5] p) {
            k = Constant <value = float[4,1,1] {1.5, 2.5, 3.5, 4.5}> ()
            p = Mul (a, k) },
        else_branch = low () => (float[2,4,5,5] q) {
            l = Constant <value = float[4,1,1] {0.5, 0.25, 2.0, 3.0}> ()
            m = Add (a, l)
            q = Relu (m) }>
    y = Relu (b) }"""

QUANTIZED = """net (float[2,4,9,7] x, float[8,4,3,3] w, float[8] bias, float[8,8,1,1] v, float[8] shift)
                  => (float[2,8,7,5] y, float[2,8,7,5] z) {
    s = Constant <value = float {0.03125}> ()
    t = Constant <value = uint8 {128}> ()
    a = Conv <kernel_shape = [3,3]> (x, w, bias)
    z = Relu (a)
    q = QuantizeLinear (a, s, t)
    e = DequantizeLinear (q, s, t)
    y = Conv <kernel_shape = [1,1]> (e, v, shift) }"""

# Scales and zero points differ by channel.
BY_CHANNEL = """net (float[2,4,4,4] x, float[4,4,3,3] w, float[4,4,1,1] v) => (float[2,4,4,4] y, float[2,4,4,4] z) {
    s = Constant <value = float {0.03125}> ()
    t = Constant <value = uint8 {128}> ()
    scales = Constant <value = float[4] {0.01, 0.02, 0.03, 0.04}> ()
    zeros = Constant <value = int8[4] {1, 2, -3, 4}> ()
    q = QuantizeLinear (x, s, t)
    d = DequantizeLinear (q, s, t)
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (d, w)
    e = QuantizeLinear <axis = 1> (a, scales, zeros)
    f = DequantizeLinear <axis = 1> (e, scales, zeros)
    y = Conv <kernel_shape = [1,1]> (f, v)
    z = Relu (f) }"""

MASKS = """net (float[2,8,16,16] x, float[8,8,3,3] w) => (bool[2,8,16,16] mask, int64[2,1,16,16] best) {
    zero = Constant <value = float {0.0}> ()
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    mask = Greater (a, zero)
    best = ArgMax <axis = 1> (a) }"""

TABLE = """net (int64[2,3] i, float[2,3,4,4] x, float[16,4,4] table, float[3,3,3,3] w) => (float[2,3,4,4] y) {
    low = Constant <value = float {-80.0}> ()
    high = Constant <value = float {90.0}> ()
    r = Gather <axis = 0> (table, i)
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    b = Clip (a, low, high)
    y = Add (b, r) }"""

NANS = """net (float[2,4,4,4] x, float[4,4,3,3] w, float[4] bias) => (float[2,4,4,4] y, float[2,4,4,4] z) {
    less = Constant <value = float {-1.9}> ()
    far = Sub (x, less)
    e = Log (far)
    y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (e, w, bias)
    z = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias) }"""

CUSTOM = """net (float[2,4,6,6] x, float[4,4,3,3] w, float[4] bias, float[4,4,1,1] v, float[4] shift)
               => (float[2,4,6,6] y, float[2,4,6,6] z) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias)
    b = acme.Odd (a)
    c = Conv <kernel_shape = [1,1]> (b, v, shift)
    y = Relu (c)
    z = Sigmoid (a) }"""

EQUAL = """net (float[4,4,4,4] x, float[4,4,3,3] w, float[4,4,1,1] v) => (float[4,4,4,4] y, float[4,4,4,4] z) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    b = Elu <alpha = 0.7> (a)
    c = Conv <kernel_shape = [1,1]> (b, v)
    y = Add (c, b)
    z = Sub (x, b) }"""

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "open": (OPEN, ("onnx", "nhwc")),
    "shaped": (SHAPED, ("onnx",)),
    "overridable": (OVERRIDABLE, ("onnx", "nhwc")),
    "branches": (BRANCHES, ("onnx", "nhwc")),
    "quantized": (QUANTIZED, ("nhwc", "x86-nchwc")),
    "by channel": (BY_CHANNEL, ("onnx", "nhwc")),
    "masks": (MASKS, ("nhwc",)),
    "table": (TABLE, ("nhwc",)),
    "nans": (NANS, ("nhwc",)),
    "custom": (CUSTOM, ("nhwc",)),
    "equal": (EQUAL, ("nhwc", "x86-nchwc")),
}


def model_of(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18, "acme" : 1]> {text}')
    model.functions.clear()
    generator = np.random.default_rng(3)
    for entry in list(model.graph.input)[1:]:
        if entry.name in ("x", "i"):
            continue
        shape = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        data = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, entry.name))
        if entry.name != "gate":
            model.graph.input.remove(entry)
    if "flat" in {name for node in model.graph.node for name in node.input}:
        model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 24]), "flat"))
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    for node in model.graph.node:
        if node.domain == "acme":
            kind = helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, [2, 4, 6, 6])
            model.graph.value_info.append(kind)
    return onnx.shape_inference.infer_shapes(model)
