"""Jobs over HTTP: submitted, watched and awaited."""

from __future__ import annotations

import json
from typing import Any

import httpx
from http_bodies import endless_loop
from http_server import wait_for

ENDED = ("succeeded", "failed", "cancelled")


def loop_body(times: int) -> dict[str, Any]:
    """A request to verify a loop. A million rounds take a second or two."""
    loop = endless_loop(times)
    return {"graph": loop, "against": loop, "backend": "onnx", "options": {"samples": 1}}


def submit(client: httpx.Client, body: Any, kind: str = "legalize", **headers: str) -> dict[str, Any]:
    """The job of a request that is accepted."""
    answer = client.post("/v1/jobs", params={"kind": kind}, json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == job["links"]["self"]
    return job


def submit_loop(client: httpx.Client, times: int = 1 << 60) -> str:
    """The id of a job that takes long, or without an argument forever."""
    job: str = submit(client, loop_body(times), "verify")["id"]
    return job


def state_of(client: httpx.Client, job: str) -> str:
    state: str = client.get(f"/v1/jobs/{job}").json()["state"]
    return state


def wait_until_ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """The job when it has ended."""
    wait_for(lambda: state_of(client, job) in ENDED, seconds=60.0)
    ended: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
    return ended


def events_of(client: httpx.Client, job: str, after: int | None = None) -> list[tuple[int, str, dict[str, Any]]]:
    """All events of a job, until its last: (number, name, data)."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    found = []
    with client.stream("GET", f"/v1/jobs/{job}/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for block in "".join(answer.iter_text()).strip().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if fields:
                found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found
