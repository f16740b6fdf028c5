"""The stages from a model to its legal form: candidates, build, solve, plan, rewrite, describe.

Each stage takes frozen data and returns frozen data. Only `rewrite` changes anything: the given model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import conversion_operators_of
from relayout.backend.interface import Backend
from relayout.candidates.boundary_options import boundary_layouts
from relayout.candidates.requirements import Requirements, collect_requirements
from relayout.candidates.tensors import Operand, Tensor, Tensors, collect_tensors
from relayout.errors import OutOfTimeError
from relayout.formulate.build import build
from relayout.formulate.conversion_costs import ConversionCosts
from relayout.formulate.formulation import Formulation
from relayout.formulate.objective import objective_named
from relayout.formulate.plan import Plan
from relayout.formulate.source_places import dearer_at_no_size
from relayout.model.io import warnings_of
from relayout.model.tensor_sizes import DimSizes, tensor_bytes
from relayout.ops import Relabel
from relayout.options import Options, Progress
from relayout.report.account import account_of, proof_of
from relayout.report.explain.conversions import (
    boundary_of,
    charges_of,
    conversions_of,
    transfers_of,
    with_nodes,
)
from relayout.report.explain.infeasible import refusal
from relayout.report.explain.savings import explained
from relayout.report.schema import (
    BoundaryValue,
    Charge,
    Conversion,
    DevicePlacement,
    Explanation,
    Report,
    SolverFacts,
    Totals,
    Transfer,
)
from relayout.rewrite import is_placed, rewrite
from relayout.solve.deadline import Deadline, Improved
from relayout.solve.problem import leaves_copies_out
from relayout.solve.solver import Solution, solve

if TYPE_CHECKING:
    from relayout.report.drawing_schema import DrawnChoice

__all__ = ["Result", "describe", "limit_of", "run"]


class Result(Struct, frozen=True):
    """The results of the stages for one model. `is_changed`: the rewrite changed the model. `written` are
    the nodes that parts of the plan became."""

    formulation: Formulation
    solution: Solution
    plan: Plan
    conversions: tuple[Conversion, ...]
    transfers: tuple[Transfer, ...]
    charges: tuple[Charge, ...]
    devices: tuple[DevicePlacement, ...]
    boundary: tuple[BoundaryValue, ...]
    explanation: Explanation | None
    warnings: tuple[str, ...]
    seconds: dict[str, float]
    is_changed: bool
    written: Mapping[int, Sequence[ir.Node]]
    choices: Mapping[str, DrawnChoice]


def run(
    model: ir.Model,
    backend: Backend,
    options: Options,
    elements: DimSizes,
    progress: Progress,
    improved: Improved | None = None,
    *,
    draws_choices: bool = False,
) -> Result:
    """Run all stages. `progress` takes the name of each, and `improved` the cost and bound of each better solution in
    the objective's unit. The model is rewritten in place if the plan spends less than the source or changes a node.
    `draws_choices`: the result has the alternatives of every node, to be drawn.

    Raises InfeasibleError, OutOfTimeError, UsageError, BackendError.
    """
    clock = Deadline(options.time_limit)
    warnings = warnings_of(model)
    progress("requirements")
    found = candidates(model, backend, options, elements)
    formulation = build(found, elements, backend, objective_named(options.objective), host=backend.host())
    progress("solve")
    answer = dearer_at_no_size(
        formulation, elements, backend, lambda each: solved(each, backend, options, clock, improved)
    )
    formulation, solution, planned = answer.formulation, answer.solution, answer.plan
    progress("rewrite")
    conversions, explanation = conversions_of(planned), None
    clock.stage("rewrite")
    if options.limit is not None:
        is_proved = solution.status == "optimal" and found.is_complete
        conversions, explanation = explained(
            formulation, planned, conversions, proved=is_proved, limit=options.limit, deadline=clock
        )
        clock.stage("explain")
    transfers, devices = transfers_of(planned), _placements(planned, backend)
    charges = charges_of(planned, formulation.costs.bytes_of, conversion_operators_of(backend))
    boundary = boundary_of(model.graph, planned)
    choices = _drawn(formulation, solution) if draws_choices else {}
    is_changed = not _is_in_place(planned, formulation.costs, backend, elements)
    written = rewrite(model, backend, planned) if is_changed else {}
    clock.stage("rewrite")
    return Result(
        formulation,
        solution,
        planned,
        conversions,
        transfers,
        charges,
        devices,
        boundary,
        explanation,
        tuple(dict.fromkeys((*warnings, *found.warnings, *_kept_in_place(answer.in_place)))),
        clock.seconds,
        is_changed,
        written,
        choices,
    )


def _kept_in_place(tensors: Set[Tensor]) -> Iterator[str]:
    if tensors:
        first, *others = sorted(str(tensor.base.name) for tensor in tensors)
        more = f" and {len(others)} more" if others else ""
        yield f"in the source's layout, because at some sizes another costs more: '{first}'{more}, of unknown extents"


def _drawn(formulation: Formulation, solution: Solution) -> Mapping[str, DrawnChoice]:
    from relayout.report.drawing import drawn_choices

    return drawn_choices(formulation, solution)


def candidates(model: ir.Model, backend: Backend, options: Options, elements: DimSizes) -> Requirements:
    """Every node's alternatives, with the graph's inputs and outputs as the options or the model declare them."""
    inputs, outputs = boundary_layouts(model.graph, options.input_layouts, options.output_layouts)
    tensors = collect_tensors(model.graph, model.opset_imports)
    return collect_requirements(
        model.graph, backend, tensors, input_layouts=inputs, output_layouts=outputs, elements=elements
    )


def solved(
    formulation: Formulation,
    backend: Backend,
    options: Options,
    clock: Deadline,
    improved: Improved | None = None,
) -> Solution:
    """A solution with an assignment, before the clock's deadline. The clock counts what comes before as "build".

    Raises InfeasibleError, OutOfTimeError.
    """
    clock.stage("build")
    left = clock.left()
    source, unpacked = formulation.source_assignment(), formulation.scale.unpacked
    option, limit = limit_of(formulation, backend, options)
    solution = solve(
        formulation.problem,
        engine=options.engine,
        time_limit=None if left is None else max(left, 0.001),
        hint=None if source is None else formulation.with_transfers(source),
        improved=None if improved is None else lambda cost, bound: improved(unpacked(cost), unpacked(bound)),
        max_conversions=limit,
    )
    clock.include(solution.seconds)
    if solution.status == "infeasible":
        raise refusal(solution, formulation, limit, option)
    if solution.assignment is None:
        raise OutOfTimeError(
            "no solution was found within the time limit",
            found=f"bound {solution.bound}",
            hint="raise --time-limit",
        )
    return solution


def limit_of(formulation: Formulation, backend: Backend, options: Options) -> tuple[str, int | None]:
    """The limit on conversions that the solver keeps, by option. It counts all conversions, so a limit on transposes
    is one only if each has a Transpose: no format pads, and the backend has no conversion operators of its own. Else
    the legal model is counted afterwards."""
    limits = {"max_conversions": options.max_conversions}
    if not conversion_operators_of(backend) and not formulation.costs.have_padding:
        limits["max_transposes"] = options.max_transposes
    given = [(limit, name) for name, limit in limits.items() if limit is not None]
    limit, name = min(given, default=(None, "max_conversions"))
    return f"--{name.replace('_', '-')}", limit


def describe(
    result: Result, backend: Backend, before: Totals, after: Totals, assumed: Mapping[str, int] | None = None
) -> Report:
    """The report of a result, with the totals of the model before and after, and the sizes `assumed` for dims."""
    solution, scale = result.solution, result.formulation.scale
    cost = result.plan.cost(scale.objective)
    bound = cost if solution.status == "optimal" else min(cost, scale.unpacked(solution.bound or 0))
    if not result.formulation.requirements.is_complete:
        # The solver's bound does not cover dropped formats.
        bound = 0
    conversions, charges = with_nodes(result.plan, result.written, result.conversions, result.charges)
    return Report(
        status="optimal" if cost == bound else "feasible",
        cost=cost,
        bound=bound,
        proof=proof_of(
            bound,
            scale.objective.unit,
            is_direct=cost > 0 and leaves_copies_out(result.formulation.problem),
            has_transfers=cost > 0 and any(each.transfers for each in result.formulation.def_use),
        ),
        objective=scale.objective.name,
        backend=backend.name,
        before=before,
        after=after,
        account=account_of(result.plan, scale.objective, result.charges),
        assumed=dict(sorted((assumed or {}).items())),
        boundary=result.boundary,
        conversions=conversions,
        transfers=result.transfers,
        charges=charges,
        devices=result.devices,
        explanation=result.explanation,
        solver=SolverFacts(
            choices=solution.choices,
            kernel_choices=solution.kernel_choices,
            engine=solution.engine,
            seconds={name: round(value, 6) for name, value in result.seconds.items()},
        ),
        warnings=result.warnings,
    )


def _placements(planned: Plan, backend: Backend) -> tuple[DevicePlacement, ...]:
    """The nodes of each device, if there are several devices."""
    nodes: dict[str, list[str]] = {device: [] for device in backend.devices()}
    for node, each in planned.of_node.items():
        if each.device in nodes and not each.is_elided:
            nodes[each.device].append(node.name or node.outputs[0].name or "")
    return tuple(
        DevicePlacement(device=device, backend=backend.at(device).name, nodes=tuple(names))
        for device, names in nodes.items()
    )


def _is_in_place(planned: Plan, costs: ConversionCosts, backend: Backend, elements: DimSizes) -> bool:
    """Whether the source already is the plan: it changes no node, and the source's view ops spend and cost as much as
    the conversions."""
    tensors = planned.tensors
    if not planned.keeps_nodes or tensors.cancelling or any(map(_is_unread, tensors.dead)):
        return False
    turns = list(_turns(tensors))
    spent = sum(2 * tensor_bytes(elements(turned.tensor.base.shape), turned.tensor.base.dtype) for _, turned in turns)
    if (len(planned.conversions), planned.bytes) != (len(turns), spent):
        return False
    if backend.devices():
        return is_placed(planned)
    if not costs.are_stated:
        return True
    made = {(turned.tensor, turned.source_format) for _, turned in turns}
    if any((each.tensor, each.target) not in made for each in planned.conversions):
        return False
    stated = [costs.of(turned.tensor, read.source_format, turned.source_format) for read, turned in turns]
    return sum(each.cost for each in stated if each is not None) == sum(each.cost for each in planned.conversions)


def _is_unread(node: ir.Node) -> bool:
    """Whether nothing reads the node. Others on which no output depends compute the shape of a Reshape."""
    return not any(value.uses() or value.is_graph_output() for value in node.outputs)


def _turns(tensors: Tensors) -> Iterator[tuple[Operand, Operand]]:
    """The Transposes of data that are views, each as what it reads and what it gives. Both are views of one tensor, by
    whose size a Transpose is priced, like a conversion: a Reshape in between may have lost a dim's name."""
    for node, rule in tensors.rules.items():
        if isinstance(rule, Relabel) and node.op_type == "Transpose" and node not in tensors.constant_nodes:
            read = tensors.operands[node.inputs[0]] if node.inputs[0] is not None else None
            turned = tensors.operands[node.outputs[0]]
            if read is not None and turned is not None:
                yield read, turned
