"""The limits on time, size, memory and concurrent requests hold, and the server keeps running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from http_bodies import endless_loop, swelling_functions
from http_server import (
    MAX_BODY,
    QUEUE,
    TIME_LIMIT,
    WORKERS,
    Server,
    client_of,
    cpu_seconds,
    is_running,
    replaced,
    wait_for,
    workers_of,
)

from relayout_api.examples import GRAPH

JSON = {"Content-Type": "application/json"}
MOST_LAYOUT = 64 << 10
ENDLESS = {"graph": endless_loop(), "against": endless_loop(), "backend": "onnx"}
ENDLESS_BYTES = json.dumps(ENDLESS).encode()


on_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes the way Linux has them")


def still_works(client: httpx.Client) -> bool:
    return client.post("/v1/legalize", json={"graph": GRAPH, "backend": "nhwc"}).status_code == 200


def test_work_without_end_is_killed_and_the_server_stays_up(client: httpx.Client) -> None:
    stopped, died = replaced(client, "stopped"), replaced(client, "died")
    answer = client.post("/v1/verify", json=ENDLESS)
    assert (answer.status_code, answer.json()["type"]) == (504, "/problems/out-of-time")
    # A worker that another test's caller left may be stopped in the meantime too.
    wait_for(lambda: replaced(client, "stopped") > stopped)
    assert replaced(client, "died") == died
    assert answer.json()["expected"] == f"at most {TIME_LIMIT:g} s"
    assert still_works(client)


@on_linux
def test_a_caller_who_leaves_takes_the_work_along(server: Server, client: httpx.Client) -> None:
    wait_for(lambda: len(workers_of(server)) == WORKERS)
    workers = workers_of(server)

    def has_lost_one() -> bool:
        # A worker that is not warm yet has not begun: then nothing is lost by leaving, and the next caller asks.
        with connection(server) as caller:
            caller.sendall(head(f"Content-Length: {len(ENDLESS_BYTES)}", path="/v1/verify") + ENDLESS_BYTES)
            threading.Event().wait(0.5)
        return not workers <= workers_of(server)

    wait_for(has_lost_one)
    wait_for(lambda: "the caller disconnected" in server.log())
    assert still_works(client)


@on_linux
def test_a_worker_that_dies_is_the_services_fault_and_the_server_stays_up(server: Server, client: httpx.Client) -> None:
    with ThreadPoolExecutor() as beside:
        answer = beside.submit(client.post, "/v1/verify", json=ENDLESS)
        while not answer.done():
            # One that has just started takes less time than the task, and dies before it.
            for worker in (each for each in workers_of(server) if is_running(each) and cpu_seconds(each) > 0.5):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
    problem = answer.result().json()
    assert (answer.result().status_code, problem["type"]) == (500, "/problems/internal")
    assert (problem["detail"], problem["found"]) == (
        "the worker process of this work ended abruptly, and so did that of a second try",
        "SIGKILL, then SIGKILL",
    )
    assert still_works(client)


def test_the_limits_can_be_asked_for(client: httpx.Client) -> None:
    limits = client.get("/v1/limits").json()
    assert limits == {"max_body_bytes": MAX_BODY, "time_limit": TIME_LIMIT, "job_time_limit": 600.0}


def test_a_body_that_says_it_is_too_large_is_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/legalize", content=b" " * (MAX_BODY + 1), headers=JSON)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")
    assert "RELAYOUT_MAX_BODY_BYTES" in answer.json()["hint"]
    assert still_works(client)


@pytest.mark.parametrize("sent", [b"", b"{"])
def test_a_body_that_says_it_is_too_large_and_does_not_come_is_not_waited_for(server: Server, sent: bytes) -> None:
    with connection(server) as caller:
        caller.sendall(head(f"Content-Length: {MAX_BODY + 1}") + sent)
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_say_so_is_refused_on_the_way(client: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(MAX_BODY // 1024 + 2):
            yield b" " * 1024

    answer = client.post("/v1/legalize", content=chunks(), headers=JSON)
    assert (answer.status_code, answer.json()["expected"]) == (413, f"at most {MAX_BODY} bytes")
    assert still_works(client)


def test_a_body_without_end_is_not_waited_for(server: Server, client: httpx.Client) -> None:
    with connection(server) as caller:
        caller.sendall(head("Transfer-Encoding: chunked"))
        with contextlib.suppress(ConnectionError):
            for _ in range(1 << 20):
                caller.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert still_works(client)


def test_a_caller_who_expects_to_be_asked_is_told_before_sending(server: Server) -> None:
    with connection(server) as caller:
        caller.sendall(head(f"Content-Length: {MAX_BODY + 1}", "Expect: 100-continue"))
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_fits_is_taken_whether_it_says_so_or_not(client: httpx.Client) -> None:
    layout = b'{"layout": "NHWC"' + b" " * (MOST_LAYOUT - 18) + b"}"
    assert len(layout) == MOST_LAYOUT
    assert client.post("/v1/layouts/parse", content=layout, headers=JSON).status_code == 200
    assert client.post("/v1/layouts/parse", content=iter([layout[:9], layout[9:]]), headers=JSON).status_code == 200


def test_a_layout_is_not_parsed_out_of_a_large_body(client: httpx.Client) -> None:
    lists = b'{"layout": [' + b"[]," * MOST_LAYOUT + b"[]]}"
    answer = client.post("/v1/layouts/parse", content=lists, headers=JSON)
    assert (answer.status_code, answer.json()["expected"]) == (413, f"at most {MOST_LAYOUT} bytes")


def test_a_body_that_does_not_come_is_not_waited_for(server: Server, client: httpx.Client) -> None:
    with connection(server) as caller:
        caller.sendall(head("Content-Length: 100") + b"{")
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
    assert still_works(client)


def test_stalled_bodies_occupy_no_worker(server: Server, client: httpx.Client) -> None:
    with contextlib.ExitStack() as callers:
        for _ in range(WORKERS + QUEUE):
            callers.enter_context(connection(server)).sendall(head("Content-Length: 100") + b"{")
        assert still_works(client)


def test_one_caller_cannot_occupy_all_workers_or_the_whole_queue(server: Server, client: httpx.Client) -> None:
    with contextlib.ExitStack() as callers, client_of(server, "127.0.0.2") as other:
        for _ in range(WORKERS - 1 + QUEUE // 2):
            caller = callers.enter_context(connection(server))
            caller.sendall(head(f"Content-Length: {len(ENDLESS_BYTES)}", path="/v1/verify") + ENDLESS_BYTES)
        wait_for(lambda: f'relayout_queue_depth{{queue="requests"}} {QUEUE // 2}.0' in client.get("/metrics").text)
        body = {"graph": {**GRAPH, "name": "one too many"}}
        refused = client.post("/v1/explain", json=body)
        assert other.post("/v1/explain", json=body).status_code == 200
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-requests")
    assert int(refused.headers["retry-after"]) > 0


def test_the_head_of_a_request_must_arrive_in_time(server: Server) -> None:
    with connection(server) as caller:
        caller.sendall(b"POST /v1/verify HTTP/1.1\r\nHost: ")
        answer = caller.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"application/problem+json" in answer
        assert caller.recv(1) == b""


def test_bytes_that_are_no_request_get_a_problem(server: Server) -> None:
    with connection(server) as caller:
        caller.sendall(b"\x16\x03\x01 is TLS\r\n\r\n")
        answer = caller.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"/problems/malformed-request" in answer


def test_requests_at_once_are_all_answered_each_its_own(client: httpx.Client) -> None:
    def answer(extent: int) -> httpx.Response:
        value = {"dtype": "float32", "shape": [1, extent]}
        node = {"op": "Relu", "inputs": ["x"], "outputs": ["y"]}
        graph = {"opset": 20, "inputs": [{"name": "x", **value}], "outputs": [{"name": "y", **value}], "nodes": [node]}
        return client.post("/v1/legalize", json={"graph": graph})

    with ThreadPoolExecutor(QUEUE // 2) as at_once:
        answers = list(at_once.map(answer, range(1, 25)))
    assert {response.status_code: response.text for response in answers if response.status_code != 200} == {}
    assert [response.json()["graph"]["inputs"][0]["shape"][1] for response in answers] == list(range(1, 25))


def test_a_graph_that_expands_too_far_is_rejected(client: httpx.Client) -> None:
    answer = client.post("/v1/legalize", json={"graph": swelling_functions()})
    assert answer.status_code == 422
    assert still_works(client)


def test_work_that_takes_too_much_memory_is_refused(client: httpx.Client) -> None:
    huge = {"name": "x", "dtype": "float32", "shape": [1 << 30]}
    node = {"op": "Relu", "inputs": ["x"], "outputs": ["y"]}
    graph = {"opset": 20, "inputs": [huge], "outputs": [{**huge, "name": "y"}], "nodes": [node]}
    answer = client.post("/v1/verify", json={"graph": graph, "against": graph, "backend": "onnx"})
    # Whether it is refused or left undone is the verifier's choice; what counts is that the machine is left alone.
    assert answer.status_code in (200, 413), answer.text
    assert still_works(client)


@on_linux
def test_work_that_takes_more_memory_than_it_may_ends_in_a_refusal() -> None:
    done = subprocess.run([sys.executable, "-c", _SWELLING], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("too-large\n", "")


# A few bytes of JSON are some hundred in Python.
_SWELLING = """
from relayout_api.workers import work
from relayout_api.problems import RefusedError
from relayout_api.workers import tasks
from relayout_api.workers.messages import Task
body = b"[" + b"[]," * 4_000_000 + b"[]]"
try:
    tasks.perform(Task("legalize", None, 60.0, 300 << 20), [body])
except RefusedError as error:
    print(error.kind)
"""


def test_nesting_without_end_is_refused(client: httpx.Client) -> None:
    nested = b'{"graph": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_001
    assert client.post("/v1/legalize", content=nested, headers=JSON).status_code == 400
    attribute = b"[" * 400 + b"]" * 400
    node = b'{"op": "Relu", "inputs": [], "outputs": ["y"], "attributes": {"a": ' + attribute + b"}}"
    graph = b'{"graph": {"opset": 20, "outputs": [], "nodes": [' + node + b"]}}"
    assert client.post("/v1/legalize", content=graph, headers=JSON).status_code == 422


@contextlib.contextmanager
def connection(server: Server) -> Iterator[socket.socket]:
    """A connection of a caller who does as he likes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as caller:
        yield caller


def head(*headers: str, path: str = "/v1/legalize") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()
