"""The work of a worker process: a request's bytes in, the answer's bytes out. No HTTP.

The bytes are parsed here and not in the server, so that a parser that takes too much time or memory can be killed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from io import BytesIO
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from relayout.backend import Backend, load_backend
from relayout.backend.calls import conversion_operators_of
from relayout.backend.members import is_pure
from relayout.errors import InputError, UsageError
from relayout.legalization import Outcome, finish, legalize_model
from relayout.model.collector import collector_paused
from relayout.model.dims.given_sizes import check_dims
from relayout.model.graph_json.faults import json_kind
from relayout.model.io import Source, read_model, to_json, write_whole
from relayout.model.metadata import recorded_backend
from relayout.options import Options
from relayout.report.budget import within_budget
from relayout.report.drawing import compared, draw, with_choices
from relayout.report.drawing_schema import Drawing, DrawnChoice
from relayout.report.schema import Report
from relayout.report.totals import totals
from relayout.verification.counterparts import Original
from relayout.verification.numeric.given_inputs import read_arrays
from relayout.verification.verifier import verify
from relayout_api.schemas import (
    FILES,
    ExplainParameters,
    GraphParameters,
    GraphResponse,
    LegalizeParameters,
    Parameters,
    VerifyParameters,
)
from relayout_api.uploads import parse_model
from relayout_api.validation import load_body, validated
from relayout_api.workers.installed import installed_backends
from relayout_api.workers.messages import Answer, Content, Events, Parts, Task

if TYPE_CHECKING:
    import onnx_ir as ir

# The solver's share of the server's time limit.
_SEARCH_SHARE = 0.6
_LEGALIZE_STAGES = ("read", "requirements", "solve", "rewrite", "check", "write")
_EXPLAIN_STAGES = ("read", "requirements", "solve", "rewrite")
_VERIFY_STAGES = ("read", "check")
_SUMMARY: dict[str, Any] = {
    **dict.fromkeys(("status", "cost", "bound", "gap", "objective", "backend", "before", "after"), True),
    "verification": {"passed": True},
}

_FILES: dict[type[Parameters], tuple[str, ...]] = {LegalizeParameters: ("model", "inputs"), VerifyParameters: FILES}
"""The files of a form by what they are for; of others `model` alone."""

_MOST_BACKENDS = 64
_pure: dict[str, Backend] = {}

_Parameters = TypeVar("_Parameters", LegalizeParameters, ExplainParameters, VerifyParameters, GraphParameters)


@collector_paused()
def _legalize(task: Task, parts: Parts, events: Events) -> Answer:
    """The legal model and the report, in the task's form."""
    started = perf_counter()
    progress = _progress(events, _LEGALIZE_STAGES)
    progress("read")
    source, _, parameters = _read(task, parts[0], LegalizeParameters)
    options = _options(parameters)
    if parameters.inputs:
        options = replace(options, check=True)
    backend = _backend(parameters.backend, options.backend_options)
    model = _model(task, source)
    options, warnings = _within(task, started, options)
    outcome = legalize_model(
        model, backend, options, progress=progress, improved=_improved(events), draws_choices=task.of_job
    )
    choices = _json({label: each.model_dump() for label, each in outcome.choices.items()})
    outcome = finish(outcome, backend, options, source, inputs=parameters.inputs, progress=progress)
    progress("write")
    report, repeats = _warned(outcome.report, warnings), _repeats(backend, outcome.report)
    if isinstance(source, dict):
        graph = to_json(outcome.model, weights=parameters.weights, shares=True)
        if task.form == "parts":
            return _parts(report, repeats, _json(graph), choices)
        return _whole(report, repeats, graph=graph)
    content = _written(outcome, task.memory_bytes)
    if task.form == "json":
        return _whole(report, repeats, model=b64encode(content.view()).decode())
    if task.form == "parts":
        return _parts(report, repeats, content, choices)
    # It becomes a header, which is ASCII.
    summary = json.dumps(report.model_dump(mode="json", include=_SUMMARY), separators=(",", ":"))
    return Answer(content, summary.encode(), repeats=repeats, **_facts(report))


def _written(outcome: Outcome, most: int) -> Content:
    """The legal model in a file, whose memory is not this process's. Raises MemoryError for more than `most` bytes."""
    constants = (value.const_value for value in outcome.model.graph.initializers.values())
    if sum(constant.nbytes for constant in constants if constant is not None) > most:
        raise MemoryError
    content = Content()
    with content.opened() as file:
        write_whole(outcome.model, file, outcome.written)
    return content


