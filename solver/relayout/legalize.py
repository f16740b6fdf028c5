"""The one door: read, require, formulate, solve, rewrite, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import onnx
import onnx_ir as ir

from relayout.backend import Backend, load_backend
from relayout.backend_options import gathered
from relayout.boundary import is_wildcard, tied_names
from relayout.cost import OBJECTIVES
from relayout.errors import OutOfTimeError, UsageError
from relayout.explain import boundary_of, conversions_of, crossings_of
from relayout.formulation import Formulation, formulate
from relayout.graph_codec import BOUNDARY_LAYOUT_KEY
from relayout.holding import PLACE_KEY
from relayout.layout_functions import drop_unused
from relayout.model_io import Source, collector_paused, read_model, to_json, to_proto, warnings_of
from relayout.pricing import price_dims, tensor_bytes
from relayout.reasons import explained, together
from relayout.refusal import Limit, refusal
from relayout.report import BoundaryValue, Conversion, Crossing, Explanation, Placement, Report, SolverFacts, Totals
from relayout.requirements import collect_requirements
from relayout.rewrite import rewrite
from relayout.rules import Relabel
from relayout.solve import Solution, solve
from relayout.totals import totals
from relayout.views import Tensors, collect_tensors, graphs_of

__all__ = ["Options", "Outcome", "inline_functions", "legalize", "legalize_model", "output_path"]

BackendSpec = str | os.PathLike[str] | Mapping[str, Any] | Backend | type[Backend]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may choose beside the backend.

    `dims` gives sizes to symbolic dims, for pricing only. `explain` asks what would be saved without each requirement
    that holds a conversion in place, and says how many problems may be solved for it.
    """

    objective: str = "bytes"
    input_layouts: Mapping[str, str] | None = None
    output_layouts: Mapping[str, str] | None = None
    dims: Mapping[str, int] | None = None
    time_limit: float | None = None
    engine: str = "auto"
    max_transposes: int | None = None
    explain: int | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(
                "unknown objective", where="objective", expected=" or ".join(OBJECTIVES), found=str(self.objective)
            )
        if self.time_limit is not None and not self.time_limit > 0:
            raise UsageError("the time limit must be positive", where="time_limit", found=str(self.time_limit))
        if self.explain is not None and self.explain < 0:
            raise UsageError("a limit cannot be negative", where="limit", found=str(self.explain))
        for name, size in (self.dims or {}).items():
            if size < 1:
                raise UsageError(
                    "a dim's size must be positive", where=f"dims, {name}", expected="1 or more", found=str(size)
                )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The legal model, its report, and whether it differs from the source at all."""

    model: ir.Model
    report: Report
    changed: bool


def legalize(
    model: Source,
    backend: BackendSpec = "onnx",
    *,
    objective: str = "bytes",
    input_layouts: Mapping[str, str] | None = None,
    output_layouts: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    time_limit: float | None = None,
    engine: str = "auto",
    desired_layouts: Mapping[str, Sequence[str]] | None = None,
    skip: Sequence[str] = (),
    backend_options: Mapping[str, Any] | None = None,
    check: bool = False,
    inline: bool = False,
    max_transposes: int | None = None,
    progress: Progress | None = None,
) -> tuple[Any, Report]:
    """The cheapest model that computes the same and is legal for `backend`, and the report.

    `model` is a path (.onnx or .json), ONNX bytes, an onnx.ModelProto, an onnx_ir.Model or graph JSON (a dict). The
    legal model comes back in the same kind; for a path or bytes as an onnx_ir.Model. The argument is never changed.
    `input_layouts` and `output_layouts` set how graph inputs and outputs lie ("NHWC", or "any": the solver chooses).
    `backend_options` go to the backend, as do `desired_layouts` and `skip`, which `convert-layout` has. `check` runs
    the verifier against the source; `inline` replaces the `relayout::` functions by their bodies.

    Raises InputError, UsageError, BackendError, InfeasibleError, OutOfTimeError.
    """
    options = Options(objective, input_layouts, output_layouts, dims, time_limit, engine, max_transposes)
    chosen = load_backend(backend, options=gathered(desired_layouts, skip, backend_options))
    outcome = legalize_model(read_model(model), chosen, options, progress=progress)
    legal, report = outcome.model, outcome.report
    if check:
        from relayout.verify import verify

        report = report.model_copy(update={"verification": verify(legal, chosen, against=model)})
    if inline:
        inline_functions(legal)
        report = report.model_copy(update={"after": totals(legal, dict(dims or {}))})
    if isinstance(model, onnx.ModelProto):
        return to_proto(legal), report
    if isinstance(model, dict):
        return to_json(legal), report
    return legal, report


@collector_paused()
def legalize_model(
    model: ir.Model, backend: Backend, options: Options, *, progress: Progress | None = None
) -> Outcome:
    """The stages, one after the other, on a model of our own that may be changed.

    The bodies of If, Loop and Scan are graphs of their own, with boundaries as in the source: each is legalized after
    the graph that holds it.
    """
    dims = dict(options.dims or {})
    before = totals(model, dims)
    elements = price_dims(model, dims)
    run = _Run(model, backend, options, elements, progress or (lambda stage: None))
    run.legalize(model.graph, *_boundary_layouts(model, options))
    for graph, holder in list(_inner_graphs(model.graph)):
        run.legalize(graph, {}, {}, holder)
    if run.changed:
        drop_unused(model)
        backend.finish(model)
    after = totals(model, dims) if run.changed else before
    report = run.report(before, after)
    _settle(model.graph, report.boundary)
    return Outcome(model, report, run.changed)


class _Run:
    """One model's way through the stages, graph by graph, and what is to be reported of it."""

    def __init__(
        self,
        model: ir.Model,
        backend: Backend,
        options: Options,
        elements: Callable[[ir.Shape | None], int],
        tell: Progress,
    ) -> None:
        self.model, self.backend, self.options, self.elements, self.tell = model, backend, options, elements, tell
        self.changed = False
        self.solved: list[tuple[Solution, int, int]] = []
        self.conversions: list[Conversion] = []
        self.crossings: list[Crossing] = []
        self.places: dict[str, list[str]] = {place: [] for place in backend.places()}
        self.boundary: tuple[BoundaryValue, ...] = ()
        self.explanations: list[Explanation] = []
        self.warnings: dict[str, None] = dict.fromkeys(warnings_of(model))
        self.seconds: dict[str, float] = {}
        self.deadline = None if options.time_limit is None else perf_counter() + options.time_limit

    def legalize(
        self,
        graph: ir.Graph,
        input_layouts: Mapping[str, str],
        output_layouts: Mapping[str, str],
        holder: ir.Node | None = None,
    ) -> None:
        """One graph, that of the model or one inside the node `holder`. If the best assignment spends what the source
        spends and changes no node, it stays as it is."""
        options = self.options
        clock = perf_counter()
        self.tell("requirements")
        tensors = collect_tensors(graph, self.model.opset_imports)
        requirements = collect_requirements(
            graph,
            self.backend,
            tensors,
            input_layouts=input_layouts,
            output_layouts=output_layouts,
            elements=self.elements,
        )
        host = self.backend.host() if holder is None else holder.metadata_props.get(PLACE_KEY)
        formulation = formulate(requirements, self.elements, self.backend, options.objective, host=host)
        clock = self._stage("build", clock)
        self.tell("solve")
        natural = formulation.source_assignment()
        solution = solve(
            formulation.problem,
            engine=options.engine,
            time_limit=None if self.deadline is None else max(self.deadline - perf_counter(), 0.001),
            hint=None if natural is None else formulation.completed(natural),
            max_conversions=self._conversions_left(),
        )
        for stage, seconds in solution.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        clock = perf_counter()
        self.tell("rewrite")
        assignment = _assignment(solution, formulation, self._limit())
        made = list(formulation.conversions(assignment))
        self.solved.append((solution, *_in_units(solution, formulation, assignment, options.objective)))
        conversions = conversions_of(formulation, assignment)
        if options.explain is not None:
            conversions, explanation = explained(
                formulation,
                assignment,
                conversions,
                objective=options.objective,
                proved=solution.status == "optimal",
                limit=max(options.explain - sum(each.solved for each in self.explanations), 0),
                deadline=self.deadline,
            )
            self.explanations.append(explanation)
            clock = self._stage("explain", clock)
        self.conversions += conversions
        if graph is self.model.graph:
            self.boundary = boundary_of(graph, formulation, assignment)
        self.crossings += crossings_of(formulation, assignment)
        self._note_places(formulation, assignment)
        self.warnings.update(dict.fromkeys(requirements.warnings))
        # Where there are several places, each node says its own.
        if self.places or assignment != natural or (len(made), sum(m.bytes for m in made)) != self._spent(tensors):
            rewrite(self.model, graph, self.backend, formulation, assignment)
            self.changed = True
        self._stage("rewrite", clock)

    def report(self, before: Totals, after: Totals) -> Report:
        statuses = [solution.status for solution, _, _ in self.solved]
        main = self.solved[0][0]
        return Report(
            status="optimal" if set(statuses) == {"optimal"} else "feasible",
            cost=sum(cost for _, cost, _ in self.solved),
            bound=sum(bound for _, _, bound in self.solved),
            objective=self.options.objective,
            backend=self.backend.name,
            before=before,
            after=after,
            boundary=self.boundary,
            conversions=tuple(self.conversions),
            crossings=tuple(self.crossings),
            places=tuple(
                Placement(place=place, backend=self.backend.at(place).name, nodes=tuple(nodes))
                for place, nodes in self.places.items()
            ),
            explanation=together(self.explanations),
            solver=SolverFacts(
                choices=sum(solution.choices for solution, _, _ in self.solved),
                kernel_choices=sum(solution.kernel_choices for solution, _, _ in self.solved),
                engine=main.engine,
                seconds={name: round(value, 6) for name, value in self.seconds.items()},
            ),
            warnings=tuple(self.warnings),
        )

    def _note_places(self, formulation: Formulation, assignment: Sequence[int]) -> None:
        for choice, picked in zip(formulation.requirements.choices, assignment, strict=True):
            place, node = choice.alternatives[picked].place, choice.node
            if node is not None and place in self.places:
                self.places[place].append(node.name or node.outputs[0].name or "")

    def _spent(self, tensors: Tensors) -> tuple[int, int]:
        """How many Transposes of data the graph has that a view stands for, and the bytes that they move.

        Each is priced by its root, as a conversion is: a Reshape between the two may have lost a dim's name.
        """
        roots = [
            operand.tensor.root
            for node, rule in tensors.rules.items()
            if isinstance(rule, Relabel) and node.op_type == "Transpose" and node not in tensors.constant_nodes
            if (operand := tensors.operands[node.outputs[0]]) is not None
        ]
        spent = [2 * tensor_bytes(self.elements(root.shape), root.dtype) for root in roots]
        return len(spent), sum(spent)

    def _conversions_left(self) -> int | None:
        most = self.options.max_transposes
        return None if most is None else max(most - len(self.conversions), 0)

    def _limit(self) -> Limit | None:
        most = self.options.max_transposes
        if most is None:
            return None
        others = any(True for _ in self.model.graph.subgraphs())
        return Limit(most, len(self.conversions), is_last=not others)

    def _stage(self, name: str, since: float) -> float:
        now = perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - since
        return now


