"""The application: settings, workers, endpoints, and errors as problem details."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from relayout.errors import InternalError, RelayoutError
from relayout_api import openapi, page
from relayout_api.drawings import router as drawings_router
from relayout_api.jobs.routes import router as jobs_router
from relayout_api.problems import MEDIA_TYPE, AnsweredError, Problem, RefusedError, problem_of
from relayout_api.routes import router
from relayout_api.service import Service
from relayout_api.settings import Settings
from relayout_api.validation import usage_error
from relayout_api.workers.processes import Template

__all__ = ["create_app"]

_log = logging.getLogger("relayout_api")

# A client may still send a body that the server no longer reads.
_HEADERS = {408: {"Connection": "close"}, 413: {"Connection": "close"}, 503: {"Retry-After": "1"}}


def create_app(settings: Settings | None = None, template: Template | None = None) -> FastAPI:
    """The service, with settings from the environment where none are given. Raises UsageError for a bad setting.

    `template`: the template of the workers, where it was started before.
    """
    app = FastAPI(
        title="relayout",
        version=version("relayout"),
        lifespan=_lifespan,
        # FastAPI's pages load scripts from other servers; any OpenAPI viewer reads /openapi.json.
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = Service(settings or Settings.from_environment(), template)
    app.include_router(router)
    app.include_router(jobs_router)
    app.include_router(drawings_router)
    app.mount("/static", page.STATIC)
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]
    app.add_exception_handler(RelayoutError, _on_error)
    app.add_exception_handler(AnsweredError, _on_answered)
    app.add_exception_handler(OSError, _on_system)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_fault)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.service.open():
        yield


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RelayoutError)
    return _respond(request, error)


async def _on_answered(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnsweredError)
    return _answer(error.problem)


async def _on_system(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return await _on_fault(request, error)
    _log.error("%s %s: %s", request.method, request.url.path, error)
    return _respond(request, RefusedError("no-space", "the server's disk is full", retry_after=60))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _respond(request, usage_error(error.errors()))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "malformed-body")
    found = f"{request.method} {request.url.path}"
    return _respond(request, RefusedError(kind, str(error.detail), found=found), error.headers)


async def _on_gone(request: Request, error: Exception) -> Response:
    _log.warning("%s %s: the caller disconnected", request.method, request.url.path)
    # The status for the log, as nginx has it; no client reads it.
    return Response(status_code=499)


async def _on_fault(request: Request, error: Exception) -> Response:
    # The server logs the traceback itself.
    return _respond(request, InternalError("an unforeseen exception"))


def _respond(request: Request, error: RelayoutError, headers: Mapping[str, str] | None = None) -> Response:
    problem = problem_of(error)
    if problem.status == 500:
        # The problem has no details.
        _log.error("%s %s: %s", request.method, request.url.path, error)
    seconds = error.retry_after if isinstance(error, RefusedError) else None
    retry = {} if seconds is None else {"Retry-After": str(seconds)}
    return _answer(problem, {**(headers or {}), **retry})


def _answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    more = _HEADERS.get(problem.status, {})
    return JSONResponse(
        problem.model_dump(exclude_none=True), problem.status, {**more, **(headers or {})}, media_type=MEDIA_TYPE
    )
