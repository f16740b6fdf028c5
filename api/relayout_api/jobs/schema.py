"""A job as the service shows it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from relayout_api.problems import Problem

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Verb = Literal["legalize", "verify", "explain"]


class JobLinks(BaseModel):
    """The paths of a job, and of the results that it has or may have yet."""

    model_config = ConfigDict(extra="forbid")

    self: str
    events: str
    report: str | None = Field(None, exclude_if=lambda value: value is None)
    model: str | None = Field(None, exclude_if=lambda value: value is None)
    source: str

    def under(self, prefix: str) -> JobLinks:
        """The same below another path."""
        return JobLinks(**{name: prefix + path for name, path in self if path is not None})


class Job(BaseModel):
    """A job and how far it is. `cost` and `bound` are those of the best solution so far.

    `backend` and `options` are those of the request. They are null where its body was JSON: `source` has them.
    """

    model_config = ConfigDict(extra="forbid")

    id: str
    kind: Verb
    name: str | None = Field(None, description="the name that the request gave it, such as its file's")
    backend: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    state: State
    stage: str | None = Field(None, description="the step that runs, or ran last")
    progress: float | None = Field(None, description="0 to 1")
    cost: int | None = None
    bound: int | None = None
    created: str = Field(description="ISO 8601, UTC")
    started: str | None = None
    ended: str | None = None
    problem: Problem | None = None
    links: JobLinks


class JobList(BaseModel):
    """One page of jobs, newest first. `next` is the cursor of the next page; null: this is the last."""

    model_config = ConfigDict(extra="forbid")

    jobs: list[Job]
    next: str | None
