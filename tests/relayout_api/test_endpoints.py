"""Each endpoint answers a valid request."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from http_bodies import onnx_bytes, onnx_model
from http_server import Server

from relayout_api.examples import BACKEND, GRAPH

ONNX = {"Content-Type": "application/octet-stream"}


def legalize(client: httpx.Client, backend: Any = "nhwc", **options: Any) -> dict[str, Any]:
    """The answer to a request to legalize the example."""
    body = {"graph": GRAPH, "backend": backend, "options": options}
    response = client.post("/v1/legalize", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_a_graph_comes_back_legal_with_a_report(client: httpx.Client) -> None:
    answer = legalize(client)
    assert [node["op"] for node in answer["graph"]["nodes"]] == ["Conv", "Relu"]
    assert answer["graph"]["nodes"][0]["attributes"]["data_layout"] == "NHWC"
    report = answer["report"]
    assert (report["status"], report["cost"], report["bound"], report["backend"]) == ("optimal", 0, 0, "nhwc")
    assert (report["before"]["transposes"], report["after"]["transposes"]) == (2, 0)


def test_the_default_backend_is_onnx(client: httpx.Client) -> None:
    answer = client.post("/v1/legalize", json={"graph": GRAPH}).json()
    assert answer["report"]["backend"] == "onnx"


def test_absent_weights_are_returned_as_steps(client: httpx.Client) -> None:
    [weight] = [each for each in legalize(client)["graph"]["constants"] if each["shape"] == [3, 3, 64, 64]]
    assert "data" not in weight
    assert weight["transform"] == [{"op": "transpose", "perm": [2, 3, 1, 0]}]


def test_a_declarative_backend_comes_with_the_request(client: httpx.Client) -> None:
    answer = legalize(client, BACKEND)
    assert answer["report"]["backend"] == "acme"
    assert answer["graph"]["nodes"][0]["attributes"]["kernel_layout"] == "OHWI"


def test_desired_layouts_are_options_of_convert_layout(client: httpx.Client) -> None:
    answer = legalize(client, "convert-layout", backend_options={"desired_layouts": {"Conv": ["NHWC", "OHWI"]}})
    assert answer["graph"]["nodes"][0]["attributes"]["kernel_layout"] == "OHWI"
    options = {"desired_layouts": {"Conv": ["NHWC", "OHWI"]}, "skip": ["conv"]}
    answer = legalize(client, "convert-layout", backend_options=options)
    assert "conv" in [node["name"] for node in answer["graph"]["nodes"] if node.get("domain", "") == ""]


def test_a_backend_takes_its_options_in_json_and_in_the_query(client: httpx.Client) -> None:
    answer = legalize(client, "auto-nhwc", backend_options={"device": "cpu"})
    assert {node.get("domain", "") for node in answer["graph"]["nodes"]} == {""}
    wishes = {"desired_layouts": {"Conv": ["NHWC", "OHWI"]}}
    answer = legalize(client, "convert-layout", backend_options=wishes)
    assert answer["graph"]["nodes"][0]["attributes"]["kernel_layout"] == "OHWI"
    body = {"graph": GRAPH, "backend": "convert-layout", "options": {"backend_options": wishes}}
    assert not client.post("/v1/verify", json=body).json()["report"]["verification"]["passed"]
    assert client.post("/v1/explain", json=body).json()["report"]["backend"] == "convert-layout"
    for device, domains in (("cuda", {"", "relayout"}), ("cpu", {""})):
        query = {"backend": "auto-nhwc", "backend_option": f"device={device}"}
        answer = client.post("/v1/legalize", params=query, content=onnx_bytes(), headers=ONNX).json()
        nodes = onnx.load_from_string(b64decode(answer["model"])).graph.node
        assert {node.domain for node in nodes if node.op_type in ("Conv", "Relu")} == domains


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("max_batch", "many", "a whole number"),
        ("space_to_depth", 0, "true or false"),
        ("batch", 1, "of max_batch, max_channels, space_to_depth"),
    ],
)
def test_an_option_that_a_backend_does_not_take_is_refused(
    option: str, value: object, expected: str, client: httpx.Client
) -> None:
    body = {"graph": GRAPH, "backend": "tpu", "options": {"backend_options": {option: value}}}
    query = {"backend": "tpu", "backend_option": f"{option}={value}"}
    for answer in (
        client.post("/v1/legalize", json=body),
        client.post("/v1/legalize", params=query, content=onnx_bytes(), headers=ONNX),
    ):
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-backend")
        assert answer.json()["expected"] == expected


def test_the_boundary_may_be_given_or_left_open(client: httpx.Client) -> None:
    answer = legalize(client, "onnx", input_layouts={"image": "any"}, output_layouts={"features": "any"})
    assert answer["report"]["after"]["transposes"] == 0


def test_the_legal_model_is_checked_on_request(client: httpx.Client) -> None:
    assert legalize(client, verify=False)["report"]["verification"] is None
    static = legalize(client)["report"]["verification"]
    assert (static["passed"], static["findings"], static["numeric"]) == (True, [], None)
    verification = legalize(client, check=True)["report"]["verification"]
    assert verification["passed"]
    assert verification["numeric"]["status"] == "compared"


def test_function_bodies_are_inlined_on_request(client: httpx.Client) -> None:
    answer = legalize(client, inline=True)
    assert {node.get("domain", "") for node in answer["graph"]["nodes"]} == {""}


def test_the_same_request_gets_the_same_answer(client: httpx.Client) -> None:
    first, second = legalize(client), legalize(client)
    for answer in (first, second):
        del answer["report"]["solver"]["seconds"]
    assert first == second


def test_an_onnx_model_comes_back_in_base64(client: httpx.Client) -> None:
    response = client.post("/v1/legalize?backend=nhwc&check=true", content=onnx_bytes(), headers=ONNX)
    answer = response.json()
    model = onnx.load_from_string(b64decode(answer["model"]))
    onnx.checker.check_model(model, full_check=True)
    assert operators(model) == {"Conv": 1, "Relu": 1}
    assert answer["report"]["verification"]["passed"]


def test_an_onnx_model_is_returned_as_bytes_if_accepted(client: httpx.Client) -> None:
    headers = {**ONNX, "Accept": "application/octet-stream"}
    response = client.post("/v1/legalize?backend=nhwc", content=onnx_bytes(), headers=headers)
    assert response.headers["content-type"] == "application/octet-stream"
    assert operators(onnx.load_from_string(response.content)) == {"Conv": 1, "Relu": 1}
    report = json.loads(response.headers["relayout-report"])
    assert (report["status"], report["before"]["transposes"], report["after"]["transposes"]) == ("optimal", 2, 0)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("application/json, application/octet-stream;q=0.5", "application/json"),
        ("application/octet-stream;q=0", "application/json"),
        ("application/json;q=0.5, application/octet-stream", "application/octet-stream"),
        ("application/octet-stream, */*", "application/octet-stream"),
    ],
)
def test_the_quality_values_of_accept_are_respected(client: httpx.Client, accept: str, kind: str) -> None:
    response = client.post("/v1/legalize", content=onnx_bytes(), headers={**ONNX, "Accept": accept})
    assert response.headers["content-type"] == kind


def test_the_query_has_the_options_of_an_onnx_model(client: httpx.Client) -> None:
    query = {
        "backend": json.dumps(BACKEND),
        "objective": "transposes",
        "input_layout": ["image=any"],
        "output_layout": "features=NHWC",
        "dim": "N=8",
        "time_limit": "4.5",
        "engine": "cp-sat",
        "max_transposes": "4",
    }
    model = onnx_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    answer = client.post("/v1/legalize", params=query, content=model.SerializeToString(), headers=ONNX)
    report = answer.json()["report"]
    assert (report["status"], report["backend"], report["objective"]) == ("optimal", "acme", "transposes")


def test_convert_layout_can_be_told_in_the_query(client: httpx.Client) -> None:
    query = {"backend": "convert-layout", "backend_option": 'desired_layouts={"Conv": ["NHWC", "OHWI"]}'}
    answer = client.post("/v1/legalize", params=query, content=onnx_bytes(), headers=ONNX).json()
    [convolution] = [
        node for node in onnx.load_from_string(b64decode(answer["model"])).graph.node if node.op_type == "Conv"
    ]
    assert {a.name: onnx.helper.get_attribute_value(a) for a in convolution.attribute}["kernel_layout"] == b"OHWI"


def test_remaining_conversions_are_explained(client: httpx.Client) -> None:
    report = client.post("/v1/explain", json={"graph": GRAPH, "backend": "nchw"}).json()["report"]
    assert len(report["conversions"]) == 2
    for conversion in report["conversions"]:
        dropped = {(reason["node"], reason["saved"]["bytes"]) for reason in conversion["reasons"]}
        boundary = "input image" if conversion["producer"] == "input image" else "output features"
        assert (boundary, conversion["bytes"]) in dropped
    assert report["explanation"]["unsolved"] == 0


def test_an_onnx_model_is_explained_too_and_no_further_than_the_limit(client: httpx.Client) -> None:
    query = {"backend": "nchw", "limit": 1}
    report = client.post("/v1/explain", params=query, content=onnx_bytes(), headers=ONNX).json()["report"]
    assert report["explanation"]["solved"] == report["explanation"]["limit"] == 1
    assert report["explanation"]["unsolved"] > 0


def test_tied_inputs_and_outputs_have_one_layout(client: httpx.Client) -> None:
    answer = legalize(client, "nchw", input_layouts={"image,features": "any"})
    image, features = answer["report"]["boundary"]
    assert image["order"] == features["order"] == [0, 3, 1, 2]
    assert (image["coupled_with"], features["coupled_with"]) == (["features"], ["image"])
    assert image["shape"] == answer["graph"]["inputs"][0]["shape"] == [1, 64, 56, 56]
    query = {"backend": "nchw", "input_layout": "image,features=any"}
    report = client.post("/v1/legalize", params=query, content=onnx_bytes(), headers=ONNX).json()["report"]
    assert [value["order"] for value in report["boundary"]] == [[0, 3, 1, 2]] * 2


def test_an_illegal_graph_gets_its_findings(client: httpx.Client) -> None:
    report = client.post("/v1/verify", json={"graph": GRAPH, "backend": "nhwc"}).json()["report"]
    assert report["status"] == "failed"
    assert not report["verification"]["passed"]
    places = {(f["node"], f["operand"], f["expected"], f["found"]) for f in report["verification"]["findings"]}
    assert ("conv", 0, "NHWC", "NCHW") in places


def test_a_legal_graph_is_verified_beside_its_original(client: httpx.Client) -> None:
    legal = legalize(client)["graph"]
    body = {"graph": legal, "against": GRAPH, "backend": "nhwc"}
    report = client.post("/v1/verify", json=body).json()["report"]
    assert report["verification"]["passed"], report["verification"]
    assert (report["before"]["transposes"], report["after"]["transposes"]) == (2, 0)


def test_an_onnx_model_is_verified_too(client: httpx.Client) -> None:
    response = client.post("/v1/verify", params={"backend": "nhwc"}, content=onnx_bytes(), headers=ONNX)
    assert not response.json()["report"]["verification"]["passed"]


def test_the_installed_backends_are_listed_by_name(client: httpx.Client) -> None:
    backends = client.get("/v1/backends").json()["backends"]
    names = [backend["name"] for backend in backends]
    assert names == sorted(names)
    assert {"canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"} <= set(names)
    assert all(backend["summary"] for backend in backends)
    [tpu] = [backend for backend in backends if backend["name"] == "tpu"]
    assert [option["name"] for option in tpu["options"]] == ["space_to_depth", "max_batch", "max_channels"]
    assert tpu["options"][1]["expected"] == "a whole number"
    assert tpu["options"][1]["default"] == "8"


def test_the_server_itself_runs_no_code_of_a_backend(server: Server, client: httpx.Client) -> None:
    assert client.get("/v1/backends").is_success
    libraries = Path(f"/proc/{server.pid}/maps").read_text()
    assert "_pydantic_core" in libraries
    # Every backend imports it.
    assert "numpy" not in libraries


def test_a_layout_is_parsed(client: httpx.Client) -> None:
    answer = client.post("/v1/layouts/parse", json={"layout": "NCHW c[tile:16]"}).json()
    assert (answer["layout"], answer["names"], answer["rank"]) == ("NCHWc[tile:16]", "NCHWc", 5)
    assert answer["tvm"] == "NCHW16c"
    assert answer["dims"][4] == {"name": "c", "extensions": ["tile:16"], "alignment": 1}


def test_tvms_and_xlas_layouts_are_parsed_too(client: httpx.Client) -> None:
    answer = client.post("/v1/layouts/parse", json={"layout": "NCHW16c"}).json()
    assert (answer["layout"], answer["tvm"]) == ("NCHWc[tile:16]", "NCHW16c")
    answer = client.post("/v1/layouts/parse", json={"layout": "{0,1}"}).json()
    assert (answer["layout"], answer["names"], answer["tvm"]) == ("{0,1}", "10", None)


def test_a_layout_that_tvm_cannot_express_has_no_tvm_notation(client: httpx.Client) -> None:
    answer = client.post("/v1/layouts/parse", json={"layout": "N[a=32]HWC"}).json()
    assert (answer["tvm"], answer["dims"][0]["alignment"]) == (None, 32)


@pytest.mark.parametrize(("path", "status"), [("/healthz", "ok"), ("/readyz", "ready")])
def test_the_service_reports_its_health(client: httpx.Client, path: str, status: str) -> None:
    response = client.get(path)
    assert (response.status_code, response.json()) == (200, {"status": status})


def test_a_request_may_declare_devices_and_the_report_has_each_nodes_device(client: httpx.Client) -> None:
    places = [{"name": "npu", "backend": "nhwc", "op": "Conv"}, {"name": "cpu", "op": "Relu"}]
    answer = legalize(client, {"name": "board", "host": "cpu", "device": places}, check=True)
    assert answer["report"]["verification"]["passed"]
    placed = {node["op"]: node["metadata"]["relayout.device"] for node in answer["graph"]["nodes"]}
    assert (placed["Conv"], placed["Relu"]) == ("npu", "cpu")
    assert [(each["from"], each["to"]) for each in answer["report"]["transfers"]] == [("cpu", "npu"), ("npu", "cpu")]
