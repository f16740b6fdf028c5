"""The messages between the server and its worker processes."""

from __future__ import annotations

from dataclasses import dataclass

from relayout_api.schemas import Parameters

__all__ = ["Answer", "Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one request: of `verb`, legalize, explain or verify.

    `parameters` are the backend and the options that go with an ONNX model in `body`; None where `body` is JSON, which
    has its own. `seconds` and `memory_bytes` are the server's limits. `as_bytes` asks for the model's bytes alone.
    """

    verb: str
    body: bytes
    parameters: Parameters | None
    seconds: float
    memory_bytes: int
    as_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of the response, and the report without its lists where the body is a model's bytes."""

    content: bytes
    summary: str = ""
