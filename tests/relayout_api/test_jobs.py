"""Jobs: accepted, watched, resumed, cancelled, paged; and answers that are computed once."""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from http_bodies import onnx_bytes
from http_jobs import events_of, state_of, submit, submit_loop, wait_until_ended
from http_server import Server, client_of, is_running, serving, wait_for, workers_of

from relayout_api.examples import GRAPH

ONNX = {"Content-Type": "application/octet-stream"}
BODY = {"graph": GRAPH, "backend": "nhwc"}


def named(name: str) -> dict[str, Any]:
    """A body that no other test has sent, so that its answer is not known."""
    return {**BODY, "graph": {**GRAPH, "name": name}}


def test_a_graph_becomes_a_legal_graph_and_a_report(client: httpx.Client) -> None:
    job = submit(client, named("watched"))
    assert (job["kind"], job["state"], job["problem"], job["ended"]) == ("legalize", "queued", None, None)
    events = events_of(client, job["id"])
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    stages = [data["stage"] for _, name, data in events if name == "stage"]
    assert stages == ["read", "requirements", "solve", "rewrite", "check", "write"]
    assert (events[-1][1], events[-1][2]) == ("done", client.get(f"/v1/jobs/{job['id']}").json())
    done = events[-1][2]
    assert (done["state"], done["progress"], done["cost"], done["bound"]) == ("succeeded", 1.0, 0, 0)
    assert done["created"] <= done["started"] <= done["ended"]
    answer = client.post("/v1/legalize", json=named("watched")).json()
    assert client.get(job["links"]["model"]).json() == answer["graph"]
    report = client.get(job["links"]["report"]).json()
    assert without_seconds(report) == without_seconds(answer["report"])


def without_seconds(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "solver": {**report["solver"], "seconds": None}}


def test_an_onnx_model_becomes_an_onnx_model(client: httpx.Client) -> None:
    query = {"kind": "legalize", "backend": "nhwc", "check": "true", "input_layout": "image=any"}
    job = client.post("/v1/jobs", params=query, content=onnx_bytes(), headers=ONNX).json()
    assert wait_until_ended(client, job["id"])["state"] == "succeeded"
    answer = client.get(job["links"]["model"])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert {node.op_type for node in onnx.load_from_string(answer.content).graph.node} == {"Conv", "Relu"}
    assert client.get(job["links"]["report"]).json()["verification"]["passed"]
    for tag in (answer.headers["etag"], "*"):
        known = client.get(job["links"]["model"], headers={"If-None-Match": tag})
        assert (known.status_code, known.content) == (304, b"")


def test_better_solutions_are_events(client: httpx.Client) -> None:
    job = submit(client, {**named("solutions"), "backend": "nchw", "options": {"engine": "cp-sat"}})["id"]
    events = events_of(client, job)
    solutions = [(data["cost"], data["bound"]) for _, name, data in events if name == "solution"]
    done = events[-1][2]
    assert solutions
    assert all(cost >= done["cost"] >= bound for cost, bound in solutions)


def test_a_job_says_what_was_asked_for_and_has_its_source(client: httpx.Client) -> None:
    query = {"kind": "legalize", "name": "my net.onnx", "backend": "nhwc", "dim": "n=4"}
    job = client.post("/v1/jobs", params=query, content=onnx_bytes(), headers=ONNX).json()
    assert (job["name"], job["backend"], job["options"]["dims"]) == ("my net.onnx", "nhwc", {"n": 4})
    source = client.get(job["links"]["source"])
    assert (source.content, source.headers["content-type"]) == (onnx_bytes(), "application/octet-stream")
    # A body in JSON has its own backend and options.
    body = named("source")
    job = client.post("/v1/jobs", params={"name": "graph.json"}, json=body).json()
    assert (job["name"], job["backend"], job["options"]) == ("graph.json", None, None)
    assert client.get(job["links"]["source"]).json() == body
    # Of two files, the source is the model.
    files = {"model": onnx_bytes(), "against": b"none"}
    job = client.post("/v1/jobs?kind=verify", files=files).json()
    assert client.get(job["links"]["source"]).content == onnx_bytes()


