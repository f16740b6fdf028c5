"""`relayout.client` against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from inspect import signature
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import onnx
import pytest
from answering import answering
from command_line import BIN, CHANNELS_LAST, Run, saved
from http_bodies import endless_loop
from http_server import Server, wait_for

from relayout import legalize
from relayout.client import AsyncClient, Client, Job
from relayout.client.protocol import error_of, pause_after
from relayout.errors import BackendError, InfeasibleError, InputError, RelayoutError, UsageError
from relayout.model.io import read_model, to_json
from relayout_api.examples import GRAPH


@pytest.fixture
def remote(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model.onnx", CHANNELS_LAST)


def test_the_answer_is_that_of_the_library(remote: Client, model: Path) -> None:
    result = remote.legalize(model, "nhwc", objective="transposes")
    legal, report = legalize(model, "nhwc", objective="transposes")
    assert isinstance(result.model, bytes)
    assert len(onnx.load_from_string(result.model).graph.node) == len(legal.graph)
    assert (result.report.status, result.report.cost) == (report.status, report.cost)


@pytest.mark.parametrize("kind", ["legalize", "verify"])
def test_a_large_body_is_sent_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket takes a part of what it is given, and httpcore copies all that is left."""
    sent: list[httpx.Request] = []
    pieces: list[int] = []

    def take(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        sent.append(request)
        pieces.extend(len(piece) for piece in request.stream)
        return httpx.Response(202, json={"id": "1", "kind": kind, "state": "queued"})

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", take)
    model = bytes(3 << 20)
    with Client("http://127.0.0.1:1") as client:
        client.submit(kind, model, "nhwc", against=model if kind == "verify" else None)
    assert max(pieces) <= 1 << 20
    assert sum(pieces) == int(sent[0].headers["content-length"]) >= len(model)


def test_graph_json_comes_back_as_graph_json(remote: Client, model: Path) -> None:
    result = remote.legalize(to_json(read_model(model)), "nhwc")
    assert isinstance(result.model, dict)
    assert remote.verify(result.model, "nhwc").report.status == "verified"
    assert remote.explain(model, "onnx").report.conversions


@pytest.mark.parametrize("is_json", [False, True], ids=["onnx", "json"])
def test_a_model_is_verified_against_its_original(is_json: bool, remote: Client, model: Path) -> None:
    source = to_json(read_model(model)) if is_json else model
    legal = remote.legalize(source, "nhwc").model
    assert legal is not None
    verification = remote.verify(legal, against=source, samples=1).report.verification
    assert verification is not None
    assert verification.numeric is not None
    assert (verification.passed, verification.numeric.status) == (True, "compared")
    other = saved(model.with_name("other.onnx"), CHANNELS_LAST.replace("Relu", "Sigmoid"))
    against = to_json(read_model(other)) if is_json else other
    assert remote.verify(legal, "nhwc", against).report.status == "failed"


LENGTHS = """
<ir_version: 10, opset_import: ["" : 20]>
lengths (float[1,8,6,4] image, int64[2] parts) => (float[1,8,6,4] joined) {
    a = Transpose <perm = [0, 3, 1, 2]> (image)
    b, c = Split <axis = 2> (a, parts)
    d = Concat <axis = 2> (c, b)
    joined = Transpose <perm = [0, 2, 3, 1]> (d)
}"""
"""A model that runs on no random numbers: the parts of an axis have its length together."""


@pytest.mark.parametrize("is_json", [False, True], ids=["onnx", "json"])
def test_models_are_compared_on_inputs_that_are_sent(
    is_json: bool, remote: Client, server: Server, tmp_path: Path, run: Run
) -> None:
    path = saved(tmp_path / "lengths.onnx", LENGTHS)
    source = to_json(read_model(path)) if is_json else path
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((1, 8, 6, 4), np.float32) for _ in range(2)]
    images[0][0, 0, 0, :3] = np.nan, np.inf, -np.inf
    inputs = [{"image": image, "parts": np.array([3, 5])} for image in images]
    result = remote.legalize(source, "onnx", inputs=inputs)
    assert result.model is not None
    verified = remote.verify(result.model, "onnx", source, inputs=inputs)
    for report in (result.report, verified.report):
        assert report.verification is not None
        assert report.verification.numeric is not None
        assert (report.verification.numeric.status, report.verification.numeric.samples) == ("compared", 2)
    jobs = {remote.submit("legalize", source, inputs=inputs, key="lengths" + str(is_json)).id for _ in range(2)}
    assert len(jobs) == 1
    with pytest.raises(UsageError, match=r"inputs, parts: the inputs do not fit the original"):
        remote.legalize(source, "onnx", inputs=[{"image": images[0]}])
    with pytest.raises(TypeError, match=re.escape("explain() got an unexpected keyword argument 'inputs'")):
        remote.submit("explain", source, inputs=inputs)
    with pytest.raises(UsageError, match="inputs without a comparison"):
        remote.verify(result.model, "onnx", inputs=inputs)
    given = tmp_path / "sample.npz"
    np.savez(given, **inputs[0])
    model = tmp_path / "lengths.json" if is_json else path
    if is_json:
        model.write_text(json.dumps(source))
    said = run("legalize", model, "-b", "onnx", "--inputs", given, "--server", server.address, "--report", "-")
    assert said.status == 0, said.err
    assert json.loads(said.out)["verification"]["numeric"]["samples"] == 1


