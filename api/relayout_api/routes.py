"""The endpoints. Workers do long work; the server process answers the rest."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import asdict
from io import BytesIO
from urllib.parse import urlencode
from zipfile import ZipFile, ZipInfo

import anyio
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect

from relayout.errors import InputError
from relayout.layout.layout import Layout
from relayout_api import openapi, page
from relayout_api.access.callers import caller_of
from relayout_api.bodies import JSON, ONNX, ZIP, media_type
from relayout_api.http_headers import is_known, tag_of
from relayout_api.pieces import Pieces
from relayout_api.problems import KINDS, RefusedError
from relayout_api.query import given_parameters
from relayout_api.schemas import DimInfo, LayoutInfo, LayoutText, Limits
from relayout_api.service import Service
from relayout_api.telemetry.metrics import MEDIA_TYPE as METRICS_MEDIA_TYPE
from relayout_api.validation import load_body, validated
from relayout_api.workers.messages import Answer, Content, Form, Task

router = APIRouter()

_FORMS: dict[str, Form] = {ONNX: "bytes", ZIP: "parts", JSON: "json"}
_MOST_LAYOUT_BYTES = 64 << 10


@router.post("/v1/legalize", **openapi.LEGALIZE)
async def legalize(request: Request) -> Response:
    """The cheapest graph that computes the same and is legal for a backend, and the report.

    The answer to graph JSON is graph JSON, and to an ONNX model the model in base64. With `Accept:
    application/octet-stream` it is the model's bytes; the header `Relayout-Report` has the report without its lists.
    With `Accept: application/zip` it is a ZIP file with the model and the whole report.
    """
    return await answer(request, "legalize")


@router.post("/v1/explain", **openapi.EXPLAIN)
async def explain(request: Request) -> Response:
    """The reasons for each conversion of the legal graph, and the savings without the requirements behind it.

    Each saving is found by solving the problem again without that requirement.
    """
    return await answer(request, "explain")


@router.post("/v1/verify", **openapi.VERIFY)
async def verify(request: Request) -> Response:
    """Whether a graph is legal for a backend and, with `against`, equivalent to the original.

    The findings are in the report's `verification`; an illegal graph is no error of the request.
    """
    return await answer(request, "verify")


@router.get("/v1/backends", **openapi.BACKENDS)
async def backends(request: Request) -> Response:
    """The installed backends. A request may also contain a declarative one."""
    service: Service = request.app.state.service
    return Response(await service.backends(), media_type=JSON)


@router.get("/v1/limits", **openapi.LIMITS)
async def limits(request: Request) -> Response:
    """The limits of this server, which a client may check before it sends a model."""
    settings = request.app.state.service.settings
    return JSONResponse(Limits(**{name: getattr(settings, name) for name in Limits.model_fields}).model_dump())


@router.post("/v1/layouts/parse", **openapi.PARSE)
async def parse_layout(request: Request) -> Response:
    """The parts of a layout string."""
    media_type(request, JSON)
    async with request.app.state.service.bodies.read(request, _MOST_LAYOUT_BYTES) as content:
        layout = Layout.parse(validated(LayoutText, load_body(content.view())).layout)
    dims = [DimInfo(name=dim.name, extensions=list(dim.extensions), alignment=dim.alignment) for dim in layout.dims]
    info = LayoutInfo(layout=str(layout), names=layout.names, rank=layout.rank, dims=dims, tvm=_tvm(layout))
    return JSONResponse(info.model_dump())


@router.get("/problems/{kind}", **openapi.PROBLEM)
def problem(kind: str) -> Response:
    """The meaning of a kind of problem, to which the `type` of an error refers."""
    if kind not in KINDS:
        raise RefusedError("not-found", "no such kind of problem", expected=", ".join(KINDS), found=kind)
    return JSONResponse(asdict(KINDS[kind]))


@router.get("/healthz", **openapi.HEALTH)
async def healthz() -> Response:
    """Whether the server is alive."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", **openapi.READY)
async def readyz(request: Request) -> Response:
    """Whether work is accepted: a worker is warm, and the job database and the store can be used."""
    service: Service = request.app.state.service
    await service.check()
    return JSONResponse({"status": "ready"})


