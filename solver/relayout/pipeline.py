"""The stages from a model to its legal form: candidates, build, solve, plan, rewrite, describe.

Each stage takes frozen data and returns frozen data. Only `rewrite` changes anything: the given model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import asdict, replace

from relayout.backend.calls import conversion_operators_of
from relayout.backend.interface import Backend
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.boundary_options import boundary_layouts
from relayout.candidates.requirements import Requirements, collect_requirements
from relayout.candidates.tensors import Tensor
from relayout.errors import OutOfTimeError, option_text
from relayout.formulate.build import build
from relayout.formulate.formulation import Formulation
from relayout.formulate.objective import objective_named
from relayout.formulate.source_places import Answer, dearer_at_no_size
from relayout.model.io import warnings_of
from relayout.model.tensor_sizes import DimSizes
from relayout.options import Options, Progress
from relayout.report.account import account_of, proof_of
from relayout.report.explain.conversions import Records, records_of, with_nodes
from relayout.report.explain.infeasible import refusal
from relayout.report.explain.savings import explained
from relayout.report.schema import Report, SolverFacts, Totals
from relayout.rewrite import is_in_place, lost_shardings, rewrite
from relayout.solve.deadline import Deadline, Improved
from relayout.solve.problem import leaves_copies_out
from relayout.solve.solver import Solution, solve

if TYPE_CHECKING:
    from relayout.report.drawing_schema import DrawnChoice


class Result(Struct, frozen=True):
    """The results of the stages for one model: the plan, its records, and `written`, the nodes that parts of the plan
    became; None where the source already is the plan, and stays as it is."""

    answer: Answer
    records: Records
    warnings: tuple[str, ...]
    seconds: dict[str, float]
    written: Mapping[int, Sequence[ir.Node]] | None
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
    formulation, planned = answer.formulation, answer.plan
    progress("rewrite")
    clock.stage("rewrite")
    records = records_of(model.graph, planned, formulation.costs.bytes_of, backend)
    if options.limit is not None:
        is_proved = answer.solution.status == "optimal" and found.is_complete
        conversions, explanation = explained(
            formulation, planned, records.conversions, proved=is_proved, limit=options.limit, deadline=clock
        )
        records = replace(records, conversions=conversions, explanation=explanation)
        clock.stage("explain")
    choices = _drawn(answer) if draws_choices else {}
    written = None
    if not is_in_place(planned, formulation.costs, backend):
        warnings = (*warnings, *lost_shardings(planned))
        written = rewrite(model, backend, planned)
    clock.stage("rewrite")
    warnings = tuple(dict.fromkeys((*warnings, *found.warnings, *_kept_in_place(answer.in_place))))
    return Result(answer, records, warnings, clock.seconds, written, choices)


def _kept_in_place(tensors: Set[Tensor]) -> Iterator[str]:
    if tensors:
        first, *others = sorted(str(tensor.base.name) for tensor in tensors)
        more = f" and {len(others)} more" if others else ""
        yield f"in the source's layout, because at some sizes another costs more: '{first}'{more}, of unknown extents"


def _drawn(answer: Answer) -> Mapping[str, DrawnChoice]:
    from relayout.report.drawing import drawn_choices

    return drawn_choices(answer.formulation, answer.solution)


def candidates(model: ir.Model, backend: Backend, options: Options, elements: DimSizes) -> Requirements:
    """Every node's alternatives, with the graph's inputs and outputs as the options or the model declare them."""
    inputs, outputs = boundary_layouts(model.graph, options.input_layouts, options.output_layouts)
    # A tensor may be on another device.
    tensors = collect_tensors(model.graph, model.opset_imports, reads_extents=not backend.devices())
    is_limited = options.max_conversions is not None or options.max_transposes is not None
    return collect_requirements(
        model.graph,
        backend,
        tensors,
        input_layouts=inputs,
        output_layouts=outputs,
        elements=elements,
        keeps_dear=is_limited or options.objective != "bytes",
    )


def solved(
    formulation: Formulation,
    backend: Backend,
    options: Options,
    clock: Deadline,
    improved: Improved | None = None,
) -> Solution:
    """A solution with an assignment, before the clock's deadline. The clock counts what comes before as "build".

    As much time is left for what comes after, but at most half of the rest. Raises InfeasibleError, OutOfTimeError.
    """
    clock.stage("build")
    left = clock.left()
    left = None if left is None else max(left - clock.seconds["build"], left / 2)
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
            hint=f"raise {option_text('time_limit')}",
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
    return name, limit


def describe(
    result: Result,
    backend: Backend,
    before: Totals,
    after: Totals,
    assumed: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """The report of a result, with the totals of the model before and after, the sizes `assumed` for dims, and all
    `sizes` with which dims are counted."""
    formulation, solution, planned = result.answer.formulation, result.answer.solution, result.answer.plan
    objective = formulation.scale.objective
    cost = planned.cost(objective)
    bound = cost if solution.status == "optimal" else min(cost, formulation.scale.unpacked(solution.bound or 0))
    if not formulation.requirements.is_complete:
        # The solver's bound does not cover dropped formats.
        bound = 0
    return Report(
        status="optimal" if cost == bound else "feasible",
        cost=cost,
        bound=bound,
        proof=proof_of(
            bound,
            objective.unit,
            is_direct=cost > 0 and leaves_copies_out(formulation.problem),
            has_transfers=cost > 0 and any(each.transfers for each in formulation.def_use),
        ),
        objective=objective.name,
        backend=backend.name,
        before=before,
        after=after,
        account=account_of(planned, objective, result.records.charges),
        assumed=dict(sorted((assumed or {}).items())),
        sizes=dict(sorted((sizes or {}).items())),
        solver=SolverFacts(
            choices=solution.choices,
            kernel_choices=solution.kernel_choices,
            engine=solution.engine,
            seconds={name: round(value, 6) for name, value in result.seconds.items()},
        ),
        warnings=result.warnings,
        **asdict(with_nodes(planned, result.written or {}, result.records)),
    )