def test_two_models_of_different_kinds_are_not_sent(model: Path) -> None:
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(UsageError, match="of different kinds"):
            client.verify(model, "nhwc", against=to_json(read_model(model)))
        with pytest.raises(TypeError, match=re.escape("legalize() got an unexpected keyword argument 'against'")):
            client.submit("legalize", model, "nhwc", against=model)


def test_a_job_has_the_name_and_the_times_that_the_service_shows(remote: Client, model: Path) -> None:
    job = remote.wait(remote.submit("explain", model, name="blocks").id)
    assert job == next(each for each in remote.jobs() if each.name == "blocks")
    assert None not in (job.created, job.started, job.ended)
    assert remote.limits()["max_body_bytes"] > 0


def test_a_model_is_verified_for_the_backend_that_it_records(remote: Client, model: Path) -> None:
    content = remote.legalize(model, "nhwc").model
    graph = remote.legalize(to_json(read_model(model)), "nhwc").model
    for legal in (content, graph):
        assert legal is not None
        assert remote.verify(legal).report.backend == "nhwc"
        job = remote.submit("verify", legal)
        remote.wait(job.id)
        assert remote.result(job.id).report.backend == "nhwc"


@pytest.mark.parametrize(
    ("tries", "status", "asked", "least"),
    [(0, 200, "1", None), (0, 503, "", 1.0), (5, 429, "7", 7.0), (6, 429, "7", None), (0, 503, "1000", 60.0)],
)
def test_a_busy_server_is_asked_again_after_the_time_that_it_names(
    tries: int, status: int, asked: str, least: float | None
) -> None:
    seconds = pause_after(httpx.Response(status, headers={"Retry-After": asked}), tries)
    assert seconds is None if least is None else seconds is not None and least <= seconds <= 1.5 * least


@pytest.mark.parametrize(
    ("source", "backend", "options", "kind", "words"),
    [
        (b"no model", "nhwc", {}, InputError, "protobuf"),
        (None, "nwhc", {}, BackendError, "nwhc"),
        (None, "onnx", {"max_transposes": 0}, InfeasibleError, "0 transposes"),
        (Path("nowhere.onnx"), "nhwc", {}, InputError, "nowhere.onnx"),
        (None, "nhwc", {"dims": {"N": 0}}, UsageError, "N"),
    ],
    ids=["model", "backend", "infeasible", "file", "option"],
)
def test_errors_are_those_of_the_library(
    remote: Client, model: Path, source: Any, backend: str, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        remote.legalize(source or model, backend, **options)
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "given", "words"),
    [
        (onnx.ModelProto(), {}, "not a model.*ModelProto.*SerializeToString"),
        (3, {}, "not a model"),
        (None, {"backend": Path}, "backend: a value of another type"),
        (None, {"progress": 3}, "progress: a value of another type"),
        (None, {"inputs": 3}, "inputs: no list of samples"),
        (None, {"inputs": [3]}, "inputs: no list of samples"),
        ({"nodes": object()}, {}, "the request is no JSON"),
        ("nowhere.onnx", {}, "the file cannot be read.*found:    No such file or directory$"),
    ],
)
def test_an_argument_that_is_none_is_an_error_before_anything_is_sent(
    model: Path, source: Any, given: dict[str, Any], words: str
) -> None:
    with (
        Client("http://127.0.0.1:1") as client,
        pytest.raises((UsageError, InputError), match=re.compile(words, re.DOTALL)),
    ):
        client.legalize(source or model, **given)


