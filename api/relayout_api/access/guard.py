"""The middleware that lets requests in: it finds the caller, then checks scope and limits."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from relayout.errors import RelayoutError, UsageError
from relayout_api.access.callers import PREFIX, Caller, TooSoonError, needed_scope
from relayout_api.access.limits import Limits
from relayout_api.problems import RefusedError, response_of

_log = logging.getLogger("relayout_api")

# A revoked key works this much longer.
_REMEMBERED_SECONDS = 5.0
_MOST_REMEMBERED = 10_000
# Threads that may wait for the issuer of tokens; all other work of threads has its own.
_TOKEN_THREADS = 4


Finder = Callable[[str], Caller | None]
"""Finds the caller whom a key names."""
TokenFinder = Callable[[str, float], Caller | None]
"""Finds the caller whom a token names that arrived at a time of `time.monotonic`."""


class Guard:
    """Finds the caller of each request, who is then in the scope, and refuses what it may not do.

    Where `required` is false, a request needs no key; one that has a key is still counted as that key's.
    """

    def __init__(self, app: ASGIApp, *, key: Finder | None, token: TokenFinder | None, required: bool) -> None:
        self._app, self._key, self._token, self._required = app, key, token, required
        self._limits = Limits()
        self._token_threads = anyio.CapacityLimiter(_TOKEN_THREADS)
        self._found: dict[bytes, tuple[Caller | None, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["relayout.caller"] = _by_address(scope)
        needed = needed_scope(scope["method"], scope["path"])
        with ExitStack() as admitted:
            try:
                # Probes and the page need no key and are not counted.
                if needed is not None:
                    scope["relayout.caller"] = caller = await self._caller(scope)
                    if not caller.may(needed):
                        raise RefusedError(
                            "forbidden",
                            "this key may not do this",
                            expected=f"scope {needed}",
                            found=f"scope {caller.scope}",
                        )
                    admitted.enter_context(self._limits.admitted(caller))
            except RelayoutError as error:
                await response_of(error)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    async def _caller(self, scope: Scope) -> Caller:
        """Raises RefusedError for a key or token that is wrong, or missing where one is needed."""
        text = _presented(Headers(scope=scope))
        if text and (self._required or self._key or self._token):
            caller = await self._named(text)
            if caller is not None:
                return caller
            raise RefusedError("unauthorized", "no such key, or it has expired", expected="a valid key or token")
        if self._required:
            raise RefusedError(
                "unauthorized",
                "this service needs a key",
                expected="the header `Authorization: Bearer KEY`",
                found="none",
                hint="whoever runs the service makes keys, with `relayout serve keys add NAME`",
            )
        return _by_address(scope)

    async def _named(self, text: str) -> Caller | None:
        # A hash: callers may send as many long texts as they like, and memory holds no secrets.
        name = hashlib.sha256(text.encode()).digest()
        known = self._found.get(name)
        now = monotonic()
        if known is not None and known[1] > now:
            return known[0]
        try:
            caller = await self._asked(text, now)
        except UsageError as error:
            # The database of keys, or the issuer of tokens; the caller is not told where it is.
            _log.error("%s", error)
            raise RefusedError("starting", "keys and tokens cannot be checked now", retry_after=10) from error
        if len(self._found) >= _MOST_REMEMBERED:
            self._found.clear()
        self._found[name] = caller, now + _REMEMBERED_SECONDS
        return caller

    async def _asked(self, text: str, now: float) -> Caller | None:
        """The caller whom a key or token names that arrived now. Raises UsageError where that cannot be checked."""
        if text.startswith(PREFIX):
            return None if self._key is None else await anyio.to_thread.run_sync(self._key, text)
        if self._token is None:
            return None
        while True:
            try:
                return await anyio.to_thread.run_sync(self._token, text, now, limiter=self._token_threads)
            except TooSoonError as error:
                # No thread waits: there are few.
                await anyio.sleep(error.seconds)


def _by_address(scope: Scope) -> Caller:
    client = scope.get("client")
    return Caller(f"address:{client[0] if client else 'unknown'}")


def _presented(headers: Headers) -> str:
    """The key or token in a request's headers, or nothing."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
