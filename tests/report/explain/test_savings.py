"""The saving of a dropped requirement equals the cost difference to a model without it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from graphs import Net
from onnx import TensorProto, helper, numpy_helper

import relayout
from relayout.report.schema import Conversion, Report


def channels_last(blocks: int) -> onnx.ModelProto:
    """Convolutions that ONNX wants channels first, between layer normalisations of the last axis; a raw skip."""
    net = Net()
    value = image = net.input("image", [1, 6, 6, 8])
    for _ in range(blocks):
        value = net.transpose(net.conv(net.transpose(value, 0, 3, 1, 2), 8, 8), 0, 2, 3, 1)
        value = net.node("LayerNormalization", value, net.weight(8), axis=-1)
    net.output(net.node("Add", net.node("Relu", value), image))
    return net.model()


def attention() -> onnx.ModelProto:
    net = Net()
    value = net.input("tokens", [2, 5, 12])
    heads = []
    for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        projected = net.node("MatMul", value, net.weight(12, 12))
        split = net.node("Reshape", projected, net.constant([2, 5, 3, 4]))
        heads.append(net.transpose(split, *perm))
    scores = net.node("Softmax", net.node("MatMul", heads[0], heads[1]), axis=-1)
    mixed = net.transpose(net.node("MatMul", scores, heads[2]), 0, 2, 1, 3)
    net.output(net.node("MatMul", net.node("Reshape", mixed, net.constant([2, 5, 12])), net.weight(12, 12)))
    return net.model()


def one_copy_for_two() -> onnx.ModelProto:
    """One transposed copy that two convolutions read: lifting either of them saves nothing."""
    net = Net()
    image = net.input("image", [1, 6, 6, 8])
    first = net.transpose(image, 0, 3, 1, 2)
    net.output(net.conv(first, 8, 4))
    net.output(net.conv(first, 8, 4))
    return net.model()


def without(model: onnx.ModelProto, places: Sequence[tuple[str, str, int]]) -> tuple[onnx.ModelProto, dict, dict]:
    """The model with these operands and results cut off, and the layouts that free all the ends that this makes.

    A dropped operand reads an input of its own, and what it read is an output; a dropped result is an output, and what
    read it reads an input. Inputs and outputs lie in any order of their axes, but no end splits an axis: where heads
    make up an axis, it is split before.
    """
    edited = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph = edited.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    ends = {v.name for v in (*graph.output, *graph.input)}
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for number, (label, part, index) in enumerate(places):
        node = next(n for n in graph.node if f"{n.op_type} '{n.name}'" == label)
        name = node.input[index] if part == "operand" else node.output[index]
        shape = shapes[name]
        apart = [*shape[:-1], 3, 4] if shape[-1] == 12 else shape
        for key, extents in (("together", shape), ("apart", apart)):
            graph.initializer.append(numpy_helper.from_array(np.array(extents), f"{key}_{number}"))
        fresh, left = f"fresh_{number}", name
        if part == "operand":
            node.input[index] = fresh
        else:
            left = node.output[index] = f"given_{number}"
            fresh = name
        graph.input.append(helper.make_tensor_value_info(f"in_{number}", TensorProto.FLOAT, apart))
        graph.node.insert(0, helper.make_node("Reshape", [f"in_{number}", f"together_{number}"], [fresh]))
        inputs[f"in_{number}"] = "any"
        if left not in ends:
            graph.node.append(helper.make_node("Reshape", [left, f"apart_{number}"], [f"out_{number}"]))
            graph.output.append(helper.make_tensor_value_info(f"out_{number}", TensorProto.FLOAT, apart))
            outputs[f"out_{number}"] = "any"
    return edited, inputs, outputs


def spent(report: Report) -> tuple[int, int, int]:
    assert report.cost is not None
    made = report.conversions
    return report.cost, len(made), sum(conversion.bytes for conversion in made)


def place_of(label: str, lifts: str, operand: int | None, model: onnx.ModelProto) -> list[tuple[str, str, int]]:
    if lifts in ("operand", "result"):
        assert operand is not None
        return [(label, lifts, operand)]
    node = next(n for n in model.graph.node if f"{n.op_type} '{n.name}'" == label)
    constants = {c.name for c in model.graph.initializer}
    read = [(label, "operand", i) for i, name in enumerate(node.input) if name not in constants]
    return [*read, *((label, "result", i) for i in range(len(node.output)))]


MODELS = {
    "one block": channels_last(1),
    "three blocks": channels_last(3),
    "attention": attention(),
    "one copy for two": one_copy_for_two(),
}


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
@pytest.mark.parametrize("name", MODELS)
def test_a_saving_is_what_a_model_without_the_requirement_saves(name: str, objective: str) -> None:
    model = MODELS[name]
    report = relayout.explain(model, objective=objective)
    whole = spent(report)
    reasons = {(r.node, r.part, r.operand): r for c in report.conversions for r in c.reasons}
    assert reasons
    for (label, lifts, operand), reason in reasons.items():
        if lifts == "boundary":
            side, _, end = label.partition(" ")
            freed = relayout.explain(model, objective=objective, **{f"{side}_layouts": {end: "any"}}, limit=0)
        else:
            edited, inputs, outputs = without(model, place_of(label, lifts, operand, model))
            freed = relayout.explain(edited, objective=objective, input_layouts=inputs, output_layouts=outputs, limit=0)
        left = spent(freed)
        assert reason.saved.exact
        saved = (reason.saved.cost, reason.saved.transposes, reason.saved.bytes)
        assert saved == tuple(a - b for a, b in zip(whole, left, strict=True)), (label, lifts, operand)


def kinds(conversion: Conversion) -> set[tuple[str, str]]:
    return {(reason.part, reason.by) for reason in conversion.reasons}


def test_a_conversion_is_required_by_the_boundary_and_the_operator_behind_free_nodes() -> None:
    net = Net()
    image = net.input("image", [1, 6, 6, 8])
    passed = net.node("Relu", net.node("Sigmoid", net.transpose(image, 0, 3, 1, 2)))
    net.output(net.node("GlobalAveragePool", net.conv(passed, 8, 4)))
    [conversion] = relayout.explain(net.model()).conversions
    assert {(r.node.partition(" '")[0], r.part, r.by) for r in conversion.reasons} == {
        ("input image", "boundary", "boundary"),
        ("Conv", "operand", "operator"),
    }
    assert all(r.saved.transposes == 1 and r.saved.bytes == conversion.bytes for r in conversion.reasons)


def test_requirements_of_the_backend_differ_from_those_of_the_operator() -> None:
    net = Net()
    net.output(net.conv(net.input("image", [1, 8, 6, 6]), 8, 4))
    report = relayout.explain(net.model(), backend="nhwc")
    by = {reason.by for conversion in report.conversions for reason in conversion.reasons}
    assert by == {"boundary", "backend"}


def test_a_copy_with_two_readers_is_saved_only_without_both() -> None:
    report = relayout.explain(MODELS["one copy for two"])
    [conversion] = report.conversions
    assert [r.saved.cost for r in conversion.reasons if r.part == "operand"] == [0, 0]
    assert conversion.saved is not None
    assert conversion.saved.bytes == conversion.bytes
    [shared] = [each for each in report.explanation.shared if each.operator == "Conv"]
    assert (shared.requirements, shared.saved.bytes) == (2, conversion.bytes)


def test_a_limit_reports_what_it_omits_and_keeps_the_conversions() -> None:
    whole = relayout.explain(MODELS["three blocks"])
    assert whole.explanation.unsolved == 0
    few = relayout.explain(MODELS["three blocks"], limit=3)
    assert few.explanation.solved == few.explanation.limit == 3
    assert few.explanation.unsolved > 0
    assert [c.value for c in few.conversions] == [c.value for c in whole.conversions]
    assert relayout.explain(MODELS["three blocks"], limit=0).explanation.solved == 0


def test_a_negative_limit_is_an_error() -> None:
    with pytest.raises(relayout.UsageError, match="0 or more"):
        relayout.explain(MODELS["one block"], limit=-1)


def test_legalize_gives_no_reasons() -> None:
    _, report = relayout.legalize(MODELS["one block"])
    assert report.explanation is None
    assert all(c.saved is None and not c.reasons for c in report.conversions)


def test_a_body_of_a_branch_has_reasons_too() -> None:
    net = Net()
    image = net.input("image", [1, 6, 6, 8])
    flag = net.input("flag", [], TensorProto.BOOL)
    branches = []
    for prefix in ("then_", "else_"):
        body = Net(prefix=prefix)
        laid = body.transpose(image, 0, 3, 1, 2)
        result = body.transpose(body.conv(laid, 8, 8), 0, 2, 3, 1)
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, [1, 6, 6, 8])]
        branches.append(helper.make_graph(body.nodes, prefix, [], outputs, body.constants))
    net.output(net.node("If", flag, then_branch=branches[0], else_branch=branches[1]))
    report = relayout.explain(net.model())
    assert report.conversions
    assert all(c.reasons for c in report.conversions)
