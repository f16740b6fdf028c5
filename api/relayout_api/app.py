"""The application: settings, workers, endpoints, and errors as problem details."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from relayout.errors import InternalError, RelayoutError, did_you_mean
from relayout_api import openapi, page
from relayout_api.access.guard import Finder, Guard, TokenFinder
from relayout_api.access.same_origin import SameOrigin
from relayout_api.bodies import ONNX
from relayout_api.drawings import router as drawings_router
from relayout_api.http_headers import Gzip, HeadAsGet, SecurityHeaders
from relayout_api.job_routes import router as jobs_router
from relayout_api.problems import SEE_LOG, AnsweredError, RefusedError, answer_of, response_of
from relayout_api.query import check_query
from relayout_api.routes import router
from relayout_api.service import Service
from relayout_api.settings import Settings
from relayout_api.store import AwayError
from relayout_api.telemetry.observer import Observer
from relayout_api.telemetry.tracing import trace
from relayout_api.validation import header_error
from relayout_api.workers.processes import Template

_log = logging.getLogger("relayout_api")

_ROUTERS = (router, jobs_router, drawings_router)
_LEAST_COMPRESSED = 1000
_ID = re.compile(r"[\w.:-]{1,80}")
# Headers of requests and of answers that a page of another origin may send and read.
_TAKEN = [
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "X-API-Key",
    "X-Request-ID",
]
_SHOWN = ["ETag", "Location", "Relayout-Report", "Retry-After", "X-Request-ID"]


def create_app(
    settings: Settings | None = None, template: Template | None = None, *, only_local: bool = False
) -> FastAPI:
    """The service, with settings from the environment where none are given. Raises UsageError for a bad setting.

    `template`: the template of the workers, where it was started before. `only_local`: only this machine can call, and
    needs no key, so that pages of other sites are kept out.
    """
    app = FastAPI(
        title="relayout",
        version=version("relayout"),
        lifespan=_lifespan,
        # FastAPI's pages load scripts from other servers; any OpenAPI viewer reads /openapi.json.
        docs_url=None,
        redoc_url=None,
        # A redirect names the scheme and the host that the server sees, which a proxy's callers may not use.
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    settings = settings or Settings.from_environment()
    app.state.service = service = Service(settings, template)
    for each in _ROUTERS:
        app.include_router(each, dependencies=[Depends(check_query)])
    app.mount("/static", page.STATIC)
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]
    _add_middleware(app, settings, service, only_local)
    app.add_exception_handler(RelayoutError, _on_error)
    app.add_exception_handler(AnsweredError, _on_answered)
    app.add_exception_handler(OSError, _on_system)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_fault)
    return app


def _add_middleware(app: FastAPI, settings: Settings, service: Service, only_local: bool) -> None:
    """Each one is outside of those that are added before it."""
    app.add_middleware(
        Gzip,
        minimum_size=_LEAST_COMPRESSED,
        # Higher levels take several times as long for a few percent.
        compresslevel=1,
        # Weights take a second for 27 MB and hardly become smaller.
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, ONNX),
    )
    app.add_middleware(HeadAsGet)
    key, token = _finders(settings)
    app.add_middleware(Guard, key=key, token=token, required=settings.auth == "required")
    if only_local:
        app.add_middleware(SameOrigin, allowed=settings.cors_origins)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=_TAKEN,
            expose_headers=_SHOWN,
        )
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Observer, metrics=service.metrics)
    # A caller's own id is taken if it is short and plain; it ends up in logs.
    app.add_middleware(CorrelationIdMiddleware, validator=lambda text: _ID.fullmatch(text) is not None)
    trace(app)


def _finders(settings: Settings) -> tuple[Finder | None, TokenFinder | None]:
    """Find callers by keys and by tokens. A service without keys imports no database and no cryptography."""
    key: Finder | None = None
    token: TokenFinder | None = None
    if settings.auth == "required":
        from relayout_api.access.keys import Keys

        key = Keys(settings.keys_url).find
    if settings.oidc_issuer is not None:
        from relayout_api.access.tokens import Tokens

        token = Tokens(settings.oidc_issuer, settings.oidc_audience, settings.oidc_claim).find
    return key, token


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.service.open():
        yield


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RelayoutError)
    return _respond(request, error)


async def _on_answered(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnsweredError)
    return answer_of(error.problem)


async def _on_system(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if isinstance(error, AwayError):
        _log.error("%s %s: the store cannot be used: %s", request.method, request.url.path, error)
        problem, found = "the store cannot be used", error.strerror or ""
        return _respond(request, RefusedError("starting", problem, found=found, hint=SEE_LOG, retry_after=10))
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        # The server itself logs the traceback of other exceptions only.
        _log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
        return await _on_fault(request, error)
    _log.error("%s %s: %s", request.method, request.url.path, error)
    return _respond(request, RefusedError("no-space", "the server's disk is full", retry_after=60))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # `check_query` looks at the query before.
    return _respond(request, header_error(error.errors()))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    found = f"{request.method} {request.url.path}"
    if error.status_code == 204:
        return Response(status_code=204)
    if error.status_code == 404:
        hint = did_you_mean(request.url.path, _paths_like(request.url.path))
        return _respond(
            request,
            RefusedError(
                "not-found", "there is no such path", expected="a path of /openapi.json", found=found, hint=hint
            ),
        )
    if error.status_code == 405:
        allowed = _allowed(request)
        refusal = RefusedError("method-not-allowed", "the path has no such method", expected=allowed, found=found)
        return _respond(request, refusal, {"Allow": allowed})
    return _respond(request, RefusedError("malformed-body", str(error.detail), found=found), error.headers)


def _allowed(request: Request) -> str:
    """The methods that the path of a request has: a router names those of the first route that matches alone."""
    methods: set[str] = set()
    for route in _routes():
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def _paths_like(path: str) -> list[str]:
    """The paths of all routes, with the parts of `path` in the place of parameters."""
    given = dict(enumerate(path.split("/")))
    known = [each.path.split("/") for each in _routes()]
    like = ["/".join(given.get(n, part) if part[:1] == "{" else part for n, part in enumerate(each)) for each in known]
    return [each for each in like if each != path]


def _routes() -> list[Route]:
    return [route for each in _ROUTERS for route in each.routes if isinstance(route, Route)]


async def _on_gone(request: Request, error: Exception) -> Response:
    _log.warning("%s %s: the caller disconnected", request.method, request.url.path)
    # The status for the log, as nginx has it; no client reads it.
    return Response(status_code=499)


async def _on_fault(request: Request, error: Exception) -> Response:
    # The server logs the traceback itself.
    return _respond(request, InternalError("an unforeseen exception"))


def _respond(request: Request, error: RelayoutError, headers: Mapping[str, str] | None = None) -> Response:
    response = response_of(error, headers)
    if response.status_code == 500:
        # The problem has no details.
        _log.error("%s %s: %s", request.method, request.url.path, error)
    return response
