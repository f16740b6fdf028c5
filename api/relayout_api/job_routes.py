"""The endpoints of jobs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from relayout.errors import UsageError
from relayout_api import openapi
from relayout_api.access.callers import caller_of
from relayout_api.bodies import JSON, ONNX
from relayout_api.http_headers import is_known, tag_of
from relayout_api.jobs.jobs import Jobs, Row
from relayout_api.jobs.schema import Job, JobList, Verb
from relayout_api.pieces import Pieces
from relayout_api.problems import RefusedError
from relayout_api.query import given_parameters
from relayout_api.service import Service

router = APIRouter()

_MOST_JOBS = 100
# A path of names, so that no link is of another host.
_PREFIX = re.compile(r"(/(?!\.)[\w.~-]{1,80}){1,10}", re.ASCII)


@router.post("/v1/jobs", **openapi.SUBMIT)
async def submit_job(
    request: Request,
    kind: Annotated[Verb, Query(description="the work")] = "legalize",
    name: Annotated[
        str | None, Query(max_length=255, description="a name for the job, such as that of the model's file")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1, max_length=255, description="a request with a key that was seen gets the job of the first"
        ),
    ] = None,
) -> Response:
    """Submit work that may take long. The body and the query are those of the endpoint of that kind.

    The job is on disk when this is answered. It runs when a worker is free, also after a restart of the server. A job
    without an Idempotency-Key is cancelled where the caller leaves before the answer.
    """
    service: Service = request.app.state.service
    if (times := len(request.headers.getlist("idempotency-key"))) > 1:
        where = "header Idempotency-Key"
        raise UsageError("the header is there several times", where=where, expected="one", found=str(times))
    own = "kind", "name"
    parameters, media = given_parameters(request, kind, *own)
    caller = caller_of(request).name
    async with service.bodies.files(request) as (body, files):
        arguments = {"kind": kind, "name": name, "media": media, "parameters": parameters, "caller": caller}
        lengths = [list(file) for file in files]
        # Of the options, as they were sent.
        query = sorted([key, value] for key, value in request.query_params.multi_items() if key not in own)
        job = await service.jobs.submit({**arguments, "files": lengths, "query": query}, body, caller, idempotency_key)
    if idempotency_key is None and await request.is_disconnected():
        # Nobody has the job's id, to ask for its result or to cancel it.
        await service.jobs.cancel(await service.jobs.find(job.id))
        raise ClientDisconnect
    job = _reached(request, job)
    return JSONResponse(job.model_dump(mode="json"), 202, {"Location": job.links.self})


@router.get("/v1/jobs", **openapi.JOBS)
async def list_jobs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=_MOST_JOBS)] = 20,
    cursor: Annotated[str | None, Query(max_length=16_000, description="`next` of the page before")] = None,
) -> JobList:
    """The caller's jobs, newest first; with the scope `admin` those of all callers."""
    caller = caller_of(request)
    page = await _jobs(request).page(limit, cursor, None if caller.may("admin") else caller.name)
    return JobList(jobs=[_reached(request, job) for job in page.jobs], next=page.next)


async def _existing(request: Request, job: str) -> Row:
    """The row of a job that exists and that the caller may see. Raises RefusedError."""
    row = await _jobs(request).find(job)
    if not caller_of(request).may_see(str(row.authenticated_user)):
        # As if it did not exist: its id is nobody else's business.
        raise _jobs(request).absent(job)
    return row


Existing = Annotated[Row, Depends(_existing)]


@router.get("/v1/jobs/{job}", **openapi.JOB)
async def get_job(request: Request, job: Existing) -> Job:
    """A job: its state, and how far it is."""
    return _reached(request, await _jobs(request).shown(job))


@router.delete("/v1/jobs/{job}", **openapi.CANCEL)
async def cancel_job(request: Request, job: Existing) -> Job:
    """Cancel a job. A worker that runs it is killed. A job that has ended stays as it is."""
    return _reached(request, await _jobs(request).cancel(job))


@router.get("/v1/jobs/{job}/report", **openapi.JOB_REPORT)
async def job_report(request: Request, job: Existing) -> Response:
    """The whole report of a job that succeeded."""
    return _result(request, *await _jobs(request).result(job, "report"))


@router.get("/v1/jobs/{job}/model", **openapi.JOB_MODEL)
async def job_model(request: Request, job: Existing) -> Response:
    """The legal model of a job that succeeded: ONNX, or graph JSON where the input was graph JSON."""
    return _result(request, *await _jobs(request).result(job, "model"))


@router.get("/v1/jobs/{job}/source", **openapi.JOB_SOURCE)
async def job_source(request: Request, job: Existing) -> Response:
    """The ONNX model that the job was submitted with, or the JSON body with its graph, backend and options."""
    return _result(request, *await _jobs(request).source(job))


async def _last_event_id(last_event_id: Annotated[str | None, Header()] = None) -> int:
    """The number of the last event that the caller has seen."""
    if last_event_id is None:
        return 0
    if not last_event_id.isdecimal() or len(last_event_id) > 9:
        raise UsageError(
            "a wrong event id", where="header Last-Event-ID", expected="a number", found=last_event_id[:80]
        )
    return int(last_event_id)


async def _next_events(request: Request, job: Existing, after: Annotated[int, Depends(_last_event_id)]) -> int:
    """The number of the last event that the caller has seen, unless that is the last of all: then the answer is 204, at
    which a browser does not ask again."""
    if await _jobs(request).has_told(job.workflow_id, after):
        raise HTTPException(204)
    return after


@router.get("/v1/jobs/{job}/events", response_class=EventSourceResponse, **openapi.JOB_EVENTS)
async def job_events(
    request: Request, job: Existing, after: Annotated[int, Depends(_next_events)]
) -> AsyncIterator[ServerSentEvent]:
    """The events of a job as they happen, from the first or after `Last-Event-ID`: `stage`, `solution`, and `done`."""
    service: Service = request.app.state.service
    # The answer has begun, so there is no place for a problem, such as a database that is gone. A caller asks again for
    # the rest, and is told then.
    with suppress(RefusedError):
        async for event in service.jobs.events(job.workflow_id, after, service.stopping.is_set):
            is_job = event.name == "done"
            data = _reached(request, Job(**event.data)).model_dump() if is_job else event.data
            yield ServerSentEvent(data=data, event=event.name, id=str(event.number))


def _reached(request: Request, job: Job) -> Job:
    """The job with links that its caller can use: a proxy names the path that it has taken away."""
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    if not _PREFIX.fullmatch(prefix):
        return job
    return job.model_copy(update={"links": job.links.under(prefix)})


def _jobs(request: Request) -> Jobs:
    service: Service = request.app.state.service
    return service.jobs


def _result(request: Request, content: memoryview, media: str, digest: str) -> Response:
    headers = {"ETag": tag_of(digest)}
    if is_known(request, digest):
        return Response(status_code=304, headers=headers)
    return Pieces(content, media_type=media if media in (JSON, ONNX) else ONNX, headers=headers)
