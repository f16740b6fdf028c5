"""The work of a worker process: a request's bytes in, the answer's bytes out. No HTTP.

The bytes are parsed here and not in the server, so that a parser that takes too much time or memory can be killed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from relayout.backend import Backend, load_backend
from relayout.backend.calls import conversion_operators_of, is_pure
from relayout.errors import InputError, UsageError
from relayout.legalization import finish, legalize_model
from relayout.model.collector import collector_paused
from relayout.model.io import Source, read_model, to_json, to_proto
from relayout.model.metadata import recorded_backend
from relayout.options import Options
from relayout.report.budget import within_budget
from relayout.report.drawing import compared, draw, with_choices
from relayout.report.schema import Report
from relayout.report.totals import totals
from relayout.verification.verifier import verify
from relayout_api.schemas import (
    ExplainParameters,
    GraphParameters,
    GraphResponse,
    LegalizeParameters,
    Parameters,
    VerifyParameters,
)
from relayout_api.uploads import parse_model
from relayout_api.validation import load_body, validated
from relayout_api.workers.messages import Answer, Events, Task

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["WORK"]

# The solver's share of the server's time limit.
_SEARCH_SHARE = 0.6
_LEGALIZE_STAGES = ("read", "requirements", "solve", "rewrite", "check", "write")
_EXPLAIN_STAGES = ("read", "requirements", "solve", "rewrite")
_VERIFY_STAGES = ("read", "check")
_SUMMARY: dict[str, Any] = {
    **dict.fromkeys(("status", "cost", "bound", "gap", "objective", "backend", "before", "after"), True),
    "verification": {"passed": True},
}

Body = bytes | memoryview
_Parameters = TypeVar("_Parameters", LegalizeParameters, ExplainParameters, VerifyParameters, GraphParameters)


@collector_paused()
def _legalize(task: Task, body: Body, events: Events) -> Answer:
    """The legal model and the report, in the task's form."""
    started = perf_counter()
    progress = _progress(events, _LEGALIZE_STAGES)
    progress("read")
    source, _, parameters = _read(task, body, LegalizeParameters)
    backend = _backend(parameters)
    model = read_model(source, external_data=False)
    options, warnings = _within(task, started, _options(parameters))
    outcome = legalize_model(model, backend, options, progress=progress, improved=_improved(events))
    original = read_model(source, external_data=False) if options.check else model
    outcome = finish(outcome, backend, options, original, progress=progress)
    progress("write")
    report, repeats = _warned(outcome.report, warnings), _repeats(backend, outcome.report)
    if isinstance(source, dict):
        graph = to_json(outcome.model, weights=parameters.weights)
        if task.form == "parts":
            return _parts(report, repeats, _json(graph))
        return _whole(report, repeats, graph=graph)
    content = to_proto(outcome.model).SerializeToString()
    if task.form == "parts":
        return _parts(report, repeats, content)
    if task.form == "bytes":
        return Answer(content, _json(report.model_dump(mode="json", include=_SUMMARY)), repeats, **_facts(report))
    return _whole(report, repeats, model=b64encode(content).decode())


@collector_paused()
def _explain(task: Task, body: Body, events: Events) -> Answer:
    """The report, whose `conversions` have their reasons."""
    started = perf_counter()
    progress = _progress(events, _EXPLAIN_STAGES)
    progress("read")
    source, _, parameters = _read(task, body, ExplainParameters)
    backend = _backend(parameters)
    model = read_model(source, external_data=False)
    options, warnings = _within(task, started, _options(parameters))
    report = legalize_model(model, backend, options, progress=progress, improved=_improved(events)).report
    report = _warned(report, warnings)
    return _of_report(task, report, _repeats(backend, report))


@collector_paused()
def _graph(task: Task, body: Body, events: Events) -> Answer:
    """The model to draw and, with a backend, the legal model and the report."""
    started = perf_counter()
    return _drawn(task, started, *_read(task, body, GraphParameters)[::2])


@collector_paused()
def _draw(task: Task, body: Body, events: Events) -> Answer:
    """The same for the request of a job that legalizes."""
    started = perf_counter()
    return _drawn(task, started, *_read(task, body, LegalizeParameters)[::2])


def _drawn(task: Task, started: float, source: Source, parameters: GraphParameters | LegalizeParameters) -> Answer:
    options, warnings = _within(task, started, _options(parameters))
    dims = options.dims or {}
    drawn = draw(read_model(source, external_data=False), dims)
    if parameters.backend is None:
        return Answer(GraphResponse(source=drawn).model_dump_json().encode(), repeats=True)
    backend = _backend(parameters)
    model = read_model(source, external_data=False)
    # The report of the job has the verification and the certificate.
    options = replace(options, verify=False, check=False, certify=False)
    outcome = legalize_model(model, backend, options, draws_choices=True)
    outcome = finish(outcome, backend, options, source)
    operators = conversion_operators_of(backend)
    drawn = with_choices(drawn, outcome.choices)
    legal = compared(draw(outcome.model, dims), drawn, outcome.report.conversions, operators)
    whole = GraphResponse(source=drawn, legal=legal, report=_warned(outcome.report, warnings))
    return Answer(whole.model_dump_json().encode(), repeats=_repeats(backend, outcome.report))


