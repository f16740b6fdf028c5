"""The OpenAPI document: the request, the answers and the errors of each endpoint, with examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from relayout.model.graph_json.schema import GraphJson
from relayout.report.schema import Report
from relayout_api import examples
from relayout_api.access.callers import needed_scope
from relayout_api.bodies import JSON, MULTIPART, ONNX, ZIP
from relayout_api.jobs.schema import Job, JobList
from relayout_api.problems import KINDS, MEDIA_TYPE, Problem
from relayout_api.schemas import (
    BackendList,
    ExplainRequest,
    GraphRequest,
    GraphResponse,
    LayoutInfo,
    LayoutText,
    LegalizeRequest,
    LegalizeResponse,
    ModelResponse,
    ReportResponse,
    VerifyRequest,
)

__all__ = [
    "BACKENDS",
    "CANCEL",
    "EXPLAIN",
    "GRAPH",
    "HEALTH",
    "JOB",
    "JOBS",
    "JOB_EVENTS",
    "JOB_GRAPH",
    "JOB_MODEL",
    "JOB_REPORT",
    "LEGALIZE",
    "METRICS",
    "PARSE",
    "PROBLEM",
    "READY",
    "SUBMIT",
    "VERIFY",
    "describe",
]

_DESCRIPTION = """\
relayout makes a machine-learning graph legal for a backend's layouts, with provably the cheapest conversions.
A request never names a file of the server. Errors are problem details (RFC 9457)."""
_MODELS: tuple[type, ...] = (
    *(LegalizeRequest, LegalizeResponse, ModelResponse, ExplainRequest, VerifyRequest, ReportResponse),
    *(GraphRequest, GraphResponse),
    *(LayoutText, LayoutInfo, BackendList, Problem, Job, JobList, Report, GraphJson),
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


def _json(model: type, shown: Mapping[str, Any] | None = None) -> dict[str, Any]:
    named = {"examples": {name: {"value": value} for name, value in shown.items()}} if shown else {}
    return {JSON: {"schema": _ref(model), **named}}


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


def _takes(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


def _says(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": content}


_READ = ("not-found", "starting", "internal")
SUBMIT: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "Submit a job",
    "status_code": 202,
    "openapi_extra": _takes(
        {
            JSON: {
                "schema": {"anyOf": [_ref(LegalizeRequest), _ref(VerifyRequest), _ref(ExplainRequest)]},
                "examples": {name: {"value": value} for name, value in examples.LEGALIZE.items()},
            },
            ONNX: {"schema": {"type": "string", "format": "binary"}},
        }
    ),
    "responses": {
        202: {
            "description": "The job is accepted",
            "content": _json(Job),
            "headers": {"Location": {"description": "the path of the job", "schema": {"type": "string"}}},
        },
        **_errors(*_BODY, "invalid-options", "key-reused", "busy", "starting", "no-space"),
    },
}
JOBS: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "The jobs",
    "responses": {200: _says("A page", _json(JobList)), **_errors("invalid-options", "starting", "internal")},
}
JOB: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "A job",
    "responses": {200: _says("Its state", _json(Job)), **_errors(*_READ)},
}
CANCEL: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "Cancel a job",
    "responses": {200: _says("Its state", _json(Job)), **_errors(*_READ)},
}
_RESULT_ERRORS = ("no-result", "infeasible", "invalid-input", "invalid-backend", "out-of-time", "too-large", *_READ)
JOB_REPORT: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "The report of a job",
    "responses": {
        200: _says("The report", _json(Report)),
        304: {"description": "The caller has it"},
        **_errors(*_RESULT_ERRORS),
    },
}
JOB_MODEL: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "The model of a job",
    "responses": {
        200: _says(
            "The model", {JSON: {"schema": _ref(GraphJson)}, ONNX: {"schema": {"type": "string", "format": "binary"}}}
        ),
        304: {"description": "The caller has it"},
        **_errors(*_RESULT_ERRORS),
    },
}
JOB_EVENTS: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "The events of a job",
    "responses": _errors(*_READ, "invalid-options"),
}

_ANY_JSON = {JSON: {"schema": {"type": "object"}}}
_BINARY = {"type": "string", "format": "binary"}
_MODEL = {ONNX: {"schema": _BINARY}}
_FORM = {MULTIPART: {"schema": {"type": "object", "properties": {"model": _BINARY}, "required": ["model"]}}}
_FORM_OF_TWO = {
    MULTIPART: {
        "schema": {"type": "object", "properties": {"model": _BINARY, "against": _BINARY}, "required": ["model"]}
    }
}

LEGALIZE: dict[str, Any] = {
    "tags": ["work"],
    "summary": "Make a graph legal",
    "openapi_extra": _takes({**_json(LegalizeRequest, examples.LEGALIZE), **_MODEL, **_FORM}),
    "responses": {
        200: {
            "description": "The legal graph or model, and the report",
            "content": {
                JSON: {"schema": {"anyOf": [_ref(LegalizeResponse), _ref(ModelResponse)]}},
                **_MODEL,
                ZIP: {"schema": _BINARY},
            },
            "headers": {
                "Relayout-Report": {
                    "description": "with the model's bytes: the report in JSON, without its lists",
                    "schema": {"type": "string"},
                }
            },
        },
        **_errors(*_WORK, "infeasible"),
    },
}
VERIFY: dict[str, Any] = {
    "tags": ["work"],
    "summary": "Verify a graph",
    "openapi_extra": _takes({**_json(VerifyRequest, examples.VERIFY), **_MODEL, **_FORM_OF_TWO}),
    "responses": {200: _says("The report with the findings", _json(ReportResponse)), **_errors(*_WORK)},
}
EXPLAIN: dict[str, Any] = {
    "tags": ["work"],
    "summary": "Explain the conversions",
    "openapi_extra": _takes({**_json(ExplainRequest, examples.EXPLAIN), **_MODEL, **_FORM}),
    "responses": {
        200: _says("The report with the reasons", _json(ReportResponse)),
        **_errors(*_WORK, "infeasible"),
    },
}
GRAPH: dict[str, Any] = {
    "tags": ["work"],
    "summary": "Draw a graph",
    "openapi_extra": _takes({**_json(GraphRequest, examples.DRAW), **_MODEL}),
    "responses": {
        200: _says("The graph and the legal graph, to draw", _json(GraphResponse)),
        **_errors(*_WORK, "infeasible"),
    },
}
JOB_GRAPH: dict[str, Any] = {
    "tags": ["jobs"],
    "summary": "The graphs of a job, to draw",
    "responses": {200: _says("The graph and the legal graph", _json(GraphResponse)), **_errors(*_RESULT_ERRORS)},
}
BACKENDS: dict[str, Any] = {
    "tags": ["reference"],
    "summary": "The installed backends",
    "responses": {200: _says("By name", _json(BackendList)), **_errors("internal")},
}
PARSE: dict[str, Any] = {
    "tags": ["reference"],
    "summary": "Parse a layout",
    "openapi_extra": _takes(_json(LayoutText, {"aligned": examples.LAYOUT})),
    "responses": {
        200: _says("Its dimensions", _json(LayoutInfo)),
        **_errors(*_BODY, "invalid-layout", "invalid-options"),
    },
}
PROBLEM: dict[str, Any] = {
    "tags": ["reference"],
    "summary": "The meaning of a problem",
    "responses": {200: _says("Its status, title and meaning", _ANY_JSON), **_errors("not-found")},
}
HEALTH: dict[str, Any] = {
    "tags": ["service"],
    "summary": "Whether it is alive",
    "responses": {200: _says("Yes", _ANY_JSON)},
}
METRICS: dict[str, Any] = {
    "tags": ["service"],
    "summary": "Metrics for Prometheus",
    "responses": {200: _says("In Prometheus's text format", {"text/plain": {"schema": {"type": "string"}}})},
}
READY: dict[str, Any] = {
    "tags": ["service"],
    "summary": "Whether it is warm",
    "responses": {200: _says("Yes", _ANY_JSON), **_errors("starting")},
}


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
            for method, operation in operations.items():
                _correct(operation["responses"])
                scope = needed_scope(method.upper(), path)
                if scope is not None:
                    # An empty requirement: a request needs no key.
                    operation["security"] = [*([] if is_required else [{}]), *({name: [scope]} for name in _SCHEMES)]
                    operation["responses"] |= {str(status): said for status, said in _errors(*_ACCESS).items()}
        app.openapi_schema = document
    return app.openapi_schema


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
