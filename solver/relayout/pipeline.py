"""A model through the stages: require, formulate, solve, rewrite, and note what is to be reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.candidates.boundary_options import coupled_names, is_wildcard
from relayout.candidates.requirements import collect_requirements
from relayout.candidates.tensors import Tensors, collect_tensors
from relayout.errors import OutOfTimeError
from relayout.formulate.build import formulate
from relayout.formulate.formulation import Formulation
from relayout.layout.layout import Layout
from relayout.model.graph_json.codec import BOUNDARY_LAYOUT_KEY
from relayout.model.io import warnings_of
from relayout.model.tensor_sizes import tensor_bytes
from relayout.ops import Relabel
from relayout.options import Options, Progress
from relayout.report.explain.conversions import boundary_of, conversions_of, transfers_of
from relayout.report.explain.infeasible import refusal
from relayout.report.explain.savings import explained
from relayout.report.schema import (
    BoundaryValue,
    Conversion,
    DevicePlacement,
    Explanation,
    Report,
    SolverFacts,
    Totals,
    Transfer,
)
from relayout.rewrite import is_placed, rewrite
from relayout.solve.solver import Solution, solve

__all__ = ["Run", "boundary_layouts", "settle"]



class Run:
    """One model's way through the stages, and what is to be reported of it."""

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
        self.spent: tuple[Solution, int, int] | None = None
        self.conversions: tuple[Conversion, ...] = ()
        self.transfers: tuple[Transfer, ...] = ()
        self.devices: dict[str, list[str]] = {device: [] for device in backend.devices()}
        self.boundary: tuple[BoundaryValue, ...] = ()
        self.explanation: Explanation | None = None
        self.warnings: dict[str, None] = dict.fromkeys(warnings_of(model))
        self.seconds: dict[str, float] = {}
        self.deadline = None if options.time_limit is None else perf_counter() + options.time_limit

    def legalize(self, input_layouts: Mapping[str, str], output_layouts: Mapping[str, str]) -> None:
        """The model's graph with those inside it. If the best assignment spends what the source spends and changes no
        node, it stays as it is."""
        clock, graph = perf_counter(), self.model.graph
        self.tell("requirements")
        requirements = collect_requirements(
            graph,
            self.backend,
            collect_tensors(graph, self.model.opset_imports),
            input_layouts=input_layouts,
            output_layouts=output_layouts,
            elements=self.elements,
        )
        host = self.backend.host()
        formulation = formulate(requirements, self.elements, self.backend, self.options.objective, host=host)
        requirements = formulation.requirements
        clock = self._stage("build", clock)
        self.tell("solve")
        natural = formulation.source_assignment()
        solution = self._solution(formulation, natural)
        clock = perf_counter()
        self.tell("rewrite")
        assignment = _assignment(solution, formulation, self.options.max_transposes)
        made = list(formulation.conversions(assignment))
        self.spent = solution, *_in_units(solution, formulation, assignment, self.options.objective)
        self.conversions = tuple(conversions_of(formulation, assignment))
        if self.options.explain is not None:
            self._explain(formulation, assignment, self.options.explain, proved=solution.status == "optimal")
            clock = self._stage("explain", clock)
        self.boundary = boundary_of(graph, formulation, assignment)
        self.transfers = transfers_of(formulation, assignment)
        self._note_devices(formulation, assignment)
        self.warnings.update(dict.fromkeys(requirements.warnings))
        # Where there are several devices, each node says its own.
        tensors = requirements.tensors
        saves = tensors.undone or tensors.dead or (len(made), sum(m.bytes for m in made)) != self._moved(tensors)
        unplaced = self.devices and not is_placed(requirements, assignment, made)
        if unplaced or assignment != natural or saves:
            rewrite(self.model, self.backend, formulation, assignment)
            self.changed = True
        self._stage("rewrite", clock)

    def _solution(self, formulation: Formulation, natural: tuple[int, ...] | None) -> Solution:
        solution = solve(
            formulation.problem,
            engine=self.options.engine,
            time_limit=None if self.deadline is None else max(self.deadline - perf_counter(), 0.001),
            hint=None if natural is None else formulation.completed(natural),
            max_conversions=self.options.max_transposes,
        )
        # A stage of the solution may have the name of one of ours: both build.
        for stage, seconds in solution.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        return solution

    def _explain(
        self, formulation: Formulation, assignment: Sequence[int], limit: int, *, proved: bool
    ) -> None:
        """The conversions with what holds each in place."""
        self.conversions, self.explanation = explained(
            formulation,
            assignment,
            self.conversions,
            objective=self.options.objective,
            proved=proved,
            limit=limit,
            deadline=self.deadline,
        )

    def report(self, before: Totals, after: Totals) -> Report:
        assert self.spent is not None  # there is nothing to tell before the model is solved
        solution, cost, bound = self.spent
        return Report(
            status="optimal" if solution.status == "optimal" else "feasible",
            cost=cost,
            bound=bound,
            objective=self.options.objective,
            backend=self.backend.name,
            before=before,
            after=after,
            boundary=self.boundary,
            conversions=self.conversions,
            transfers=self.transfers,
            devices=tuple(
                DevicePlacement(device=device, backend=self.backend.at(device).name, nodes=tuple(nodes))
                for device, nodes in self.devices.items()
            ),
            explanation=self.explanation,
            solver=SolverFacts(
                choices=solution.choices,
                kernel_choices=solution.kernel_choices,
                engine=solution.engine,
                seconds={name: round(value, 6) for name, value in self.seconds.items()},
            ),
            warnings=tuple(self.warnings),
        )

    def _note_devices(self, formulation: Formulation, assignment: Sequence[int]) -> None:
        for choice, picked in zip(formulation.requirements.choices, assignment, strict=True):
            chosen, node = choice.alternatives[picked], choice.node
            if node is not None and choice.region_edge is None and chosen.device in self.devices and not chosen.is_left_out:
                self.devices[chosen.device].append(node.name or node.outputs[0].name or "")

    def _moved(self, tensors: Tensors) -> tuple[int, int]:
        """How many Transposes of data the graph has that a view stands for, and the bytes that they move.

        Each is priced by its root, as a conversion is: a Reshape between the two may have lost a dim's name.
        """
        roots = [
            operand.tensor.base
            for node, rule in tensors.rules.items()
            if isinstance(rule, Relabel) and node.op_type == "Transpose" and node not in tensors.constant_nodes
            if (operand := tensors.operands[node.outputs[0]]) is not None
        ]
        spent = [2 * tensor_bytes(self.elements(base.shape), base.dtype) for base in roots]
        return len(spent), sum(spent)

    def _stage(self, name: str, since: float) -> float:
        now = perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - since
        return now


