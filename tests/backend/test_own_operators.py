"""A backend with operators of its own checks them; relayout counts its conversions and knows its axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import relayout
from relayout import Backend, BackendError, Implementation, Layout, Reordering, TensorType
from relayout.backend import DEVICE_KEY, Composite, Device, Nodes, OperatorBody, Violation
from relayout.backend.calls import ask, operator_layouts_of
from relayout.report.schema import Finding
from relayout.verification.numeric.deadline import Deadline, UndecidedError
from relayout.verification.numeric.float64.run import run_wide
from relayout.verification.numeric.float64.steps import steps_of

NHWC, NCHW = Layout.parse("NHWC"), Layout.parse("NCHW")


def pack(writing: Any) -> None:
    shape = writing.shape_of(0, is_result=True)
    writing.set_result(0, writing.emit("Pack", [writing.read(0)], shape=shape, domain="com.acme"))


class Acme(Backend):
    """MaxPool on NHWC data, made from NCHW by an operator of its own; Relu on NCHW; com.acme.Pool is NHWC."""

    name = "acme"

    def implementations(self, node: ir.Node) -> list[Implementation]:
        layout = {"MaxPool": NHWC, "Relu": NCHW}.get(node.op_type)
        return [*super().implementations(node)] if layout is None else [Implementation((layout,), (layout,))]

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        return Reordering(rewrite=pack) if str(target) == "NHWC" else None

    def check(self, model: ir.Model, device: str = "") -> Iterable[Violation]:
        for node in model.graph.all_nodes():
            is_own = node.domain == "com.acme" and node.metadata_props.get(DEVICE_KEY, "") == device
            if is_own and (bank := node.attributes.get_int("bank", 0)) > 7:
                yield Violation(node, "there is no such bank", 0, "a bank from 0 to 7", str(bank), rule="bank")

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("com.acme", "Pack")})

    def operator_layouts(self, node: ir.Node) -> Implementation | None:
        known = (node.domain, node.op_type) == ("com.acme", "Pool")
        return Implementation((NHWC,), (NHWC,)) if known else None


def pools(bank: int = 0) -> onnx.ModelProto:
    """An operator of acme's, then a Relu."""
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[1,8,9,3] x) => (float[1,8,9,3] z) <float[1,8,9,3] y> {{
            [pool] y = com.acme.Pool <bank = {bank}> (x)
            [relu] z = Relu (y)
        }}""")


def standard() -> onnx.ModelProto:
    return onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[1,3,9,9] x) => (float[1,3,8,8] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }""")


def findings(model: onnx.ModelProto, backend: Backend, rule: str) -> list[Finding]:
    return [finding for finding in relayout.verify(model, backend).findings if finding.rule == rule]


BACKENDS: dict[str, Callable[[], Backend]] = {
    "alone": Acme,
    "in a table": lambda: extending(Acme),
    "on a device": lambda: Composite([Device("one", Acme), Device("two", takes=Nodes(operators=("Conv",)))]),
}


def extending(kind: type[Backend]) -> Backend:
    from relayout.backend.declarative import DeclarativeBackend
    from relayout.backend.declarative_reader import check_table

    return DeclarativeBackend(check_table({"name": "table"}), lambda context: kind(context))


def on_a_device(model: onnx.ModelProto, backend: Backend) -> onnx.ModelProto:
    for node in model.graph.node:
        if backend.devices():
            node.metadata_props.add(key=DEVICE_KEY, value=backend.devices()[0])
    return model


@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_what_a_backend_checks_is_a_finding_of_the_verifier(make: Callable[[], Backend]) -> None:
    backend = make()
    assert findings(on_a_device(pools(7), backend), backend, "bank") == []
    (finding,) = findings(on_a_device(pools(8), backend), backend, "bank")
    assert (finding.node, finding.operand, finding.severity) == ("pool", 0, "error")
    assert (finding.expected, finding.found) == ("a bank from 0 to 7", "8")


def test_no_other_backend_is_asked_about_them() -> None:
    assert findings(pools(8), Backend(), "bank") == []


