"""Compare relayout with TVM's ConvertLayout: transposes and megabytes left, as a Markdown table.

    python benchmarks/convert_layout.py FOLDER [--layouts NHWC NCHW] [--limit SECONDS]
    python benchmarks/convert_layout.py --tvm MODEL.onnx NHWC      what TVM alone leaves, as JSON

Both put the two-dimensional convolutions of each model into the same layouts: relayout with the backend
`convert-layout`, TVM with its Relax pass on the graph that its ONNX importer makes. After the pass TVM folds constants,
shares equal expressions and drops dead code. relayout's models are compared with their sources in onnxruntime without
optimisations. The exit status is 1 if relayout leaves more bytes than TVM, is not proved optimal, or computes other
numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring import Run, machine, run

TOOLS = str(Path(__file__).with_name("optimizers.py"))
KERNELS = {"NHWC": "OHWI", "NCHW": "OIHW"}
# A layout may change the order in which a kernel sums.
TOLERANCE = 1e-3


def main() -> int:
    """Print one row for each model; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--layouts", nargs="*", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--limit", type=float, default=600, help="seconds for one tool on one model")
    parser.add_argument("--tvm", nargs=2, metavar=("MODEL", "LAYOUT"), help="print what TVM leaves of one model")
    arguments = parser.parse_args()
    if arguments.tvm:
        print(json.dumps(_tvm(*arguments.tvm)))
        return 0
    if arguments.folder is None:
        parser.error("a folder of .onnx files is missing")
    print(f"Transposes on data (MB that they read and write). {machine('onnx', 'apache-tvm')}.\n")
    pairs = [f"{layout}, {tool}" for layout in arguments.layouts for tool in ("TVM", "relayout")]
    print("| " + " | ".join(["model", "source", *pairs, ""]) + " |")
    print("|---" * (len(pairs) + 3) + "|", flush=True)
    faulty = False
    for model in sorted(arguments.folder.glob("*.onnx")):
        faults: list[str] = []
        cells = [model.stem, _shown(_counted(model, arguments.limit))]
        for layout in arguments.layouts:
            cells += _pair(model, layout, arguments.limit, faults)
        faulty |= bool(faults)
        print("| " + " | ".join(cell.replace("|", "/") for cell in [*cells, "; ".join(faults)]) + " |", flush=True)
    return int(faulty)


def _pair(model: Path, layout: str, limit: float, faults: list[str]) -> Iterator[str]:
    """The cells of TVM and of relayout for one layout; adds to `faults`."""
    made = run([sys.executable, __file__, "--tvm", str(model), layout], limit=limit)
    theirs = json.loads(made.output.splitlines()[-1]) if not made.status else "fails"
    if made.status:
        print(f"{model.stem}, {layout}: {_reason(made)}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        legal = Path(scratch) / "legal.onnx"
        ours = _legalized(model, legal, layout, limit, faults)
    yield _shown(theirs)
    yield _shown(ours)
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours["bytes"] > theirs["bytes"]:
        faults.append(f"{layout}: more bytes than TVM")


def _legalized(model: Path, legal: Path, layout: str, limit: float, faults: list[str]) -> dict[str, int] | str:
    made = run([sys.executable, TOOLS, f"relayout-{layout}", str(model), str(legal)], limit=limit)
    if made.status:
        faults.append(f"{layout}: {made.fault}")
        return made.fault
    facts = json.loads(made.output)
    if facts["status"] != "optimal":
        faults.append(f"{layout}: {facts['status']}")
    compared = run([sys.executable, TOOLS, "equal", str(model), str(legal)], limit=limit)
    if compared.status or not json.loads(compared.output)["difference"] <= TOLERANCE:
        faults.append(f"{layout}: outputs differ ({compared.fault or compared.output.strip()})")
    return _counted(legal, limit)


def _counted(model: Path, limit: float) -> dict[str, int] | str:
    counted = run([sys.executable, TOOLS, "count", str(model)], limit=limit)
    if counted.status:
        return counted.fault
    facts: dict[str, int] = json.loads(counted.output)
    return facts


def _reason(made: Run) -> str:
    """TVM's error. Its last line may be a warning of the exit."""
    errors = [line for line in made.errors.splitlines() if "Error" in line]
    return errors[-1] if errors and not made.timed_out else made.fault


def _shown(left: dict[str, int] | str) -> str:
    return left if isinstance(left, str) else f"{left['transposes']} ({left['bytes'] / 1e6:.2f})"


def _tvm(path: str, layout: str) -> dict[str, int]:
    """The transposes on data that TVM leaves, and the bytes that they read and write."""
    import onnx
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    passes = relax.transform
    module = from_onnx(onnx.load(path))
    for each in (
        passes.ConvertLayout({"relax.nn.conv2d": [layout, KERNELS[layout]]}),
        passes.Normalize(),
        passes.FoldConstant(),
        passes.EliminateCommonSubexpr(),
        passes.CanonicalizeBindings(),
        passes.DeadCodeElimination(),
    ):
        module = each(module)
    moved = [moved for function in module.functions.values() for moved in _moved(function)]
    return {"transposes": len(moved), "bytes": sum(moved)}


def _moved(function: Any) -> Iterator[int]:
    """The bytes that each transpose on data moves: 0 where only dims of extent 1 change places, as in `count`."""
    constants: set[Any] = set()
    blocks = getattr(getattr(function, "body", None), "blocks", ())
    for binding in (binding for block in blocks for binding in block.bindings):
        call = binding.value
        operands = [each for each in getattr(call, "args", ()) if type(each).__name__ != "ShapeExpr"]
        if operands and all(type(each).__name__ == "Constant" or each in constants for each in operands):
            constants.add(binding.var)
        elif getattr(getattr(call, "op", None), "name", "") in ("relax.permute_dims", "relax.layout_transform"):
            yield 0 if _keeps_order(call) else 2 * math.prod(_extents(call)) * _itemsize(call)


def _keeps_order(call: Any) -> bool:
    if call.op.name != "relax.permute_dims":
        return False
    extents = _extents(call.args[0])
    axes = range(len(extents))[::-1] if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
    moved = [axis for axis in axes if extents[axis] != 1]
    return moved == sorted(moved)


def _extents(value: Any) -> Sequence[int]:
    """The extents of a tensor; an open dim, as a batch, counts as 1."""
    return [getattr(extent, "value", 1) for extent in value.ty.shape.values]


def _itemsize(value: Any) -> int:
    return max(1, int("".join(filter(str.isdigit, str(value.ty.dtype))) or 8) // 8)


if __name__ == "__main__":
    raise SystemExit(main())