@collector_paused()
def _explain(task: Task, parts: Parts, events: Events) -> Answer:
    """The report, whose `conversions` have their reasons."""
    started = perf_counter()
    progress = _progress(events, _EXPLAIN_STAGES)
    progress("read")
    source, _, parameters = _read(task, parts[0], ExplainParameters)
    options = _options(parameters)
    backend = _backend(parameters.backend, options.backend_options)
    model = _model(task, source)
    options, warnings = _within(task, started, options)
    report = legalize_model(model, backend, options, progress=progress, improved=_improved(events)).report
    report = _warned(report, warnings)
    return _of_report(task, report, _repeats(backend, report))


@collector_paused()
def _graph(task: Task, parts: Parts, events: Events) -> Answer:
    """The model to draw and, with a backend, the legal model and the report."""
    started = perf_counter()
    source, _, parameters = _read(task, parts[0], GraphParameters)
    options, warnings = _within(task, started, _options(parameters))
    model = _model(task, source)
    check_dims(options.dims, model)
    drawn = draw(model, options.dims or {})
    if parameters.backend is None:
        return _drawn(GraphResponse(source=drawn))
    backend = _backend(parameters.backend, options.backend_options)
    outcome = legalize_model(_model(task, source), backend, options, draws_choices=True)
    outcome = finish(outcome, backend, options, source)
    report = _warned(outcome.report, warnings)
    whole = _both(drawn, outcome.model, report, outcome.choices, options)
    return _drawn(whole, _repeats(backend, report))


@collector_paused()
def _draw(task: Task, parts: Parts, events: Events) -> Answer:
    """The source and the legal model of a job to draw, from its request, its model, its report and its choices."""
    body, legal, report, choices = parts
    source, _, parameters = _read(task, body, LegalizeParameters)
    options = _options(parameters)
    drawn = draw(_model(task, source), options.dims or {})
    model = read_model(load_body(legal) if isinstance(source, dict) else parse_model(legal), external_data=False)
    return _drawn(
        _both(
            drawn,
            model,
            Report.model_validate_json(bytes(report)),
            {label: DrawnChoice(**each) for label, each in load_body(choices).items()},
            options,
        )
    )


def _both(
    drawn: Drawing,
    legal: ir.Model,
    report: Report,
    choices: Mapping[str, DrawnChoice],
    options: Options,
) -> GraphResponse:
    drawn = with_choices(drawn, choices)
    compared_ = compared(draw(legal, options.dims or {}), drawn, report.conversions)
    return GraphResponse(source=drawn, legal=compared_, report=report)


def _drawn(whole: GraphResponse, repeats: bool = True) -> Answer:
    return Answer(whole.model_dump_json().encode(), repeats=repeats)


def _verify(task: Task, parts: Parts, events: Events) -> Answer:
    """The report, whose `verification` has the findings."""
    progress = _progress(events, _VERIFY_STAGES)
    progress("read")
    source, against, parameters = _read(task, parts[0], VerifyParameters)
    options = _options(parameters)
    model = _model(task, source)
    with _of_the_original():
        original = None if against is None else read_model(against, external_data=False)
    backend = _verified_for(parameters.backend, options, model)
    dims, operators = options.dims or {}, conversion_operators_of(backend)
    after = totals(model, dims, operators)
    before = after if original is None else totals(original, dims, operators)
    progress("check")
    # Two models are compared as they were given too; neither refers to a file, or reading it would have failed.
    subject = model if against is None else source
    verification = verify(
        subject,
        backend,
        against=None if against is None else Original(against, original),
        samples=options.samples,
        dims=dims,
        inputs=parameters.inputs,
        static=options.static,
    )
    report = Report(status="failed", backend=backend.name, before=before, after=after, verification=verification)
    report = within_budget(report, asdict(options))
    passed = report.verification is not None and report.verification.passed
    report = report.model_copy(update={"status": "verified" if passed else "failed"})
    return _of_report(task, report, is_pure(backend))


def _backends(task: Task, parts: Parts, events: Events) -> Answer:
    """The list of the installed backends."""
    return Answer(installed_backends())


def _model(task: Task, source: Source) -> ir.Model:
    """The model in a source, with the digest of the body where that is an ONNX file."""
    is_file = task.parameters is not None and not task.files
    return read_model(source, external_data=False, digest=task.digest if is_file else None)


def _progress(events: Events, stages: Sequence[str]) -> Callable[[str], None]:
    """Report each stage, with the share of the stages before it."""
    return lambda stage: events({"stage": stage, "progress": round(stages.index(stage) / len(stages), 3)})


