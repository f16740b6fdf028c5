"""Formulas of dims give what onnx_ir gives, which computes them with sympy."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from relayout.model.dims.formula import evaluated, symbols_of

NAMES = ("h", "w", "ids.45_dim_1")


def by_onnx_ir(text: str, size: int) -> tuple[frozenset[str], int | None]:
    dim = ir.SymbolicDim(text)
    found = dim.evaluate({name: size + len(name) for name in dim.free_symbols()})
    return dim.free_symbols(), found if isinstance(found, int) else None


def by_us(text: str, size: int) -> tuple[frozenset[str], int | None]:
    dim = ir.SymbolicDim(text)
    return symbols_of(dim), evaluated(dim, {name: size + len(name) for name in symbols_of(dim)})


def test_a_name_may_have_colons_and_hyphens_and_slashes_that_a_letter_follows() -> None:
    """Not so in onnx_ir. Exporters write a minus between spaces, and a number behind a slash."""
    for text, sizes, number in (
        ("2*batch-size", {"batch-size": 7}, 14),
        ("onnx::Gather_7_dim_0 + 1", {"onnx::Gather_7_dim_0": 7}, 8),
        ("Add/m/Add_output_0_dim_0", {"Add/m/Add_output_0_dim_0": 7}, 7),
        ("h-1", {"h": 7}, 6),
        ("h/2", {"h": 8}, 4),
        ("h//w", {"h": 7, "w": 2}, 3),
        ("h - w", {"h": 7, "w": 4}, 3),
    ):
        assert symbols_of(ir.SymbolicDim(text)) == {*sizes}
        assert evaluated(ir.SymbolicDim(text), sizes) == number


@pytest.mark.parametrize(
    "text",
    [
        "2*h",
        "(h//2)//2",
        "floor(floor(h/2 - 1/2)/2) + 1",
        "Max(0, h - 3) + min(w, 4)",
        "ids.45_dim_1 + 2",
        "naïve*2",
        "-h//2 + mod(h, 3)",
        "-h % 3",
        "h/2",
        "floor + 1",
        # These are left to onnx_ir.
        "007",
        "sqrt(h*h)",
        "2**w",
        "-2**2 + h",
    ],
)
def test_a_formula_has_the_names_and_the_value_that_onnx_ir_finds(text: str) -> None:
    for size in (1, 6, 63):
        assert by_us(text, size) == by_onnx_ir(text, size)


@pytest.mark.parametrize("text", ["h h", "h +", "1e3*h", "0x10", "f(h)", "[h]", "h if w else h", "h'", "(", ""])
def test_a_text_that_is_no_formula_is_an_error_of_both(text: str) -> None:
    for find in (by_us, by_onnx_ir):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            find(text, 2)


def test_a_division_by_zero_gives_no_number() -> None:
    assert by_us("h//(w - w)", 3)[1] is None


def test_a_number_that_no_extent_can_have_is_no_extent() -> None:
    assert [by_us(str(n), 1)[1] for n in (2**63 - 1, 2**63, 10**400)] == [2**63 - 1, None, None]


def test_random_formulas_give_what_onnx_ir_gives() -> None:
    draw, found = random.Random(0), 0

    def formula(depth: int) -> str:
        if not depth:
            return draw.choice([*NAMES, str(draw.randint(1, 9))])
        one, other = formula(depth - 1), formula(depth - 1)
        kinds = (f"({one}){draw.choice('+-*')}({other})", f"({one})/({other})", f"({one})//({other})", f"-{one}")
        return draw.choice([*kinds, f"max({one}, {other})", f"floor({one})"])

    for _ in range(150):
        text = formula(3)
        ours = by_us(text, 5)[1]
        if ours is not None:
            found += 1
            assert ours == by_onnx_ir(text, 5)[1], text
    assert found > 60


def test_windows_on_open_extents_need_no_sympy(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[n,3,h,w] x) => (float[n,3,p,q] y) {
        halved = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        again = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (halved)
        y = Relu(again)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    code = f"""
import sys
from relayout.cli import main
print(main(['legalize', {str(tmp_path / "net.onnx")!r}, '-b', 'nhwc', '-q']), 'sympy' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0 False\n", done.stderr