@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_the_conversion_operators_of_a_backend_are_counted_and_counted_again(make: Callable[[], Backend]) -> None:
    backend = make()
    legal, report = relayout.legalize(standard(), backend, input_layouts={"x": "NCHW"}, output_layouts={"y": "NHWC"})
    assert [node.op_type for node in legal.graph.node] == ["Pack", "MaxPool"]
    assert (report.before.reorders, report.after.reorders, report.after.transposes) == (0, 1, 0)
    assert relayout.verify(legal, backend, standard(), report=report, run=False).passed
    miscounted = report.after.model_copy(update={"reorders": report.after.reorders + 1})
    wrong = report.model_copy(update={"after": miscounted})
    verification = relayout.verify(legal, backend, standard(), report=wrong, run=False)
    assert [each.rule for each in verification.findings if each.severity == "error"] == ["cost-accounting"]


def test_the_note_on_a_conversion_operator_says_that_it_converts() -> None:
    class Unnamed(Acme):
        def conversion_operators(self) -> frozenset[tuple[str, str]]:
            return frozenset()

    legal, _ = relayout.legalize(standard(), Acme())
    for backend, words in ((Acme(), "it only converts"), (Unnamed(), "its effect on layouts is not known")):
        (note,) = [each for each in relayout.verify(legal, backend).findings if each.rule == "function-missing"]
        assert (note.severity, words in note.message) == ("note", True)


def test_the_layouts_of_a_backends_own_operator_tell_which_axis_is_which() -> None:
    class Forgetful(Acme):
        def operator_layouts(self, node: ir.Node) -> None:
            return None

    verification = relayout.verify(pools(), Acme())
    assert [(finding.rule, finding.node) for finding in verification.findings] == [("layout-requirement", "relu")]
    notes = relayout.verify(pools(), Forgetful()).findings
    assert [(finding.rule, finding.node) for finding in notes] == [("function-missing", "pool")]


def test_the_layout_of_a_blocked_operand_has_a_name_for_each_dimension_in_the_file() -> None:
    blocks = Layout.parse("NCHW8c")

    class Blocked(Acme):
        def operator_layouts(self, node: ir.Node) -> Implementation:
            return Implementation((blocks,), (blocks,))

    model = """<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g ({type} x) => ({type} y) {{ y = com.acme.Pool (x) }}"""
    five, four = (onnx.parser.parse_model(model.format(type=f"float[{each}]")) for each in ("1,2,9,9,8", "1,16,9,9"))
    layouts = operator_layouts_of(Blocked(), ir.from_proto(five).graph[0])
    assert layouts is not None
    assert layouts.inputs == layouts.results == (blocks,)
    assert relayout.verify(five, Blocked()).passed
    with pytest.raises(BackendError) as caught:
        operator_layouts_of(Blocked(), ir.from_proto(four).graph[0])
    assert (caught.value.expected, caught.value.found) == (
        "a layout of rank 4, as the tensor",
        "'NCHWc[tile:8]', of rank 5",
    )


def test_a_blocked_layout_in_answer_to_a_hook_for_axes_names_the_hook_for_dimensions() -> None:
    class Blocked(Acme):
        def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
            return "NCHW8c"

    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[1,2,9,9,8] x) => (float[1,2,9,9,8] y) { y = com.acme.Pool (x) }""")
    with pytest.raises(BackendError) as caught:
        ask(Blocked(), ir.from_proto(model).graph[0])
    assert caught.value.found == "'NCHWc[tile:8]', of 4 axes, some in tiles"
    assert caught.value.hint.startswith("`operator_layouts` states the tiles of an operator of the backend's own")


def test_opaque_values_are_not_compared() -> None:
    model = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[1,4,4] x) => (float[1,4,4] z) <float[1,4,4] y> {{
            y = {first} (x)
            z = {second} (y)
        }}"""
    source = onnx.parser.parse_model(model.format(first="Neg", second="Abs"))
    other = onnx.parser.parse_model(model.format(first="Identity", second="Abs"))

    def numeric(backend: Backend) -> list[str | None]:
        return [each.node for each in relayout.verify(other, backend, source).findings if each.rule == "numeric"]

    hidden = type("Hidden", (Acme,), {"opaque_values": lambda self, model: model.graph[0].outputs})
    assert numeric(Acme()) == ["y"]
    assert numeric(hidden()) == []
    assert numeric(extending(hidden)) == []
    assert numeric(Composite([Device("one", hidden)])) == []


