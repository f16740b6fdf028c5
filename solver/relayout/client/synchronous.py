"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx
import httpx_sse

from relayout.client.protocol import (
    Event,
    Job,
    Model,
    Result,
    body_of,
    checked,
    headers_of,
    pause_after,
    result_of,
    unreachable,
)

__all__ = ["Client"]


class Client:
    """A client of the service at `address`, such as http://127.0.0.1:8000. `key` is an API key or a bearer token.

    A server that is busy is asked again after the time that it names, a few times. Methods raise the errors that the
    library raises, with the same fields: InputError, UsageError, InfeasibleError, OutOfTimeError; UsageError too where
    the server does not answer.
    """

    def __init__(self, address: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        self._address = address
        self._http = httpx.Client(base_url=address, headers=headers_of(key), timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def legalize(
        self,
        model: Model,
        backend: str | Mapping[str, Any] = "onnx",
        *,
        progress: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> Result:
        """The legal model and its report: submit a job, wait, and download.

        `options` are those of `relayout.legalize`; each event of the job is given to `progress`.
        """
        return self._work("legalize", model, backend, options, progress)

    def explain(
        self,
        model: Model,
        backend: str | Mapping[str, Any] = "onnx",
        *,
        progress: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> Result:
        """The report with the reasons for each conversion."""
        return self._work("explain", model, backend, options, progress)

    def verify(
        self,
        model: Model,
        backend: str | Mapping[str, Any] = "onnx",
        *,
        progress: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> Result:
        """The report with the findings of the verifier."""
        return self._work("verify", model, backend, options, progress)

    def submit(
        self,
        kind: str,
        model: Model,
        backend: str | Mapping[str, Any] = "onnx",
        *,
        key: str | None = None,
        **options: Any,
    ) -> Job:
        """Submit a job of `kind`: legalize, verify or explain. Two submissions with one `key` are one job."""
        sent = body_of(kind, model, backend, options).request(kind, key)
        return Job.of(self._send("POST", "/v1/jobs", **sent).json())

    def job(self, job: str) -> Job:
        """The job of an id."""
        return Job.of(self._send("GET", f"/v1/jobs/{job}").json())

    def jobs(self) -> Iterator[Job]:
        """All jobs that the key may see, newest first."""
        cursor: str | None = None
        while True:
            page = self._send("GET", "/v1/jobs", params={} if cursor is None else {"cursor": cursor}).json()
            yield from map(Job.of, page["jobs"])
            cursor = page["next"]
            if cursor is None:
                return

    def cancel(self, job: str) -> Job:
        """Cancel a job, unless it has ended."""
        return Job.of(self._send("DELETE", f"/v1/jobs/{job}").json())

    def events(self, job: str, after: int = 0) -> Iterator[Event]:
        """The events of a job after number `after`, as they happen, until `done`; across lost connections."""
        tries = 0
        while True:
            headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
            try:
                with self._http.stream("GET", f"/v1/jobs/{job}/events", headers=headers) as response:
                    if not response.is_success:
                        response.read()
                    if (pause := pause_after(response, tries)) is None:
                        for sent in httpx_sse.EventSource(checked(response)).iter_sse():
                            if sent.id and sent.data:
                                after, tries = int(sent.id), 0
                                yield Event(after, sent.event, sent.json())
                            if sent.event == "done":
                                return
                        pause = pause_after(httpx.Response(503), tries)
            except httpx.TransportError as error:
                # Quiet for longer than the timeout, or the server was restarted.
                if (pause := pause_after(httpx.Response(503), tries)) is None:
                    raise unreachable(error, self._address) from error
            tries += 1
            time.sleep(pause or 1.0)

    def wait(self, job: str, progress: Callable[[Event], None] = lambda event: None) -> Job:
        """Wait until a job has ended, with each event given to `progress`. Raises the error with which it failed."""
        for event in self.events(job):
            progress(event)
        ended = self.job(job)
        ended.check()
        return ended

    def result(self, job: str) -> Result:
        """The result of a job that succeeded."""
        report = self._send("GET", f"/v1/jobs/{job}/report").content
        has_model = self.job(job).kind == "legalize"
        return result_of(report, self._send("GET", f"/v1/jobs/{job}/model") if has_model else None)

    def backends(self) -> list[dict[str, Any]]:
        """The backends that the server has."""
        found: list[dict[str, Any]] = self._send("GET", "/v1/backends").json()["backends"]
        return found

    def _work(
        self,
        kind: str,
        model: Model,
        backend: str | Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[Event], None] | None,
    ) -> Result:
        job = self.submit(kind, model, backend, **options)
        try:
            self.wait(job.id, progress or (lambda event: None))
        except KeyboardInterrupt:
            self.cancel(job.id)
            raise
        return self.result(job.id)

    def _send(self, method: str, path: str, **given: Any) -> httpx.Response:
        tries = 0
        while True:
            try:
                response = self._http.request(method, path, **given)
            except httpx.HTTPError as error:
                raise unreachable(error, self._address) from error
            pause = pause_after(response, tries)
            if pause is None:
                return checked(response)
            tries += 1
            time.sleep(pause)
