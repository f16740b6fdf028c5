"""Glow's acceptsAnyLayout: an operator with named axes that runs in any order, apart from "as ONNX has it"."""

from __future__ import annotations

from typing import Any

import pytest

from relayout import legalize
from relayout.testing import SampleGraph, check_graph, generated_graphs

OPERATORS = ["AveragePool", "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool"]


def between(operator: str) -> SampleGraph:
    """The operator between two convolutions, which this table runs on NHWC."""
    [found] = [graph for graph in generated_graphs() if graph.name == f"{operator}/between-convolutions"]
    return found


def table(**rule: Any) -> dict[str, Any]:
    conv = {"op": "Conv", "data": "NHWC", "kernel": "OHWI"}
    return {"name": "table", "rule": [conv, *([{"op": OPERATORS, **rule}] if rule else [])]}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_that_takes_any_order_runs_in_the_order_of_its_neighbours(operator: str) -> None:
    graph = between(operator)
    assert legalize(graph.model, table())[1].after.transposes == 4, "as ONNX has it"
    legal, report = legalize(graph.model, table(any_order=True))
    assert report.after.transposes == 2
    [node] = [node for node in legal.graph.node if node.op_type == operator]
    assert node.domain == "relayout"
    assert check_graph(table(any_order=True), graph) == []
