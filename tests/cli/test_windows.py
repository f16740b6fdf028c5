"""The command on Windows, as far as Linux can show it: without the modules and names that only POSIX has.

The other libraries are imported first, as they are on Linux. mypy checks with `--platform win32` that no other name is
missing there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from relayout.cli.exit_status import BAD_INPUT, DONE, FINDINGS

ON_WINDOWS = """
import asyncio, builtins, concurrent.futures, multiprocessing, multiprocessing.popen_spawn_posix, os, signal, subprocess
import sys, types
import onnx, onnxruntime, pebble, psutil, rich.progress, typer

multiprocessing.set_start_method("spawn")
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for module, names in (
    (os, "fork geteuid getuid mkfifo pread pwrite sched_getaffinity set_blocking statvfs sysconf"),
    (signal, "SIGCHLD SIGKILL pthread_kill pthread_sigmask sigwait"),
):
    for name in names.split():
        delattr(module, name)

# `sys` as the modules of relayout see it; the other libraries go on as on Linux.
class Windows(types.ModuleType):
    platform = "win32"
    def __getattr__(self, name):
        return getattr(sys, name)

def imported(name, globals=None, *rest):
    is_ours = name == "sys" and (globals or {}).get("__name__", "").startswith("relayout")
    return windows if is_ours else before(name, globals, *rest)

windows, before = Windows("sys"), builtins.__import__
builtins.__import__ = imported
from relayout.cli import main
sys.exit(main(sys.argv[1:]))
"""


def on_windows(*arguments: str | Path) -> tuple[int, str, str]:
    command = [sys.executable, "-c", ON_WINDOWS, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_legalize_and_verify_compare_results(model: Path, tmp_path: Path) -> None:
    legal, report = tmp_path / "legal.onnx", tmp_path / "report.json"
    status, _, said = on_windows("legalize", model, "-b", "nhwc", "--check", "-o", legal, "--report", report)
    assert status == DONE, said
    assert json.loads(report.read_text())["verification"]["numeric"]["runtime"] == "onnxruntime"
    status, _, said = on_windows("verify", legal, "--against", model, "-b", "nhwc")
    assert status == DONE, said
    status, _, said = on_windows("verify", model, "-b", "nhwc")
    assert status == FINDINGS, said


def test_a_batch_runs_in_processes(model: Path, tmp_path: Path) -> None:
    folder, output = tmp_path / "models", tmp_path / "legal"
    folder.mkdir()
    for name in ("a.onnx", "b.onnx"):
        (folder / name).write_bytes(model.read_bytes())
    status, _, said = on_windows("batch", folder, "-b", "nhwc", "-j", "2", "-o", output)
    assert status == DONE, said
    assert {path.name for path in output.glob("*.onnx")} == {"a.onnx", "b.onnx"}


def test_the_service_says_where_it_runs() -> None:
    for arguments in (["serve"], ["serve", "--check"], ["serve", "keys", "list"]):
        status, _, said = on_windows(*arguments)
        assert status == BAD_INPUT
        assert said.startswith("relayout: error: serve: the service does not run on Windows"), said
        assert "WSL" in said