def _assignment(solution: Solution, formulation: Formulation, limit: Limit | None) -> tuple[int, ...]:
    if solution.status == "infeasible":
        raise refusal(solution, formulation, limit)
    if solution.assignment is None:
        raise OutOfTimeError(
            "no solution was found in the time that was given",
            found=f"bound {solution.bound}",
            hint="give it more time with --time-limit",
        )
    return formulation.of_nodes(solution.assignment)


def _in_units(
    solution: Solution, formulation: Formulation, assignment: Sequence[int], objective: str
) -> tuple[int, int]:
    """Cost and bound in the objective's own unit: bytes, or transposes."""
    made = list(formulation.conversions(assignment))
    carried = sum(crossed.cost for crossed in formulation.crossings(assignment))
    own = sum(
        choice.alternatives[a].cost
        for choice, a in zip(formulation.requirements.choices, assignment, strict=True)
    )
    cost = sum(m.cost for m in made) + carried + own if objective == "bytes" else len(made)
    if solution.status == "optimal":
        return cost, cost
    scale = formulation.scale
    weight, unit = (scale.byte_weight, scale.unit) if objective == "bytes" else (scale.count_weight, 1)
    return cost, min(cost, (solution.bound or 0) // weight * unit)


def _inner_graphs(graph: ir.Graph) -> Iterator[tuple[ir.Graph, ir.Node]]:
    """The graphs inside a graph, each after the one around it, with the node that holds it."""
    for node in graph:
        for inner in graphs_of(node):
            yield inner, node
            yield from _inner_graphs(inner)


def _boundary_layouts(model: ir.Model, options: Options) -> tuple[dict[str, str], dict[str, str]]:
    """The layouts of the inputs and the outputs: the caller's, and of what no option names those that the model's own
    values declare (graph JSON's `layout`)."""
    asked = dict(options.input_layouts or {}), dict(options.output_layouts or {})
    known = [value.name or "" for value in (*model.graph.inputs, *model.graph.outputs)]
    named = {name for key in (*asked[0], *asked[1]) for name in tied_names(key, known)}
    found = []
    for values, layouts in zip((model.graph.inputs, model.graph.outputs), asked, strict=True):
        declared = {v.name: v.metadata_props.get(BOUNDARY_LAYOUT_KEY) for v in values if v.name and v.name not in named}
        found.append({name: layout for name, layout in declared.items() if layout} | layouts)
    return found[0], found[1]


def _settle(graph: ir.Graph, boundary: Sequence[BoundaryValue]) -> None:
    """What was left to the solver, or said by the numbers of the source's axes, is said in names, or no longer."""
    lies: dict[tuple[str, str], str | None] = {(value.side, value.name): value.layout for value in boundary}
    for side, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            told = value.metadata_props.get(BOUNDARY_LAYOUT_KEY, "")
            if not (is_wildcard(told) or told.lstrip().startswith("{")):
                continue
            chosen = lies.get((side, value.name or "")) or ""
            if chosen.isalpha() and len(chosen) == len(value.shape or ()):
                value.metadata_props[BOUNDARY_LAYOUT_KEY] = chosen
            else:
                del value.metadata_props[BOUNDARY_LAYOUT_KEY]


def inline_functions(model: ir.Model) -> None:
    """Replace every `relayout::` operator by its body, for runtimes that know no functions."""
    from onnx_ir.passes.common import InlinePass

    InlinePass()(model)


def output_path(path: str | os.PathLike[str]) -> Path:
    """Where to write: the suffix says the format."""
    target = Path(path)
    if target.suffix not in (".onnx", ".json"):
        raise UsageError(
            "the suffix says the format", where=f"-o {target}", expected=".onnx or .json", found=target.suffix or "none"
        )
    return target


