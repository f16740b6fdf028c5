"""Forms of requests and answers: gzip, forms with two files, ZIP, HEAD."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from zipfile import ZipFile

import httpx
import numpy as np
import onnx
import pytest
from command_line import CHANNELS_FIRST, CHANNELS_LAST
from http_jobs import wait_until_ended

from relayout.report.schema import Report
from relayout_api.examples import GRAPH

BODY = json.dumps({"graph": GRAPH, "backend": "nhwc"}).encode()
GZIP = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
ONNX = "application/octet-stream"


@pytest.fixture
def model() -> bytes:
    return onnx.parser.parse_model(CHANNELS_LAST).SerializeToString()


def test_a_body_and_an_answer_may_be_gzip(client: httpx.Client) -> None:
    plain = client.post("/v1/legalize", content=BODY, headers={"Content-Type": "application/json"})
    packed = client.post("/v1/legalize", content=gzip.compress(BODY), headers=GZIP)
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json()["graph"] == plain.json()["graph"]


@pytest.mark.parametrize(("accepted", "encoding"), [("gzip;q=0, identity", None), ("br, gzip; q=0.5", "gzip")])
def test_an_answer_is_gzip_only_where_its_weight_is_not_0(
    client: httpx.Client, accepted: str, encoding: str | None
) -> None:
    headers = {"Content-Type": "application/json", "Accept-Encoding": accepted}
    answer = client.post("/v1/legalize", content=BODY, headers=headers)
    assert answer.status_code == 200
    assert answer.headers.get("content-encoding") == encoding


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"no gzip", "header"),
        (gzip.compress(BODY)[:-9], "cut off"),
        (gzip.compress(BODY) + b"more", "more after its end"),
    ],
    ids=["no gzip", "cut off", "more"],
)
def test_a_broken_gzip_body_is_refused(client: httpx.Client, body: bytes, found: str) -> None:
    answer = client.post("/v1/legalize", content=body, headers=GZIP)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed-body")
    assert found in answer.json()["found"]


def test_a_bomb_is_refused_by_its_size_when_it_is_unpacked(client: httpx.Client) -> None:
    bomb = gzip.compress(bytes(200 << 20))
    assert len(bomb) < 1 << 20
    answer = client.post("/v1/legalize", content=bomb, headers=GZIP)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")


def test_a_model_and_its_whole_report_come_as_one_zip(client: httpx.Client, model: bytes) -> None:
    headers = {"Content-Type": ONNX, "Accept": "application/zip"}
    answer = client.post("/v1/legalize?backend=onnx", content=model, headers=headers)
    assert answer.headers["content-type"] == "application/zip", answer.text
    with ZipFile(BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        legal, report = archive.read("model.onnx"), Report.model_validate_json(archive.read("report.json"))
    assert report.conversions
    verified = client.post(
        "/v1/verify?backend=onnx", files={"model": legal, "against": model}, headers={"Accept": "application/json"}
    )
    verification = verified.json()["report"]["verification"]
    assert (verification["passed"], verification["numeric"]["status"]) == (True, "compared")


def test_a_form_compares_two_models(client: httpx.Client, model: bytes) -> None:
    other = onnx.parser.parse_model(CHANNELS_FIRST).SerializeToString()
    answer = client.post("/v1/verify?backend=onnx", files={"model": other, "against": model})
    assert answer.status_code == 200, answer.text
    assert answer.json()["report"]["status"] == "failed"


@pytest.mark.parametrize("files", [{"modell": b"x"}, {"against": b"x"}, {"model": b"x", "more": b"y"}], ids=str)
def test_a_form_with_other_files_is_refused(client: httpx.Client, files: dict[str, bytes]) -> None:
    answer = client.post("/v1/verify?backend=onnx", files=files)
    assert answer.status_code == 422
    assert "`against`" in answer.json()["expected"]


def test_a_form_with_a_field_that_is_no_file_is_told_where_options_go(client: httpx.Client, model: bytes) -> None:
    answer = client.post("/v1/verify", files={"model": model}, data={"backend": "nhwc"})
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed-body")
    assert answer.json()["found"] == "a field that is no file; options go into the query"


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\n--limit", b"\r\n--limit\r\n"])
def test_a_form_that_is_cut_off_is_refused(client: httpx.Client, model: bytes, end: bytes) -> None:
    # Its second file would be missing, and the first be verified without a comparison.
    head = b'--limit\r\nContent-Disposition: form-data; name="%s"; filename="a"\r\n\r\n'
    body = head % b"model" + model + b"\r\n" + head % b"against" + model + end
    form = {"Content-Type": "multipart/form-data; boundary=limit"}
    answer = client.post("/v1/verify?backend=onnx", content=body, headers=form)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed-body")


def test_a_path_with_a_slash_at_its_end_is_not_found(client: httpx.Client) -> None:
    # A redirect would name the scheme that the server behind a proxy sees: clients would send keys in the clear.
    answer = client.post("/v1/legalize/", content=BODY, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


def test_head_is_get_without_the_body(client: httpx.Client) -> None:
    head, get = client.head("/v1/backends"), client.get("/v1/backends")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]


def test_a_zip_of_what_a_job_has_computed_before_is_one_too(client: httpx.Client, model: bytes) -> None:
    headers = {"Content-Type": ONNX, "Accept": "application/zip"}
    job = client.post("/v1/jobs?backend=nhwc", content=model, headers=headers)
    assert job.status_code == 202
    assert wait_until_ended(client, job.json()["id"])["state"] == "succeeded"
    answer = client.post("/v1/legalize?backend=nhwc", content=model, headers=headers)
    assert answer.headers["content-type"] == "application/zip", answer.text


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ([("Content-Encoding", "identity"), ("Content-Encoding", "br")], 415, "unsupported-media-type"),
        ([("Content-Length", "2"), ("Transfer-Encoding", "chunked")], 400, "malformed-request"),
    ],
    ids=["two encodings", "two lengths"],
)
def test_headers_that_contradict_each_other_are_refused(
    client: httpx.Client, headers: list[tuple[str, str]], status: int, kind: str
) -> None:
    answer = client.post("/v1/legalize", content=b"{}", headers=[("Content-Type", "application/json"), *headers])
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{kind}")
    assert answer.headers["x-request-id"]


def test_a_form_with_the_same_file_twice_is_refused(client: httpx.Client, model: bytes) -> None:
    file = ("model", ("model.onnx", model))
    answer = client.post("/v1/verify", files=[file, file])
    assert (answer.status_code, answer.json()["found"]) == (422, "model, model")


@pytest.mark.parametrize(("samples", "found"), [(17, "17 files `inputs`"), (100, "more than 18 files")])
def test_a_form_with_more_samples_than_a_request_may_have_is_refused(
    client: httpx.Client, model: bytes, samples: int, found: str
) -> None:
    files = [("model", model), *[("inputs", b"sample")] * samples]
    for path in ("/v1/legalize", "/v1/jobs"):
        answer = client.post(path, files=files)
        problem = answer.json()
        assert (answer.status_code, problem["detail"]) == (422, "the form has too many files")
        assert (problem["expected"], problem["found"]) == ("`model`, `against` and at most 16 `inputs`", found)


def test_inputs_that_are_no_arrays_are_refused(client: httpx.Client, model: bytes) -> None:
    packed = BytesIO()
    np.savez_compressed(packed, image=np.ones((1, 8, 8, 4), np.float32))
    whole = bytearray(packed.getvalue())
    whole[60:80] = bytes(20)
    for faulty in (b"", b"no zip file", bytes(whole)):
        answer = client.post("/v1/legalize", files=[("model", model), ("inputs", packed), ("inputs", faulty)])
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (422, "/problems/invalid-input"), problem
        assert (problem["where"], problem["detail"]) == ("body, inputs 2", "the inputs cannot be read")
        packed.seek(0)


def test_a_form_with_a_file_that_the_work_does_not_read_is_refused(client: httpx.Client, model: bytes) -> None:
    for work, other in (("explain", "inputs"), ("graph", "inputs"), ("legalize", "against")):
        answer = client.post(f"/v1/{work}", files={"model": model, other: model})
        assert (answer.status_code, answer.json()["found"]) == (422, f"`{other}`")


def test_each_header_with_known_answers_counts(client: httpx.Client) -> None:
    content, kind = json.dumps({"graph": GRAPH}), ("Content-Type", "application/json")
    tag = client.post("/v1/legalize", content=content, headers=[kind]).headers["etag"]
    for known in ([f'"a", {tag}'], ['"a"', tag.removeprefix("W/")]):
        headers = [kind, *[("If-None-Match", each) for each in known]]
        assert client.post("/v1/legalize", content=content, headers=headers).status_code == 304


def test_an_answer_and_its_compressed_form_share_no_strong_tag(client: httpx.Client) -> None:
    content, kind = json.dumps({"graph": GRAPH}), {"Content-Type": "application/json"}
    plain, packed = (
        client.post("/v1/legalize", content=content, headers={**kind, "Accept-Encoding": coding})
        for coding in ("identity", "gzip")
    )
    assert [each.headers.get("content-encoding") for each in (plain, packed)] == [None, "gzip"]
    tags = {each.headers["etag"] for each in (plain, packed)}
    assert len(tags) == 2 or tags.pop().startswith("W/")


@pytest.mark.parametrize("keys", [[""], ["a", "b"], ["a", "a"]])
def test_an_idempotency_key_that_is_empty_or_one_of_two_is_refused(client: httpx.Client, keys: list[str]) -> None:
    headers = [("Idempotency-Key", key) for key in keys]
    answer = client.post("/v1/jobs", json={"graph": GRAPH}, headers=headers)
    assert (answer.status_code, answer.json()["where"]) == (422, "header Idempotency-Key")


@pytest.mark.parametrize(("query", "status"), [({}, 400), ({"backend": "nhwc"}, 422)], ids=["plain", "with a query"])
def test_an_onnx_model_that_says_it_is_json_is_told_its_media_type(
    client: httpx.Client, model: bytes, query: dict[str, str], status: int
) -> None:
    model += b"\xff"
    answer = client.post("/v1/legalize", params=query, content=model, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert "application/octet-stream" in answer.json()["hint"]


def test_an_empty_body_in_json_is_named_as_such(client: httpx.Client) -> None:
    answer = client.post("/v1/legalize", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["found"]) == (400, "0 bytes")


@pytest.mark.parametrize("original", [b"no model at all", b""], ids=["text", "empty"])
def test_of_two_files_the_faulty_one_is_named(client: httpx.Client, model: bytes, original: bytes) -> None:
    answer = client.post("/v1/verify", params={"backend": "onnx"}, files={"model": model, "against": original})
    assert answer.status_code == 422
    assert answer.json()["where"].startswith("against, ")
    answer = client.post("/v1/verify", params={"backend": "onnx"}, files={"model": original, "against": model})
    assert "against" not in answer.json()["where"]