@pytest.mark.parametrize("source", [b"no model", {}], ids=["onnx", "graph"])
@pytest.mark.parametrize(
    ("verb", "option"),
    [
        *(("legalize", name) for name in ("max_transpose", "objectve", "limit", "key", "kind", "certificate")),
        *(("explain", name) for name in ("verify", "timelimit", "key")),
        *(("verify", name) for name in ("objective", "foo", "kind")),
    ],
)
def test_an_option_that_the_verb_lacks_is_refused_as_the_library_refuses_it(
    source: Any, verb: str, option: str
) -> None:
    """Nothing is sent: no server is at the address."""
    words = re.escape(f"{verb}() got an unexpected keyword argument {option!r}")
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=words):
            getattr(client, verb)(source, "nhwc", **{option: 1})
        if option not in ("key", "kind"):
            with pytest.raises(TypeError, match=words):
                client.submit(verb, source, "nhwc", **{option: 1})

    async def work() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            with pytest.raises(TypeError, match=words):
                await getattr(client, verb)(source, "nhwc", **{option: 1})

    anyio.run(work)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, UsageError) for name in ("busy", "starting", "no-space", "not-found")), ("internal", RelayoutError)],
)
def test_only_a_fault_of_the_service_is_no_error_of_its_caller(name: str, kind: type[Exception]) -> None:
    assert type(error_of({"type": f"/problems/{name}", "detail": "a problem", "hint": None})) is kind


def test_a_key_that_is_missing_or_wrong_is_named_as_the_client_takes_it() -> None:
    needed = error_of(
        {"type": "/problems/unauthorized", "detail": "this service needs a key", "expected": "the header"}
    )
    assert "RELAYOUT_KEY" in needed.hint
    assert needed.expected == "a valid key"
    with pytest.raises(UsageError, match="not a key") as caught:
        Client("http://127.0.0.1:1", key="secret\n")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a\n", " a", "\N{SNOWMAN}", "a" * 256])
def test_an_idempotency_key_that_fits_no_header_is_refused(remote: Client, key: str) -> None:
    with pytest.raises(UsageError, match="key: not an idempotency key"):
        remote.submit("legalize", {"opset": 20}, key=key)


def test_the_events_of_a_job_resume_after_a_number(remote: Client, model: Path) -> None:
    job = remote.submit("legalize", model, "nhwc", key="events of a job")
    assert remote.submit("legalize", model, "nhwc", key="events of a job").id == job.id
    events = list(remote.events(job.id))
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].name == "done"
    assert list(remote.events(job.id, after=len(events) - 1)) == events[-1:]
    assert list(remote.events(job.id, after=len(events))) == []
    assert Job.of(events[-1].data) == remote.wait(job.id) == next(each for each in remote.jobs() if each.id == job.id)


def test_both_clients_have_the_same_methods() -> None:
    names = [name for name in vars(AsyncClient) if not name.startswith("_") and name != "over"]
    assert [name for name in names if name in vars(Client)] == names
    assert all(signature(getattr(Client, name)) == signature(getattr(AsyncClient, name)) for name in names)


def test_the_source_and_the_graphs_of_a_job_are_downloaded(remote: Client, model: Path) -> None:
    job = remote.submit("legalize", model, "nhwc")
    assert remote.source(job.id) == model.read_bytes()
    remote.wait(job.id)
    drawn = remote.graph(job.id)
    assert {"source", "legal", "report"} <= drawn.keys()
    assert remote.graph(job.id, of="legal") == {"legal": drawn["legal"]}
    graph = to_json(read_model(model))
    assert remote.source(remote.submit("explain", graph, "nhwc").id) == {
        "graph": graph, "backend": "nhwc", "options": {},
    }  # fmt: skip


