"""The kit for a CI: the action, the pre-commit hook and the fixture, run as far as that goes without the network."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest
import yaml
from command_line import BIN, CHANNELS_LAST, saved

ROOT = Path(__file__).parents[2]
ACTION: Any = yaml.safe_load((ROOT / "action.yml").read_text())
[HOOK] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model.onnx", CHANNELS_LAST)


def act(folder: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """Run the action's last step as a runner does: exit status, what it prints, and its outputs."""
    step = ACTION["runs"]["steps"][-1]
    given = {name: inputs.get(name, "") for name in ACTION["inputs"]}
    values = {
        key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)
        for key, text in step["env"].items()
    }
    bin_ = folder / "temp" / "relayout" / "bin"
    bin_.mkdir(parents=True, exist_ok=True)
    if not (bin_ / "relayout").exists():
        (bin_ / "relayout").symlink_to(BIN)
    files = {"GITHUB_OUTPUT": str(folder / "outputs"), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    environment = {**os.environ, **values, **files, "RUNNER_TEMP": str(folder / "temp")}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)
    outputs = dict(line.split("=", 1) for line in (folder / "outputs").read_text().splitlines())
    return done.returncode, done.stdout, outputs


def test_the_action_is_one_by_githubs_schema() -> None:
    schema = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor" / "github-actions.json"
    jsonschema.validate(ACTION, json.loads(schema.read_text()))


def test_the_action_annotates_fails_and_accepts_its_report_as_a_baseline(model: Path, tmp_path: Path) -> None:
    status, printed, outputs = act(tmp_path, models="model.onnx", backend="nhwc")
    assert status == 1
    assert "::error file=model.onnx,line=1,title=relayout%3A layout-requirement::" in printed
    assert "| model.onnx | failed | 6 |" in (tmp_path / "summary").read_text()
    assert {name for name, path in outputs.items() if Path(path).is_file()} == {*ACTION["outputs"]}
    baseline = tmp_path / "relayout.json"
    Path(outputs["report"]).rename(baseline)
    assert act(tmp_path, models="model.onnx", backend="nhwc", baseline="relayout.json")[0] == 0
    assert act(tmp_path, models="none", backend="nhwc", arguments="--samples 1")[0] == 2


def test_the_actions_interpreter_and_extras_are_those_of_the_project() -> None:
    install = ACTION["runs"]["steps"][0]["run"]
    [extra] = re.findall(r"\$ACTION\[(\w+)\]", install)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()


def test_the_hook_runs_on_models_and_on_nothing_else(model: Path) -> None:
    assert re.search(HOOK["files"], "models/a.onnx")
    assert not re.search(HOOK["files"], "models/a.onnx.data")
    entry = shlex.split(HOOK["entry"])
    assert entry[0] == BIN.name
    for arguments, status in ((["--backend", "nhwc"], 1), (["--backend", "onnx"], 0)):
        done = subprocess.run([BIN, *entry[1:], *arguments, model], capture_output=True, text=True)
        assert done.returncode == status


TESTS = """
def test_legal(relayout_verify):
    assert "passed" in relayout_verify({model!r}, "--backend", "onnx")

def test_illegal(relayout_verify):
    relayout_verify({model!r}, "--backend", "nhwc")
"""


def test_the_fixture_is_installed_and_fails_with_the_findings(model: Path, tmp_path: Path) -> None:
    (tmp_path / "test_export.py").write_text(TESTS.format(model=str(model)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout
    assert re.search(r"\[layout-requirement\] .* at 2 places, conv1, operand 0; ", done.stdout)
