"""The asynchronous client, which is the synchronous one too over another transport."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, Self

import anyio
import httpx
import httpx_sse

from relayout.client.protocol import (
    Backend,
    Event,
    Inputs,
    Job,
    Model,
    Progress,
    Result,
    body_of,
    checked,
    content_of,
    data_of,
    http_of,
    job_of,
    pause,
    pause_after,
    result_of,
    unreachable,
)
from relayout.errors import RelayoutError, check_argument
from relayout.options import check_names


class Transport(Protocol):
    """The part of a client that waits: sends requests, reads streams and sleeps."""

    async def request(self, method: str, path: str, **given: Any) -> httpx.Response: ...

    def stream(self, path: str, headers: dict[str, str]) -> AbstractAsyncContextManager[httpx.Response]: ...

    def events(self, response: httpx.Response) -> AsyncIterator[httpx_sse.ServerSentEvent]: ...

    async def sleep(self, seconds: float) -> None: ...

    def shielded(self) -> AbstractContextManager[object]: ...

    async def close(self) -> None: ...


class _Awaiting:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.close, self.sleep = http.aclose, anyio.sleep

    async def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        return await self._http.request(method, path, **given)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        async with self._http.stream("GET", path, headers=headers) as response:
            if not response.is_success:
                await response.aread()
            yield response

    def events(self, response: httpx.Response) -> AsyncIterator[httpx_sse.ServerSentEvent]:
        return httpx_sse.EventSource(response).aiter_sse()

    def shielded(self) -> AbstractContextManager[object]:
        return anyio.CancelScope(shield=True)


def _ignore(event: Event) -> None:
    """Nobody waits for it."""


class AsyncClient:
    """The client for programs that use asyncio or trio. See `Client`."""

    def __init__(self, address: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        self._address = address
        self._transport: Transport = _Awaiting(http_of(httpx.AsyncClient, address, key, timeout))

    @classmethod
    def over(cls, transport: Transport, address: str) -> Self:
        """A client that sends through another transport."""
        client = cls.__new__(cls)
        client._address, client._transport = address, transport
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def legalize(
        self,
        /,
        model: Model,
        backend: Backend = "onnx",
        *,
        inputs: Sequence[Inputs] = (),
        weights: bool = True,
        progress: Progress = _ignore,
        **options: Any,
    ) -> Result:
        """The legal model and its report: submit a job, wait, and download.

        `options` and `inputs` are those of `relayout.legalize`; each event of the job is given to `progress`. Without
        `weights`, the data of constants above 1 KiB stays out of legal graph JSON; an ONNX model always has it.
        """
        return await self._work("legalize", model, backend, options, progress, inputs=inputs, weights=weights)

    async def explain(
        self, /, model: Model, backend: Backend = "onnx", *, progress: Progress = _ignore, **options: Any
    ) -> Result:
        """The report with the reasons for each conversion."""
        return await self._work("explain", model, backend, options, progress)

    async def verify(
        self,
        /,
        model: Model,
        backend: Backend | None = None,
        against: Model | None = None,
        *,
        inputs: Sequence[Inputs] = (),
        progress: Progress = _ignore,
        **options: Any,
    ) -> Result:
        """The report with the findings of the verifier, by default for the backend that the model records.

        With `against`, the original, both are run and compared, on `inputs` if there are some. Both are ONNX or both
        graph JSON.
        """
        return await self._work("verify", model, backend, options, progress, against, inputs=inputs)

    async def submit(
        self,
        /,
        kind: str,
        model: Model,
        backend: Backend | None = None,
        *,
        against: Model | None = None,
        inputs: Sequence[Inputs] = (),
        weights: bool = True,
        name: str | None = None,
        key: str | None = None,
        **options: Any,
    ) -> Job:
        """Submit a job of `kind`: legalize, verify or explain. Two submissions with one `key` are one job.

        The default backend is that of the service: `onnx`, or for verify the one that the model records. `against` is
        the original to verify against, `inputs` and `weights` are those of `legalize`, and lists of jobs show `name`.
        """
        body = body_of(kind, model, backend, options, against, inputs=inputs, weights=weights)
        sent = body.request(kind, name, key)
        return job_of(await self._send("POST", "/v1/jobs", **sent))

    async def job(self, job: str) -> Job:
        """The job of an id."""
        return job_of(await self._send("GET", f"/v1/jobs/{job}"))

    async def jobs(self) -> AsyncIterator[Job]:
        """All jobs that the key may see, newest first."""
        cursor: str | None = None
        while True:
            sent = await self._send("GET", "/v1/jobs", params={} if cursor is None else {"cursor": cursor})
            page = data_of(sent, jobs=list)
            for each in page["jobs"]:
                yield Job.of(each)
            cursor = page.get("next")
            if cursor is None:
                return

    async def cancel(self, job: str) -> Job:
        """Cancel a job, unless it has ended."""
        return job_of(await self._send("DELETE", f"/v1/jobs/{job}"))

    async def events(self, job: str, after: int = 0) -> AsyncIterator[Event]:
        """The events of a job after number `after`, as they happen, until `done`; across lost connections."""
        tries = 0
        while True:
            headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
            seconds = pause(0) or 1.0
            is_there = False
            try:
                async with self._transport.stream(f"/v1/jobs/{job}/events", headers) as response:
                    if response.status_code == 204:
                        # The caller has `done`.
                        return
                    if (refused := pause_after(response, tries)) is not None:
                        seconds = refused
                    else:
                        checked(response)
                        is_there = True
                        async for sent in self._transport.events(response):
                            if sent.id and sent.data:
                                after, tries = int(sent.id), 0
                                yield Event(after, sent.event, sent.json())
                            if sent.event == "done":
                                return
            except httpx.TransportError as error:
                # Quiet for longer than the timeout, cut off by a proxy, or the server was restarted.
                if (away := pause(tries)) is None:
                    if not await self._runs(job):
                        raise unreachable(error, self._address) from error
                    tries = 0
                elif not is_there:
                    seconds = away
            tries += 1
            await self._transport.sleep(seconds)

    async def _runs(self, job: str) -> bool:
        """Whether the server says that a job has not ended."""
        try:
            return not (await self.job(job)).has_ended
        except RelayoutError:
            return False

    async def wait(self, job: str, progress: Progress = _ignore) -> Job:
        """Wait until a job has ended, with each event given to `progress`. Raises the error with which it failed."""
        async for event in self.events(job):
            progress(event)
        ended = job_of(await self._send("GET", f"/v1/jobs/{job}", is_patient=True))
        ended.check()
        return ended

    async def result(self, job: str) -> Result:
        """The result of a job that succeeded."""
        get = functools.partial(self._send, "GET", is_patient=True)
        report = (await get(f"/v1/jobs/{job}/report")).content
        has_model = job_of(await get(f"/v1/jobs/{job}")).kind == "legalize"
        return result_of(report, await get(f"/v1/jobs/{job}/model") if has_model else None)

    async def source(self, job: str) -> bytes | dict[str, Any]:
        """The ONNX model that a job was submitted with, or its JSON body with graph, backend and options."""
        return content_of(await self._send("GET", f"/v1/jobs/{job}/source"))

    async def graph(self, job: str, of: str = "both") -> dict[str, Any]:
        """The graphs of a job that legalized, to be drawn: `source`, `legal` and `report`. `of`: `source` or `legal`
        alone."""
        return data_of(await self._send("GET", f"/v1/jobs/{job}/graph", params={"of": of}))

    async def backends(self) -> list[dict[str, Any]]:
        """The backends that the server has."""
        found: list[dict[str, Any]] = data_of(await self._send("GET", "/v1/backends"), backends=list)["backends"]
        return found

    async def limits(self) -> dict[str, Any]:
        """The limits of the server: `max_body_bytes` of a request, and the seconds of a request and of a job."""
        return data_of(await self._send("GET", "/v1/limits"), max_body_bytes=int)

    async def _work(
        self,
        kind: str,
        model: Model,
        backend: Backend | None,
        options: Mapping[str, Any],
        progress: Progress,
        against: Model | None = None,
        *,
        inputs: Sequence[Inputs] = (),
        weights: bool = True,
    ) -> Result:
        # Here, because `submit` has arguments of its own beside the options.
        check_names(kind, options)
        # Before the job runs.
        check_argument("progress", progress, Callable, "a function of an event")
        job = await self.submit(kind, model, backend, against=against, inputs=inputs, weights=weights, **options)
        try:
            await self.wait(job.id, progress)
        except BaseException:
            # Cancelled, or the job failed; a job that has ended stays as it is.
            with self._transport.shielded(), contextlib.suppress(RelayoutError):
                await self.cancel(job.id)
            raise
        return await self.result(job.id)

    async def _send(self, method: str, path: str, *, is_patient: bool = False, **given: Any) -> httpx.Response:
        """The answer to a request. A patient one waits for a server that is restarted."""
        tries = 0
        while True:
            try:
                response = await self._transport.request(method, path, **given)
            except httpx.HTTPError as error:
                if not is_patient or (seconds := pause(tries)) is None:
                    raise unreachable(error, self._address) from error
                tries += 1
                await self._transport.sleep(seconds)
                continue
            if (seconds := pause_after(response, tries)) is None:
                return checked(response)
            tries += 1
            await self._transport.sleep(seconds)
