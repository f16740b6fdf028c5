"""The examples: of the OpenAPI document, of the page, and for the warm-up of a worker."""

from __future__ import annotations

from typing import Any

GRAPH: dict[str, Any] = {
    "name": "channels_last",
    "opset": 20,
    "inputs": [{"name": "image", "dtype": "float32", "shape": [1, 56, 56, 64]}],
    "outputs": [{"name": "features", "dtype": "float32", "shape": [1, 56, 56, 64]}],
    "constants": [{"name": "weight", "dtype": "float32", "shape": [64, 64, 3, 3]}],
    "nodes": [
        {"name": "to_nchw", "op": "Transpose", "inputs": ["image"], "outputs": ["a"],
         "attributes": {"perm": [0, 3, 1, 2]}},
        {"name": "conv", "op": "Conv", "inputs": ["a", "weight"], "outputs": ["b"],
         "attributes": {"pads": [1, 1, 1, 1]}},
        {"name": "relu", "op": "Relu", "inputs": ["b"], "outputs": ["c"]},
        {"name": "to_nhwc", "op": "Transpose", "inputs": ["c"], "outputs": ["features"],
         "attributes": {"perm": [0, 2, 3, 1]}},
    ],
}  # fmt: skip
"""A channels-last network as exporters write it: transposes around each convolution. Its weights are not sent."""

BACKEND: dict[str, Any] = {
    "name": "acme",
    "extends": "onnx",
    "rule": [{"op": ["Conv"], "when": {"channels": {"multiple_of": 4}}, "data": "NHWC", "kernel": "OHWI"}],
}

LAYOUT = {"layout": "N[a=32]HWC"}

LEGALIZE: dict[str, dict[str, Any]] = {
    "installed backend": {"graph": GRAPH, "backend": "nhwc"},
    "declarative backend": {"graph": GRAPH, "backend": BACKEND, "options": {"objective": "transposes", "check": True}},
}

EXPLAIN: dict[str, dict[str, Any]] = {
    "channels first wanted": {"graph": GRAPH, "backend": "nchw"},
    "at most ten requirements": {"graph": GRAPH, "backend": BACKEND, "options": {"limit": 10}},
}

DRAW: dict[str, dict[str, Any]] = {
    "the graph alone": {"graph": GRAPH},
    "with the legal graph": {"graph": GRAPH, "backend": "nchw"},
}

VERIFY: dict[str, dict[str, Any]] = {
    "not legal": {"graph": GRAPH, "backend": "nhwc"},
    "legal, and beside the original": {"graph": GRAPH, "backend": "onnx", "against": GRAPH},
}
