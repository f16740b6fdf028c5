"""Request bodies for tests of the service: small graphs and models, and hostile ones."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser

_TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
wrapped (float[1,8,8,4] image) => (float[1,8,8,4] features) <float[4,4,1,1] weight = {WEIGHT}> {
    a = Transpose <perm = [0, 3, 1, 2]> (image)
    b = Conv (a, weight)
    c = Relu (b)
    features = Transpose <perm = [0, 2, 3, 1]> (c)
}
""".replace("WEIGHT", ", ".join(str(i / 16) for i in range(16)))


def onnx_model() -> onnx.ModelProto:
    """A channels-last convolution as exporters write it, with its weights."""
    return onnx.parser.parse_model(_TEXT)


def onnx_bytes() -> bytes:
    return onnx_model().SerializeToString()


def endless_loop(times: int = 1 << 60) -> dict[str, Any]:
    """A graph of a few bytes that runs forever, or long, without allocating memory."""
    value = {"name": "x", "dtype": "float32", "shape": [1]}
    body = {
        "name": "body",
        "inputs": [
            {"name": "i", "dtype": "int64", "shape": []},
            {"name": "go", "dtype": "bool", "shape": []},
            {"name": "before", "dtype": "float32", "shape": [1]},
        ],
        "outputs": [
            {"name": "on", "dtype": "bool", "shape": []},
            {"name": "after", "dtype": "float32", "shape": [1]},
        ],
        "nodes": [
            {"op": "Identity", "inputs": ["go"], "outputs": ["on"]},
            {"op": "Neg", "inputs": ["before"], "outputs": ["after"]},
        ],
    }
    return {
        "opset": 20,
        "inputs": [value],
        "outputs": [{**value, "name": "y"}],
        "constants": [
            {"name": "times", "dtype": "int64", "shape": [], "values": [times]},
            {"name": "true", "dtype": "bool", "shape": [], "values": [True]},
        ],
        "nodes": [
            {
                "name": "loop",
                "op": "Loop",
                "inputs": ["times", "true", "x"],
                "outputs": ["y"],
                "attributes": {"body": {"type": "graph", "value": body}},
            }
        ],
    }


def swelling_functions() -> dict[str, Any]:
    """A graph of a few KiB whose nested functions inline to 2 ** 40 nodes."""
    levels = 40
    functions = [
        {
            "name": f"f{level}",
            "domain": "local",
            "inputs": ["x"],
            "outputs": ["y"],
            "opset": 20,
            "opsets": {"local": 1},
            "nodes": [
                {"op": f"f{level + 1}", "domain": "local", "inputs": ["x"], "outputs": ["t"]},
                {"op": f"f{level + 1}", "domain": "local", "inputs": ["t"], "outputs": ["y"]},
            ],
        }
        for level in range(levels)
    ]
    last = {"name": f"f{levels}", "domain": "local", "inputs": ["x"], "outputs": ["y"], "opset": 20}
    functions.append({**last, "nodes": [{"op": "Neg", "inputs": ["x"], "outputs": ["y"]}]})
    value = {"name": "x", "dtype": "float32", "shape": [1]}
    return {
        "opset": 20,
        "opsets": {"local": 1},
        "inputs": [value],
        "outputs": [{**value, "name": "y"}],
        "nodes": [{"op": "f0", "domain": "local", "inputs": ["x"], "outputs": ["y"]}],
        "functions": functions,
    }