PACK = """<domain: "com.acme", opset_import: ["" : {opset}]>
    Pack (x) => (y) {{ y = Transpose <perm = {perm}> (x) }}"""


def with_body(perm: str) -> type[Backend]:
    """A backend whose Pack has a body, which transposes so."""

    def operator_body(self: Backend, node: ir.Node, opset: int) -> OperatorBody | None:
        if node.op_type != "Pack":
            return None
        return OperatorBody(onnx.parser.parse_function(PACK.format(opset=opset, perm=perm)))

    return type("Bodied", (Acme,), {"operator_body": operator_body})


def packing(perm: str = "[0, 2, 3, 1]") -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model that packs in the middle, and the same with a Transpose in place of Pack."""
    text = """<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[1,3,4,4] x) => (float[1,4,4,3] z) {{ y = Abs (x) p = {pack} (y) z = Neg (p) }}"""
    standard = onnx.parser.parse_model(text.format(pack=f"Transpose <perm = {perm}>"))
    return onnx.parser.parse_model(text.format(pack="com.acme.Pack")), standard


@pytest.mark.parametrize("extend", [lambda kind: kind(), extending, lambda kind: Composite([Device("one", kind)])])
def test_an_operator_that_no_runtime_has_runs_as_its_body(extend: Callable[[type[Backend]], Backend]) -> None:
    legal, source = packing()
    if (backend := extend(with_body("[0, 2, 3, 1]"))).devices():
        legal = on_a_device(legal, backend)
    verification = relayout.verify(legal, backend, source)
    assert verification.numeric is not None
    assert [(each.name, each.passed) for each in verification.numeric.outputs] == [("z", True)]
    assert [each.found for each in verification.findings if each.rule == "body"] == ["com.acme::Pack"]
    wrong = relayout.verify(legal, extend(with_body("[0, 3, 2, 1]")), source)
    assert {each.node for each in wrong.findings if each.rule == "numeric"} == {"p", "z"}
    # Without the body the operator is cut out, and its result is the original's.
    cut = relayout.verify(legal, extend(Acme), source)
    assert "body" not in {each.rule for each in cut.findings}


def test_a_body_may_have_operands_and_results_that_the_node_leaves_out() -> None:
    function = """<domain: "com.acme", opset_import: ["" : 20]> Pack (x, k) => (a, b) { a = Neg (x) b = Abs (x) }"""
    body = OperatorBody(onnx.parser.parse_function(function))
    kind = type("Bodied", (Acme,), {"operator_body": lambda self, node, opset: body if node.domain else None})
    text = """<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[2,3] x) => (float[2,3] y) {{ a = {made} y = Exp (a) }}"""
    source, wrong = (onnx.parser.parse_model(text.format(made=f"{operator} (x)")) for operator in ("Neg", "Abs"))
    for results in (["a", ""], ["a", "unread"], ["", "a"]):
        legal = onnx.parser.parse_model(text.format(made="com.acme.Pack (x, )"))
        del legal.graph.node[0].output[:]
        legal.graph.node[0].output.extend(results)
        right, other = (source, wrong) if results[0] == "a" else (wrong, source)
        assert relayout.verify(legal, kind(), right).passed
        assert "numeric" in {each.rule for each in relayout.verify(legal, kind(), other).findings}


@pytest.mark.parametrize(("perm", "passed"), [([0, 2, 1], True), ([2, 1, 0], False)])
def test_a_body_reads_the_attributes_of_its_node(perm: list[int], passed: bool) -> None:
    function = """<domain: "com.acme", opset_import: ["" : 20]>
        Pack <perm, alpha: float = 2.0> (x) => (y) { t = Transpose <perm = @perm> (x)  y = Elu <alpha = @alpha> (t) }"""
    body = OperatorBody(onnx.parser.parse_function(function))
    kind = type("Bodied", (Acme,), {"operator_body": lambda self, node, opset: body if node.domain else None})
    text = """<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[3,3,3] x) => (float[3,3,3] y) {{ {made} }}"""
    source = onnx.parser.parse_model(text.format(made="t = Transpose <perm = [0,2,1]> (x)  y = Elu <alpha = 2.0> (t)"))
    legal = onnx.parser.parse_model(text.format(made=f"y = com.acme.Pack <perm = {perm}> (x)"))
    found = relayout.verify(legal, kind(), source).findings
    assert ("numeric" not in {each.rule for each in found}) is passed


def test_a_body_that_reads_an_operand_which_is_absent_is_no_verdict() -> None:
    function = """<domain: "com.acme", opset_import: ["" : 20]> Pack (x, k) => (y) { y = Add (x, k) }"""
    body = OperatorBody(onnx.parser.parse_function(function))
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "com.acme" : 1]>
        g (float[2] x) => (float[2] y) { y = com.acme.Pack (x) }""")
    steps = steps_of(ir.from_proto(model), ["y"], lambda node, opset: body)
    with pytest.raises(UndecidedError, match="the body of Pack reads an operand that the node leaves out: k"):
        run_wide(steps, [{"x": np.ones(2, np.float32)}], ["y"], Deadline(60))


