"""Legalize every model of a folder for every backend that ships: status, before and after, seconds by stage.

    python benchmarks/corpus.py FOLDER [--backend NAME ...] [--model NAME ...] [--objective bytes|transposes] [--verify]

Prints a line for each model and backend, then a table of the conversions left: backends across, models down. With
`--verify`, each legal model is verified and compared with its source; equal models of two backends run once. After a
failure the run continues. The exit status is 1 if a pair fails, is not proved optimal with bound equal to cost, has a
finding, or could not be compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from traceback import print_exception
from typing import Any

import onnx_ir as ir
from measuring import machine

from relayout.backend import Backend, load_backend
from relayout.backend.registry import find_backends
from relayout.errors import InfeasibleError, RelayoutError
from relayout.legalization import legalize_model
from relayout.model.io import read_model, to_proto
from relayout.options import Options
from relayout.report.schema import Numeric, Report

# Settings of `convert-layout`, from TVM's documentation.
DESIRED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "convert-layout NHWC": {"Conv": ["NHWC", "OHWI"], "MaxPool": ["NHWC"]},
    "convert-layout NCHW4c": {"Conv": ["NCHW4c", "OIHW4o"]},
    "convert-layout NCHW16c": {"Conv": ["NCHW16c", "OIHW16i16o"]},
}
SECONDS = ("read s", "build s", "solve s", "rewrite s", "verify s")
COLUMNS = ("model", "backend", "status", "before", "after", "checked", "choices", "kernel", *SECONDS)


@dataclass(slots=True)
class Table:
    """The results: conversions `left` by model and backend, faults, and warnings.

    `run` has the result of the comparison with the source, by the digest of the legal model.
    """

    left: dict[str, dict[str, str]] = field(default_factory=dict)
    run: dict[bytes, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)


def settings() -> list[str]:
    """The names of all backends that ship, with one entry for each setting of `convert-layout`."""
    names = [name for name in find_backends() if name != "convert-layout"]
    return [*names, *DESIRED]


def backend_of(setting: str) -> Backend:
    desired = DESIRED.get(setting)
    options: dict[str, Any] = {} if desired is None else {"desired_layouts": desired}
    return load_backend(setting.split()[0], options=options)


def legalized(path: Path, setting: str, objective: str, verified: bool, table: Table) -> str:
    """The line for one model and backend. Faults and notes go to the table."""
    left = table.left.setdefault(path.stem, {})
    where = f"{path.stem}, {setting}"
    try:
        start = perf_counter()
        model = read_model(path)
        reading = perf_counter() - start
        backend = backend_of(setting)
        legal, report = _outcome(model, backend, objective)
        start = perf_counter()
        checked = _checked(legal, backend, path, report, table.run) if verified else ""
        verifying = perf_counter() - start
    except InfeasibleError as error:
        table.notes[f"{where}: {error}"] = None
        left[setting] = "infeasible"
        return f"| {path.stem} | {setting} | infeasible |" + " |" * (len(COLUMNS) - 3)
    except Exception as error:  # the other pairs still run
        if not isinstance(error, RelayoutError):
            print_exception(error)
        table.faults.append(f"{where}: {type(error).__name__}: {error}")
        left[setting] = "failed"
        return f"| {path.stem} | {setting} | {type(error).__name__} |" + " |" * (len(COLUMNS) - 3)
    assert report.solver is not None
    if report.status != "optimal" or report.cost != report.bound:
        table.faults.append(f"{where}: {report.status}: bound {report.bound} of {report.cost}")
    if checked not in ("", "equal"):
        table.faults.append(f"{where}: {checked}")
    table.notes.update(dict.fromkeys(f"{path.stem}: {warning}" for warning in report.warnings))
    before, after = (f"{total.transposes} ({total.bytes / 1e6:.2f})" for total in (report.before, report.after))
    left.setdefault("source", before)
    left[setting] = after
    seconds = dict(report.solver.seconds)
    build, rewrite = seconds.pop("build"), seconds.pop("rewrite")
    cells = [path.stem, setting, report.status, before, after, checked]
    cells += [str(report.solver.choices), str(report.solver.kernel_choices)]
    cells += [f"{value:.2f}" for value in (reading, build, sum(seconds.values()), rewrite, verifying)]
    return "| " + " | ".join(cells) + " |"


def _outcome(model: ir.Model, backend: Backend, objective: str) -> tuple[ir.Model, Report]:
    outcome = legalize_model(model, backend, Options(objective=objective))
    return outcome.model, outcome.report


def _checked(legal: ir.Model, backend: Backend, source: Path, report: Report, run: dict[bytes, str]) -> str:
    """`equal`, or a short reason why the model is not known to be legal and equivalent to its source."""
    from relayout.verification.verifier import verify

    digest = blake2b(source.name.encode() + to_proto(legal).SerializeToString(deterministic=True)).digest()
    found = verify(legal, backend, against=source, report=report, run=digest not in run)
    wrong = [finding for finding in found.findings if finding.severity != "note"]
    if wrong:
        return f"{len(wrong)} findings, {wrong[0].rule}, {wrong[0].node}: {wrong[0].message} ({wrong[0].found})"
    return run.setdefault(digest, _compared(found.numeric))


def _compared(numeric: Numeric | None) -> str:
    if numeric is None or numeric.status != "compared":
        return f"not compared: {numeric.reason if numeric else ''}"
    still = [output.name for output in numeric.outputs if not output.sensitivity]
    return f"what is compared does not move with the inputs: {', '.join(still)}" if still else "equal"


def lines(paths: Sequence[Path], wanted: Sequence[str], objective: str, verified: bool, table: Table) -> Iterator[str]:
    """The header, then a line for each pair once it is done."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for path in paths:
        for setting in wanted:
            yield legalized(path, setting, objective, verified, table)


def matrix(table: Table, wanted: Sequence[str]) -> Iterator[str]:
    """The table of transposes (MB that they read and write) left, by model and backend."""
    yield "| model | source | " + " | ".join(wanted) + " |"
    yield "|---" * (len(wanted) + 2) + "|"
    for model, left in table.left.items():
        yield "| " + " | ".join([model, *(left.get(column, "") for column in ("source", *wanted))]) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    known = settings()
    parser = argparse.ArgumentParser(description="Legalize every model of a folder with every backend.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", nargs="+", metavar="NAME", choices=known, help=f"of {', '.join(known)}")
    parser.add_argument("--model", nargs="+", metavar="NAME", help="of the files in the folder, without .onnx")
    parser.add_argument("--objective", choices=("bytes", "transposes"), default="bytes")
    parser.add_argument("--verify", action="store_true", help="verify each legal model against its source")
    options = parser.parse_args(arguments)
    paths = sorted(options.folder.glob("*.onnx"))
    if options.model is not None:
        paths = [path for path in paths if path.stem in options.model]
    if not paths:
        parser.error(f"no such .onnx file in {options.folder}")
    wanted, table = options.backend or known, Table()
    print(f"Objective {options.objective}. {machine('onnx', 'onnx-ir', 'ortools')}.\n")
    for line in lines(paths, wanted, options.objective, options.verify, table):
        print(line, flush=True)
    print("\n" + "\n".join(matrix(table, wanted)))
    print("\n" + "".join(f"{note}\n" for note in table.notes))
    print("\n".join(table.faults) or "Every one is proved optimal.")
    return 1 if table.faults else 0


if __name__ == "__main__":
    sys.exit(main())
