"""`relayout batch`: a folder of models."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Run, transposes

from relayout.report.schema import Report


def test_batch_goes_on_after_a_failure_and_ends_with_the_highest_status(model: Path, plain: Path, run: Run) -> None:
    folder, output = model.parent, model.parent / "legal"
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").write_text("no model")
    said = run("batch", folder, "-o", output, "--report", folder.parent / "reports.json")
    assert (said.status, said.out) == (2, "")
    assert sorted(path.name for path in output.iterdir()) == ["model.onnx", "plain.onnx"]
    assert transposes(output / "model.onnx") == 2
    assert "6 -> 2" in said.err
    assert "error: broken.json" in said.err
    records = json.loads((folder.parent / "reports.json").read_text())
    assert [(record["model"], record["exit_status"]) for record in records] == [
        ("broken.json", 2),
        ("model.onnx", 0),
        ("plain.onnx", 0),
    ]
    assert Report.model_validate(records[1]["report"]).ok


def test_batch_may_write_where_it_reads(model: Path, run: Run) -> None:
    assert run("batch", model.parent, "-o", model.parent).status == 0
    assert transposes(model) == 2


def test_batch_says_what_is_infeasible(model: Path, plain: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model.parent / "legal", "--max-transposes", "1")
    assert said.status == 3
    assert [path.name for path in (model.parent / "legal").iterdir()] == ["plain.onnx"]


def test_batch_needs_a_folder_with_models(tmp_path: Path, run: Run) -> None:
    assert run("batch", tmp_path / "nowhere", "-o", tmp_path / "out").status == 2
    assert run("batch", tmp_path, "-o", tmp_path / "out").status == 2
    assert list(tmp_path.iterdir()) == []


def test_batch_needs_a_folder_to_write_to(model: Path, run: Run) -> None:
    said = run("batch", model.parent, "-o", model)
    assert said.status == 2
    assert "folder" in said.err