def test_links_have_the_path_of_a_proxy(client: httpx.Client) -> None:
    proxy = {"X-Forwarded-Prefix": "/tools/relayout/"}
    response = client.post("/v1/jobs", json=named("proxy"), headers=proxy)
    job = response.json()
    path = f"/tools/relayout/v1/jobs/{job['id']}"
    assert (response.headers["location"], job["links"]["self"]) == (path, path)
    events = client.get(f"/v1/jobs/{job['id']}/events", headers=proxy).text
    assert f'"report": "{path}/report"' in events
    shown = client.get(f"/v1/jobs/{job['id']}", headers=proxy).json()["links"]
    assert set(shown.values()) == {path, *(f"{path}/{each}" for each in ("events", "report", "model", "source"))}
    assert client.get("/v1/jobs?limit=1", headers=proxy).json()["jobs"][0]["links"]["self"].startswith("/tools/")
    for wrong in ("//example.org", "relayout", "/a/../b", "/a b", "/"):
        links = client.get(f"/v1/jobs/{job['id']}", headers={"X-Forwarded-Prefix": wrong}).json()["links"]
        assert links["self"] == f"/v1/jobs/{job['id']}"


@pytest.mark.parametrize("kind", ["explain", "verify"])
def test_other_work_has_a_report_and_no_model(client: httpx.Client, kind: str) -> None:
    job = submit(client, BODY, kind)
    assert wait_until_ended(client, job["id"])["state"] == "succeeded"
    assert client.get(job["links"]["report"]).json()["backend"] == "nhwc"
    assert "model" not in job["links"]
    answer = client.get(f"/v1/jobs/{job['id']}/model")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/no-result")
    assert answer.json()["expected"] == "a job of the kind legalize"


@pytest.mark.parametrize("body", [{"graph": GRAPH, "backend": "none such"}, 7], ids=["backend", "no_object"])
def test_a_job_that_fails_has_the_problem_that_a_request_has(client: httpx.Client, body: Any) -> None:
    job = submit(client, body)
    failed = wait_until_ended(client, job["id"])
    assert (failed["state"], failed["problem"]["status"]) == ("failed", 422)
    problem = client.post("/v1/legalize", json=body).json()
    assert failed["problem"] == problem
    assert failed["links"].keys() == {"self", "events", "source"}
    answer = client.get(job["links"]["report"])
    assert (answer.status_code, answer.json()) == (422, problem)


def test_the_log_follows_a_job_from_its_request_to_its_end(server: Server, client: httpx.Client) -> None:
    answer = client.post("/v1/jobs?kind=legalize", json={"graph": {}}, headers={"X-Request-ID": "of-this-job"})
    job = answer.json()["id"]
    wait_until_ended(client, job)
    lines = [line.split(" info ", 1)[1] for line in server.log().splitlines() if f"job={job}" in line]
    caller = "caller=address:127.0.0.1"
    assert lines[0] == f"job {job} queued job={job} kind=legalize {caller} request_id=of-this-job"
    assert lines[1].startswith(f"job {job} failed job={job} kind=legalize {caller} seconds=")
    assert lines[1].endswith(" problem=/problems/invalid-input")
    assert len(lines) == 2


def test_a_key_stands_for_one_job(client: httpx.Client) -> None:
    first = submit(client, BODY, **{"Idempotency-Key": "one"})
    assert submit(client, BODY, **{"Idempotency-Key": "one"})["id"] == first["id"]
    assert submit(client, BODY, **{"Idempotency-Key": "two"})["id"] != first["id"]
    other = client.post("/v1/jobs?kind=verify", json=BODY, headers={"Idempotency-Key": "one"})
    assert (other.status_code, other.json()["type"]) == (422, "/problems/key-reused")