def test_an_operator_of_both_models_runs_as_its_body() -> None:
    legal, _ = packing()
    verification = relayout.verify(legal, with_body("[0, 2, 3, 1]")(), legal)
    assert verification.numeric is not None
    assert [each.name for each in verification.numeric.outputs] == ["z"]


def fail(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no such number")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "check raises": ({"check": fail}, "failed in check"),
    "check breaks off": ({"check": lambda self, model, device="": (fail() for _ in "a")}, "failed in check"),
    "check gives a text": ({"check": lambda self, model, device="": ["bad"]}, "str: 'bad'"),
    "check names no node": ({"check": lambda self, model, device="": [Violation(5, "bad")]}, "failed in check"),  # type: ignore[arg-type]
    "operators raise": ({"conversion_operators": fail}, "failed in conversion_operators"),
    "operators are names": ({"conversion_operators": lambda self: frozenset({"Pack"})}, "a frozenset of"),
    "opaque values raise": ({"opaque_values": fail}, "failed in opaque_values"),
    "opaque values are names": ({"opaque_values": lambda self, model: ["y"]}, "values of the model"),
    "a body raises": ({"operator_body": fail}, "failed in operator_body"),
    "a body is a text": (
        {"operator_body": lambda self, node, opset: PACK},
        "an OperatorBody with an onnx.FunctionProto",
    ),
    "a body has other operands": (
        {"operator_body": lambda self, node, opset: OperatorBody(onnx.FunctionProto())},
        "a function with the node's operands (inputs: 1, outputs: 1)",
    ),
    "a body is of another opset": (
        {
            "operator_body": lambda self, node, opset: OperatorBody(
                onnx.parser.parse_function(PACK.format(opset=7, perm=[0]))
            )
        },
        "operators of ONNX's opset 20 alone",
    ),
    "layouts raise": ({"operator_layouts": fail}, "failed in operator_layouts"),
    "layouts are a text": ({"operator_layouts": lambda self, node: "NHWC"}, "an Implementation or None"),
    "layouts of another rank": (
        {"operator_layouts": lambda self, node: Implementation((NHWC,), (Layout.parse("NC"),))},
        "a layout of rank 4",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_such_a_hook_does_wrong_is_the_backends_own_fault(fault: str) -> None:
    members, expected = FAULTS[fault]
    with pytest.raises(BackendError) as caught:
        relayout.verify(pools(), type("Odd", (Acme,), members), pools(), report=relayout.legalize(pools())[1])
    assert expected in str(caught.value)
    assert "backend acme" in caught.value.where
