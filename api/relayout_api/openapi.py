"""The OpenAPI document: the request, the answers and the errors of each endpoint, with examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter

from relayout.model.graph_json.schema import GraphJson
from relayout.report.schema import Report
from relayout_api import examples
from relayout_api.access.callers import needed_scope
from relayout_api.bodies import JSON, MULTIPART, ONNX, ZIP
from relayout_api.jobs.schema import Job, JobList
from relayout_api.problems import KINDS, MEDIA_TYPE, Problem
from relayout_api.query import QUERIES
from relayout_api.schemas import (
    FILES,
    MOST_SAMPLES,
    BackendList,
    ExplainRequest,
    GraphRequest,
    GraphResponse,
    LayoutInfo,
    LayoutText,
    LegalizeRequest,
    LegalizeResponse,
    Limits,
    ModelResponse,
    ReportResponse,
    VerifyRequest,
)

_DESCRIPTION = """\
relayout makes a machine-learning graph legal for a backend's layouts, with provably the cheapest conversions.
A request never names a file of the server. Errors are problem details (RFC 9457)."""
_MODELS: tuple[type, ...] = (
    *(LegalizeRequest, LegalizeResponse, ModelResponse, ExplainRequest, VerifyRequest, ReportResponse),
    *(GraphRequest, GraphResponse),
    *(LayoutText, LayoutInfo, BackendList, Limits, Problem, Job, JobList, Report, GraphJson),
)
_BODY = ("malformed-body", "slow-body", "too-large", "unsupported-media-type", "internal")
_WORK = (
    *(*_BODY, "invalid-input", "invalid-layout", "invalid-options", "invalid-backend"),
    *("busy", "starting", "stopping", "out-of-time"),
)
# Where a request may need a key.
_ACCESS = ("unauthorized", "forbidden", "too-many-requests")


def _ref(model: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _json(*models: type, shown: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """JSON of one of these models, with examples by name."""
    named = {"examples": {name: {"value": value} for name, value in shown.items()}} if shown else {}
    return {JSON: {"schema": _ref(*models) if len(models) == 1 else {"anyOf": [*map(_ref, models)]}, **named}}


def _errors(*names: str) -> dict[int | str, dict[str, Any]]:
    """The responses of these kinds of problems, by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    for name in names:
        kind = KINDS[name]
        entry = responses.setdefault(
            kind.status, {"description": "", "content": {MEDIA_TYPE: {"schema": _ref(Problem), "examples": {}}}}
        )
        entry["description"] = "; ".join(filter(None, [entry["description"], kind.title]))
        example = {"type": f"/problems/{name}", "title": kind.title, "status": kind.status, "detail": kind.meaning}
        entry["content"][MEDIA_TYPE]["examples"][name] = {"value": example}
    return responses


def _takes(content: dict[str, Any], *files: str) -> dict[str, Any]:
    """A body of this content or, where it may have files, a model or a form of them."""
    others = {**_MODEL, **_form(*files)} if files else {}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {**content, **others}}}}


def _operation(
    tag: str,
    summary: str,
    description: str,
    content: dict[str, Any],
    *errors: str,
    status: int = 200,
    is_result: bool = False,
) -> dict[str, Any]:
    """An endpoint with an answer and these kinds of problems; `is_result`: the caller may have it already."""
    known = {304: {"description": "The caller has it"}} if is_result else {}
    answer = {"description": description, "content": content}
    return {"tags": [tag], "summary": summary, "responses": {status: answer, **known, **_errors(*errors)}}


def _form(*files: str) -> dict[str, Any]:
    many = {"type": "array", "items": _BINARY, "maxItems": MOST_SAMPLES}
    properties = {name: many if name == "inputs" else _BINARY for name in files}
    return {MULTIPART: {"schema": {"type": "object", "properties": properties, "required": ["model"]}}}


def _header(name: str, description: str) -> dict[str, Any]:
    return {"headers": {name: {"description": description, "schema": {"type": "string"}}}}


_ANY_JSON = {JSON: {"schema": {"type": "object"}}}
_BINARY = {"type": "string", "format": "binary"}
_MODEL = {ONNX: {"schema": _BINARY}}
_READ = ("not-found", "invalid-options", "starting", "internal")
_RESULT_ERRORS = ("no-result", "infeasible", "invalid-input", "invalid-backend", "out-of-time", "too-large", *_READ)

