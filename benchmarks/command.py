"""`relayout legalize` beside onnxruntime EXTENDED on the same file: whole processes, CPU seconds.

    python benchmarks/command.py MODEL.onnx ... [--nodes 10000 100000] [--repeat 5]

Both read the file, optimize and save the result. The two run in turn, so that both see the same machine; medians are
shown. `--nodes` adds generated networks of these sizes, where each convolution stands between two Transposes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from measuring import Run, machine, run

HERE = Path(__file__).parent
LIMIT = 600


def main() -> None:
    """Measure and print one row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--nodes", nargs="*", type=int, default=[])
    parser.add_argument("--backend", default="onnx")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    print(machine("onnx", "onnx-ir", "onnxruntime", "ortools") + "\n")
    print("| model | relayout, CPU s | MB | onnxruntime EXTENDED, CPU s | MB | ratio of CPU |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        generated = [_generated(nodes, Path(scratch)) for nodes in arguments.nodes]
        for model in [*arguments.models, *generated]:
            print(_row(model, Path(scratch), arguments.backend, arguments.repeat), flush=True)


def _generated(nodes: int, folder: Path) -> Path:
    """A generated network of about this many nodes, written by a process of its own."""
    done = run([sys.executable, str(HERE / "networks.py"), str(folder), str(nodes)], limit=LIMIT)
    if done.status:
        sys.exit(done.errors)
    return folder / f"blocks_{nodes}.onnx"


def _row(model: Path, scratch: Path, backend: str, repeat: int) -> str:
    legal = scratch / "legal.onnx"
    ours = [sys.executable, "-m", "relayout", "legalize", str(model), "-b", backend, "-o", str(legal), "-q"]
    theirs = [sys.executable, str(HERE / "optimizers.py"), "onnxruntime", str(model), str(scratch / "optimized.onnx")]
    runs: list[tuple[Run, Run]] = []
    # Both use compiled modules, as an installed package does, also where Python is told to write none.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(scratch / "compiled")}
    # The first pair compiles them and warms the file cache.
    for _ in range(repeat + 1):
        pair = run(ours, limit=LIMIT, environment=compiled), run(theirs, limit=LIMIT, environment=compiled)
        legal.unlink(missing_ok=True)
        runs.append(pair)
        if any(each.fault for each in pair):
            break
    counted = runs[1:] or runs
    cells = [_figures([pair[side] for pair in counted]) for side in (0, 1)]
    ratio = median(mine.cpu / other.cpu for mine, other in counted)
    return f"| {model.stem} | {cells[0]} | {cells[1]} | {ratio:.2f} |"


def _figures(runs: list[Run]) -> str:
    fault = next((each.fault for each in runs if each.fault), "")
    return f"{fault or format(median(each.cpu for each in runs), '.2f')} | {max(each.peak for each in runs) >> 20}"


if __name__ == "__main__":
    main()
