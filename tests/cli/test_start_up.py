"""The imports of the command, and their time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    *("ortools", "onnx", "onnx_ir", "onnxruntime", "numpy", "fastapi", "pydantic", "uvicorn", "sympy"),
    *("importlib.metadata", "hashlib"),
)


@pytest.mark.parametrize("what", ["import relayout", "from relayout.cli import main; main(['--help'])"])
def test_the_package_and_the_help_import_nothing_heavy(what: str) -> None:
    code = f"{what}\nimport sys\nprint('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["loaded: []"], done.stderr


def test_the_command_can_handle_an_interrupt_after_few_imports() -> None:
    """Before `run` is imported, Python answers an interrupt with a traceback."""
    code = "import sys; from relayout.cli import run; print({'importlib.abc', 'tempfile'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_legalizing_a_small_model_imports_neither_the_solver_nor_symbolic_algebra(model: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from relayout.cli import main
status = main(['legalize', {str(model)!r}, '-o', {str(tmp_path / "legal.onnx")!r}])
print(status, [name for name in ('ortools', 'pandas', 'fastapi', 'onnxruntime', 'sympy') if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0 []\n", done.stderr


def test_a_verb_is_run_without_an_import_of_the_others(model: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from relayout.cli import main
status = main(['legalize', {str(model)!r}, '-o', {str(tmp_path / "legal.onnx")!r}])
print(status, [verb for verb in ('verify', 'batch', 'backends', 'serve') if f'relayout.cli.{{verb}}' in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0 []\n", done.stderr


def test_sympy_is_imported_when_a_dim_needs_it() -> None:
    code = """
import relayout, sys
relayout.legalize
assert 'sympy' not in sys.modules and 'onnx_ir._symbolic_shapes' not in sys.modules
import onnx_ir, sympy
assert sympy.Symbol('x') + 1 == sympy.sympify('x + 1')
print(onnx_ir.SymbolicDim('N') * 2 + 1)
assert onnx_ir.SymbolicDim(sympy.Symbol('N')).free_symbols() == {'N'}
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout == "2*N + 1\n", done.stderr


def test_threads_that_need_sympy_at_once_all_get_it() -> None:
    code = """
import relayout, threading
relayout.legalize
import onnx_ir
gate, found = threading.Barrier(8), []
def work():
    gate.wait()
    found.append(onnx_ir.SymbolicDim('2*height').evaluate({'height': 3}))
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(found)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{[6] * 8}\n", done.stderr


def test_onnx_ir_imported_before_relayout_is_left_as_it_is() -> None:
    code = "import onnx_ir, sys; finders = list(sys.meta_path); import relayout; print(sys.meta_path == finders)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"
