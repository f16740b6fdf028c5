"""The work of a worker process: a request's bytes in, the answer's bytes out. No HTTP.

The bytes are parsed here and not in the server, so that a parser that takes too much time or memory can be killed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

from relayout.backend import Backend, load_backend
from relayout.backend.calls import conversion_operators_of
from relayout.errors import InputError
from relayout.legalization import finish, legalize_model
from relayout.model.collector import collector_paused
from relayout.model.io import Source, read_model, to_json, to_proto
from relayout.options import Options
from relayout.report.drawing import draw, with_choices, with_conversions
from relayout.report.schema import Report, Status
from relayout.report.totals import totals
from relayout.verification.verifier import verify
from relayout_api.messages import Answer, Task
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

__all__ = ["WORK"]

# The solver's share of the server's time limit.
_SEARCH_SHARE = 0.6
_SUMMARY = {"status", "cost", "bound", "gap", "objective", "backend", "before", "after"}

_Parameters = TypeVar("_Parameters", LegalizeParameters, ExplainParameters, VerifyParameters, GraphParameters)


@collector_paused()
def _legalize(task: Task) -> Answer:
    """The legal model and the report, as the answer's JSON or as ONNX bytes with a summary."""
    started = perf_counter()
    source, _, parameters = _read(task, LegalizeParameters)
    backend = _backend(parameters)
    model = read_model(source, external_data=False)
    options = _within(task, started, _options(parameters))
    outcome = legalize_model(model, backend, options)
    original = read_model(source, external_data=False) if options.check else model
    outcome = finish(outcome, backend, options, original)
    if isinstance(source, dict):
        return _answer(outcome.report, graph=to_json(outcome.model, weights=parameters.weights))
    content = to_proto(outcome.model).SerializeToString()
    if task.as_bytes:
        return Answer(content, json.dumps(outcome.report.model_dump(mode="json", include=_SUMMARY)))
    return _answer(outcome.report, model=b64encode(content).decode())


@collector_paused()
def _explain(task: Task) -> Answer:
    """The report, whose `conversions` have their reasons."""
    started = perf_counter()
    source, _, parameters = _read(task, ExplainParameters)
    backend = _backend(parameters)
    model = read_model(source, external_data=False)
    return _answer(legalize_model(model, backend, _within(task, started, _options(parameters))).report)


@collector_paused()
def _graph(task: Task) -> Answer:
    """The model to draw and, with a backend, the legal model and the report."""
    started = perf_counter()
    source, _, parameters = _read(task, GraphParameters)
    dims = _options(parameters).dims or {}
    drawn = draw(read_model(source, external_data=False), dims)
    if parameters.backend is None:
        return _drawn(GraphResponse(source=drawn))
    backend = _backend(parameters)
    model = read_model(source, external_data=False)
    options = _within(task, started, _options(parameters))
    outcome = legalize_model(model, backend, options, draws_choices=True)
    outcome = finish(outcome, backend, options, source)
    operators = conversion_operators_of(backend)
    drawn = with_choices(drawn, outcome.choices)
    legal = with_conversions(draw(outcome.model, dims), drawn, outcome.report.conversions, operators)
    return _drawn(GraphResponse(source=drawn, legal=legal, report=outcome.report))


def _drawn(response: GraphResponse) -> Answer:
    return Answer(response.model_dump_json().encode())


def _verify(task: Task) -> Answer:
    """The report, whose `verification` has the findings."""
    source, against, parameters = _read(task, VerifyParameters)
    backend, options = _backend(parameters), _options(parameters)
    model = read_model(source, external_data=False)
    original = None if against is None else read_model(against, external_data=False)
    dims, operators = options.dims or {}, conversion_operators_of(backend)
    after = totals(model, dims, operators)
    before = after if original is None else totals(original, dims, operators)
    verification = verify(model, backend, against=original, samples=options.samples, dims=dims)
    status: Status = "verified" if verification.passed else "failed"
    report = Report(status=status, backend=backend.name, before=before, after=after, verification=verification)
    return _answer(report)


def _read(task: Task, schema: type[_Parameters]) -> tuple[Source, dict[str, Any] | None, _Parameters]:
    """The source, the original to compare it with, and the parameters."""
    if task.parameters is not None:
        return parse_model(task.body), None, schema.model_validate(task.parameters)
    body = load_body(task.body)
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


def _backend(parameters: Parameters) -> Backend:
    # A string is the name of an installed backend, never a file.
    assert parameters.backend is not None
    return load_backend(parameters.backend, options=_options(parameters).backend_options, allow_files=False)


def _options(parameters: Parameters) -> Options:
    return Options(**parameters.options.model_dump())


def _within(task: Task, started: float, options: Options) -> Options:
    """The options, with a time limit for the solver that leaves enough of the server's to read, rewrite and answer."""
    left = max(task.seconds * _SEARCH_SHARE - (perf_counter() - started), 0.01)
    return replace(options, time_limit=min(options.time_limit or left, left))


def _answer(report: Report, **members: Any) -> Answer:
    whole = {**members, "report": report.model_dump(mode="json", by_alias=True)}
    return Answer(json.dumps(whole, separators=(",", ":")).encode())


WORK: dict[str, Callable[[Task], Answer]] = {
    "legalize": _legalize,
    "explain": _explain,
    "graph": _graph,
    "verify": _verify,
}
"""The function of each verb from a request to its answer. Each raises RelayoutErrors."""
