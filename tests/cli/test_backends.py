"""`relayout backends show`, `check` and `new`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run

RAISING = """
from relayout import Backend

class Raising(Backend):
    name = "raising"

    def nth_input_layout_requirements(self, node, n):
        return ["NHWC"][n]
"""
TABLE = """
name = "mine"

[[rule]]
op = "Conv"
when.channels = { min = 16, multiple_of = 4 }
when.rank = 4
data = "NHWC"
kernel = "OHWI"

[[rule]]
op = "Conv"
data = "NCS"
kernel = "OIS"
"""


SIZED = """from relayout import Backend


class Sized(Backend):
    name = "sized"

    def __init__(self, context=None, *, size: int = 8):
        \"\"\"`size`: the channels of a block.\"\"\"
        super().__init__(context)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_backend_that_raises_is_an_error_with_its_file_and_line(here: Path, run: Run) -> None:
    (here / "raising.py").write_text(RAISING)
    said = run("backends", "raising.py")
    assert said.status == 2
    assert "IndexError: list index out of range, in raising.py, line 8" in said.err


def test_every_rule_of_a_table_is_shown_with_its_conditions_and_results(here: Path, run: Run) -> None:
    (here / "mine.toml").write_text(TABLE)
    said = run("backends", "mine.toml").out
    assert "  Conv: rank 4, channels at least 16 and a multiple of 4\n    data NHWC; kernel OHWI\n" in said
    assert "  Conv\n    data NCS; kernel OIS\n" in said
    assert "  rank 4: NHWC, OHWI -> NHWC\n  rank 4, 3 channels: NCHW, OIHW -> NCHW\n" in said


def test_hooks_rewrites_costs_and_conversions_are_shown(run: Run) -> None:
    said = run("backends", "x86-nchwc", "--backend-option", "block=16").out
    assert "  order_cost (X86Nchwc, " in said
    [conv] = [block for block in said.split("\n\n") if block.startswith("Conv\n")]
    assert "bytes more)\n      or NCHWc[tile:16], any -> NCHWc[tile:16] (by the backend's rewrite, padded)" in conv
    assert "  NCHW to NCHWc[tile:16]: an operator of the backend's own" in said
    # The set's own order would differ from process to process.
    assert "flows_down = ['BatchNormalization', 'Clip', " in said


def test_the_options_of_a_class_in_a_file_are_shown(here: Path, run: Run) -> None:
    (here / "sized.py").write_text(SIZED)
    said = run("backends", "sized.py")
    assert said.status == 0
    assert "  size=8  (a whole number)\n    the channels of a block." in said.out


def test_devices_and_what_they_do_not_support_are_shown(here: Path, run: Run) -> None:
    (here / "board.toml").write_text('name = "board"\n[[device]]\nname = "npu"\nop = "Conv"\ntransfer = 2\n')
    said = json.loads(run("backends", "board.toml", "--format", "json").out)
    assert said["rules"] == ["device npu: backend onnx, nodes Conv; transfers cost 2 times their bytes"]
    assert "Relu" in said["unsupported"]
    assert "Conv" not in said["unsupported"]


def test_each_node_of_a_model_has_its_requirement_and_whether_the_source_meets_it(plain: Path, run: Run) -> None:
    rows = json.loads(run("backends", "nhwc", "--model", plain, "--format", "json").out)["nodes"]
    [conv] = [row for row in rows if row["operator"] == "Conv"]
    assert conv["requires"] == "NHWC, HWIO -> NHWC"
    assert not conv["is_satisfied"]
    assert conv["unmet"] == ["input 0: NHWC required, NCHW found", "input 1: HWIO required, OIHW found"]
    said = run("backends", "nhwc", "--model", plain)
    assert said.out.endswith("\n1 node, 1 not satisfied in the source\n")
    met = json.loads(run("backends", "onnx", "--model", plain, "--format", "json").out)["nodes"]
    assert all(row["is_satisfied"] for row in met)


def test_check_fails_with_each_fault_once_and_the_graphs_that_have_it(here: Path, run: Run) -> None:
    (here / "raising.py").write_text(RAISING)
    said = run("backends", "check", "raising.py:Raising", "--graphs", "Conv/*-channels")
    assert said.status == 1
    assert said.out.count("IndexError") == 1
    assert "  and in 3 more: Conv/8-to-8-channels, " in said.out
    assert said.out.endswith("4 graphs, backend raising: failed: 4 faults\n")
    none = run("backends", "check", "nhwc", "--graphs", "Convv")
    assert none.status == 2
    assert "no graph is left to check" in none.err
    assert "hint:     there are onnx/MaxPool2d, " in run("backends", "check", "nhwc", "--graphs", "MaxPool2d*").err
    assert run("backends", "check", "nhwc", "--graphs", "LRN*").out.endswith("backend nhwc: passed\n")


def test_a_new_package_passes_its_own_test(here: Path, run: Run) -> None:
    made = run("backends", "new", "acme-npu")
    assert made.status == 0
    assert made.err.startswith("next: cd acme-npu && ")
    assert made.err.endswith(" pip install -e . pytest && python3 -m pytest\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "class or LRN"],
        cwd=here / "acme-npu", env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True,
    )  # fmt: skip
    assert " passed" in done.stdout, done.stdout + done.stderr
    assert "failed" not in done.stdout
    assert run("backends", "new", "acme-npu").status == 2


@pytest.mark.parametrize(
    ("has_pip", "on_path", "beside", "named"),
    [
        (True, True, True, "python3 -m pip install"),
        (False, True, True, "uv pip install"),
        (False, False, True, "{}/.uv/bin/uv pip install"),
        (False, False, False, "uv pip install"),
    ],
)
def test_the_next_step_after_a_new_package_can_be_typed(
    has_pip: bool, on_path: bool, beside: bool, named: str, here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if beside:
        (here / ".uv" / "bin").mkdir(parents=True)
        (here / ".uv" / "bin" / "uv").write_bytes(b"")
    monkeypatch.setattr(sys, "prefix", str(here / ".venv"))
    monkeypatch.setattr("relayout.cli.backends.find_spec", lambda name: object() if has_pip else None)
    monkeypatch.setattr("relayout.cli.backends.which", lambda name: "/bin/uv" if on_path else None)
    assert f" && {named.format(here)} -e . pytest" in run("backends", "new", "acme-npu").err


@pytest.mark.parametrize("name", ["Acme", "check", "1a", "a_b", "../x", "nhwc"])
def test_an_invalid_name_creates_no_package(name: str, here: Path, run: Run) -> None:
    said = run("backends", "new", name)
    assert (said.status, name == "nhwc" or "expected: a lower-case letter, then" in said.err) == (2, True)
    assert list(here.iterdir()) == []
