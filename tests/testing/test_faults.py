"""The kit reports each fault that an author can make, by a small bad backend each."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from relayout import Backend, Implementation, Layout
from relayout.backend import rank_of
from relayout.backend.registry import find_backends
from relayout.testing import Fault, check_backend, generated_graphs, sample_graphs

# A convolution, and a max pool between convolutions, whose results have to be converted.
GRAPHS = [
    graph for graph in generated_graphs() if graph.name in ("Conv/8-to-8-channels", "MaxPool/between-convolutions")
]


class Pools(Backend):
    """Max pools run on NHWC data."""

    name = "pools"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "MaxPool":
            return super().implementations(node)
        nhwc = Layout.parse("NHWC")
        return [Implementation((nhwc,), (nhwc,) * len(node.outputs))]


class WrongRank(Pools):
    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        return [replace(each, results=(Layout.parse("NHC"),)) for each in super().implementations(node)]


class BadText(Backend):
    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
        return "NH-C"


class Nothing(Backend):
    def implementations(self, node: ir.Node) -> Any:
        return None


class NoLayout(Backend):
    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Any:
        return None


class Empty(Backend):
    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        return []


class Costs(Pools):
    cost: Any = -1

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        return [replace(each, cost=self.cost) for each in super().implementations(node)]


class HalfAByte(Costs):
    cost = 0.5


class Raising(Backend):
    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
        return {"Relu": "****"}[node.op_type]


class Leaving(Backend):
    def supports(self, node: ir.Node) -> bool:
        sys.exit(3)


class Dice(Pools):
    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        return [replace(each, cost=random.randrange(1 << 30)) for each in super().implementations(node)]


class Counting(Pools):
    """Another answer at each second call."""

    calls = 0

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        self.calls += 1
        return [replace(each, cost=self.calls % 2) for each in super().implementations(node)]


class ByName(Pools):
    """It says that only types count, and looks at the name."""

    answers_by_type = True

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        return [replace(each, cost=len(node.name or "")) for each in super().implementations(node)]


class Marking(Pools):
    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        node.metadata_props["seen"] = "yes"
        return super().implementations(node)


class Misspelt(Backend):
    def nth_input_layout_requirement(self, node: ir.Node, n: int) -> str:
        return "NHWC"


class Deaf(Backend):
    def conversion_cost(self, tensor: Any) -> int:  # type: ignore[override]  # that is the fault
        return 0


class Nhwc(Backend):
    name = "nhwc"


class Unmade(Backend):
    def __init__(self) -> None:
        self.kernels: list[str] = []


class UnknownLetters(Backend):
    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str | Layout:
        return "XYZW" if node.op_type == "Conv" and n == 0 else super().nth_input_layout_requirements(node, n)


class Pricing(Pools):
    def conversion_cost(self, tensor: Any, source: Layout, target: Layout) -> int:
        return {"NCHW": 5}[str(source)]


class Lying(Pools):
    """The rewrite of a max pool is an average pool."""

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        usual = [Implementation((Layout.any(4),), (Layout.any(4),), rewrite=average)]
        return usual if node.op_type == "MaxPool" and rank_of(node.inputs[0]) == 4 else super().implementations(node)


def average(writing: Any) -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("AveragePool", [writing.read(0)], attributes, shape=shape))


FAULTS: dict[type[Backend], tuple[str, str]] = {
    WrongRank: ("answer", "a layout of rank 4, as the tensor"),
    BadText: ("answer", "'-' in 'NH-C', column 3"),
    Nothing: ("answer", "a sequence of Implementation"),
    NoLayout: ("answer", "found:    NoneType: None"),
    Empty: ("answer", "at least one implementation"),
    Costs: ("answer", "int: -1"),
    HalfAByte: ("answer", "float: 0.5"),
    Raising: ("answer", "KeyError: 'Conv', in tests/testing/test_faults.py, line "),
    Leaving: ("answer", "SystemExit: 3, in tests/testing/test_faults.py, line "),
    Dice: ("nondeterministic", "the backend's answers about MaxPool 'MaxPool_1' differ"),
    Counting: ("nondeterministic", "differ from one call to the next"),
    ByName: ("nondeterministic", "answers_by_type is set"),
    Marking: ("mutation", "the backend changes the model when it is asked about Conv 'Conv_0'"),
    Misspelt: ("hook", "did you mean nth_input_layout_requirements?"),
    Deaf: ("hook", "expected: conversion_cost(self, tensor: 'TensorType', source: 'Layout', target: 'Layout')"),
    Nhwc: ("name", "'nhwc' is the name of the backend of relayout"),
    Unmade: ("load", "a constructor of one's own calls super().__init__(context)"),
    UnknownLetters: ("infeasible", "XYZW"),
    Pricing: ("answer", "tensor 'a' (1x6x8x16, 4 bytes an element), NHWC to NCHW"),
    Lying: ("numbers", "differs"),
}


def faults_of(backend: type[Backend]) -> Sequence[Fault]:
    return check_backend(backend, graphs=GRAPHS).faults


@pytest.mark.parametrize("backend", FAULTS, ids=lambda backend: backend.__name__)
def test_each_fault_is_reported_by_its_kind(backend: type[Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    kind, text = FAULTS[backend]
    found = faults_of(backend)
    assert {fault.kind for fault in found} == {kind}
    assert text in "\n".join(map(str, found))


def test_a_sound_backend_has_no_fault() -> None:
    report = check_backend(Pools, graphs=GRAPHS)
    assert report.passed
    assert (report.backend, report.graphs, report.not_compared) == ("pools", 2, {})


class Foreign(Backend):
    """A Relu is an operator that only the target has."""

    name = "foreign"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        [usual] = super().implementations(node)
        return [replace(usual, rewrite=fast)] if node.op_type == "Relu" else [usual]


def fast(writing: Any) -> None:
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("FastRelu", [writing.read(0)], domain="com.acme", shape=shape))


@pytest.mark.parametrize("name", ["Relu", "If"])
def test_an_operator_that_only_the_target_runs_is_a_note_and_no_fault(name: str) -> None:
    """It may be in a branch alone."""
    [graph] = [graph for graph in generated_graphs() if graph.name == name]
    report = check_backend(Foreign, graphs=[graph])
    assert report.faults == ()
    assert report.not_compared == {name: "onnxruntime does not run com.acme::FastRelu"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", sorted(find_backends()))
def test_a_backend_that_ships_has_no_fault(backend: str) -> None:
    """The convolutions and norms are generated and run. The model has no weights, so it is checked without a run."""
    named = re.compile(".*(Conv|Norm|light_bvlc_alexnet)")
    graphs = [graph for graph in sample_graphs() if named.match(graph.name)]
    report = check_backend(backend, graphs=graphs)
    assert report.faults == ()
    assert set(report.not_compared) == {"onnx/light_bvlc_alexnet"}