def test_rows_of_earlier_versions_are_jobs(tmp_path: Path) -> None:
    """Rows stay when a server is upgraded. Earlier ones have fewer fields, and parameters of fewer options."""
    with serving(tmp_path) as server, client_of(server) as client:
        database = server.folder / "data" / "jobs.sqlite"
        for lost in ([], ["name", "files", "query"]):
            ask = partial(client.post, "/v1/jobs", content=onnx_bytes(), headers={**ONNX, "Idempotency-Key": str(lost)})
            query = {"kind": "legalize", "backend": "nhwc", "samples": f"{len(lost) + 1}"}
            first = wait_until_ended(client, ask(params=query).json()["id"])
            _write_as_before(database, first["id"], lost)
            job = wait_until_ended(client, first["id"])
            assert (job["state"], job["name"], job["problem"]) == ("succeeded", None, None)
            assert client.get("/v1/jobs").json()["jobs"][0]["id"] == job["id"]
            assert client.get(job["links"]["source"]).content == onnx_bytes()
            assert client.get(f"{job['links']['self']}/graph").status_code == 200
            # Only a row with the query tells that it was the same.
            again = ask(params=query)
            assert (again.status_code, again.json().get("id")) == ((422, None) if lost else (202, job["id"]))
            assert ask(params={**query, "check": "true"}).status_code == 422


def _write_as_before(path: Path, job: str, lost: list[str]) -> None:
    """Take fields, and an option, from the input of a job, and let it run again."""
    with closing(sqlite3.connect(path, timeout=60)) as database, database:
        (text,) = database.execute("SELECT inputs FROM workflow_input WHERE workflow_uuid = ?", [job]).fetchone()
        whole = json.loads(text)
        (arguments,) = whole["positionalArgs"]
        for name in lost:
            del arguments[name]
        del arguments["parameters"]["options"]["certify"]
        database.execute("UPDATE workflow_input SET inputs = ? WHERE workflow_uuid = ?", [json.dumps(whole), job])
        database.execute("DELETE FROM operation_outputs WHERE workflow_uuid = ?", [job])
        database.execute("UPDATE workflow_status SET status = 'ENQUEUED' WHERE workflow_uuid = ?", [job])


def test_events_go_on_after_the_last_that_was_seen(client: httpx.Client) -> None:
    job = submit(client, named("resumed"))["id"]
    every = events_of(client, job)
    assert events_of(client, job, after=2) == every[2:]
    assert events_of(client, job, after=0) == every
    # `done` has one number, and whoever has it gets nothing more.
    last = len(every)
    assert [events_of(client, job, after=last - 1) for _ in range(2)] == [every[-1:]] * 2
    for after in (last, last + 1, last + 100):
        nothing = client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": str(after)})
        assert (nothing.status_code, nothing.content) == (204, b"")
    wrong = client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": "x"})
    assert (wrong.status_code, wrong.json()["where"]) == (422, "header Last-Event-ID")


def test_the_head_of_a_stream_of_events_is_answered_at_once(client: httpx.Client) -> None:
    for job in (submit(client, named("heads"))["id"], submit_loop(client)):
        head = client.head(f"/v1/jobs/{job}/events")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
        client.delete(f"/v1/jobs/{job}")
    assert client.head("/v1/jobs/none/events").status_code == 404


