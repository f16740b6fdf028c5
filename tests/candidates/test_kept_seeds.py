"""The candidates of an operator class are kept for further graphs of a process, without the graph they come from."""

from __future__ import annotations

import contextlib
import gc
import json
import weakref

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from examples import EXAMPLES, Constant, Example, Input
from graphs import Net
from onnx import helper
from random_graphs import Rejected
from random_patterns import draw_graph

from relayout import Backend, BackendError, legalize
from relayout.backend import load_backend
from relayout.backend.kept_answers import Kept
from relayout.candidates import nodes
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.requirements import collect_requirements
from relayout.model.io import read_model

PURE = ["nhwc", "nchw", "canonical", "opencl"]


class Counting(Backend):
    """Both orders of a product may differ in cost."""

    name = "counting"
    answers_by_type = True
    is_pure = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def order_cost(self, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> int | None:
        self.asked.append(node.op_type)
        return super().order_cost(node, axes, traffic, is_rewritten=is_rewritten)


class Impure(Counting):
    answers_by_type = True
    is_pure = False


def chain(*operators: str, shape: tuple[int, ...] = (1, 8, 4, 4)) -> onnx.ModelProto:
    net = Net()
    x = net.transpose(net.input("x", shape), 0, 2, 3, 1)
    for operator in operators:
        x = net.node(operator, x)
    net.output(x)
    return net.model()


def answer(model: onnx.ModelProto, backend: Backend) -> tuple[bytes, str]:
    legal, report = legalize(model, backend)
    told = report.model_dump(mode="json")
    told["solver"].pop("seconds")
    return legal.SerializeToString(deterministic=True), json.dumps(told)


@pytest.fixture(scope="module")
def random_models() -> list[onnx.ModelProto]:
    models = []
    for seed in range(12):
        with contextlib.suppress(Rejected):
            models.append(draw_graph(seed).model)
    return models


@pytest.mark.parametrize("name", PURE)
def test_answers_do_not_depend_on_earlier_graphs(name: str, random_models: list[onnx.ModelProto]) -> None:
    models, one, other = random_models, load_backend(name), load_backend(name)
    cold = [answer(model, load_backend(name)) for model in models]
    assert [answer(model, one) for model in models] == cold
    assert [answer(model, other) for model in reversed(models)] == cold[::-1]
    # The legal models have annotations and costs in their metadata.
    legal = [onnx.load_from_string(each) for each, _ in cold]
    assert [answer(model, one) for model in legal] == [answer(model, load_backend(name)) for model in legal]


@pytest.mark.parametrize(("kind", "is_kept"), [(Counting, True), (Impure, False)])
def test_an_order_is_priced_once_for_all_graphs(kind: type[Counting], *, is_kept: bool) -> None:
    backend = kind()
    legalize(chain("Relu", "Softmax"), backend, verify=False)
    first = len(backend.asked)
    assert first
    legalize(chain("Relu", "Softmax"), backend, verify=False)
    assert len(backend.asked) == (first if is_kept else 2 * first)
    # Other extents are another class.
    legalize(chain("Relu", "Softmax", shape=(1, 8, 4, 6)), backend, verify=False)
    assert len(backend.asked) == (2 * first if is_kept else 3 * first)


def net_of(example: Example) -> onnx.ModelProto:
    net = Net(example.opset)
    names = []
    for index, given in enumerate(example.inputs):
        if isinstance(given, Constant):
            names.append(net.constant(np.asarray(given.array, given.dtype)))
        elif isinstance(given, Input):
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(given.dtype))
            names.append(net.node("Identity", net.input(f"x{index}", given.shape, kind)))
        else:
            names.append("")
    made = net.node(example.operator, *names, results=example.results, domain=example.domain, **example.attributes)
    given = (made,) if isinstance(made, str) else made
    net.outputs += [onnx.ValueInfoProto(name=each) for each in given]
    return net.model()


def test_what_is_kept_holds_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, graphs, kept = load_backend("nhwc"), [], Kept[nodes.NodeSeed](most=4096)
    monkeypatch.setattr(nodes, "_kept", kept)
    for example in EXAMPLES:
        model = read_model(net_of(example))
        tensors = collect_tensors(model.graph, model.opset_imports)
        collect_requirements(model.graph, backend, tensors)
        graphs.append((example.operator, weakref.ref(model.graph)))
    del model, tensors
    gc.collect()
    assert len(kept) > len(EXAMPLES) / 2
    assert {operator for operator, graph in graphs if graph() is not None} == set()


class Negative(Counting):
    answers_by_type = True
    is_pure = True

    def order_cost(self, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> int | None:
        return -1


def test_a_wrong_answer_about_a_class_names_its_operator_and_shapes() -> None:
    with pytest.raises(BackendError, match=r"a node without a name \(Relu on \[1,4,4,8\]\)"):
        legalize(chain("Relu"), Negative())
