"""Errors as RFC 9457 problem details. Only this module maps errors to HTTP statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from relayout.errors import (
    BackendError,
    InfeasibleError,
    InputError,
    InternalError,
    LayoutSyntaxError,
    OutOfTimeError,
    RelayoutError,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
_LONGEST = 2000
# A client may still send a body that the server no longer reads.
_HEADERS = {
    401: {"WWW-Authenticate": 'Bearer realm="relayout"'},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
    503: {"Retry-After": "1"},
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem: its HTTP status, its title, and its meaning."""

    status: int
    title: str
    meaning: str


KINDS = {
    "malformed-request": Kind(400, "Malformed request", "The bytes are no HTTP request."),
    "long-head": Kind(431, "Long request head", "The line and the headers of a request have a limit of size."),
    "malformed-body": Kind(400, "Malformed body", "The body does not parse as JSON, or a key is twice in one object."),
    "unauthorized": Kind(401, "Unauthorized", "The request needs a valid API key or token."),
    "forbidden": Kind(
        403, "Forbidden", "The scope of the key or token does not include this, or a page of another site sent it."
    ),
    "not-found": Kind(404, "Not found", "The service has no such path; see /openapi.json."),
    "method-not-allowed": Kind(405, "Method not allowed", "The header Allow has the methods of the path."),
    "slow-body": Kind(408, "Slow request", "The head or the body did not arrive in time."),
    "no-result": Kind(409, "No result", "The job has not succeeded, or has no such result."),
    "infeasible": Kind(409, "The requirements contradict each other", "`conflict` has a smallest contradicting set."),
    "too-large": Kind(413, "Too large", "The body, or the memory for its work, exceeds the server's limit."),
    "unsupported-media-type": Kind(
        415, "Unsupported media type", "Send JSON, ONNX as application/octet-stream, or a form; as it is or as gzip."
    ),
    "invalid-input": Kind(422, "Invalid input", "The graph or model is invalid."),
    "invalid-layout": Kind(422, "Not a layout", "`column` is the column of the fault, counted from 1."),
    "invalid-options": Kind(422, "Invalid options", "An option, or a combination of them, is wrong."),
    "invalid-backend": Kind(422, "Invalid backend", "No such backend, or its table or options are wrong."),
    "internal": Kind(500, "Internal error", "A fault of the service; its log has the details."),
    "key-reused": Kind(422, "Idempotency-Key reused", "The key belongs to a job with another body or query."),
    "too-many-requests": Kind(429, "Too many requests", "This caller has its share; retry when Retry-After says."),
    "busy": Kind(503, "Busy", "The queue is full; retry after the seconds of the header Retry-After."),
    "starting": Kind(503, "Not ready", "No worker is warm, or the job database or the store cannot be used."),
    "stopping": Kind(503, "Stopping", "The server is being stopped; retry after the seconds of Retry-After."),
    "no-space": Kind(507, "No space", "The server's disk or store is full; nothing was accepted."),
    "out-of-time": Kind(504, "Out of time", "No solution was found within the time limit."),
}

SEE_LOG = "retry later; the log of the server has the reason"
"""The hint of an error whose reason may have a path or an address in it."""

_NAMES: dict[type[RelayoutError], str] = {
    LayoutSyntaxError: "invalid-layout",
    InputError: "invalid-input",
    BackendError: "invalid-backend",
    UsageError: "invalid-options",
    InfeasibleError: "infeasible",
    OutOfTimeError: "out-of-time",
    InternalError: "internal",
    RelayoutError: "internal",
}


class RefusedError(RelayoutError):
    """A request that is refused, for example for its size or media type. `kind` is one of KINDS.

    `retry_after` is in seconds.
    """

    def __init__(
        self,
        kind: str,
        problem: str,
        *,
        where: str = "",
        expected: str = "",
        found: str = "",
        hint: str = "",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(problem, where=where, expected=expected, found=found, hint=hint)
        self.kind = kind
        self.retry_after = retry_after


class AnsweredError(Exception):
    """A problem that is already in its final form: a worker or a job ended with it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class MalformedBodyError(RefusedError):
    """A body that does not parse."""

    def __init__(self, expected: str, found: str, hint: str = "") -> None:
        super().__init__("malformed-body", "the body does not parse", expected=expected, found=found, hint=hint)


def _optional(description: str | None = None) -> Any:
    return Field(None, description=description, exclude_if=lambda value: value is None)


class Problem(BaseModel):
    """An RFC 9457 problem with its location, both sides of the disagreement and a hint. Empty fields are left out."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="the kind of problem: a path of this service that explains it")
    title: str
    status: int
    detail: str
    where: str | None = _optional("the node, value, option or column")
    expected: str | None = _optional()
    found: str | None = _optional()
    hint: str | None = _optional("a remedy")
    column: int | None = _optional("the column of the fault in a layout string, counted from 1")
    conflict: list[str] | None = _optional("a smallest set of requirements that contradict each other")
    relaxation: list[str] | None = _optional("the fewest changes that allow a solution")


def response_of(error: RelayoutError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer to a request that failed."""
    seconds = error.retry_after if isinstance(error, RefusedError) else None
    retry = {} if seconds is None else {"Retry-After": str(seconds)}
    return answer_of(problem_of(error), {**(headers or {}), **retry})


def answer_of(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer that tells this problem."""
    more = {**_HEADERS.get(problem.status, {}), **(headers or {})}
    return JSONResponse(problem.model_dump(), problem.status, more, media_type=MEDIA_TYPE)


def problem_of(error: RelayoutError) -> Problem:
    """The problem of an error. The details of an internal error go to the log alone."""
    name = (
        error.kind if isinstance(error, RefusedError) else next(_NAMES[c] for c in type(error).__mro__ if c in _NAMES)
    )
    kind = KINDS[name]
    if name == "internal" and not isinstance(error, RefusedError):
        return Problem(type=f"/problems/{name}", title=kind.title, status=kind.status, detail=kind.meaning)
    return Problem(
        type=f"/problems/{name}",
        title=kind.title,
        status=kind.status,
        detail=_short(error.problem),
        where=_short(error.where) or None,
        expected=_short(error.expected) or None,
        found=_short(error.found) or None,
        hint=_short(error.hint) or None,
        column=error.column if isinstance(error, LayoutSyntaxError) else None,
        conflict=_shortened(error.conflict) if isinstance(error, InfeasibleError) else None,
        relaxation=_shortened(error.relaxation) if isinstance(error, InfeasibleError) else None,
    )


def _shortened(texts: Sequence[str]) -> list[str] | None:
    return [_short(text) for text in texts[:100]] or None


def _short(text: str) -> str:
    # Errors quote texts of the request, shortened; lone surrogates cannot be encoded.
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return text.encode(errors="replace").decode()
