"""Nodes parsed from text, and the layouts that a backend requires of a node as text."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from relayout import Backend
from relayout.backend.calls import ask


def node(text: str) -> ir.Node:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}')).graph[0]


def answer(backend: Backend, asked: ir.Node) -> str:
    ways = ask(backend, asked)
    return " or ".join(f"{' '.join(map(str, way.inputs))} -> {' '.join(map(str, way.results))}" for way in ways)