@router.get("/metrics", **openapi.METRICS)
async def metrics(request: Request) -> Response:
    """The metrics of this server, for Prometheus."""
    service: Service = request.app.state.service
    # The gauges ask the database.
    text = await anyio.to_thread.run_sync(service.metrics.text)
    return Response(text, media_type=METRICS_MEDIA_TYPE)


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """The page."""
    return await page.STATIC.get_response("index.html", request.scope)


@router.get("/jobs/{job}", include_in_schema=False)
async def job_page(job: str) -> Response:
    """The page with a job; its files are found relative to /."""
    return RedirectResponse(f"../?{urlencode({'job': job})}")


async def answer(request: Request, verb: str) -> Response:
    """Read the body, have a worker perform the task, and answer; the work stops when the caller disconnects."""
    service: Service = request.app.state.service
    settings = service.settings
    given, kind = given_parameters(request, verb)
    preferred = _preferred(request) if kind == ONNX and verb == "legalize" else JSON
    form = _FORMS[preferred]
    async with service.bodies.files(request) as (body, files):
        task = Task(verb, given, settings.time_limit, settings.memory_bytes, form, files, await body.digest())
        key = service.results.key(task)
        if is_known(request, key):
            return Response(status_code=304, headers={"ETag": tag_of(key), "Vary": "Accept"})
        found, background = await computed(request, key, task, body)
    headers = {"Vary": "Accept"}
    if found.repeats:
        headers["ETag"] = tag_of(key)
    if form == "bytes":
        headers["Relayout-Report"] = bytes(found.report).decode()
    content = await anyio.to_thread.run_sync(_zipped, found) if form == "parts" else found.content
    return Pieces(content, service.bodies, media_type=preferred, headers=headers, background=background)


def _zipped(answer: Answer) -> bytes:
    """A ZIP file with the model and the whole report, not compressed: weights hardly shrink."""
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        for name, content in (("model.onnx", answer.view), ("report.json", answer.report)):
            # The same answer has the same bytes.
            archive.writestr(ZipInfo(name), bytes(content))
    return packed.getvalue()


async def computed(
    request: Request, key: str, task: Task, body: Content, *others: memoryview
) -> tuple[Answer, BackgroundTask | None]:
    """The answer of a key from the store, or else from a worker, and what keeps it after it was sent.

    Raises as `Pool.run`, ClientDisconnect, RefusedError.
    """
    service: Service = request.app.state.service
    if (found := await service.results.known(key)) is not None:
        return found, None
    wait = service.settings.queue_seconds
    found = await _unless_gone(
        request, service, service.pool.run(task, body, caller_of(request).name, *others, wait=wait)
    )
    return found, BackgroundTask(service.results.learn, key, found) if found.repeats else None


async def _unless_gone(request: Request, service: Service, answering: Awaitable[Answer]) -> Answer:
    """The worker's answer. If the caller disconnects, the worker is killed, also when the server's grace is over.

    Raises ClientDisconnect, RefusedError.
    """
    is_gone = False

    async def leave_when_gone() -> None:
        nonlocal is_gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        scope.cancel()

    with anyio.CancelScope() as scope, service.ends(scope):
        # Not a task group of anyio, which takes as long as all middleware together.
        watcher = asyncio.create_task(leave_when_gone())
        try:
            return await answering
        finally:
            watcher.cancel()
    if is_gone:
        raise ClientDisconnect
    raise RefusedError("stopping", "the server is being stopped", hint="retry later", retry_after=5)


def _preferred(request: Request) -> str:
    """The media type of _FORMS to which the header Accept gives the most weight; JSON where it names none."""
    weights: dict[str, float] = {}
    for part in request.headers.get("accept", "").split(","):
        name, _, rest = part.partition(";")
        weight = re.search(r"\bq=([01](?:\.\d{0,3})?)", rest)
        weights[name.strip().lower()] = float(weight[1]) if weight else 1.0
    accepted = [kind for kind in (ONNX, ZIP, JSON) if weights.get(kind, 0.0) > 0]
    return max(accepted, key=lambda kind: weights[kind], default=JSON)


def _tvm(layout: Layout) -> str | None:
    try:
        return layout.to_tvm()
    except InputError:
        return None