_SUBMIT_ERRORS = (*_BODY, "invalid-options", "key-reused", "busy", "starting", "no-space")
SUBMIT: dict[str, Any] = {
    **_operation("jobs", "Submit a job", "The job is accepted", _json(Job), *_SUBMIT_ERRORS, status=202),
    **_takes(_json(LegalizeRequest, VerifyRequest, ExplainRequest, shown=examples.LEGALIZE), *FILES),
    "status_code": 202,
}
SUBMIT["responses"][202] |= _header("Location", "the path of the job")
JOBS = _operation("jobs", "The jobs", "A page", _json(JobList), "invalid-options", "starting", "internal")
JOB = _operation("jobs", "A job", "Its state", _json(Job), *_READ)
CANCEL = _operation("jobs", "Cancel a job", "Its state", _json(Job), *_READ)
JOB_REPORT = _operation("jobs", "The report of a job", "The report", _json(Report), *_RESULT_ERRORS, is_result=True)
JOB_MODEL = _operation(
    "jobs", "The model of a job", "The model", {**_json(GraphJson), **_MODEL}, *_RESULT_ERRORS, is_result=True
)
JOB_SOURCE = _operation(
    "jobs", "The model of a job as it was sent", "The model", {JSON: {"schema": {}}, **_MODEL}, "no-result", *_READ,
    is_result=True,
)  # fmt: skip
JOB_EVENTS: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "The events of a job",
    "responses": {204: {"description": "The caller has all of them"}, **_errors(*_READ)},
}
JOB_GRAPH = _operation(
    "jobs", "The graphs of a job, to draw", "The graph and the legal graph", _json(GraphResponse), *_RESULT_ERRORS
)

_LEGAL = {**_json(LegalizeResponse, ModelResponse), **_MODEL, ZIP: {"schema": _BINARY}}
LEGALIZE = _operation(
    "work", "Make a graph legal", "The legal graph or model, and the report", _LEGAL, *_WORK, "infeasible"
) | _takes(_json(LegalizeRequest, shown=examples.LEGALIZE), "model", "inputs")
LEGALIZE["responses"][200] |= _header(
    "Relayout-Report", "with the model's bytes: the report in JSON, without its lists"
)
VERIFY = _operation("work", "Verify a graph", "The report with the findings", _json(ReportResponse), *_WORK) | _takes(
    _json(VerifyRequest, shown=examples.VERIFY), *FILES
)
EXPLAIN = _operation(
    "work", "Explain the conversions", "The report with the reasons", _json(ReportResponse), *_WORK, "infeasible"
) | _takes(_json(ExplainRequest, shown=examples.EXPLAIN), "model")
GRAPH = _operation(
    "work", "Draw a graph", "The graph and the legal graph, to draw", _json(GraphResponse), *_WORK, "infeasible"
) | _takes(_json(GraphRequest, shown=examples.DRAW), "model")

BACKENDS = _operation(
    "reference", "The installed backends", "By name", _json(BackendList), "invalid-options", "internal", "starting"
)
LIMITS = _operation("reference", "The limits of the server", "The limits", _json(Limits), "invalid-options", "internal")
PARSE = _operation(
    "reference", "Parse a layout", "Its dimensions", _json(LayoutInfo), *_BODY, "invalid-layout", "invalid-options"
) | _takes(_json(LayoutText, shown={"aligned": examples.LAYOUT}))
PROBLEM = _operation("reference", "The meaning of a problem", "Its status, title and meaning", _ANY_JSON, "not-found")
HEALTH = _operation("service", "Whether it is alive", "Yes", _ANY_JSON)
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
METRICS = _operation("service", "Metrics for Prometheus", "In Prometheus's text format", _TEXT, "invalid-options")
READY = _operation("service", "Whether it is warm", "Yes", _ANY_JSON, "starting")


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of `app`, computed once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes, license_info=_LICENSE
        )
        _, schemas = TypeAdapter.json_schemas(
            [(model, "validation", TypeAdapter(model)) for model in _MODELS],
            ref_template="#/components/schemas/{model}",
        )
        document["components"] = {"schemas": schemas["$defs"], "securitySchemes": _SCHEMES}
        is_required = app.state.service.settings.auth == "required"
        for path, operations in document["paths"].items():
            if (query := QUERIES.get(path.removeprefix("/v1/"))) is not None:
                operations["post"]["parameters"] = _keys(query)
            for method, operation in operations.items():
                _correct(operation["responses"])
                scope = needed_scope(method.upper(), path)
                if scope is not None:
                    # An empty requirement: a request needs no key.
                    operation["security"] = [*([] if is_required else [{}]), *({name: [scope]} for name in _SCHEMES)]
                    operation["responses"] |= {str(status): said for status, said in _errors(*_ACCESS).items()}
        app.openapi_schema = document
    return app.openapi_schema


def _keys(query: type[BaseModel]) -> list[dict[str, Any]]:
    """The keys of a query, all of which may be left out."""
    found = []
    for name, schema in query.model_json_schema()["properties"].items():
        # A query has no null.
        schema = {key: value for key, value in schema.items() if value is not None}
        about = schema["description"]
        found.append({"name": name, "in": "query", "required": False, "schema": schema, "description": about})
    return found


def _correct(responses: dict[str, Any]) -> None:
    """Replace what FastAPI declares by itself: its own form of a wrong parameter, and a keyword of OpenAPI 3.2."""
    for status, response in responses.items():
        content = response.get("content", {})
        if "HTTPValidationError" in str(content.get(JSON)):
            responses[status] = _errors("invalid-options")[422]
        for media in content.values():
            if media.pop("itemSchema", None) is not None:
                media["schema"] = {"type": "string"}


_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "an API key of the service, or a token of the OpenID Connect issuer that it trusts",
    },
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "an API key of the service"},
}
_LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
