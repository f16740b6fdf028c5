"""The project as a whole: imports, promises, and files around the code."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"


def run(*command: str | Path) -> str:
    """The standard output of a command that must succeed, run in the repository's root."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The code

PUBLIC = {
    "relayout": """
        Backend BackendError Implementation InfeasibleError InputError InternalError Layout LayoutSyntaxError
        OutOfTimeError RelayoutError Reordering Report TensorType UsageError Verification explain legalize load_backend
        read_model render_text verify write_model
    """,
    "relayout.backend": """
        DATA DEVICE_KEY KERNEL OTHER WRITTEN_KEY Assignment Backend Composite Device Extents Implementation Nodes
        OperatorBody Reordering Rewrite TensorType Violation Writing ask axis_count element_size find_backends has_roles
        input_role kernel_input load_backend own_layout rank_of result_role spatial_letters spell written_node
    """,
    "relayout.testing": """
        KINDS BackendReport BackendTests Fault SampleGraph check_backend check_graph generated_graphs sample_graphs
        shipped_graphs
    """,
    "relayout_backends": "",
    "relayout_api": "",
}


def modules(having: str = "") -> list[str]:
    """The modules of the three source roots whose text has `having` in it."""
    return [
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for root in (ROOT / "solver", ROOT / "backends", ROOT / "api")
        for path in sorted(root.rglob("*.py"))
        if having in path.read_text()
    ]


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_exports_what_is_promised_and_nothing_else(package: str) -> None:
    assert getattr(importlib.import_module(package), "__all__", []) == PUBLIC[package].split()


@pytest.mark.parametrize("name", modules())
def test_every_name_that_a_module_exports_is_there_once(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert [one for one in exported if not hasattr(module, one)] == []
    assert len(set(exported)) == len(exported)


@pytest.mark.parametrize("name", modules(having=">>> "))
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0


def test_the_import_contracts_hold() -> None:
    run(BIN / "lint-imports", "--no-cache", "--no-logo")


def test_the_help_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", BIN / "relayout", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(re.findall(r"\| +(\w+)$", done.stderr, re.MULTILINE))
    assert "relayout" in loaded
    heavy = {"ortools", "onnx", "onnx_ir", "onnxruntime", "numpy", "pandas", "fastapi", "pydantic", "uvicorn"}
    assert loaded & heavy == set()


# The files around the code


def sources() -> Iterator[Path]:
    """Every file of the project: all but what .gitignore names."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()} | {".git"}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in ignored and not name.endswith(".egg-info"))
        yield from (Path(folder, name) for name in sorted(files) if name not in ignored)


def test_no_file_names_a_folder_of_one_machine() -> None:
    # Written in two parts, for this file is looked at too.
    machine = re.compile(rb"(?<![\w.])/" + rb"(work|root|home|farm|Users|tmp/bash_jobs)/")
    named = [str(path.relative_to(ROOT)) for path in sources() if machine.search(path.read_bytes())]
    assert named == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout of the repository")
def test_no_model_is_in_the_repository() -> None:
    """A command that was tried in the checkout leaves models behind."""
    done = subprocess.run(["git", "ls-files", "*.onnx", "*.npy", "*.npz"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_only_the_lock_file_names_a_package_index() -> None:
    index = re.compile(rb"pypi\." + rb"org|pythonhosted\." + rb"org")
    assert [path.name for path in sources() if index.search(path.read_bytes())] == ["uv.lock"]


def test_ci_runs_the_readmes_commands_as_they_are_written_there_and_the_tests_last() -> None:
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert len(commands) == 2
    assert commands[0] in lines
    assert commands[1] == lines[-1]