def test_a_job_is_cancelled_and_its_worker_killed(server: Server, client: httpx.Client) -> None:
    jobs = {submit_loop(client), submit_loop(client)}
    # One caller has one of the two workers.
    wait_for(lambda: sorted(state_of(client, job) for job in jobs) == ["queued", "running"])
    wait_for(lambda: any(map(is_running, workers_of(server))))
    started = {job: client.get(f"/v1/jobs/{job}").json()["started"] for job in jobs}
    # The queued one first: it would start when the other ends.
    queued_first = sorted(jobs, key=lambda job: started[job] is not None)
    cancelled = [client.delete(f"/v1/jobs/{job}").json() for job in queued_first]
    assert [job["state"] for job in cancelled] == ["cancelled"] * 2
    assert {job["id"]: job["started"] for job in cancelled} == started
    assert sorted(when is None for when in started.values()) == [False, True]
    wait_for(lambda: not any(map(is_running, workers_of(server))))
    for job in jobs:
        assert events_of(client, job)[-1][1] == "done"
        assert client.get(f"/v1/jobs/{job}/report").status_code == 409
        # Also its end.
        before = client.get(f"/v1/jobs/{job}").json()
        again = client.delete(f"/v1/jobs/{job}")
        assert (again.status_code, again.json()) == (200, before)


def test_jobs_of_the_same_millisecond_are_all_in_the_pages(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client:
        jobs = [submit(client, {"graph": {}})["id"] for _ in range(5)]
        with closing(sqlite3.connect(server.folder / "data" / "jobs.sqlite", timeout=60)) as database, database:
            # As SQLite writes them: with parts of it.
            for job, when in zip(jobs, (1000.75, 1001.0, 1001.25, 1001.5, 1002.0), strict=True):
                database.execute("UPDATE workflow_status SET created_at = ? WHERE workflow_uuid = ?", [when, job])
        for limit in range(1, 6):
            found: list[str] = []
            query = {"limit": str(limit)}
            while "cursor" not in query or query["cursor"]:
                page = client.get("/v1/jobs", params=query).json()
                found += [job["id"] for job in page["jobs"]]
                query["cursor"] = page["next"]
            assert found == jobs[::-1]


def test_jobs_are_paged_newest_first(client: httpx.Client) -> None:
    made = [submit(client, BODY)["id"] for _ in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while len(seen) < 5:
        page = client.get("/v1/jobs", params={"limit": "2", **cursor}).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = {"cursor": page["next"]}
    assert seen[:5] == made[::-1]
    every = [job["id"] for job in client.get("/v1/jobs?limit=100").json()["jobs"]]
    assert len(every) == len({*every})
    beyond, nested = f"[{10**23}, []]", "[" * 9000
    for text in ("x", *(base64.urlsafe_b64encode(each.encode()).decode() for each in (beyond, "[1e999, []]", nested))):
        wrong = client.get("/v1/jobs", params={"cursor": text})
        assert (wrong.status_code, wrong.json()["where"]) == (422, "query.cursor")


@pytest.mark.parametrize("path", ["", "/report", "/model", "/events"])
def test_a_job_that_does_not_exist_is_not_found(client: httpx.Client, path: str) -> None:
    answer = client.get(f"/v1/jobs/none{path}")
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


def test_a_body_in_json_has_its_own_options(client: httpx.Client) -> None:
    answer = client.post("/v1/jobs?kind=verify&backend=nhwc", json=BODY)
    assert (answer.status_code, answer.json()["found"]) == (422, "backend")
    assert client.post("/v1/jobs?kind=paint", json=BODY).status_code == 422


def test_what_was_computed_before_is_not_computed_again(client: httpx.Client) -> None:
    content, headers = json.dumps(named("computed once")), {"Content-Type": "application/json"}
    first = client.post("/v1/legalize", content=content, headers=headers)

    def is_known() -> bool:
        again = client.post("/v1/legalize", content=content, headers=headers)
        assert again.headers["etag"] == first.headers["etag"]
        return again.content == first.content

    # The answer is stored after it is sent. The seconds of the solver are those of the first answer.
    wait_for(is_known)
    headers["If-None-Match"] = first.headers["etag"]
    known = client.post("/v1/legalize", content=content, headers=headers)
    assert (known.status_code, known.content) == (304, b"")
    other = client.post("/v1/legalize", content=content.replace("nhwc", "onnx"), headers=headers)
    assert (other.status_code, other.json()["report"]["backend"]) == (200, "onnx")
