"""A model and its legal form, written by hand, for tests of the verifier."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from relayout.report.schema import Verification

HEADER = '<ir_version: 10, opset_import: ["" : 20, "relayout" : 1, "mine" : 1]>'

RAW = """net (float[1,3,8,9] x, float[4,3,3,3] w) => (float[1,4,4,4] y) {
    [conv] a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    [relu] b = Relu (a)
    [pool] c = MaxPool <kernel_shape = [2,2], strides = [2,2]> (b)
    [soft] y = Softmax <axis = 1> (c) }"""

LEGAL = """net (float[1,3,8,9] x, float[3,3,3,4] w) => (float[1,4,4,4] y) {
    [to_nhwc] x_laid = Transpose <perm = [0,2,3,1]> (x)
    [conv] a = relayout.Conv <kernel_shape = [3,3], pads = [1,1,1,1],
                              data_layout = "NHWC", kernel_layout = "HWIO"> (x_laid, w)
    [relu] b = Relu (a)
    [pool] c = relayout.MaxPool <kernel_shape = [2,2], strides = [2,2], data_layout = "NHWC"> (b)
    [soft] d = Softmax <axis = 3> (c)
    [to_nchw] y = Transpose <perm = [0,3,1,2]> (d) }
<domain: "relayout", opset_import: ["" : 20]>
Conv <kernel_shape, pads, data_layout, kernel_layout> (X, W) => (Y) {
    Xn = Transpose <perm = [0,3,1,2]> (X)
    Wn = Transpose <perm = [3,2,0,1]> (W)
    Yn = Conv <kernel_shape: ints = @kernel_shape, pads: ints = @pads> (Xn, Wn)
    Y = Transpose <perm = [0,2,3,1]> (Yn) }
<domain: "relayout", opset_import: ["" : 20]>
MaxPool <kernel_shape, strides, data_layout> (X) => (Y) {
    Xn = Transpose <perm = [0,3,1,2]> (X)
    Yn = MaxPool <kernel_shape: ints = @kernel_shape, strides: ints = @strides> (Xn)
    Y = Transpose <perm = [0,2,3,1]> (Yn) }"""


def model_of(text: str, weights: dict[str, np.ndarray] | None = None, *, opset: int = 20) -> ir.Model:
    """The model that `text` writes; weights are inputs in the text and become constants."""
    proto = onnx.parser.parse_model(f"{HEADER} {text}")
    proto.opset_import[0].version = opset
    for name, data in (weights or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
        (entry,) = [entry for entry in proto.graph.input if entry.name == name]
        proto.graph.input.remove(entry)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def kernel(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def raw() -> ir.Model:
    return model_of(RAW, {"w": kernel(4, 3, 3, 3)})


def legal() -> ir.Model:
    model = model_of(LEGAL, {"w": np.ascontiguousarray(kernel(4, 3, 3, 3).transpose(2, 3, 1, 0))})
    for name in ("x_laid", "a", "b", "c", "d"):
        annotate(model, name, layout="NHWC", order="0,2,3,1")
    return model


def value_of(model: ir.Model, name: str) -> ir.Value:
    made = [value for node in model.graph for value in node.outputs]
    return next(value for value in (*model.graph.inputs, *made) if value.name == name)


def node_of(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def annotate(model: ir.Model, name: str, **facts: str) -> None:
    value_of(model, name).metadata_props.update({f"relayout.{key}": text for key, text in facts.items()})


def rules(verification: Verification, severity: str = "error") -> set[str]:
    return {finding.rule for finding in verification.findings if finding.severity == severity}
