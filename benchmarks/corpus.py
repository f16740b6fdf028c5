"""Every model of a folder made legal for every backend that ships: status, before and after, seconds by stage.

    python benchmarks/corpus.py FOLDER [--backend NAME ...] [--objective bytes|transposes]

Every model has to be proved optimal, bound equal to cost; exit status 1 where one is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from measuring import machine

from relayout.backend import load_backend
from relayout.discovery import find_backends
from relayout.errors import RelayoutError
from relayout.legalize import Options, legalize_model
from relayout.model_io import read_model

# `convert-layout` does what it is told; this is TVM's usual example.
OPTIONS = {"convert-layout": {"desired_layouts": {"Conv": ["NHWC", "OHWI"], "MaxPool": ["NHWC"]}}}
HEADER = "| model | backend | status | before | after | choices | kernel | read s | build s | solve s | rewrite s |"


def legalized(path: Path, backend: str, objective: str, notes: dict[str, None]) -> tuple[str, str]:
    """The table's line for one model and backend, and what is wrong with it, if anything is; warnings go to `notes`."""
    try:
        start = perf_counter()
        model = read_model(path)
        reading = perf_counter() - start
        chosen = load_backend(backend, options=OPTIONS.get(backend, {}))
        report = legalize_model(model, chosen, Options(objective=objective)).report
    except RelayoutError as error:
        return f"| {path.stem} | {backend} | {type(error).__name__} |" + " |" * 8, str(error)
    assert report.solver is not None
    seconds = dict(report.solver.seconds)
    build, rewrite = seconds.pop("build"), seconds.pop("rewrite")
    cells = [path.stem, backend, report.status]
    cells += [f"{total.transposes} ({total.bytes / 1e6:.2f})" for total in (report.before, report.after)]
    cells += [str(report.solver.choices), str(report.solver.kernel_choices)]
    cells += [f"{value:.2f}" for value in (reading, build, sum(seconds.values()), rewrite)]
    notes.update(dict.fromkeys(f"{path.stem}: {warning}" for warning in report.warnings))
    proved = report.status == "optimal" and report.cost == report.bound
    return "| " + " | ".join(cells) + " |", "" if proved else f"{report.status}: bound {report.bound} of {report.cost}"


def lines(
    paths: Sequence[Path], backends: Sequence[str], objective: str, faults: list[str], notes: dict[str, None]
) -> Iterator[str]:
    """The table, line by line as it is made; what is wrong is added to `faults`."""
    yield HEADER
    yield "|---" * HEADER.count(" | ") + "|---|"
    for path in paths:
        for backend in backends:
            line, fault = legalized(path, backend, objective, notes)
            if fault:
                faults.append(f"{path.stem}, {backend}: {fault}")
            yield line


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Legalize every model of a folder with every backend.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", nargs="+", help="these backends only")
    parser.add_argument("--objective", choices=("bytes", "transposes"), default="bytes")
    options = parser.parse_args(arguments)
    paths = sorted(options.folder.glob("*.onnx"))
    if not paths:
        parser.error(f"no .onnx file in {options.folder}")
    faults: list[str] = []
    notes: dict[str, None] = {}
    print(f"Objective {options.objective}. {machine('onnx', 'onnx-ir', 'ortools')}.\n")
    for line in lines(paths, options.backend or list(find_backends()), options.objective, faults, notes):
        print(line, flush=True)
    print("\n" + "".join(f"{note}\n" for note in notes) + ("\n".join(faults) or "Every one is proved optimal."))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
