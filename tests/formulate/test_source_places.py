"""Solving, with the tensors in place whose conversions would cost more than the source at some sizes."""

from __future__ import annotations

import pytest
from graphs import Net
from onnx import TensorProto

from relayout import legalize, load_backend
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.requirements import collect_requirements
from relayout.errors import InfeasibleError
from relayout.formulate.build import build
from relayout.formulate.formulation import Formulation
from relayout.formulate.objective import objective_named
from relayout.formulate.source_places import dearer_at_no_size
from relayout.model.io import read_model
from relayout.model.tensor_sizes import DimSizes
from relayout.solve.solver import Solution, solve


def parts(size: int | None) -> Net:
    """Two parts of an image, transposed alike; of unknown sizes without `size`."""
    net = Net()
    image = net.node("Relu", net.input("x", (1, 8, 16, 16)))
    for name in ("one", "other"):
        end = net.constant([size]) if size else net.input(name, (1,), TensorProto.INT64)
        part = net.node("Slice", image, net.constant([0]), end, net.constant([3]))
        net.output(net.node("Relu", net.transpose(net.node("Exp", part), 0, 2, 3, 1)))
    return net


@pytest.mark.parametrize(
    ("objective", "size", "times"), [("bytes", None, 2), ("bytes", 16, 1), ("transposes", None, 1)]
)
def test_the_problem_is_solved_again_only_with_further_tensors_in_place(
    objective: str, size: int | None, times: int
) -> None:
    model, backend = read_model(parts(size).model()), load_backend("onnx")
    sizes = DimSizes(model, {})
    requirements = collect_requirements(model.graph, backend, collect_tensors(model.graph, model.opset_imports))
    first = build(requirements, sizes, backend, objective_named(objective))
    asked: list[tuple[Formulation, Solution]] = []

    def solved(formulation: Formulation) -> Solution:
        asked.append((formulation, solve(formulation.problem)))
        return asked[-1][1]

    answer = dearer_at_no_size(first, sizes, backend, solved)
    assert len(asked) == times
    assert asked[0][0] is first
    assert (answer.formulation, answer.solution) == asked[-1]
    assert bool(answer.in_place) == (times > 1)
    assert answer.solution.assignment is not None
    if answer.in_place:
        assert len(answer.plan.conversions) == 2
        assert answer.plan.cost(first.scale.objective) > first.scale.unpacked(asked[0][1].cost or 0)
        assert first.requirements is requirements


def test_a_price_that_both_plans_have_is_no_reason_to_move_more_at_some_sizes() -> None:
    """That of a node that an earlier run has written out in others is noted at it."""
    net = parts(None)
    net.output(net.node("Relu", net.input("z", (4,))))
    source = net.model()
    source.graph.node[-1].metadata_props.add(key="relayout.node_cost", value="1000 Relu [4] -> [4]")
    _, report = legalize(source, "onnx")
    assert report.account is not None
    assert report.account.operators.cost == 1000
    assert report.after.transposes == report.before.transposes == 2
    assert "because at some sizes another costs more" in report.warnings[0]


def test_a_limit_that_only_a_plan_dearer_at_some_sizes_meets_is_met() -> None:
    legal, report = legalize(parts(None).model(), "onnx", max_conversions=1, check=True)
    assert (report.status, report.after.transposes) == ("optimal", 1)
    assert report.verification is not None
    assert report.verification.passed
    assert not any("because at some sizes" in warning for warning in report.warnings)
    with pytest.raises(InfeasibleError):
        legalize(legal, "onnx", max_conversions=0)
