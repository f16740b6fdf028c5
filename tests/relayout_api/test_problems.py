"""Every error is a problem document with a location, an expectation and the right status."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from http_bodies import onnx_bytes

from relayout.errors import InfeasibleError, InternalError, LayoutSyntaxError, OutOfTimeError, RelayoutError
from relayout_api.app import create_app
from relayout_api.examples import GRAPH
from relayout_api.problems import KINDS, RefusedError, problem_of
from relayout_api.settings import Settings

JSON = {"Content-Type": "application/json"}
ONNX = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True)
class Case:
    """A request that is refused, and what is said of it."""

    kind: str
    content: Any = b""
    path: str = "/v1/legalize"
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=lambda: JSON)
    method: str = "POST"
    says: dict[str, str] = field(default_factory=dict)


def graph(**changes: Any) -> dict[str, Any]:
    """The body with a changed example graph."""
    return {"graph": {**GRAPH, **changes}}


def options(**options: Any) -> dict[str, Any]:
    return {"graph": GRAPH, "options": options}


ALIGNED = {"name": "aligned", "rule": [{"op": ["Conv"], "inputs": ["N[acme:x]CHW"], "results": ["NCHW"]}]}

CASES = {
    "no JSON": Case("malformed-body", b"{", says={"expected": "a JSON object"}),
    "JSON without end": Case("malformed-body", b"[" * 100_000, says={"found": "too many levels of nesting"}),
    "a number that JSON lacks": Case("malformed-body", b'{"graph": NaN}', says={"found": "NaN is not a JSON number"}),
    "an option twice": Case(
        "malformed-body",
        b'{"graph": {}, "options": {"certify": true, "certify": false}}',
        says={"found": 'the key "certify" twice in options'},
    ),
    "a part of a graph twice": Case(
        "malformed-body",
        b'{"graph": {"nodes": [{"op": "Relu", "op": "Neg"}]}}',
        says={"found": 'the key "op" twice in graph.nodes[0]'},
    ),
    "a layout twice": Case(
        "malformed-body", b'{"layout": "N", "layout": "C"}', path="/v1/layouts/parse", says={"found": '"layout" twice'}
    ),
    "a key twice in a table in the query": Case(
        "invalid-options",
        onnx_bytes(),
        query={"backend": '{"name": "a", "name": "b"}'},
        headers=ONNX,
        says={"where": "query.backend", "found": 'the key "name" twice'},
    ),
    "bytes that are no text": Case("malformed-body", b"\xff\xfe\xfd"),
    "a body that is no object": Case("invalid-options", [1, 2], says={"found": "list"}),
    "no graph": Case("invalid-input", {}, says={"where": "body.graph", "found": "nothing"}),
    "a graph that is none": Case("invalid-input", {"graph": 7}, says={"where": "body.graph", "found": "a number"}),
    "no nodes in the schema's sense": Case("invalid-input", graph(nodes=7), says={"where": "graph JSON, nodes"}),
    "a graph with a cycle": Case(
        "invalid-input",
        graph(
            nodes=[
                {"op": "Relu", "inputs": ["a"], "outputs": ["features"]},
                {"op": "Relu", "inputs": ["features"], "outputs": ["a"]},
            ]
        ),
    ),
    "a field that is misspelt": Case(
        "invalid-options", {"graph": GRAPH, "beckend": "onnx"}, says={"where": "body.beckend"}
    ),
    "an option that is misspelt": Case(
        "invalid-options", options(timelimit=3), says={"where": "body.options.timelimit"}
    ),
    "an objective that is none": Case("invalid-options", options(objective="speed"), says={"found": '"speed"'}),
    "a time limit of nothing": Case(
        "invalid-options", options(time_limit=0), says={"where": "body.options.time_limit"}
    ),
    "a size as a text": Case("invalid-options", options(dims={"N": "8"}), says={"where": "body.options.dims.N"}),
    "a size of a dim that is none": Case(
        "invalid-options", options(dims={"N": 8}), says={"where": "options.dims[N]", "found": "N"}
    ),
    "a size of a dim that is none, to verify": Case(
        "invalid-options",
        {**options(dims={"N": 8}), "backend": "onnx"},
        path="/v1/verify",
        says={"where": "options.dims[N]"},
    ),
    "a size of a dim that is none, to draw": Case(
        "invalid-options", options(dims={"N": 8}), path="/v1/graph", says={"where": "options.dims[N]"}
    ),
    "a layout for no input": Case("invalid-options", options(input_layouts={"nothing": "NHWC"})),
    "a layout that is none": Case("invalid-layout", options(input_layouts={"image": "N[a=0]HWC"})),
    "a backend that nobody has": Case(
        "invalid-backend", {"graph": GRAPH, "backend": "nwhc"}, says={"hint": "did you mean"}
    ),
    "a table that is not right": Case(
        "invalid-backend", {"graph": GRAPH, "backend": {"name": "x", "rule": [{"op": "Conv", "data": "NHWQ"}]}}
    ),
    "a backend that is a number": Case(
        "invalid-options", {"graph": GRAPH, "backend": 7}, says={"where": "body.backend"}
    ),
    "options for a backend that takes none": Case("invalid-backend", options(backend_options={"skip": ["conv"]})),
    "requirements that cannot be met": Case("infeasible", {"graph": GRAPH, "backend": ALIGNED}, says={"found": "conv"}),
    "JSON with a query": Case("invalid-options", {"graph": GRAPH}, query={"backend": "nhwc"}, says={"where": "query"}),
    "bytes that are no model": Case("invalid-input", b"not a model", headers=ONNX),
    "no bytes": Case("invalid-input", b"", headers=ONNX, says={"where": "body", "found": "0 bytes"}),
    "graph JSON as ONNX": Case(
        "invalid-input", graph(), headers=ONNX, says={"found": "JSON", "hint": "Content-Type: application/json"}
    ),
    "gzip that is not called so": Case(
        "invalid-input", gzip.compress(onnx_bytes()), headers=ONNX, says={"hint": "Content-Encoding: gzip"}
    ),
    "half a model": Case("invalid-input", onnx_bytes()[:-20], headers=ONNX),
    "an unknown option in the query": Case(
        "invalid-options", onnx_bytes(), query={"speed": "1"}, headers=ONNX, says={"expected": "one of the parameters"}
    ),
    "an option in the query that is misspelt": Case(
        "invalid-options",
        onnx_bytes(),
        query={"objectiv": "bytes"},
        headers=ONNX,
        says={"where": "query.objectiv", "hint": "did you mean objective?"},
    ),
    "an option of another verb": Case(
        "invalid-options",
        onnx_bytes(),
        path="/v1/explain",
        query={"check": "true"},
        headers=ONNX,
        says={"found": "check"},
    ),
    "an option to draw that is misspelt": Case(
        "invalid-options",
        onnx_bytes(),
        path="/v1/graph",
        query={"dims": "N=1"},
        headers=ONNX,
        says={"hint": "mean dim?"},
    ),
    "two backends in the query": Case(
        "invalid-options",
        onnx_bytes(),
        query={"backend": ["onnx", "nhwc"]},
        headers=ONNX,
        says={"where": "query.backend", "found": "2"},
    ),
    "two objectives of a job": Case(
        "invalid-options",
        onnx_bytes(),
        path="/v1/jobs",
        query={"objective": ["bytes", "transposes"]},
        headers=ONNX,
        says={"where": "query.objective"},
    ),
    "a truth value that is none": Case(
        "invalid-options", onnx_bytes(), query={"verify": "maybe"}, headers=ONNX, says={"expected": "true or false"}
    ),
    "a whole number that is none": Case(
        "invalid-options", onnx_bytes(), query={"max_bytes": "1e3"}, headers=ONNX, says={"expected": "an integer"}
    ),
    "a number that is none": Case(
        "invalid-options", onnx_bytes(), query={"time_limit": "soon"}, headers=ONNX, says={"where": "query.time_limit"}
    ),
    "a number that is not finite": Case(
        "invalid-options", onnx_bytes(), query={"time_limit": "nan"}, headers=ONNX, says={"expected": "finite number"}
    ),
    "a pair that is none": Case(
        "invalid-options", onnx_bytes(), query={"input_layout": "NHWC"}, headers=ONNX, says={"expected": "=LAYOUT"}
    ),
    "a size that is no number": Case(
        "invalid-options", onnx_bytes(), query={"dim": "N=many"}, headers=ONNX, says={"where": "query.dim"}
    ),
    "a table in the query that is no JSON": Case(
        "invalid-options", onnx_bytes(), query={"backend": "{"}, headers=ONNX, says={"where": "query.backend"}
    ),
    "no media type": Case("unsupported-media-type", b"{}", headers={}, says={"found": "no Content-Type"}),
    "the media type that curl sends by itself": Case(
        "unsupported-media-type",
        b"{}",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
        says={"hint": "in the header Content-Type; curl "},
    ),
    "a media type that is not taken": Case("unsupported-media-type", b"{}", headers={"Content-Type": "text/plain"}),
    "a body that is compressed in another way": Case(
        "unsupported-media-type", b"{}", headers={**JSON, "Content-Encoding": "br"}, says={"expected": "gzip"}
    ),
    "gzip that is none": Case(
        "malformed-body", b"{}", headers={**JSON, "Content-Encoding": "gzip"}, says={"expected": "gzip"}
    ),
    "two graphs that cannot be one": Case("invalid-input", {"graph": GRAPH, "against": 7}, path="/v1/verify"),
    "a layout's fault": Case(
        "invalid-layout", {"layout": "N[a=0]"}, path="/v1/layouts/parse", says={"where": "layout, column 5"}
    ),
    "no layout": Case(
        "invalid-options", {}, path="/v1/layouts/parse", says={"where": "body.layout", "found": "nothing"}
    ),
    "a page of jobs of no size": Case(
        "invalid-options", path="/v1/jobs", method="GET", query={"limit": "all"}, says={"expected": "an integer"}
    ),
    "a page of jobs of a size that is misspelt": Case(
        "invalid-options",
        path="/v1/jobs",
        method="GET",
        query={"limitt": "5"},
        says={
            "where": "query.limitt",
            "expected": "one of the parameters cursor, limit",
            "hint": "did you mean limit?",
        },
    ),
    "two sizes of a page of jobs": Case(
        "invalid-options",
        path="/v1/jobs",
        method="GET",
        query={"limit": ["5", "6"]},
        says={"where": "query.limit", "found": "2"},
    ),
    "a query where there is none": Case(
        "invalid-options",
        path="/v1/backends",
        method="GET",
        query={"name": "nhwc"},
        says={"where": "query.name", "expected": "no parameters"},
    ),
    "a query for a layout": Case(
        "invalid-options",
        {"layout": "NCHW"},
        path="/v1/layouts/parse",
        query={"layout": "NHWC"},
        says={"where": "query.layout"},
    ),
    "a query for a job": Case(
        "invalid-options", path="/v1/jobs/none", method="GET", query={"full": "1"}, says={"where": "query.full"}
    ),
    "a query for a job that is to be cancelled": Case(
        "invalid-options", path="/v1/jobs/none", method="DELETE", query={"now": "1"}, says={"where": "query.now"}
    ),
    "an option of another kind of job": Case(
        "invalid-options",
        onnx_bytes(),
        path="/v1/jobs",
        query={"kind": "explain", "check": "true"},
        headers=ONNX,
        says={"where": "query.check", "expected": "kind"},
    ),
    "a kind of job that is none": Case(
        "invalid-options",
        path="/v1/jobs",
        query={"kind": "legalise"},
        says={"where": "query.kind", "expected": "'legalize'"},
    ),
    "a key of nothing": Case(
        "invalid-options",
        path="/v1/jobs",
        headers={**JSON, "Idempotency-Key": ""},
        says={"where": "header Idempotency-Key"},
    ),
    "a path that is none": Case(
        "not-found", path="/v2/legalize", says={"found": "POST /v2/legalize", "hint": "did you mean /v1/legalize?"}
    ),
    "a path with a slash too many": Case(
        "not-found", path="/v1/jobs/", method="GET", says={"hint": "did you mean /v1/jobs?"}
    ),
    "a part of a job that is none": Case(
        "not-found", path="/v1/jobs/7/modle", method="GET", says={"hint": "did you mean /v1/jobs/7/model?"}
    ),
    "a path without its last part": Case(
        "not-found", path="/problems", method="GET", says={"hint": "did you mean /problems/{kind}?"}
    ),
    "a problem that is none": Case("not-found", path="/problems/hunger", method="GET"),
    "a method that is none": Case("method-not-allowed", method="DELETE", says={"expected": "POST"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_wrong_request_gets_a_problem(client: httpx.Client, case: Case) -> None:
    content = case.content if isinstance(case.content, bytes) else json.dumps(case.content).encode()
    response = client.request(case.method, case.path, params=case.query, content=content, headers=case.headers)
    problem = response.json()
    assert problem["type"] == f"/problems/{case.kind}", problem
    assert response.headers["content-type"] == "application/problem+json"
    assert response.status_code == problem["status"] == KINDS[case.kind].status
    assert problem["title"] == KINDS[case.kind].title
    assert {name: text for name, text in case.says.items() if text not in problem.get(name, "")} == {}, problem
    assert "Traceback" not in response.text


def test_probes_and_links_take_any_query(client: httpx.Client) -> None:
    for path in ("/", "/healthz", "/readyz", "/openapi.json", "/problems/busy"):
        assert client.get(path, params={"from": "elsewhere"}).status_code == 200


def test_the_type_of_a_problem_leads_to_what_it_means(client: httpx.Client) -> None:
    for name, kind in KINDS.items():
        assert client.get(f"/problems/{name}").json() == {
            "status": kind.status,
            "title": kind.title,
            "meaning": kind.meaning,
        }


def test_requirements_that_contradict_each_other_are_named(client: httpx.Client) -> None:
    problem = client.post("/v1/legalize", json={"graph": GRAPH, "backend": ALIGNED}).json()
    assert any("conv" in name for name in problem["conflict"])


def test_an_infeasible_problem_has_its_alternative(client: httpx.Client) -> None:
    asked = {"graph": GRAPH, "backend": "nchw", "options": {"max_transposes": 0}}
    problem = client.post("/v1/legalize", json=asked).json()
    assert problem["status"] == 409
    assert "options.max_transposes=0" in problem["conflict"]
    (would_do,) = problem["relaxation"]
    least = int(would_do.removeprefix("options.max_transposes="))
    assert client.post("/v1/legalize", json={**asked, "options": {"max_transposes": least}}).status_code == 200


def test_the_place_of_a_layouts_fault_is_a_number_too(client: httpx.Client) -> None:
    assert client.post("/v1/layouts/parse", json={"layout": "N[a=0]"}).json()["column"] == 5


def test_the_methods_that_are_allowed_are_named(client: httpx.Client) -> None:
    methods = {"/v1/legalize": "POST", "/v1/graph": "POST", "/v1/jobs": "GET, HEAD, POST", "/healthz": "GET, HEAD"}
    for path, allowed in methods.items():
        assert client.put(path).headers["allow"] == allowed


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InfeasibleError("contradiction", conflict=["a", "b"]), 409),
        (OutOfTimeError("over"), 504),
        (LayoutSyntaxError("N[", 2, expected="x", found="y"), 422),
        (RefusedError("busy", "busy"), 503),
        (InternalError("an invariant"), 500),
        (RelayoutError("some other error"), 500),
    ],
)
def test_the_status_of_an_error_goes_by_its_class(error: RelayoutError, status: int) -> None:
    assert problem_of(error).status == status


def test_an_internal_error_reveals_no_details() -> None:
    problem = problem_of(InternalError("secret", where="/etc/secret", found="Traceback: secret"))
    assert "secret" not in problem.model_dump_json()


def test_quoted_parts_of_a_request_are_shortened() -> None:
    problem = problem_of(RefusedError("too-large", "x" * 10_000, found="\ud800" * 10_000))
    assert len(problem.detail) < 2100
    assert json.dumps(problem.found).isascii()


@pytest.fixture
def unopened() -> FastAPI:
    """A service whose workers were never started."""
    return create_app(Settings())


@pytest.mark.anyio
async def test_without_a_warm_worker_the_service_is_not_ready_but_alive(unopened: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(unopened), base_url="http://test") as client:
        assert (await client.get("/readyz")).json()["type"] == "/problems/starting"
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.anyio
async def test_a_fault_of_the_service_is_a_problem_too(unopened: FastAPI) -> None:
    unopened.state.service = None
    transport = httpx.ASGITransport(unopened, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/readyz")
    assert response.status_code == 500
    assert response.json()["type"] == "/problems/internal"
    assert "NoneType" not in response.text


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
