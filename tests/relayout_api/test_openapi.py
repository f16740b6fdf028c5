"""The service conforms to its OpenAPI document, and its page loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import openapi_spec_validator
import pytest
import requests
import schemathesis
from http_bodies import onnx_bytes
from http_server import Server, serving
from hypothesis import settings
from schemathesis.checks import load_all_checks
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.hypothesis import builder
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from schemathesis.specs.openapi.coverage import _operation as coverage

from relayout_api.app import create_app
from relayout_api.problems import KINDS
from relayout_api.settings import Settings

load_all_checks()
builder_order, case_of_body = builder.content_type_probes_first, coverage._emit_body_case

DOCUMENT = create_app(Settings()).openapi()
# Beyond it the server hangs up.
LONGEST_URL = 60_000
# The boundary cases of an operation are up to 13,000, in a fixed order, alike in long rows: nearly all of them bodies
# in JSON, and some hundred others. The first so many of each go to the operation; beyond these, one in so many does.
FIRST_BODIES, FIRST_OTHERS = 20, 100
THEN_ONE_IN = 61


def sampled(cases: Iterable[schemathesis.Case]) -> list[schemathesis.Case]:
    """The boundary cases of one operation, without most of very many that are alike. The last one runs first. Those
    with a body are few already."""
    every, others = builder_order(cases)[::-1], count(1)
    return [case for case in every if has_own_body(case) or is_sampled(next(others), FIRST_OTHERS)][::-1]


def has_own_body(case: schemathesis.Case) -> bool:
    return case.meta.phase.data.parameter_location == ParameterLocation.BODY


def is_sampled(n: int, first: int) -> bool:
    return n <= first or n % THEN_ONE_IN == 0


def sample_of_bodies() -> Callable[..., schemathesis.Case | None]:
    """In the place of schemathesis's function that makes a case of a body: one that makes few of them. The cases take
    longer to make than the service takes to answer those that are sent."""
    seen: Counter[tuple[str, str]] = Counter()

    def made(run: Any, value: Any, media_type: str, elapsed: float) -> schemathesis.Case | None:
        kind = run.operation.label, media_type
        seen[kind] += 1
        return case_of_body(run, value, media_type, elapsed) if is_sampled(seen[kind], FIRST_BODIES) else None

    return made


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: the jobs that are submitted here would keep the workers from other tests."""
    with serving(tmp_path_factory.mktemp("fuzzed")) as server:
        yield server


