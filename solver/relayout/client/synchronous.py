"""The synchronous client: the asynchronous one over a transport that blocks, so that its coroutines never wait."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx
import httpx_sse

from relayout.client.asynchronous import AsyncClient
from relayout.client.protocol import http_of

P = ParamSpec("P")
T = TypeVar("T")


class _Blocking:
    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    async def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        if "content" in given:
            # Of bytes, httpcore copies what is left after each part that the socket takes, which for 800 MB is most of
            # the time. A file is sent piece by piece.
            given["content"] = BytesIO(given["content"])
        return self._http.request(method, path, **given)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        with self._http.stream("GET", path, headers=headers) as response:
            if not response.is_success:
                response.read()
            yield response

    async def events(self, response: httpx.Response) -> AsyncIterator[httpx_sse.ServerSentEvent]:
        for event in httpx_sse.EventSource(response).iter_sse():
            yield event

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def shielded(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    async def close(self) -> None:
        self._http.close()


def _end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a coroutine over a transport that blocks has waited")


def _calling(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _end(method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @functools.wraps(method)
    def iterate(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        values = method(self._client, *args, **kwargs)
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield _end(_next(values))

    return iterate


async def _next(values: AsyncIterator[T]) -> T:
    return await anext(values)


class Client:
    """A client of the service at `address`, such as http://127.0.0.1:8000. `key` is an API key or a bearer token.

    A server that is busy is asked again after the time that it names, a few times. One that is restarted while a job is
    followed has a minute or two to come back. Methods raise the errors that the
    library raises, with the same fields: InputError, UsageError, InfeasibleError, OutOfTimeError; UsageError too where
    the server does not answer.
    """

    def __init__(self, address: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        self._client = AsyncClient.over(_Blocking(http_of(httpx.Client, address, key, timeout)), address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _calling(AsyncClient.close)
    legalize = _calling(AsyncClient.legalize)
    explain = _calling(AsyncClient.explain)
    verify = _calling(AsyncClient.verify)
    submit = _calling(AsyncClient.submit)
    job = _calling(AsyncClient.job)
    jobs = _iterating(AsyncClient.jobs)
    cancel = _calling(AsyncClient.cancel)
    events = _iterating(AsyncClient.events)
    wait = _calling(AsyncClient.wait)
    result = _calling(AsyncClient.result)
    source = _calling(AsyncClient.source)
    graph = _calling(AsyncClient.graph)
    backends = _calling(AsyncClient.backends)
    limits = _calling(AsyncClient.limits)