def _improved(events: Events) -> Callable[[int, int], None]:
    return lambda cost, bound: events({"cost": cost, "bound": bound})


def _repeats(backend: Backend, report: Report) -> bool:
    """Whether the same request always gets this answer: a solution that only the time limit ended may differ."""
    return is_pure(backend) and report.status == "optimal"


def _read(
    task: Task, content: bytes | memoryview, schema: type[_Parameters]
) -> tuple[Source, Source | None, _Parameters]:
    """The source, the original to compare it with, and the parameters with the inputs of the comparison."""
    if task.parameters is not None:
        return _read_files(task, memoryview(content), schema.model_validate(task.parameters))
    body = load_body(content)
    graph = _graph_of(body, "graph")
    if graph is None:
        raise InputError("there is no graph", where="body.graph", expected="graph JSON, version 1", found="nothing")
    against = _graph_of(body, "against") if schema is VerifyParameters else None
    return graph, against, validated(schema, body)


def _read_files(task: Task, content: memoryview, parameters: _Parameters) -> tuple[Source, Source | None, _Parameters]:
    """The source, the original, and the parameters with the inputs, of a body of files."""
    files: dict[str, list[memoryview]] = {}
    for name, size in task.files or [("model", len(content))]:
        files.setdefault(name, []).append(content[:size])
        content = content[size:]
    taken = _FILES.get(type(parameters), ("model",))
    if others := files.keys() - taken:
        expected, found = (" and ".join(f"`{name}`" for name in names) for names in (taken, sorted(others)))
        raise UsageError("the form has other files", where="body", expected=expected, found=found)
    source = parse_model(files["model"][0])
    with _of_the_original():
        original = parse_model(files["against"][0]) if "against" in files else None
    if "inputs" in files:
        given = [read_arrays(BytesIO(file), f"body, inputs {n}") for n, file in enumerate(files["inputs"], 1)]
        parameters = parameters.model_copy(update={"inputs": given})
    return source, original, parameters


@contextmanager
def _of_the_original() -> Iterator[None]:
    """Within it, errors about a model say that it is the one that another is compared with."""
    try:
        yield
    except InputError as error:
        error.where = f"against, {error.where}" if error.where else "against"
        raise


def _graph_of(body: dict[str, Any], field: str) -> dict[str, Any] | None:
    graph = body.pop(field, None)
    if graph is None or isinstance(graph, dict):
        return graph
    raise InputError("not graph JSON", where=f"body.{field}", expected="graph JSON, version 1", found=json_kind(graph))


def _verified_for(spec: str | Mapping[str, Any] | None, options: Options, model: ir.Model) -> Backend:
    """The backend of the request; without one, that which the model records. Raises UsageError."""
    if spec is None:
        return _backend(*recorded_backend(model, options.backend_options))
    return _backend(spec, options.backend_options)


def _backend(spec: str | Mapping[str, Any], options: Mapping[str, Any] | None) -> Backend:
    """The backend of a request. A pure one serves all requests of this process, for which the library keeps its answers
    about operator classes."""
    # A string is the name of an installed backend, never a file. In Python's JSON, which has NaN, unlike msgspec's.
    key = json.dumps([spec, options])
    backend = _pure.pop(key, None) or load_backend(spec, options=options, allow_files=False)
    if is_pure(backend):
        if len(_pure) >= _MOST_BACKENDS:
            del _pure[next(iter(_pure))]
        _pure[key] = backend
    return backend


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


def _parts(report: Report, repeats: bool, model: bytes | Content, choices: bytes = b"") -> Answer:
    return Answer(model, report.model_dump_json().encode(), choices, repeats, **_facts(report))


def _whole(report: Report, repeats: bool, **members: Any) -> Answer:
    # The encoder writes null for infinity.
    whole = _json({**members, "report": msgspec.Raw(report.model_dump_json().encode())})
    return Answer(whole, repeats=repeats, **_facts(report))


def _facts(report: Report) -> dict[str, Any]:
    """The facts of a report that the server needs without reading it."""
    seconds = report.solver.seconds if report.solver is not None else None
    return {"cost": report.cost, "bound": report.bound, "status": report.status, "seconds": seconds}


def _json(value: object) -> bytes:
    # In a tenth of the time that Python's own encoder takes.
    return msgspec.json.encode(value)


WORK: dict[str, Callable[[Task, Parts, Events], Answer]] = {
    "legalize": _legalize,
    "explain": _explain,
    "graph": _graph,
    "draw": _draw,
    "verify": _verify,
    "backends": _backends,
}
"""The function of each verb from a request to its answer. Each raises RelayoutErrors."""