def test_the_weights_may_stay_out_of_the_legal_graph(remote: Client, model: Path) -> None:
    graph = json.loads(json.dumps(GRAPH))
    graph["constants"][0]["data"] = b64encode(bytes(64 * 64 * 3 * 3 * 4)).decode()
    legal = remote.legalize(graph, "nhwc", weights=False).model
    assert isinstance(legal, dict)
    assert [each["name"] for each in legal["constants"] if "data" in each] == []
    with pytest.raises(UsageError, match="graph JSON"):
        remote.legalize(model, "nhwc", weights=False)
    with pytest.raises(TypeError, match="weights"):
        remote.submit("verify", graph, "nhwc", weights=False)


def test_a_caller_may_leave_a_stream_of_events(remote: Client, model: Path) -> None:
    job = remote.submit("legalize", model)
    assert next(iter(remote.events(job.id))).number == 1
    assert remote.wait(job.id).state == "succeeded"


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_a_stream_that_is_always_cut_off_is_no_silent_server(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a proxy that ends an answer after some seconds, or where the timeout is short."""
    monkeypatch.setattr("relayout.client.protocol._LONGEST_PAUSE", 0.001)
    streams = []

    class Cutting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"id": "1", "kind": "verify", "state": state}).encode()
            if is_stream := self.path.endswith("/events"):
                streams.append(self.path)
                content = b"" if len(streams) < 30 else b"event: done\nid: 1\ndata: {}\n\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
            self.send_header("Content-Length", str(max(len(content), 1)))
            self.end_headers()
            self.wfile.write(content)

    with answering(Cutting) as address, Client(address) as client:
        if state == "running":
            assert [event.name for event in client.events("1")] == ["done"]
        else:
            with pytest.raises(UsageError, match="does not answer"):
                list(client.events("1"))


@pytest.mark.parametrize("has_proxy", [True, False])
def test_a_job_is_followed_while_its_server_is_restarted(has_proxy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout.client.protocol._LONGEST_PAUSE", 0.001)
    asked: Counter[str] = Counter()

    class Restarted(BaseHTTPRequestHandler):
        """A server that answers each path when it is asked for the fifth time, or its proxy before."""

        def do_GET(self) -> None:
            asked[self.path] += 1
            if asked[self.path] < 5:
                if has_proxy:
                    self.send_error(502)
                return
            self.send_response(200)
            self.send_header(
                "Content-Type", "text/event-stream" if self.path.endswith("/events") else "application/json"
            )
            self.end_headers()
            job = {"id": "1", "kind": "explain", "state": "succeeded"}
            self.wfile.write(b"event: done\nid: 1\ndata: {}\n\n" if "events" in self.path else json.dumps(job).encode())

        def do_POST(self) -> None:
            self.send_error(502)

    with answering(Restarted) as address, Client(address) as client:
        assert client.wait("1").state == "succeeded"
        # It may have accepted the job, of which its proxy says nothing.
        with pytest.raises(UsageError, match="status 502"):
            client.submit("explain", b"model")
    assert set(asked.values()) == {5}


@pytest.mark.parametrize(
    ("status", "media", "method", "headers", "is_sent_again"),
    [
        (502, "text/html", "GET", {}, True),
        (504, "text/html", "DELETE", {}, True),
        (502, "text/html", "POST", {}, False),
        (502, "text/html", "POST", {"Idempotency-Key": "1"}, True),
        (504, "application/problem+json", "GET", {}, False),
        (500, "text/html", "GET", {}, False),
    ],
)
def test_a_proxy_without_its_server_is_asked_again_where_that_is_safe(
    status: int, media: str, method: str, headers: dict[str, str], is_sent_again: bool
) -> None:
    request = httpx.Request(method, "http://127.0.0.1:1/v1/jobs", headers=headers)
    response = httpx.Response(status, headers={"Content-Type": media}, request=request)
    assert (pause_after(response, 0) is not None) == is_sent_again
    assert pause_after(response, 6) is None


def test_an_ended_job_stays_as_it_is_when_it_is_cancelled(remote: Client, model: Path) -> None:
    job = remote.submit("legalize", model)
    remote.wait(job.id)
    assert remote.cancel(job.id).state == "succeeded"


def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="does not answer"):
        Client("http://127.0.0.1:1").backends()


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:1", "http://[::1", "socks5://127.0.0.1:1", None])
def test_a_proxy_or_certificates_that_cannot_be_used_are_an_error(
    proxy: str | None, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*(("SSL_CERT_FILE", str(model.parent / "none")) if proxy is None else ("ALL_PROXY", proxy)))
    for kind in (Client, AsyncClient):
        with pytest.raises(UsageError, match="the environment's proxy or certificates cannot be used"):
            kind("http://127.0.0.1:1")
    said = run("legalize", model, "--server", "http://127.0.0.1:1", "-o", model.parent / "legal.onnx")
    assert (said.status, "ALL_PROXY" in said.err, "NO_PROXY" in said.err) == (2, True, True)


def test_a_proxy_is_named_where_the_server_does_not_answer(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Client(server.address) as client, pytest.raises(UsageError, match="NO_PROXY names the hosts"):
        client.limits()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Client(server.address) as client:
        client.limits()
    with Client("http://127.0.0.1:1") as client, pytest.raises(UsageError, match="does not answer") as gone:
        client.limits()
    assert "NO_PROXY" not in str(gone.value)


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://a:b", "http://a:99999999", "127.0.0.1:8000", "localhost:8000", "http://"]
)
def test_an_address_that_is_none_is_an_error(address: str, model: Path, run: Run) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(UsageError, match="not the address of a server"):
            kind(address)
    said = run("legalize", model, "--server", address)
    assert (said.status, f"{address}: not the address of a server" in said.err) == (2, True)


class Other(BaseHTTPRequestHandler):
    """A server of another kind, which answers every request alike."""

    answer = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)


@pytest.mark.parametrize("answer", [b"<html>Welcome</html>", b"[]", b'{"jobs": 3}', b"\xff\xfe"])
def test_a_server_of_another_kind_is_an_error(answer: bytes, model: Path, run: Run) -> None:
    handler = type("Handler", (Other,), {"answer": answer})
    with answering(handler) as address, Client(address) as client:
        said = run("legalize", model, "--server", address, "-o", model.parent / "legal.onnx")
        for call in (client.backends, lambda: list(client.jobs()), lambda: client.job("1")):
            with pytest.raises(UsageError, match="not the answer of a relayout service"):
                call()
    assert said.status == 2
    assert f"{address}/v1/jobs" in said.err
    assert "not the answer of a relayout service" in said.err


def test_the_asynchronous_client_does_the_same(server: Server, model: Path) -> None:
    async def work() -> None:
        async with AsyncClient(server.address) as client:
            result = await client.legalize(model, "nhwc")
            assert result.report.status == "optimal"
            assert (await client.verify(result.model or b"", "nhwc")).report.status == "verified"
            with pytest.raises(InfeasibleError):
                await client.legalize(model, "onnx", max_transposes=0)
            assert "nhwc" in {backend["name"] for backend in await client.backends()}
            assert [job async for job in client.jobs()]

    anyio.run(work)


def test_the_command_does_on_a_server_what_it_does_here(server: Server, model: Path, tmp_path: Path, run: Run) -> None:
    table = tmp_path / "device.toml"
    table.write_text('name = "device"\nextends = "nhwc"\n')
    for number, more in enumerate((["-b", "nhwc"], ["-b", str(table)], ["-b", "onnx", "--max-transposes", "0"])):
        said = []
        for place in ([], ["--server", server.address]):
            target = tmp_path / f"{number}{len(place)}.onnx"
            done = run("legalize", model, "-o", target, "--report", "-", *more, *place)
            report = json.loads(done.out or "{}")
            report.pop("solver", None)
            said.append((done.status, report, done.err, target.read_bytes() if target.exists() else b""))
        assert said[0] == said[1]


def test_the_quiet_command_says_no_more_on_a_server(server: Server, tmp_path: Path, run: Run) -> None:
    proto = onnx.parser.parse_model(CHANNELS_LAST)
    proto.ir_version, proto.opset_import[0].version = 3, 8
    weight = proto.graph.initializer[0]
    proto.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    onnx.save(proto, tmp_path / "old.onnx")
    for quiet, told in (((), True), (("--quiet",), False)):
        here, there = (run("legalize", tmp_path / "old.onnx", *quiet, *at) for at in ((), ("--server", server.address)))
        assert (here.status, there.status, there.err) == (0, 0, here.err)
        assert ("IR version 3" in here.err) == told


def test_the_command_writes_the_same_graph_json_on_a_server(server: Server, model: Path, run: Run) -> None:
    there = run("legalize", model, "-b", "nhwc", "-o", "-.json", "--server", server.address)
    assert there.out == run("legalize", model, "-b", "nhwc", "-o", "-.json").out != ""


@pytest.mark.parametrize(("file", "name"), [(b"named-here.onnx", "named-here.onnx"), (b"\xff.onnx", "?.onnx")])
def test_a_job_of_the_command_has_the_name_of_the_file(
    server: Server, model: Path, run: Run, file: bytes, name: str
) -> None:
    named = model.rename(model.with_name(os.fsdecode(file)))
    assert run("legalize", named, "--server", server.address).status == 0
    with Client(server.address) as client:
        assert name in [job.name for job in client.jobs()]


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("empty.onnx", b"", "file {path}: the file is empty"),
        ("cut.json", b'{"opset": 20', "file {path}: not JSON"),
        ("list.json", b"[]", "file {path}: not graph JSON"),
        (
            "unknown.json",
            b'{"opset": 20, "inputs": [], "outputs": [{"name": "y"}], "nodes": [{"op": "Conf", "outputs": ["y"]}]}',
            "file {path}, graph 'graph', node 0 (Conf): ONNX has no operator Conf",
        ),
    ],
)
def test_the_command_says_on_a_server_what_is_wrong_with_a_file(
    name: str, content: bytes, where: str, server: Server, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    here, there = (run("legalize", path, "-b", "nhwc", *more) for more in ([], ["--server", server.address]))
    assert (here.status, there.status) == (2, 2)
    assert here.err.startswith(f"relayout: error: {where.format(path=path)}\n")
    assert there.err == here.err


def test_an_interrupt_of_the_command_cancels_its_job(server: Server, client: httpx.Client, tmp_path: Path) -> None:
    def running() -> list[str]:
        jobs = client.get("/v1/jobs").json()["jobs"]
        return [
            job["id"] for job in jobs if (job["kind"], job["state"], job["stage"]) == ("legalize", "running", "check")
        ]

    path = tmp_path / "loop.json"
    path.write_text(json.dumps(endless_loop(1 << 60)))
    command = [BIN, "legalize", path, "--check", "--server", server.address]
    # A shell's background job ignores the signal, and so does all that it starts.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, handler)
        wait_for(lambda: running() != [])
        [job] = running()
        process.send_signal(signal.SIGINT)
        # Sooner than the next line of the stream, which comes every 15 seconds.
        assert process.communicate(timeout=10) == (None, "relayout: interrupted\n")
    assert process.returncode == 130
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"


def test_what_cannot_be_sent_to_a_server_is_2(model: Path, run: Run) -> None:
    broken = model.with_name("broken.onnx")
    broken.write_bytes(b"no model")
    code = model.with_name("acme.py")
    for path, backend, told in (
        (broken, "nhwc", "broken.onnx: not an ONNX model"),
        (model, code, f"--backend {code}: the code of a backend is not sent"),
        (model, "acme.layouts:Acme", "a backend of the server, or a table"),
    ):
        said = run("legalize", path, "--server", "http://127.0.0.1:1", "-b", backend)
        assert (said.status, told in said.err) == (2, True), said.err


def test_the_command_says_that_a_server_does_not_answer(model: Path, run: Run) -> None:
    done = run("legalize", model, "--server", "http://127.0.0.1:1")
    assert done.status == 2
    assert "does not answer" in done.err
