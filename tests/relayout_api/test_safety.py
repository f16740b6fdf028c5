"""A request never makes the server read a file or run code of the caller."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from http_bodies import onnx_bytes, onnx_model
from http_server import Server

from relayout_api.examples import GRAPH

ONNX = {"Content-Type": "application/octet-stream"}


def outside(tensor: onnx.TensorProto, location: str) -> None:
    """Say that the tensor's data lie in a file."""
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location


def in_initializer(model: onnx.ModelProto, location: str) -> None:
    outside(model.graph.initializer[0], location)


def in_attribute(model: onnx.ModelProto, location: str) -> None:
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [4], [0.0] * 4)
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["unused"], value=tensor))
    outside(model.graph.node[0].attribute[0].t, location)


def in_sparse_initializer(model: onnx.ModelProto, location: str) -> None:
    sparse = onnx.helper.make_sparse_tensor(
        onnx.helper.make_tensor("sparse", onnx.TensorProto.FLOAT, [1], [1.0]),
        onnx.helper.make_tensor("indices", onnx.TensorProto.INT64, [1], [0]),
        [4],
    )
    outside(sparse.values, location)
    model.graph.sparse_initializer.append(sparse)


def in_list_of_tensors(model: onnx.ModelProto, location: str) -> None:
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [4], [0.0] * 4)
    node = onnx.helper.make_node("Custom", ["image"], ["unused"], domain="custom", tensors=[tensor])
    outside(node.attribute[0].tensors[0], location)
    model.graph.node.insert(0, node)
    model.opset_import.add(domain="custom", version=1)


def in_subgraph(model: onnx.ModelProto, location: str) -> None:
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [4], [0.0] * 4)
    outside(tensor, location)
    result = onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [4])
    branch = onnx.helper.make_graph([], "branch", [], [result], [tensor])
    condition = onnx.helper.make_tensor("condition", onnx.TensorProto.BOOL, [], [True])
    model.graph.initializer.append(condition)
    node = onnx.helper.make_node("If", ["condition"], ["unused"], then_branch=branch, else_branch=branch)
    model.graph.node.insert(0, node)


def in_function(model: onnx.ModelProto, location: str) -> None:
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [4], [0.0] * 4)
    outside(tensor, location)
    constant = onnx.helper.make_node("Constant", [], ["y"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    function = onnx.helper.make_function("local", "f", [], ["y"], [constant], [onnx.helper.make_opsetid("", 20)])
    model.functions.append(function)
    model.opset_import.add(domain="local", version=1)
    model.graph.node.insert(0, onnx.helper.make_node("f", [], ["unused"], domain="local"))


@pytest.mark.parametrize(
    "place",
    [
        in_initializer,
        in_sparse_initializer,
        in_attribute,
        in_list_of_tensors,
        in_subgraph,
        in_function,
    ],
)
@pytest.mark.parametrize(
    "location", ["secret", "../secret", "/etc/hostname", "/dev/zero", "missing", "*/_ORT_MEM_ADDR_/*"]
)
@pytest.mark.parametrize("path", ["/v1/legalize", "/v1/verify"])
def test_external_data_is_rejected_anywhere(
    server: Server,
    client: httpx.Client,
    place: Callable[[onnx.ModelProto, str], None],
    location: str,
    path: str,
) -> None:
    (server.folder / "secret").write_bytes(b"\x00" * 64)
    model = onnx_model()
    place(model, location)
    response = client.post(path, content=model.SerializeToString(), headers=ONNX)
    problem = response.json()
    assert (response.status_code, problem["type"]) == (422, "/problems/invalid-input"), problem
    # The same is said of a file that is there and of one that is not.
    assert "No such file" not in response.text


BACKEND_FILES = [
    "{folder}/backend.toml",
    "backend.toml",
    "./backend.toml",
    "backend",
    "../x/backend.json",
    "file:///etc/hostname",
]


@pytest.mark.parametrize("spec", BACKEND_FILES)
def test_a_backend_is_never_a_file(server: Server, client: httpx.Client, spec: str) -> None:
    (server.folder / "backend.toml").write_text('name = "found"')
    spec = spec.format(folder=server.folder)
    wishes: list[dict[str, Any]] = [
        {"json": {"graph": GRAPH, "backend": spec}},
        {"json": {"graph": GRAPH, "backend": {"name": "x", "extends": spec}}},
        {"params": {"backend": spec}, "content": onnx_bytes(), "headers": ONNX},
        {"params": {"backend": json.dumps({"name": "x", "extends": spec})}, "content": onnx_bytes(), "headers": ONNX},
    ]
    for wish in wishes:
        response = client.post("/v1/legalize", **wish)
        assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-backend")


@pytest.mark.parametrize("spec", ["os:system", "relayout_backends.nhwc:Nhwc", "relayout_backends.nhwc", "__main__"])
def test_a_backend_is_never_code_that_is_not_installed_as_one(client: httpx.Client, spec: str) -> None:
    response = client.post("/v1/legalize", json={"graph": GRAPH, "backend": spec})
    assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-backend")


@pytest.mark.parametrize(
    "graph", ["model.onnx", "/etc/hostname", {"path": "model.onnx"}, {"$ref": "file:///etc/hostname"}]
)
def test_a_graph_is_never_a_file(server: Server, client: httpx.Client, graph: object) -> None:
    (server.folder / "model.onnx").write_bytes(onnx_bytes())
    for body in ({"graph": graph}, {"graph": GRAPH, "against": graph}):
        response = client.post("/v1/verify", json=body)
        assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-input")


def test_bytes_that_look_like_a_path_are_bytes(server: Server, client: httpx.Client) -> None:
    (server.folder / "model.onnx").write_bytes(onnx_bytes())
    for content in (str(server.folder / "model.onnx").encode(), b"model.onnx"):
        response = client.post("/v1/legalize", content=content, headers=ONNX)
        assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-input")


def test_the_server_writes_nothing(server: Server, client: httpx.Client) -> None:
    before = sorted(Path(server.folder).iterdir())
    body = {"graph": GRAPH, "backend": "nhwc", "options": {"check": True}}
    assert client.post("/v1/legalize", json=body).status_code == 200
    assert sorted(Path(server.folder).iterdir()) == before
    assert sorted((server.folder / "home").rglob("*")) == []
