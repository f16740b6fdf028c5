"""The limits on jobs that have not ended, by number and by the bytes of their inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_jobs import state_of, submit, submit_loop
from http_server import client_of, serving, wait_for

from relayout_api.examples import GRAPH
from relayout_api.jobs.backlog import Backlog, Unfinished
from relayout_api.problems import RefusedError
from relayout_api.settings import Settings


def backlog(tmp_path: Path, *known: Unfinished, jobs: int = 10, store_bytes: int = 1000) -> Backlog:
    return Backlog(Settings(data=tmp_path, jobs=jobs, store_bytes=store_bytes), lambda: known)


def kind_of_refusal(backlog: Backlog, job: Unfinished) -> str:
    with pytest.raises(RefusedError) as refused:
        backlog.enter(job)
    assert refused.value.retry_after or refused.value.kind == "too-large"
    return refused.value.kind


def test_one_caller_has_half_of_the_jobs_and_others_the_rest(tmp_path: Path) -> None:
    queue = backlog(tmp_path)
    for caller in "ab":
        for _ in range(5):
            queue.enter(Unfinished(caller, 1))
        assert kind_of_refusal(queue, Unfinished(caller, 1)) == "too-many-requests"
    assert kind_of_refusal(queue, Unfinished("c", 1)) == "busy"


def test_jobs_that_run_wait_no_more_and_their_inputs_still_count(tmp_path: Path) -> None:
    running = [Unfinished("a", 50, server=str(each)) for each in range(10)]
    queue = backlog(tmp_path, *running)
    assert kind_of_refusal(queue, Unfinished("a", 1)) == "too-many-requests"
    queue.enter(Unfinished("b", 250))
    assert kind_of_refusal(queue, Unfinished("b", 1)) == "no-space"


def test_jobs_that_a_server_took_beyond_a_callers_share_of_its_workers_wait(tmp_path: Path) -> None:
    taken = [Unfinished(caller, 1, server="server") for caller in "aaab"]
    queue = Backlog(Settings(data=tmp_path, workers=2, jobs=6), lambda: taken)
    queue.enter(Unfinished("a", 1))
    assert kind_of_refusal(queue, Unfinished("a", 1)) == "too-many-requests"
    for _ in range(3):
        queue.enter(Unfinished("b", 1))
    assert kind_of_refusal(queue, Unfinished("c", 1)) == "busy"


def test_an_input_that_never_fits_is_too_large(tmp_path: Path) -> None:
    queue = backlog(tmp_path)
    assert kind_of_refusal(queue, Unfinished("a", 501)) == "too-large"
    queue.enter(Unfinished("a", 500))


def test_a_job_that_is_not_written_gives_its_place_back(tmp_path: Path) -> None:
    queue, job = backlog(tmp_path, jobs=2), Unfinished("a", 1)
    queue.enter(job)
    queue.leave(job, is_written=False)
    queue.enter(job)
    queue.leave(job, is_written=True)
    assert kind_of_refusal(queue, job) == "too-many-requests"


def test_a_caller_fills_neither_the_queue_nor_the_store(tmp_path: Path) -> None:
    limits = {"RELAYOUT_WORKERS": "1", "RELAYOUT_JOBS": "10", "RELAYOUT_STORE_BYTES": "500000"}
    with (
        serving(tmp_path, **limits) as server,
        client_of(server) as client,
        client_of(server, "127.0.0.2") as other,
    ):
        running = submit_loop(client)
        wait_for(lambda: state_of(client, running) == "running")
        first = submit(client, {"graph": GRAPH}, **{"Idempotency-Key": "first"})
        answers: list[int] = []

        def half_is_full() -> bool:
            graph = {**GRAPH, "name": str(len(answers))}
            answers.append(client.post("/v1/jobs", json={"graph": graph}).status_code)
            return answers.count(202) == 4

        # The job that runs has a place among the five that may wait until they are counted again.
        wait_for(half_is_full)
        refused = client.post("/v1/jobs", json={"graph": GRAPH})
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-requests")
        assert int(refused.headers["retry-after"]) > 0
        # A job that is there already, and another caller's.
        assert submit(client, {"graph": GRAPH}, **{"Idempotency-Key": "first"})["id"] == first["id"]
        large = [{"graph": {**GRAPH, "name": f"{each}" * 120_000}} for each in range(3)]
        sizes = [other.post("/v1/jobs", json=body) for body in large]
        assert [answer.status_code for answer in sizes] == [202, 202, 429]
        assert "bytes" in sizes[-1].json()["expected"]
        most = sum(path.stat().st_size for path in (tmp_path / "data" / "store").rglob("*") if path.is_file())
        assert most < 500_000
        huge = other.post("/v1/jobs", json={"graph": {**GRAPH, "name": "x" * 300_000}})
        assert (huge.status_code, huge.json()["type"]) == (413, "/problems/too-large")
