"""What a worker process does: a request's bytes in, the answer's bytes out. Nothing here knows of HTTP.

The bytes are parsed here and not in the server, so that whatever they do, to time or memory, can be killed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from time import perf_counter
from typing import Any, TypeVar

from relayout.backend import Backend, load_backend
from relayout.backend.calls import conversion_operators_of
from relayout.backend.options import gathered
from relayout.errors import InputError
from relayout.legalization import Options, inline_functions, legalize_model
from relayout.model.io import Source, read_model, to_json, to_proto
from relayout.report.schema import Report, Status
from relayout.report.totals import totals
from relayout.verification.verifier import verify as run_verifier
from relayout_api.schemas import ExplainOptions, ExplainWish, LegalizeOptions, LegalizeWish, VerifyWish
from relayout_api.tasks import Answer, Task
from relayout_api.uploads import parse_model
from relayout_api.validation import load_body, validated

__all__ = ["explain", "legalize", "verify"]

# Of the time that the server gives, what the search may take; the rest is for reading, rewriting and answering.
_SEARCH_SHARE = 0.6
_SUMMARY = {"status", "cost", "bound", "gap", "objective", "backend", "before", "after"}

_Wish = TypeVar("_Wish", LegalizeWish, ExplainWish, VerifyWish)


def legalize(task: Task) -> Answer:
    """The legal model and the report, as the answer's JSON or as ONNX bytes with a summary. Raises RelayoutErrors."""
    started = perf_counter()
    source, _, wish = _read(task, LegalizeWish)
    options = wish.options
    backend = _backend(wish)
    model = read_model(source, external_data=False)
    left = task.seconds * _SEARCH_SHARE - (perf_counter() - started)
    outcome = legalize_model(model, backend, _library_options(options, max(left, 0.01)))
    legal, report = outcome.model, outcome.report
    if options.inline:
        inline_functions(legal)
    if options.check:
        original = read_model(source, external_data=False)
        verification = run_verifier(legal, backend, against=original, dims=options.dims)
        report = report.model_copy(update={"verification": verification})
    if isinstance(source, dict):
        return _answer(report, graph=to_json(legal, weights=options.weights))
    content = to_proto(legal).SerializeToString()
    if task.as_bytes:
        return Answer(content, json.dumps(report.model_dump(mode="json", include=_SUMMARY)))
    return _answer(report, model=b64encode(content).decode())


def explain(task: Task) -> Answer:
    """The report, whose `conversions` have their reasons. Raises RelayoutErrors."""
    started = perf_counter()
    source, _, wish = _read(task, ExplainWish)
    backend = _backend(wish)
    model = read_model(source, external_data=False)
    left = task.seconds * _SEARCH_SHARE - (perf_counter() - started)
    return _answer(legalize_model(model, backend, _library_options(wish.options, max(left, 0.01))).report)


def verify(task: Task) -> Answer:
    """The report, whose `verification` has the findings. Raises RelayoutErrors."""
    source, against, wish = _read(task, VerifyWish)
    backend = _backend(wish)
    options = wish.options
    model = read_model(source, external_data=False)
    original = None if against is None else read_model(against, external_data=False)
    operators = conversion_operators_of(backend)
    after = totals(model, options.dims, operators)
    before = after if original is None else totals(original, options.dims, operators)
    verification = run_verifier(model, backend, against=original, samples=options.samples, dims=options.dims)
    status: Status = "verified" if verification.passed else "failed"
    report = Report(status=status, backend=backend.name, before=before, after=after, verification=verification)
    return _answer(report)


def _read(task: Task, schema: type[_Wish]) -> tuple[Source, dict[str, Any] | None, _Wish]:
    """The source, what to compare it with, and the rest of the request."""
    if task.wish is not None:
        return parse_model(task.body), None, schema.model_validate(task.wish)
    body = load_body(task.body)
    graph = _graph(body, "graph")
    if graph is None:
        raise InputError("there is no graph", where="body.graph", expected="graph JSON, version 1", found="nothing")
    against = _graph(body, "against") if schema is VerifyWish else None
    return graph, against, validated(schema, body)


def _graph(body: dict[str, Any], field: str) -> dict[str, Any] | None:
    graph = body.pop(field, None)
    if graph is None or isinstance(graph, dict):
        return graph
    raise InputError(
        "not graph JSON", where=f"body.{field}", expected="graph JSON, version 1", found=type(graph).__name__
    )


def _backend(wish: LegalizeWish | ExplainWish | VerifyWish) -> Backend:
    options = gathered(wish.options.desired_layouts, wish.options.skip, wish.options.backend_options)
    # Never a file: a string is a name, and only installed backends have names.
    return load_backend(wish.backend, options=options, allow_files=False)


def _library_options(options: LegalizeOptions | ExplainOptions, seconds: float) -> Options:
    return Options(
        objective=options.objective,
        input_layouts=options.input_layouts,
        output_layouts=options.output_layouts,
        dims=options.dims,
        time_limit=min(options.time_limit or seconds, seconds),
        engine=options.engine,
        max_transposes=options.max_transposes if isinstance(options, LegalizeOptions) else None,
        explain=options.limit if isinstance(options, ExplainOptions) else None,
    )


def _answer(report: Report, **members: Any) -> Answer:
    whole = {**members, "report": report.model_dump(mode="json", by_alias=True)}
    return Answer(json.dumps(whole, separators=(",", ":")).encode())
