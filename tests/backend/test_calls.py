"""A fault of a backend, which is a plugin, is an error that names the backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import onnx
import pytest
from graphs import Net

import relayout
from relayout import Backend, BackendError, Implementation, InfeasibleError, Layout, Reordering
from relayout.backend import rank_of


def model() -> onnx.ModelProto:
    net = Net()
    value = net.node("MaxPool", net.conv(net.input("x", (1, 8, 6, 6)), 8, 8), kernel_shape=[2, 2])
    net.output(value)
    return net.model()


class Pools(Backend):
    """MaxPool on NHWC, so that there is something to convert."""

    name = "pools"

    def nth_input_layout_requirements(self, node: Any, n: int) -> Layout | str:
        return "NHWC" if node.op_type == "MaxPool" else super().nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: Any, n: int) -> Layout | str:
        return "NHWC" if node.op_type == "MaxPool" else super().nth_result_layout_requirements(node, n)


def fail(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no such number")


def written(rewrite: Callable[[Any], None]) -> Callable[[Any, Any], list[Implementation]]:
    """Every node in whatever layout, and by this rewrite."""

    def implementations(self: Backend, node: Any) -> list[Implementation]:
        read = tuple(Layout.any(rank_of(value)) for value in node.inputs)
        return [Implementation(read, (Layout.any(4),), rewrite=rewrite)]

    return implementations


def give_too_little(writing: Any) -> None:
    writing.set_result(0, writing.emit("Relu", [writing.read(0)], shape=(1, 2, 3)))


def relaying(*steps: dict[str, Any]) -> Callable[[Any, Any], list[Implementation]]:
    """Convolutions by a rewrite that converts the kernel by these steps."""

    def implementations(self: Backend, node: Any) -> Any:
        [usual] = Backend.implementations(self, node)
        return [replace(usual, rewrite=lambda w: w.relaid_constant(1, steps)) if node.op_type == "Conv" else usual]

    return implementations


def stating(**fields: Any) -> Callable[[Any, Any], list[Implementation]]:
    """The usual implementations with other fields."""

    def implementations(self: Backend, node: Any) -> list[Implementation]:
        return [replace(each, **fields) for each in Backend.implementations(self, node)]

    return implementations


def rename_output(_: Backend, model: Any) -> bool:
    model.graph.outputs[0].name = "renamed"
    return True


FAILURES = {
    "conversion_cost raises": ({"conversion_cost": fail}, "failed in conversion_cost"),
    "conversion_cost is text": ({"conversion_cost": lambda *_: "much"}, "str: 'much'"),
    "conversion_cost is negative": ({"conversion_cost": lambda *_: -1}, "int: -1"),
    "conversion raises": ({"conversion": fail}, "failed in conversion"),
    "conversion is text": ({"conversion": lambda *_: "much"}, "a Reordering or None"),
    "conversion costs a half": ({"conversion": lambda *_: Reordering(cost=0.5)}, "float: 0.5"),  # type: ignore[arg-type]
    "a conversion is not written": ({"conversion": lambda *_: Reordering(5, fail)}, "failed in a rewrite"),
    "a conversion sets no result": ({"conversion": lambda *_: Reordering(5, lambda _: None)}, "does not set it"),
    "a conversion has no node": ({"conversion": lambda *_: Reordering(5, lambda w: w.node)}, "has no node"),
    "is_satisfied_by raises": ({"is_satisfied_by": fail}, "failed in is_satisfied_by"),
    "prepare raises": ({"prepare": fail}, "failed in prepare"),
    "prepare removes an output": ({"prepare": lambda _, model: model.graph.outputs.clear()}, "outputs"),
    "prepare renames an output": ({"prepare": rename_output}, "'renamed' float [1,8,5,5]"),
    "prepare removes an input": ({"prepare": lambda _, model: model.graph.inputs.clear()}, "inputs"),
    "finish raises": ({"finish": fail}, "failed in finish"),
    "a rewrite raises": ({"implementations": written(fail)}, "failed in a rewrite"),
    "a rewrite sets no result": ({"implementations": written(lambda _: None)}, "does not set it"),
    "a rewrite reads what is not there": ({"implementations": written(lambda w: w.read(7))}, "IndexError"),
    "a rewrite relays data": (
        {"implementations": written(lambda w: w.relaid_constant(0, []))},
        "input 0 is no constant",
    ),
    "a rewrite relays data by a step of other keys": (
        {"implementations": relaying({"op": "pad", "shape": [16, 8, 3, 3]})},
        "unknown field `shape`",
    ),
    "a rewrite relays data by an unknown step": ({"implementations": relaying({"op": "turn"})}, "Invalid value 'turn'"),
    "a rewrite relays data by a step for another rank": (
        {"implementations": relaying({"op": "transpose", "perm": [1, 0]})},
        "{'op': 'transpose', 'perm': [1, 0]} on shape [8, 8, 3, 3]",
    ),
    "a rewrite gives another tensor": ({"implementations": written(give_too_little)}, "a tensor of [1, 2, 3]"),
    "a rewrite is no function": ({"implementations": stating(rewrite="Gemm")}, "str: 'Gemm'"),
    "pads is a text": ({"implementations": stating(pads="yes")}, "True or False as `pads`"),
    "any_order is a text": ({"implementations": stating(any_order="yes")}, "True or False as `any_order`"),
    "implementations is a text": ({"implementations": lambda *_: "NHWC"}, "str: 'NHWC'"),
    "warnings is a text": ({"warnings": lambda *_: "careful"}, "str: 'careful'"),
    "warnings is a number": ({"warnings": lambda *_: 5}, "int: 5"),
    **{
        f"{hook} has no answer": ({hook: lambda *_: None}, f"{hook}\n  expected: True or False\n")
        for hook in ("finish", "is_satisfied_by", "prepare", "supports")
    },
}


@pytest.mark.parametrize("what", FAILURES)
def test_an_error_in_a_plugin_is_a_backend_error(what: str) -> None:
    members, said = FAILURES[what]
    with pytest.raises(BackendError) as caught:
        relayout.legalize(model(), type("Broken", (Pools,), {"name": "broken", **members}))
    assert said in str(caught.value)


def test_the_verifier_says_the_same() -> None:
    with pytest.raises(BackendError, match=r"broken.*failed in is_satisfied_by"):
        relayout.verify(model(), type("Broken", (Pools,), {"name": "broken", "is_satisfied_by": fail}))


def test_a_backend_that_is_not_enabled_is_asked_nothing() -> None:
    off = type("Off", (Pools,), {"is_enabled": False})
    assert relayout.verify(model(), off).passed
    _, report = relayout.legalize(model(), off)
    assert report.after.transposes == 0
    assert relayout.legalize(model(), Pools)[1].after.transposes == 2


def test_the_rules_of_a_table_hold_though_what_it_extends_is_not_enabled() -> None:
    table = {"name": "t", "extends": "auto-nhwc", "options": {"device": "cpu"}}
    rule = {"op": "MaxPool", "data": "NHWC"}
    assert relayout.legalize(model(), table)[1].after.transposes == 0
    legal, report = relayout.legalize(model(), {**table, "rule": [rule]})
    assert report.after.transposes == 2
    assert [node.op_type for node in legal.graph.node if node.domain] == ["MaxPool"]


def test_a_kernel_format_is_reported_in_kernel_axis_names() -> None:
    def ask(self: Backend, node: Any, n: int) -> str:
        return "NHWC" if node.op_type == "Conv" and n < 2 else "*"

    with pytest.raises(InfeasibleError, match="took input 1 in OIHW"):
        relayout.legalize(model(), type("Careless", (Backend,), {"nth_input_layout_requirements": ask}))


class Silent(Backend):
    """A constructor of its own, which calls no other."""

    def __init__(self) -> None:
        self.name = "silent"


class Forgetful(Backend):
    """A branch without an answer, which is the commonest slip."""

    name = "forgetful"

    def nth_result_layout_requirements(self, node: Any, n: int) -> Layout | str:
        if node.op_type == "MaxPool":
            return super().nth_result_layout_requirements(node, n)
        return None  # type: ignore[return-value]


def test_the_method_that_gave_no_layout_is_named_with_its_line() -> None:
    with pytest.raises(BackendError) as caught:
        relayout.legalize(model(), Forgetful)
    assert "the backend's nth_result_layout_requirements" in caught.value.problem
    line = Forgetful.nth_result_layout_requirements.__code__.co_firstlineno
    assert caught.value.hint.endswith(f"test_calls.py, line {line}")


class Overriding(Backend):
    """An `implementations` of its own, which calls that of the base class, and a requirement of the wrong form."""

    name = "overriding"
    answer: ClassVar[Any]

    def implementations(self, node: Any) -> Any:
        return super().implementations(node)

    def nth_input_layout_requirements(self, node: Any, n: int) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", ["NH-C", "NHC", 3])
def test_the_method_behind_an_overridden_one_is_named_with_its_line(answer: Any) -> None:
    with pytest.raises(BackendError) as caught:
        relayout.legalize(model(), type("Wrong", (Overriding,), {"answer": answer}))
    line = Overriding.nth_input_layout_requirements.__code__.co_firstlineno
    assert f"nth_input_layout_requirements is defined in tests/backend/test_calls.py, line {line}" in caught.value.hint


MEMBERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "name": ({"name": 5}, "invalid value from the backend's name", "int: 5"),
    "is_enabled": ({"is_enabled": lambda self: True}, "invalid value from the backend's is_enabled", "method"),
    "flows_down raises": ({"flows_down": property(fail)}, "the backend failed in flows_down", "ZeroDivisionError"),
    "flows_down": ({"flows_down": ["Relu"]}, "invalid value from the backend's flows_down", "list: ['Relu']"),
    "a hook is no method": (
        {"implementations": ("NHWC",)},
        "invalid value from the backend's implementations",
        "tuple",
    ),
    "devices is a text": ({"devices": lambda self: "ab"}, "invalid value from the backend's devices", "str: 'ab'"),
    "devices raises": ({"devices": fail}, "the backend failed in devices", "ZeroDivisionError"),
    "host is nowhere": ({"host": lambda self: "attic"}, "invalid value from the backend's host", "str: 'attic'"),
    "a place is no backend": (
        {"devices": lambda self: ("a",), "at": lambda self, device: device},
        "invalid value from the backend's at('a')",
        "str: 'a'",
    ),
}


@pytest.mark.parametrize("fault", MEMBERS)
@pytest.mark.parametrize("door", [relayout.legalize, relayout.verify, relayout.explain])
def test_a_backends_own_declarations_are_checked_at_every_entry_point(door: Callable[..., Any], fault: str) -> None:
    members, problem, found = MEMBERS[fault]
    kind: type[Backend] = type("Odd", (Pools,), members)
    for backend in (kind, kind()):
        with pytest.raises(BackendError) as caught:
            door(model(), backend)
        assert caught.value.problem == problem
        assert caught.value.where.startswith("backend ")
        assert found in caught.value.found


def test_an_uninstantiated_backend_is_an_error_with_the_missing_arguments() -> None:
    with pytest.raises(BackendError, match=r"calls super\(\)"):
        relayout.legalize(model(), Silent)


def test_an_implementation_runs_on_a_device_of_the_backend() -> None:
    members = {"devices": lambda self: ("a", "b"), "at": lambda self, device: Pools()}
    with pytest.raises(BackendError) as caught:
        relayout.legalize(model(), type("Odd", (Pools,), members))
    assert caught.value.expected == "one of the backend's devices: 'a', 'b'"
    assert caught.value.found == "str: ''"