def _verify(task: Task, body: Body, events: Events) -> Answer:
    """The report, whose `verification` has the findings."""
    progress = _progress(events, _VERIFY_STAGES)
    progress("read")
    source, against, parameters = _read(task, body, VerifyParameters)
    options = _options(parameters)
    model = read_model(source, external_data=False)
    original = None if against is None else read_model(against, external_data=False)
    backend = _verified_for(parameters, model)
    dims, operators = options.dims or {}, conversion_operators_of(backend)
    after = totals(model, dims, operators)
    before = after if original is None else totals(original, dims, operators)
    progress("check")
    verification = verify(model, backend, against=original, samples=options.samples, dims=dims, static=options.static)
    report = Report(status="failed", backend=backend.name, before=before, after=after, verification=verification)
    report = within_budget(report, asdict(options))
    passed = report.verification is not None and report.verification.passed
    report = report.model_copy(update={"status": "verified" if passed else "failed"})
    return _of_report(task, report, is_pure(backend))


def _progress(events: Events, stages: Sequence[str]) -> Callable[[str], None]:
    """Report each stage, with the share of the stages before it."""
    return lambda stage: events({"stage": stage, "progress": round(stages.index(stage) / len(stages), 3)})


def _improved(events: Events) -> Callable[[int, int], None]:
    return lambda cost, bound: events({"cost": cost, "bound": bound})


def _repeats(backend: Backend, report: Report) -> bool:
    """Whether the same request always gets this answer: a solution that only the time limit ended may differ."""
    return is_pure(backend) and report.status == "optimal"


def _read(task: Task, content: Body, schema: type[_Parameters]) -> tuple[Source, Source | None, _Parameters]:
    """The source, the original to compare it with, and the parameters."""
    if task.parameters is not None:
        parameters = schema.model_validate(task.parameters)
        if task.split is None:
            return parse_model(content), None, parameters
        if schema is not VerifyParameters:
            expected = "the file `model` alone"
            raise UsageError("there is nothing to compare with", where="body", expected=expected, found="`against` too")
        return parse_model(content[: task.split]), parse_model(content[task.split :]), parameters
    body = load_body(content)
    graph = _graph_of(body, "graph")
    if graph is None:
        raise InputError("there is no graph", where="body.graph", expected="graph JSON, version 1", found="nothing")
    against = _graph_of(body, "against") if schema is VerifyParameters else None
    return graph, against, validated(schema, body)


def _graph_of(body: dict[str, Any], field: str) -> dict[str, Any] | None:
    graph = body.pop(field, None)
    if graph is None or isinstance(graph, dict):
        return graph
    raise InputError(
        "not graph JSON", where=f"body.{field}", expected="graph JSON, version 1", found=type(graph).__name__
    )


def _backend(parameters: LegalizeParameters | ExplainParameters | GraphParameters) -> Backend:
    # A string is the name of an installed backend, never a file.
    assert parameters.backend is not None
    return load_backend(parameters.backend, options=_options(parameters).backend_options, allow_files=False)


def _verified_for(parameters: VerifyParameters, model: ir.Model) -> Backend:
    """The backend of the request; without one, that which the model records. Raises UsageError."""
    name, options = parameters.backend, _options(parameters).backend_options
    if name is None:
        name, options = recorded_backend(model, options)
    return load_backend(name, options=options, allow_files=False)


def _options(parameters: Parameters) -> Options:
    return Options(**parameters.options.model_dump())


def _within(task: Task, started: float, options: Options) -> tuple[Options, tuple[str, ...]]:
    """The options, with a time limit for the solver that leaves enough of the server's to read, rewrite and answer.

    A warning says so where the caller asked for more.
    """
    left = max(task.seconds * _SEARCH_SHARE - (perf_counter() - started), 0.01)
    asked = options.time_limit
    if asked is None or asked <= left:
        return replace(options, time_limit=asked or left), ()
    warning = (
        f"the solver had {left:.1f} s in place of {asked:g} s: the server's limit is {task.seconds:g} s for all work"
    )
    return replace(options, time_limit=left), (warning,)


def _warned(report: Report, warnings: tuple[str, ...]) -> Report:
    """The report with warnings; an optimal solution needs none of the time."""
    if report.status == "optimal" or not warnings:
        return report
    return report.model_copy(update={"warnings": (*report.warnings, *warnings)})


def _of_report(task: Task, report: Report, repeats: bool) -> Answer:
    return _parts(report, repeats, b"") if task.form == "parts" else _whole(report, repeats)


def _parts(report: Report, repeats: bool, model: bytes) -> Answer:
    return Answer(model, _json(report.model_dump(mode="json")), repeats, **_facts(report))


def _whole(report: Report, repeats: bool, **members: Any) -> Answer:
    whole = _json({**members, "report": report.model_dump(mode="json")})
    return Answer(whole, b"", repeats, **_facts(report))


def _facts(report: Report) -> dict[str, Any]:
    """The facts of a report that the server needs without reading it."""
    seconds = report.solver.seconds if report.solver is not None else None
    return {"cost": report.cost, "bound": report.bound, "status": report.status, "seconds": seconds}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


WORK: dict[str, Callable[[Task, Body, Events], Answer]] = {
    "legalize": _legalize,
    "explain": _explain,
    "graph": _graph,
    "draw": _draw,
    "verify": _verify,
}
"""The function of each verb from a request to its answer. Each raises RelayoutErrors."""
