"""What the command imports, and when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("ortools", "onnx", "onnx_ir", "onnxruntime", "numpy", "fastapi", "pydantic", "uvicorn", "sympy")


@pytest.mark.parametrize("what", ["import relayout", "from relayout.cli import main; main(['--help'])"])
def test_the_package_and_the_help_import_nothing_heavy(what: str) -> None:
    code = f"{what}\nimport sys\nprint('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["loaded: []"], done.stderr


def test_legalizing_a_small_model_imports_neither_the_solver_nor_symbolic_algebra(model: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from relayout.cli import main
status = main(['legalize', {str(model)!r}, '-o', {str(tmp_path / "legal.onnx")!r}])
print(status, [name for name in ('ortools', 'pandas', 'fastapi', 'onnxruntime', 'sympy.core') if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0 []\n", done.stderr


def test_what_is_deferred_is_there_when_it_is_used() -> None:
    code = """
from relayout.cli.lazy_imports import defer_slow_imports
defer_slow_imports()
defer_slow_imports()
import onnx_ir, sys
assert 'sympy.core' not in sys.modules
print(onnx_ir.SymbolicDim('N') * 2 + 1)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout == "2*N + 1\n", done.stderr
