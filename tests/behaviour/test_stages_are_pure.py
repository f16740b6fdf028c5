"""A stage changes none of its arguments: a second call returns the same, and the model is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from msgspec.structs import replace

from relayout import Backend, legalize, load_backend
from relayout.backend import Composite, Device
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.requirements import Requirements, collect_requirements
from relayout.candidates.tensors import Tensors
from relayout.formulate.build import build
from relayout.formulate.formulation import Formulation
from relayout.formulate.objective import objective_named
from relayout.formulate.plan import plan
from relayout.model.dims.rank_completion import complete_ranks, drop_untyped_ranks
from relayout.model.io import read_model
from relayout.model.tensor_sizes import DimSizes
from relayout.options import Options
from relayout.pipeline import describe, run
from relayout.report.explain.conversions import boundary_of, conversions_of, transfers_of
from relayout.report.totals import totals
from relayout.rewrite import rewrite
from relayout.solve.solver import solve


def island() -> onnx.ModelProto:
    """Channels-last islands in a network with a view that blocks tiles of two channels."""
    net = Net()
    x = net.transpose(net.input("x", (1, 8, 8, 12)), 0, 3, 1, 2)
    y = net.node("Relu", net.conv(x, 12, 12))
    merged = net.node("Reshape", net.transpose(y, 0, 2, 3, 1), net.constant([1, 64, 12]))
    net.output(net.node("Softmax", net.node("MatMul", merged, net.weight(12, 6)), axis=-1))
    net.output(net.node("MaxPool", y, kernel_shape=[2, 2]))
    return net.model()


def blocks() -> onnx.ModelProto:
    """SpaceToDepth, which may be elided, and a channel shuffle, which a convolution may follow."""
    net = Net()
    x = net.node("SpaceToDepth", net.input("x", (1, 3, 8, 8)), blocksize=2)
    shuffled = net.transpose(net.node("Reshape", x, net.constant([1, 4, 3, 4, 4])), 0, 2, 1, 3, 4)
    net.output(net.conv(net.node("Reshape", shuffled, net.constant([1, 12, 4, 4])), 12, 6))
    return net.model()


def merging() -> onnx.ModelProto:
    """A Reshape that merges channels, so that no tile of four channels is one of the tensor that it reads."""
    net = Net()
    x = net.node("Reshape", net.input("x", (1, 4, 3, 5, 5)), net.constant([1, 12, 5, 5]))
    net.output(net.conv(x, 12, 12))
    return net.model()


def two_devices() -> Backend:
    return Composite([Device("a"), Device("b", "nhwc")])


TILED = {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4o"]}}
MODELS = [island, blocks, merging]
BACKENDS: list[Callable[[], Backend]] = [
    lambda: load_backend("onnx"),
    lambda: load_backend("nhwc"),
    lambda: load_backend("convert-layout", options=TILED),
    two_devices,
]


def analysed(tensors: Tensors) -> list[object]:
    operands = [(value.name, each and (each.tensor.index, each.view)) for value, each in tensors.operands.items()]
    known = [tensors.constant_nodes, tensors.dead, tensors.cancelling, tensors.constants, tensors.materialized]
    return [operands, *known, [type(rule) for rule in tensors.rules.values()]]


def listed(requirements: Requirements) -> list[object]:
    choices = [(each.label, each.ports, each.alternatives) for each in requirements.choices]
    return [choices, requirements.warnings, requirements.boundary.requested, requirements.boundary.coupled]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_stage_gives_the_same_twice(model: Callable[[], onnx.ModelProto], backend: Callable[[], Backend]) -> None:
    source, target = read_model(model()), backend()
    before = ir.to_proto(source).SerializeToString(deterministic=True)
    tensors = collect_tensors(source.graph, source.opset_imports)
    assert analysed(tensors) == analysed(collect_tensors(source.graph, source.opset_imports))
    operands = [operand for operand in tensors.operands.values() if operand is not None]
    assert [*map(AxisNames(tensors).of, operands)] == [*map(AxisNames(tensors).of, operands)]
    first, second = (collect_requirements(source.graph, target, tensors) for _ in range(2))
    if not first.tensors.materialized:  # where views are materialized, the tensors are others each time
        assert listed(first) == listed(second)
    assert first.tensors.materialized == second.tensors.materialized
    choices = listed(first)
    one, other = (build(first, DimSizes(source, {}), target, objective_named("bytes")) for _ in range(2))
    assert (one.problem, one.provenance, one.scale) == (other.problem, other.provenance, other.scale)
    assert listed(one.requirements) == listed(other.requirements)
    assert listed(first) == choices
    assert ir.to_proto(source).SerializeToString(deterministic=True) == before


def built(model: ir.Model, backend: Backend) -> Formulation:
    tensors = collect_tensors(model.graph, model.opset_imports)
    found = collect_requirements(model.graph, backend, tensors)
    return build(found, DimSizes(model, {}), backend, objective_named("bytes"))


def written(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_solving_planning_and_describing_change_nothing(
    model: Callable[[], onnx.ModelProto], backend: Callable[[], Backend]
) -> None:
    source = read_model(model())
    before, formulation = written(source), built(source, backend())
    one, other = (replace(solve(formulation.problem), seconds={}) for _ in range(2))
    assert one == other
    first, second = (plan(formulation, one) for _ in range(2))
    assert first == second
    told = [(conversions_of(each), transfers_of(each), boundary_of(source.graph, each)) for each in (first, second)]
    assert told[0] == told[1]
    assert plan(formulation, one) == first
    assert written(source) == before


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_is_carried_out_alike_and_stays_as_it_was(
    model: Callable[[], onnx.ModelProto], backend: Callable[[], Backend]
) -> None:
    legal: list[bytes] = []
    for _ in range(2):
        source, target = read_model(model()), backend()
        formulation = built(source, target)
        planned = plan(formulation, solve(formulation.problem))
        before = planned.nodes, planned.conversions, planned.transfers
        rewrite(source, target, planned)
        assert (planned.nodes, planned.conversions, planned.transfers) == before
        legal.append(written(source))
    assert legal[0] == legal[1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_is_described_alike_each_time(
    model: Callable[[], onnx.ModelProto], backend: Callable[[], Backend]
) -> None:
    source, target = read_model(model()), backend()
    before = totals(source, {})
    result = run(source, target, Options(), DimSizes(source, {}), lambda _: None)
    after = totals(source, {})
    assert describe(result, target, before, after) == describe(result, target, before, after)


@pytest.mark.parametrize("model", MODELS)
def test_legalizing_a_model_leaves_the_argument_as_it_was(model: Callable[[], onnx.ModelProto]) -> None:
    source = ir.from_proto(model())
    before = written(source)
    first, second = (legalize(source, "nhwc") for _ in range(2))
    assert written(source) == before
    assert written(first[0]) == written(second[0])
    assert first[1].model_copy(update={"solver": None}) == second[1].model_copy(update={"solver": None})


def test_a_view_that_blocks_a_tiling_is_materialized_once() -> None:
    source = read_model(merging())
    tensors = collect_tensors(source.graph, source.opset_imports)
    found = collect_requirements(source.graph, load_backend("convert-layout", options=TILED), tensors)
    assert [value.name for value in found.tensors.materialized] == ["reshape_0"]
    assert not tensors.materialized


def shapeless() -> ir.Model:
    """A model whose results have no shapes."""
    net = Net()
    x = net.node("Softmax", net.transpose(net.input("x", (2, 3, 4, 5)), 0, 3, 1, 2), axis=-1)
    net.output(net.node("Slice", x, net.constant([1]), net.constant([3]), net.constant(np.array([1]))))
    model = read_model(net.model())
    for node in model.graph:
        node.outputs[0].shape = None
    return model


def test_only_reading_completes_ranks() -> None:
    model = shapeless()
    collect_tensors(model.graph, model.opset_imports)
    assert [node.outputs[0].shape for node in model.graph] == [None, None, None]
    complete_ranks(model.graph, model.opset_imports)
    assert [len(node.outputs[0].shape or ()) for node in model.graph] == [4, 4, 4]
    model.graph.node(1).outputs[0].type = None
    drop_untyped_ranks(model.graph)
    shapes: list[Any] = [node.outputs[0].shape for node in model.graph]
    assert shapes[1] is None
    assert len(shapes[0]) == len(shapes[2]) == 4
