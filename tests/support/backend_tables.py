"""A table of rules, nodes to ask its backend about, and backends of one rule."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from relayout.backend import Backend, ask, load_backend

TABLE = """\
# An accelerator that likes channels last.
name = "acme"
extends = "nhwc"
description = '''
[[rule]]
op = "not a rule"
'''

[[rule]]
op = "Conv*"
when.rank = 4
when.attributes.group = 1
when.channels = { multiple_of = 4 }
data = "NHWC"
kernel = "OHWI"

[[rule]]
op = ["MaxPool", "AveragePool"]

  [[rule.implementation]]
  data = "NSC"

  [[rule.implementation]]
  data = "NCS"
  cost = 1000

[[rule]]
op = "Soft*"
inputs = ["***C[a=4]"]
"""


def node(text: str, *, opset: int = 20) -> ir.Node:
    """The one node of a graph of these inputs and this node, in ONNX's own text."""
    inputs, _, body = text.partition("=>")
    model = f'<ir_version: 10, opset_import: ["" : {opset}, "relayout" : 1, "mine" : 1]> g {inputs} => {body}'
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(model))).graph[0]


def conv(*, shape: str = "1,8,9,9", kernel: str = "4,8,3,3", attributes: str = "", dtype: str = "float") -> ir.Node:
    result = ",".join(["1", "4", *["R"] * (shape.count(",") - 1)])
    return node(
        f"({dtype}[{shape}] x, {dtype}[{kernel}] w) => ({dtype}[{result}] y) {{ y = Conv {attributes} (x, w) }}"
    )


def ruled(**rule: Any) -> Backend:
    """A backend of one rule."""
    return load_backend({"name": "ruled", "rule": [rule]})


def answer(backend: Backend, asked: ir.Node) -> str:
    """The layouts that a backend requires of a node, each implementation as `NHWC OHWI -> NHWC`."""
    ways = ask(backend, asked)
    return " or ".join(f"{' '.join(map(str, way.inputs))} -> {' '.join(map(str, way.results))}" for way in ways)
