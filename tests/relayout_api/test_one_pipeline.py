"""The library, the command and the service return the same model and the same report for the same options."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from http_bodies import onnx_model

import relayout
from relayout.backend import load_backend
from relayout.cli import main
from relayout.model.io import read_model, to_json
from relayout.report.totals import totals
from relayout_api.examples import GRAPH

BACKENDS = ["onnx", "nhwc", "convert-layout", "x86-nchwc"]
OPTIONS: dict[str, dict[str, Any]] = {"convert-layout": {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4i4o"]}}}


def plain(report: Any) -> Any:
    """The report without the seconds."""
    loaded = report if isinstance(report, dict) else json.loads(report.model_dump_json())
    loaded["solver"].pop("seconds")
    return loaded


def options_of(backend: str, check: bool, inline: bool) -> dict[str, Any]:
    return {"check": check, "inline": inline, "dims": {"N": 3}, "backend_options": OPTIONS.get(backend, {})}


def by_command(source: Path, target: Path, backend: str, options: dict[str, Any]) -> Any:
    report = target.with_suffix(".report.json")
    words = [word for name, value in options["backend_options"].items() for word in named(name, value)]
    flags = [f"--{name}" for name in ("check", "inline") if options[name]]
    arguments = ["--backend", backend, "--dim", "N=3", *words, *flags, "--report", str(report), "--quiet"]
    assert main(["legalize", str(source), "-o", str(target), *arguments]) == 0
    return json.loads(report.read_text())


def named(name: str, value: Any) -> tuple[str, str]:
    return "--backend-option", f"{name}={json.dumps(value)}"


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_in_json(backend: str, check: bool, inline: bool, client: httpx.Client, tmp_path: Path) -> None:
    options = options_of(backend, check, inline)
    graph = json.loads(json.dumps(GRAPH).replace("[1, 56, 56, 64]", '["N", 8, 8, 64]'))
    legal, report = relayout.legalize(graph, backend, **options)
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    told = by_command(tmp_path / "graph.json", tmp_path / "legal.json", backend, options)
    answer = client.post("/v1/legalize", json={"graph": graph, "backend": backend, "options": options}).json()
    assert plain(told) == plain(answer["report"]) == plain(report)
    # Where nothing changes, the command copies its source.
    written = to_json(read_model(tmp_path / "legal.json"))
    assert written == to_json(read_model(answer["graph"])) == to_json(read_model(legal))
    operators = load_backend(backend, options=options["backend_options"]).conversion_operators()
    assert report.after == totals(read_model(legal), {"N": 3}, operators)
    assert report.verification is not None
    assert (report.verification.numeric is not None) == check


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("check", [False, True])
def test_an_onnx_model(check: bool, inline: bool, client: httpx.Client, tmp_path: Path) -> None:
    options = options_of("nhwc", check, inline)
    model = onnx_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    legal, report = relayout.legalize(model, "nhwc", **options)
    onnx.save(model, tmp_path / "model.onnx")
    told = by_command(tmp_path / "model.onnx", tmp_path / "legal.onnx", "nhwc", options)
    query = {"backend": "nhwc", "dim": "N=3", "check": check, "inline": inline}
    headers = {"Content-Type": "application/octet-stream"}
    answer = client.post("/v1/legalize", params=query, content=model.SerializeToString(), headers=headers).json()
    assert plain(told) == plain(answer["report"]) == plain(report)
    assert onnx.load(tmp_path / "legal.onnx") == onnx.load_from_string(b64decode(answer["model"])) == legal
    if inline:
        assert len(legal.functions) == 0
    if check:
        assert report.verification is not None
        assert report.verification.passed
