"""A model as a graph to draw: layouts, alternatives with their costs, counterparts and conversions."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graphs import Net

from relayout.backend import load_backend
from relayout.formulate.build import build
from relayout.formulate.objective import objective_named
from relayout.legalization import legalize_model
from relayout.model.io import read_model
from relayout.model.tensor_sizes import DimSizes
from relayout.options import Options
from relayout.pipeline import candidates
from relayout.report.drawing import compared, draw, drawn_choices, with_choices
from relayout.report.drawing_schema import Drawing
from relayout.solve.problem import cost_of
from relayout.solve.solver import solve
from relayout.testing.graphs import sample_graphs

GRAPH: dict[str, Any] = {
    "opset": 20,
    "inputs": [{"name": "image", "dtype": "float32", "shape": ["n", 56, 56, 64]}],
    "outputs": [{"name": "features", "dtype": "float32", "shape": ["n", 56, 56, 64]}],
    "constants": [{"name": "weight", "dtype": "float32", "shape": [64, 64, 1, 1]}],
    "nodes": [
        {"name": "in", "op": "Transpose", "inputs": ["image"], "outputs": ["a"], "attributes": {"perm": [0, 3, 1, 2]}},
        {"name": "conv", "op": "Conv", "inputs": ["a", "weight"], "outputs": ["b"]},
        {"op": "Relu", "inputs": ["b"], "outputs": ["c"]},
        {"name": "out", "op": "Transpose", "inputs": ["c"], "outputs": ["features"],
         "attributes": {"perm": [0, 2, 3, 1]}},
    ],
}  # fmt: skip


def both(graph: Any, backend: str) -> tuple[Drawing, Drawing]:
    """The drawings of a graph with its choices, and of the legal graph."""
    chosen = load_backend(backend)
    source, model = draw(read_model(graph)), read_model(graph)
    outcome = legalize_model(model, chosen, Options(), draws_choices=True)
    source = with_choices(source, outcome.choices)
    legal = draw(outcome.model)
    return source, compared(legal, source, outcome.report.conversions)


def test_a_drawing_has_the_properties_of_the_model_and_the_data_of_small_constants() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "acme": 2], producer_name: "acme-export", producer_version: "1.2",
         model_version: 3, doc_string: "words", metadata_props: ["author": "A. Uthor", "about": "layouts"]>
        small (float[2,2] x) => (float[2,2] y)
        <float[2] few = {0.1, 2.0}> {
            a = Add (x, few)
            y = Mul (a, a)
        }""")
    drawing = draw(read_model(model))
    assert (drawing.ir_version, drawing.opsets[""], drawing.opsets["acme"]) == (8, 17, 2)
    assert drawing.properties == {
        "producer_name": "acme-export",
        "producer_version": "1.2",
        "model_version": "3",
        "doc_string": "words",
    }
    assert drawing.metadata == {"about": "layouts", "author": "A. Uthor"}
    assert {value.name: value.data for value in drawing.values if value.constant} == {"few": "[0.1, 2.0]"}


@pytest.mark.parametrize(
    ("constant", "data"),
    [
        ({"dtype": "float32", "shape": [2], "values": [0.5, -1]}, "[0.5, -1.0]"),
        ({"dtype": "int64", "shape": [], "values": [7]}, "7"),
        ({"dtype": "bool", "shape": [1, 2], "values": [True, False]}, "[[True, False]]"),
        ({"dtype": "float32", "shape": [17], "values": [0] * 17}, None),
        ({"dtype": "float32", "shape": [2]}, None),
        ({"dtype": "float32", "shape": [0], "values": []}, "[]"),
    ],
)
def test_the_data_of_a_constant_is_drawn_where_it_is_there_and_short(
    constant: dict[str, Any], data: str | None
) -> None:
    graph = {
        "opset": 20,
        "outputs": [{"name": "y"}],
        "constants": [{"name": "c", **constant}],
        "nodes": [{"op": "Identity", "inputs": ["c"], "outputs": ["y"]}],
    }
    drawing = draw(read_model(graph))
    assert [value.data for value in drawing.values if value.name == "c"] == [data]


def test_values_have_types_layouts_and_sizes() -> None:
    drawing = draw(read_model(GRAPH), {"n": 2})
    image = drawing.values[drawing.inputs[0]]
    assert (image.dtype, image.shape, image.layout) == ("float", ("n", 56, 56, 64), "NHWC")
    assert image.bytes == 2 * 56 * 56 * 64 * 4
    conv = drawing.nodes[1]
    assert (conv.name, conv.operator) == ("conv", "Conv")
    assert [drawing.values[value].layout for value in conv.inputs if value is not None] == ["NCHW", None]
    assert [drawing.values[value].constant for value in conv.inputs if value is not None] == [False, True]
    assert drawing.nodes[0].attributes == {"perm": "[0, 3, 1, 2]"}
    # A node without a name has that of its first result, as in the report.
    assert drawing.nodes[2].name == "c"