@pytest.fixture(params=DOCUMENT["paths"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> schemathesis.BaseSchema:
    """The operations of one path. Their cases are generated when the test runs: generated while tests are collected,
    every worker of a parallel run would generate all of them."""
    monkeypatch.setattr(coverage, "_emit_body_case", sample_of_bodies())
    monkeypatch.setattr(builder, "content_type_probes_first", sampled)
    request.node._nodeid = request.node.nodeid  # schemathesis 4.32 reads it, and pytest 9.2 has it no more
    return schemathesis.openapi.from_dict({**DOCUMENT, "paths": {request.param: DOCUMENT["paths"][request.param]}})


# A graph that is right by the schema may still contradict itself, and then it is refused.
@schemathesis.pytest.from_fixture("path").parametrize()
@settings(max_examples=8)
def test_whatever_is_sent_the_answer_is_as_declared(fuzzed: Server, case: schemathesis.Case) -> None:
    request = requests.Request(**case.as_transport_kwargs(base_url=fuzzed.address)).prepare()
    if len(request.url or "") > LONGEST_URL:
        return
    response = case.call(base_url=fuzzed.address)
    # A request that is no HTTP does not get as far as the service.
    if response.text != "Invalid HTTP request received.":
        # A worker parses the body of a job, so the job is accepted first and then fails; test_jobs.py tests that.
        is_accepted = case.operation.label == "POST /v1/jobs" and response.status_code == 202
        later = [negative_data_rejection] if is_accepted else []
        case.validate_response(response, excluded_checks=[positive_data_acceptance, *later])


def test_the_document_is_the_one_that_the_service_shows(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == DOCUMENT


def examples() -> list[Any]:
    """Every example of a request: path, media type, body."""
    return [
        pytest.param(path, kind, example["value"], id=f"{path} {name}")
        for path, operations in DOCUMENT["paths"].items()
        for operation in operations.values()
        for kind, content in operation.get("requestBody", {}).get("content", {}).items()
        for name, example in content.get("examples", {}).items()
    ]


@pytest.mark.parametrize(("path", "kind", "body"), examples())
def test_every_example_of_a_request_is_answered(client: httpx.Client, path: str, kind: str, body: Any) -> None:
    response = client.post(path, json=body, headers={"Content-Type": kind})
    assert response.status_code == (202 if path == "/v1/jobs" else 200), response.text


def test_every_operation_that_takes_a_model_takes_it_in_a_form_too(client: httpx.Client) -> None:
    for path, operations in DOCUMENT["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/octet-stream" in content:
            assert "model" in content["multipart/form-data"]["schema"]["properties"], path
            response = client.post(path, params={"backend": "nhwc"}, files={"model": onnx_bytes()})
            assert response.is_success, response.text


def test_every_kind_of_problem_is_declared_where_it_may_come_up() -> None:
    declared = {
        (name, int(status))
        for operations in DOCUMENT["paths"].values()
        for operation in operations.values()
        for status, response in operation["responses"].items()
        for name in response.get("content", {}).get("application/problem+json", {}).get("examples", {})
    }
    # No operation can declare a path or method that there is not, and what is no HTTP has no path.
    undeclared = {"method-not-allowed", "malformed-request", "long-head"}
    assert declared == {(name, kind.status) for name, kind in KINDS.items() if name not in undeclared}


def test_every_operation_that_refuses_an_unknown_key_of_the_query_declares_it() -> None:
    paths = {
        path: operations for path, operations in DOCUMENT["paths"].items() if path.startswith(("/v1/", "/metrics"))
    }
    for operations in paths.values():
        for operation in operations.values():
            examples = operation["responses"]["422"]["content"]["application/problem+json"]["examples"]
            assert "invalid-options" in examples


def test_a_key_may_go_with_every_operation_that_may_refuse_one(tmp_path: Path) -> None:
    schemes = DOCUMENT["components"]["securitySchemes"]
    kinds = {(each["type"], each.get("scheme"), each.get("name")) for each in schemes.values()}
    assert kinds == {("http", "bearer", None), ("apiKey", None, "X-API-Key")}
    for document, least in ((DOCUMENT, [{}]), (create_app(Settings(auth="required", data=tmp_path)).openapi(), [])):
        keyless = set()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if "security" not in operation:
                    keyless.add(path)
                    continue
                scope = "read" if method == "get" or path == "/v1/layouts/parse" else "legalize"
                assert operation["security"] == [*least, *({name: [scope]} for name in schemes)]
                assert operation["responses"].keys() >= {"401", "403"}
        assert keyless == {"/healthz", "/readyz", "/problems/{kind}"}


def test_nothing_of_the_page_is_inline_and_nothing_comes_from_elsewhere(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in answer.text
    assert " style=" not in answer.text
    assert "://" not in answer.text
    for name in ("page.js", "layout_worker.js", "page.css"):
        file = client.get(f"/static/{name}")
        assert file.headers["content-security-policy"] == policy
        assert file.headers["x-content-type-options"] == "nosniff"


def test_the_document_is_valid_and_names_its_operations() -> None:
    document = json.loads(json.dumps(DOCUMENT))
    openapi_spec_validator.validate(document)
    names = [operation["operationId"] for operations in document["paths"].values() for operation in operations.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)


def test_a_generator_makes_a_client_that_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(DOCUMENT))
    command = [Path(sys.executable).parent / "openapi-python-client", "generate", "--path", "openapi.json"]
    done = subprocess.run([*command, "--output-path", "made", "--meta", "none"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    code = "from made.api.work import legalize; from made.api.jobs import get_job; print(get_job.sync)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
