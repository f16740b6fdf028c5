"""The endpoints that draw, over a socket."""

from __future__ import annotations

import httpx
from http_bodies import onnx_bytes

from relayout_api.examples import GRAPH

ONNX = {"Content-Type": "application/octet-stream"}


def finished(client: httpx.Client, kind: str) -> str:
    """The path of a job of this kind that succeeded."""
    path: str = client.post("/v1/jobs", params={"kind": kind}, json={"graph": GRAPH, "backend": "nhwc"}).headers[
        "Location"
    ]
    with client.stream("GET", f"{path}/events") as events:
        events.read()
    assert client.get(path).json()["state"] == "succeeded"
    return path


def test_a_graph_is_drawn_alone_or_with_the_legal_graph(client: httpx.Client) -> None:
    alone = client.post("/v1/graph", json={"graph": GRAPH}).json()
    assert [node["operator"] for node in alone["source"]["nodes"]] == ["Transpose", "Conv", "Relu", "Transpose"]
    assert alone["legal"] is None
    assert alone["report"] is None
    both = client.post("/v1/graph", params={"backend": "nhwc"}, content=onnx_bytes(), headers=ONNX).json()
    assert [node["operator"] for node in both["legal"]["nodes"]] == ["Conv", "Relu"]
    assert both["report"]["after"]["transposes"] == 0
    [conv] = [node for node in both["source"]["nodes"] if node["operator"] == "Conv"]
    assert conv["choice"]["alternatives"][0]["chosen"]


def test_a_job_that_legalized_is_drawn_and_another_is_not(client: httpx.Client) -> None:
    job = finished(client, "legalize")
    drawing = client.get(f"{job}/graph").json()
    assert [node["source"] for node in drawing["legal"]["nodes"]] == [1, 2]
    [conv] = [node for node in drawing["source"]["nodes"] if node["operator"] == "Conv"]
    assert conv["choice"]["alternatives"][0]["chosen"]
    # Drawn from the job's own results, not from another solution: the seconds of each stage are the job's.
    assert drawing["report"] == client.get(f"{job}/report").json()
    assert client.get(f"{job}/graph?of=legal").json() == {"legal": drawing["legal"]}
    answer = client.get(f"{finished(client, 'verify')}/graph")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "/problems/no-result"


def test_the_options_of_backends_have_schemas(client: httpx.Client) -> None:
    backends = {each["name"]: each for each in client.get("/v1/backends").json()["backends"]}
    schemas = {each["name"]: each["json_schema"] for each in backends["tpu"]["options"]}
    assert schemas == {
        "space_to_depth": {"type": "boolean"},
        "max_batch": {"type": "integer"},
        "max_channels": {"type": "integer"},
    }
    [block] = backends["x86-nchwc"]["options"]
    assert block["json_schema"] == {"type": ["integer", "string", "null"]}
