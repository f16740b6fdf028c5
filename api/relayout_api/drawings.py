"""The endpoints of drawings: graphs as JSON, for the page and for others that draw."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from relayout_api import openapi
from relayout_api.access.callers import caller_of
from relayout_api.bodies import JSON
from relayout_api.job_routes import Existing
from relayout_api.query import GraphQuery
from relayout_api.routes import answer, unless_gone
from relayout_api.service import Service
from relayout_api.store import digest_of
from relayout_api.workers.messages import Content, Task

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/graph", **openapi.GRAPH)
async def draw_graph(request: Request, query: Annotated[GraphQuery, Query()]) -> Response:
    """The nodes and values of a graph, with layouts, to be drawn.

    With a backend, each node also has its alternatives, and the answer has the legal graph and the report, without
    verification.
    """
    return await answer(request, "graph", query.parameters)


@router.get("/v1/jobs/{job}/graph", **openapi.JOB_GRAPH)
async def draw_job(request: Request, job: Existing) -> Response:
    """The graph of a job that succeeded and its legal graph, to be drawn, and the alternatives of each node.

    The problem is solved again for it, and the report is that of the drawing.
    """
    service: Service = request.app.state.service
    settings = service.settings
    arguments, body = await service.jobs.request(job)
    # Without the original that a model was compared with, which follows it.
    body = body[: arguments["split"]]
    task = Task("draw", arguments["parameters"], settings.job_time_limit, settings.memory_bytes, digest=digest_of(body))
    key = service.results.key(task)
    found = await service.results.known(key)
    if found is None:
        working = service.pool.run(task, Content(body), caller_of(request).name, wait=settings.queue_seconds)
        found = await unless_gone(request, service, working)
        if found.repeats:
            await service.results.learn(key, found)
    return Response(found.content, media_type=JSON)
