"""Errors as HTTP tells them: RFC 9457 problem details. The status of an error is decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

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

__all__ = ["KINDS", "MEDIA_TYPE", "Kind", "MalformedBodyError", "Problem", "RefusedError", "problem_of"]

MEDIA_TYPE = "application/problem+json"
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem: its HTTP status, its title, and what it means to who reads of it."""

    status: int
    title: str
    meaning: str


KINDS = {
    "malformed-body": Kind(400, "The body is not what its media type says", "It could not even be parsed as JSON."),
    "not-found": Kind(404, "There is nothing here", "The path is none of this service; see /openapi.json."),
    "method-not-allowed": Kind(405, "Not with this method", "The path exists; the header Allow has its methods."),
    "slow-body": Kind(408, "The body took too long", "The service waits for a body only so long."),
    "infeasible": Kind(
        409, "The requirements contradict each other", "`conflict` holds a smallest set of requirements that do."
    ),
    "too-large": Kind(
        413, "Too large", "The body, or the memory that it takes to work on it, is beyond this server's limit."
    ),
    "unsupported-media-type": Kind(
        415, "Unsupported media type", "Send application/json, or an ONNX model as application/octet-stream, as it is."
    ),
    "invalid-input": Kind(422, "Invalid input", "The graph or model is not what it claims to be."),
    "invalid-layout": Kind(422, "Not a layout", "`column`, counted from 1, is where the layout's text is at fault."),
    "invalid-options": Kind(422, "Invalid options", "An option, or a combination of them, makes no sense."),
    "invalid-backend": Kind(422, "Invalid backend", "There is no backend of this name, or its table is not right."),
    "internal": Kind(500, "Internal error", "The fault is the service's; its log knows more."),
    "busy": Kind(503, "Busy", "As many requests wait as may; the header Retry-After says when to come again."),
    "starting": Kind(503, "Starting", "The workers are not there yet."),
    "out-of-time": Kind(504, "Out of time", "No solution was found in the time that was given."),
}

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
    """What HTTP alone knows of: a request that is refused for its size, its media type. `kind` is one of KINDS."""

    def __init__(self, kind: str, problem: str, *, expected: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(problem, expected=expected, found=found, hint=hint)
        self.kind = kind


class MalformedBodyError(RefusedError):
    """A body that does not parse."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__("malformed-body", "the body does not parse", expected=expected, found=found)


class Problem(BaseModel):
    """An RFC 9457 problem: what is wrong, where, expected and found, and what to do. What is empty is left out."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="the kind of problem: a path of this service that explains it")
    title: str
    status: int
    detail: str
    where: str | None = Field(None, description="the node, value, option or column")
    expected: str | None = None
    found: str | None = None
    hint: str | None = Field(None, description="what to do")
    column: int | None = Field(None, description="where a layout's text is at fault, counted from 1")
    conflict: list[str] | None = Field(None, description="a smallest set of requirements that contradict each other")
    relaxation: list[str] | None = Field(None, description="the fewest changes that would make for a solution")


def problem_of(error: RelayoutError) -> Problem:
    """What HTTP tells of an error. Of our own faults it tells only that there was one."""
    name = (
        error.kind if isinstance(error, RefusedError) else next(_NAMES[c] for c in type(error).__mro__ if c in _NAMES)
    )
    kind = KINDS[name]
    if name == "internal":
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
    # What a request says of itself comes back in errors, but not without end; lone surrogates cannot be sent at all.
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return text.encode(errors="replace").decode()