def test_nodes_of_the_legal_graph_have_their_counterparts() -> None:
    source, legal = both(GRAPH, "nhwc")
    pairs = [(node.operator, None if node.source is None else source.nodes[node.source].name) for node in legal.nodes]
    assert pairs == [("Conv", "conv"), ("Relu", "c")]


def test_each_conversion_is_at_the_nodes_that_perform_it() -> None:
    graph = {
        **GRAPH,
        "nodes": [GRAPH["nodes"][1], GRAPH["nodes"][2]],
        "outputs": [{**GRAPH["outputs"][0], "name": "c"}],
    }
    graph["inputs"] = [{"name": "a", "dtype": "float32", "shape": ["n", 64, 56, 56]}]
    graph["outputs"] = [{"name": "c", "dtype": "float32", "shape": ["n", 64, 56, 56]}]
    _, legal = both(graph, "nhwc")
    performed = [node.conversions for node in legal.nodes if node.operator == "Transpose"]
    assert performed == [(0,), (1,)]
    assert all(not node.conversions for node in legal.nodes if node.operator != "Transpose")


def test_two_conversions_of_one_value_are_at_a_transpose_each() -> None:
    [attention] = [each for each in sample_graphs() if each.name == "attention"]
    _, legal = both(attention.model, "nhwc")
    performed = [node.conversions for node in legal.nodes if node.operator == "Transpose"]
    assert sorted(number for numbers in performed for number in numbers) == list(range(len(performed)))
    assert all(len(numbers) == 1 for numbers in performed)


@pytest.mark.parametrize("backend", ["nhwc", "nchw"])
def test_an_alternative_costs_what_the_whole_problem_then_costs(backend: str) -> None:
    model, options = read_model(GRAPH), Options()
    elements, chosen = DimSizes(model, {}), load_backend(backend)
    found = candidates(model, chosen, options, elements)
    formulation = build(found, elements, chosen, objective_named("bytes"), host="")
    solution = solve(formulation.problem)
    assert solution.assignment is not None
    problem, optimum = formulation.problem, cost_of(formulation.problem, solution.assignment)
    assert optimum is not None
    drawn = drawn_choices(formulation, solution)
    for index, choice in enumerate(found.choices):
        if choice.label not in drawn:
            continue
        expected = []
        for alternative in range(len(choice.alternatives)):
            assignment = [*solution.assignment]
            assignment[index] = alternative
            cost = cost_of(problem, assignment)
            expected.append(None if cost is None else formulation.scale.unpacked(cost - optimum))
        shown = drawn[choice.label].alternatives
        assert sorted(map(str, expected)) == sorted(str(each.change) for each in shown)
        assert [each.chosen for each in shown] == [True, *[False] * (len(shown) - 1)]
        assert shown[0].change == 0
    assert set(drawn) == {"Conv 'conv'", "Relu 'c'"}
    required = drawn["Conv 'conv'"].alternatives[0].operands
    assert [operand.layout for operand in required if operand.required] == [backend.upper()] * len(required)


def test_one_operand_changes_in_each_alternative_of_a_product() -> None:
    net = Net()
    query = net.transpose(net.input("q", (2, 3, 5, 4)), 0, 2, 1, 3)
    scores = net.node("Einsum", query, net.input("k", (2, 6, 3, 4)), equation="bqhd,bkhd->bhqk")
    net.output(net.transpose(scores, 0, 2, 1, 3))
    model, options = read_model(net.model()), Options()
    elements, chosen = DimSizes(model, {}), load_backend("onnx")
    formulation = build(
        candidates(model, chosen, options, elements), elements, chosen, objective_named("bytes"), host=""
    )
    [(label, drawn)] = drawn_choices(formulation, solve(formulation.problem)).items()
    assert (label, drawn.operands) == ("Einsum 'n1'", ("input 0", "input 1", "result 0"))
    first, *others = drawn.alternatives
    assert (first.chosen, first.change) == (True, 0)
    changed = [[a != b for a, b in zip(first.operands, each.operands, strict=True)] for each in others]
    assert {places.count(True) for places in changed} == {1}
    assert all(each.change is not None and each.change > 0 for each in others)
    assert drawn.count == len(drawn.alternatives) == 3


def test_graphs_inside_nodes_are_drawn_with_their_borders() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (bool flag, float[4] x) => (float[4] y) {
        y = If (flag) <
            then_branch = t () => (float[4] a) { a = Relu (x) },
            else_branch = e () => (float[4] b) { b = Neg (x) }
        >
    }
    """
    import onnx.parser

    drawing = draw(ir.from_proto(onnx.parser.parse_model(text)))
    outer, *inner = drawing.nodes
    assert [(node.operator, node.within) for node in inner] == [("Relu", 0), ("Neg", 0)]
    assert [body.attribute for body in outer.bodies] == ["then_branch", "else_branch"]
    assert [body.outputs for body in outer.bodies] == [node.outputs for node in inner]
