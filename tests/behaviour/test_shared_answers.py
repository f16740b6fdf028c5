"""A backend is asked once about equal nodes if it declares that its answers follow from their types.

The answers of a pure backend are kept for further graphs. The verifier asks for itself, so where calls are counted it
is left out, or counted as well."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers

from relayout import Backend, Implementation, legalize
from relayout.backend.kept_answers import Kept
from relayout.backend.loading import load_backend
from relayout.backend.members import answers_by_type
from relayout.model.io import read_model


def chain(*strides: int) -> onnx.ModelProto:
    """Convolutions one after the other, each behind a Transpose of its own."""
    net = Net()
    x = net.input("x", (1, 8, 8, 4))
    for stride in strides:
        x = net.transpose(net.conv(net.transpose(x, 0, 3, 1, 2), 4, 4, strides=[stride] * 2), 0, 2, 3, 1)
    net.output(x)
    return net.model()


class Counting(Backend):
    name = "counting"
    answers_by_type = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        self.asked.append(node.op_type)
        return super().implementations(node)


class ByName(Counting):
    """Its override depends on names, and it does not declare `answers_by_type`."""

    name = "by-name"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
        rank = len(node.inputs[n].shape or ()) if node.inputs[n] is not None else 0  # type: ignore[union-attr]
        return "NHWC" if node.op_type == "Conv" and n == 0 and node.name == "n1" else "*" * rank


class Plain(Backend):
    name = "plain"


class Undeclared(Plain):
    def supports(self, node: ir.Node) -> bool:
        return True


def test_equal_nodes_are_one_call_of_the_backend() -> None:
    backend = Counting()
    legalize(chain(1, 1, 1), backend, verify=False)
    assert backend.asked.count("Conv") == 1


def test_nodes_with_other_attributes_are_another_call() -> None:
    backend = Counting()
    legalize(chain(1, 1, 2), backend, verify=False)
    assert backend.asked.count("Conv") == 2


def test_an_overridden_method_without_a_declaration_is_called_for_every_node() -> None:
    backend = ByName()
    model = chain(1, 1, 1)
    legal, _ = legalize(model, backend, verify=False)
    assert backend.asked.count("Conv") == 3
    assert_same_numbers(model, legal)
    required = [node.name for node in legal.graph.node if any(a.s == b"NHWC" for a in node.attribute)]
    assert required == ["n1"]


@pytest.mark.parametrize(
    ("backend", "expected"), [(Plain(), True), (Counting(), True), (ByName(), False), (Undeclared(), False)]
)
def test_a_declaration_applies_to_the_class_that_defines_the_method(backend: Backend, *, expected: bool) -> None:
    assert answers_by_type(backend) is expected


def test_a_table_answers_by_type_if_its_rules_and_the_backend_that_it_extends_do() -> None:
    rule = {"op": "Conv", "data": "NHWC", "when": {"channels": {"multiple_of": 4}}}
    table = {"name": "rules", "extends": "nhwc", "rule": [rule]}
    assert answers_by_type(load_backend(table))
    assert not answers_by_type(load_backend({**table, "extends": "tpu"}))
    assert not answers_by_type(load_backend({**table, "rule": [{**rule, "when": {"constant": 1}}]}))


def test_a_method_of_one_instance_is_not_declared() -> None:
    backend = Plain()
    backend.supports = lambda node: True  # type: ignore[method-assign]
    assert not answers_by_type(backend)


class Pure(Counting):
    answers_by_type = True
    is_pure = True


class Rewriting(Pure):
    """Its answers may hold the nodes that they are about."""

    answers_by_type = True
    is_pure = True

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        (own,) = super().implementations(node)
        return [own, replace(own, rewrite=lambda given, writer: None, cost=10**6)]


@pytest.mark.parametrize(("kind", "is_kept"), [(Pure, True), (Counting, False), (Rewriting, False)])
@pytest.mark.parametrize("verify", [False, True])
def test_a_pure_backend_is_asked_once_for_all_graphs(kind: type[Counting], *, is_kept: bool, verify: bool) -> None:
    backend = kind()
    legalize(chain(1, 1), backend, verify=verify)
    first = len(backend.asked)
    legalize(chain(1, 1), backend, verify=verify)
    assert len(backend.asked) == (first if is_kept else 2 * first)


def test_a_kept_answer_is_of_one_operator_class_and_one_backend() -> None:
    backend, other = Pure(), Pure()
    legalize(chain(1), backend, verify=False)
    legalize(chain(2), backend, verify=False)
    assert backend.asked.count("Conv") == 2
    legalize(chain(1), other, verify=False)
    assert other.asked.count("Conv") == 1


def test_the_answer_that_was_used_least_recently_goes_first() -> None:
    kept: Kept[None] = Kept(most=2)
    backend, asked = Pure(), []

    def ask(kind: str) -> None:
        kept.of(backend, kind, lambda: asked.append(kind), lambda _: kind != "never")

    for kind in ("a", "b", "a", "c", "a", "b", "never", "never"):
        ask(kind)
    assert asked == ["a", "b", "c", "b", "never", "never"]


def test_a_kept_answer_holds_no_model() -> None:
    read = read_model(chain(1, 1))
    gone = weakref.ref(read.graph[0])
    legalize(read, Pure())
    del read
    gc.collect()
    assert gone() is None


def test_threads_share_one_backend_and_what_is_kept_for_it() -> None:
    backend = load_backend("nhwc")
    models = [chain(*[1 + index % 3] * (1 + index % 4)) for index in range(24)]
    alone = [legalize(model, load_backend("nhwc"))[0].SerializeToString() for model in models]
    with ThreadPoolExecutor(4) as pool:
        together = [legal.SerializeToString() for legal, _ in pool.map(lambda model: legalize(model, backend), models)]
    assert together == alone


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns after a microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switched")
def test_few_facts_are_kept_whichever_thread_asks() -> None:
    kept: Kept[int] = Kept(most=2)
    backend = Plain()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: kept.of(backend, n % 5, lambda: n % 5), range(20_000)))
    assert found == [n % 5 for n in range(20_000)]
    assert len(kept) <= 2
