"""The endpoints of drawings: graphs as JSON, for the page and for others that draw."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from relayout_api import openapi
from relayout_api.bodies import JSON
from relayout_api.job_routes import Existing
from relayout_api.pieces import Pieces
from relayout_api.routes import answer, computed
from relayout_api.service import Service
from relayout_api.workers.messages import Content

router = APIRouter()


@router.post("/v1/graph", **openapi.GRAPH)
async def draw_graph(request: Request) -> Response:
    """The nodes and values of a graph, with layouts, to be drawn.

    With a backend, each node also has its alternatives, and the answer has the legal graph and the report, without
    verification.
    """
    return await answer(request, "graph")


@router.get("/v1/jobs/{job}/graph", **openapi.JOB_GRAPH)
async def draw_job(
    request: Request,
    job: Existing,
    of: Annotated[Literal["both", "source", "legal"], Query(description="the graphs to draw")] = "both",
) -> Response:
    """The graph of a job that succeeded and its legal graph, to be drawn, and the alternatives of each node.

    They are drawn from the job's own model and report.
    """
    service: Service = request.app.state.service
    task, key, (body, *others) = await service.jobs.drawn(job)
    found, background = await computed(request, key, task, Content(body), *others)
    return Pieces(_part(found.view, of), service.bodies, media_type=JSON, background=background)


def _part(drawn: memoryview, of: Literal["both", "source", "legal"]) -> bytes | memoryview:
    if of == "both":
        return drawn
    # The members are in JSON already, so they need no check.
    return json.dumps({of: json.loads(bytes(drawn))[of]}, separators=(",", ":")).encode()
