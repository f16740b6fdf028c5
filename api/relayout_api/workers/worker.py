"""The main loop of a worker process: a task from the socket, events and an answer to it."""

from __future__ import annotations

import gc
import socket
from dataclasses import fields
from time import perf_counter

from relayout.errors import InternalError, RelayoutError
from relayout_api.problems import problem_of
from relayout_api.workers.limits import limit_cpu, no_core_dump
from relayout_api.workers.messages import Content, Task, receive
from relayout_api.workers.tasks import perform

# Improving solutions within this time of the last one are left out; the answer has the best.
_LEAST_SECONDS_BETWEEN_EVENTS = 0.1
# A solver may use several processors, and the server kills a worker that is late; this limit is for a server that died.
_CPU_SECONDS_PER_SECOND = 4.0


def work(channel: socket.socket) -> None:
    """Perform tasks until the server closes the socket."""
    no_core_dump()
    while (message := receive(channel)) is not None:
        # The search for cyclic garbage takes a twentieth of a request. It waits until the answer is sent.
        gc.disable()
        task = Task(**message.header)
        limit_cpu(task.seconds * _CPU_SECONDS_PER_SECOND)
        try:
            answer = perform(task, message.parts, _Events(channel) if task.of_job else _ignore)
        except RelayoutError as error:
            log = str(error) if isinstance(error, InternalError) else ""
            Content().send(channel, {"problem": problem_of(error).model_dump(), "log": log})
        else:
            facts = {field.name: getattr(answer, field.name) for field in fields(answer)}
            content, *others = (facts.pop(name) for name in ("content", "report", "choices"))
            content = content if isinstance(content, Content) else Content(content)
            content.send(channel, {"answer": facts}, *others)
            del facts, content, others
            del answer
        del message
        gc.enable()
        # At once, as the next task may be hours away, and a model is in cycles: all that the task made is young.
        gc.collect(0)


def _ignore(event: dict[str, object]) -> None:
    """Nobody waits for it."""


class _Events:
    """Sends the events of a task; of solutions that follow each other closely, only the first."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._next = 0.0

    def __call__(self, event: dict[str, object]) -> None:
        if "cost" in event:
            now = perf_counter()
            if now < self._next:
                return
            self._next = now + _LEAST_SECONDS_BETWEEN_EVENTS
        Content().send(self._channel, {"event": event})
