"""The asynchronous client; each method is that of `Client`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
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
from relayout.errors import RelayoutError

__all__ = ["AsyncClient"]


class AsyncClient:
    """The client for programs that use asyncio or trio. See `Client`."""

    def __init__(self, address: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        self._address = address
        self._http = httpx.AsyncClient(base_url=address, headers=headers_of(key), timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def legalize(
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
        return await self._work("legalize", model, backend, options, progress)

    async def explain(
        self,
        model: Model,
        backend: str | Mapping[str, Any] = "onnx",
        *,
        progress: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> Result:
        """The report with the reasons for each conversion."""
        return await self._work("explain", model, backend, options, progress)

    async def verify(
        self,
        model: Model,
        backend: str | Mapping[str, Any] = "onnx",
        *,
        progress: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> Result:
        """The report with the findings of the verifier."""
        return await self._work("verify", model, backend, options, progress)

    async def submit(
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
        return Job.of((await self._send("POST", "/v1/jobs", **sent)).json())

    async def job(self, job: str) -> Job:
        """The job of an id."""
        return Job.of((await self._send("GET", f"/v1/jobs/{job}")).json())

    async def jobs(self) -> AsyncIterator[Job]:
        """All jobs that the key may see, newest first."""
        cursor: str | None = None
        while True:
            page = (await self._send("GET", "/v1/jobs", params={} if cursor is None else {"cursor": cursor})).json()
            for each in page["jobs"]:
                yield Job.of(each)
            cursor = page["next"]
            if cursor is None:
                return

    async def cancel(self, job: str) -> Job:
        """Cancel a job, unless it has ended."""
        return Job.of((await self._send("DELETE", f"/v1/jobs/{job}")).json())

    async def events(self, job: str, after: int = 0) -> AsyncIterator[Event]:
        """The events of a job after number `after`, as they happen, until `done`; across lost connections."""
        tries = 0
        while True:
            headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
            try:
                async with self._http.stream("GET", f"/v1/jobs/{job}/events", headers=headers) as response:
                    if not response.is_success:
                        await response.aread()
                    if (pause := pause_after(response, tries)) is None:
                        async for sent in httpx_sse.EventSource(checked(response)).aiter_sse():
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
            await anyio.sleep(pause or 1.0)

    async def wait(self, job: str, progress: Callable[[Event], None] = lambda event: None) -> Job:
        """Wait until a job has ended, with each event given to `progress`. Raises the error with which it failed."""
        async for event in self.events(job):
            progress(event)
        ended = await self.job(job)
        ended.check()
        return ended

    async def result(self, job: str) -> Result:
        """The result of a job that succeeded."""
        report = (await self._send("GET", f"/v1/jobs/{job}/report")).content
        has_model = (await self.job(job)).kind == "legalize"
        return result_of(report, await self._send("GET", f"/v1/jobs/{job}/model") if has_model else None)

    async def backends(self) -> list[dict[str, Any]]:
        """The backends that the server has."""
        found: list[dict[str, Any]] = (await self._send("GET", "/v1/backends")).json()["backends"]
        return found

    async def _work(
        self,
        kind: str,
        model: Model,
        backend: str | Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[Event], None] | None,
    ) -> Result:
        job = await self.submit(kind, model, backend, **options)
        try:
            await self.wait(job.id, progress or (lambda event: None))
        except BaseException:
            # Cancelled, or the job failed; a job that has ended stays as it is.
            with anyio.CancelScope(shield=True), contextlib.suppress(RelayoutError):
                await self.cancel(job.id)
            raise
        return await self.result(job.id)

    async def _send(self, method: str, path: str, **given: Any) -> httpx.Response:
        tries = 0
        while True:
            try:
                response = await self._http.request(method, path, **given)
            except httpx.HTTPError as error:
                raise unreachable(error, self._address) from error
            pause = pause_after(response, tries)
            if pause is None:
                return checked(response)
            tries += 1
            await anyio.sleep(pause)