def _assignment(solution: Solution, formulation: Formulation, most: int | None) -> tuple[int, ...]:
    if solution.status == "infeasible":
        raise refusal(solution, formulation, most)
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
    carried = sum(crossed.cost for crossed in formulation.transfers(assignment))
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



def boundary_layouts(
    model: ir.Model, input_layouts: Mapping[str, str] | None, output_layouts: Mapping[str, str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The layouts of the inputs and the outputs: the caller's, and of what no option names those that the model's own
    values declare (graph JSON's `layout`)."""
    asked = dict(input_layouts or {}), dict(output_layouts or {})
    known = [value.name or "" for value in (*model.graph.inputs, *model.graph.outputs)]
    named = {name for key in (*asked[0], *asked[1]) for name in coupled_names(key, known)}
    found = []
    for values, layouts in zip((model.graph.inputs, model.graph.outputs), asked, strict=True):
        declared = {v.name: v.metadata_props.get(BOUNDARY_LAYOUT_KEY) for v in values if v.name and v.name not in named}
        found.append({name: layout for name, layout in declared.items() if layout} | layouts)
    return found[0], found[1]


def settle(graph: ir.Graph, boundary: Sequence[BoundaryValue]) -> None:
    """What was left to the solver, or said by the numbers of the source's axes, is said in names, or no longer. What
    was set to a layout with black boxes is said: nothing else of the model tells."""
    lies: dict[tuple[str, str], str | None] = {(value.side, value.name): value.layout for value in boundary}
    boxed: dict[tuple[str, str], str]
    boxed = {(value.side, value.name): value.wanted for value in boundary if value.wanted and _has_boxes(value.wanted)}
    for side, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if (side, value.name or "") in boxed:
                value.metadata_props[BOUNDARY_LAYOUT_KEY] = boxed[side, value.name or ""]
                continue
            told = value.metadata_props.get(BOUNDARY_LAYOUT_KEY, "")
            if not (is_wildcard(told) or told.lstrip().startswith("{")):
                continue
            chosen = lies.get((side, value.name or "")) or ""
            if chosen.isalpha() and len(chosen) == len(value.shape or ()):
                value.metadata_props[BOUNDARY_LAYOUT_KEY] = chosen
            else:
                del value.metadata_props[BOUNDARY_LAYOUT_KEY]


def _has_boxes(wanted: str) -> bool:
    if is_wildcard(wanted):
        return False
    layout = Layout.parse(wanted)
    return any(layout.boxes(i) for i in range(layout.rank))
