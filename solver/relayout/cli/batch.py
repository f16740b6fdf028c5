"""The verb `batch`."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relayout.cli.exit_status import DONE, FINDINGS, describe, show_traceback
from relayout.cli.job import backend_of, legalize_file, save
from relayout.cli.options import Request, with_options
from relayout.cli.output_files import check_files, put
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_status
from relayout.errors import UsageError

if TYPE_CHECKING:
    from relayout.backend.interface import Backend
    from relayout.report.schema import Report

__all__ = ["batch"]


@dataclass(frozen=True, slots=True)
class _Done:
    """One model: its exit status, and its report or the error."""

    name: str
    status: int
    report: Report | None = None
    message: str = ""


@with_options("batch")
def batch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the models.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder for the legal models, by the same names.",
            show_default=False,
        ),
    ],
    request: Request,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all reports as a list in JSON; - is stdout.", show_default=False),
    ] = None,
) -> int:  # fmt: skip
    """Legalize every model of a folder.

    A model that fails does not stop the others."""
    gc.enable()
    backend = backend_of(request)
    models = _models(folder)
    if report is not None:
        check_files([("--report", report)])
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            "the folder cannot be created",
            where=f"-o {output}",
            expected="a folder",
            found=error.strerror or str(error),
        ) from error
    done = []
    with Bar(len(models)) as bar:
        for model in models:
            bar(model.name)
            done.append(_one(model, output / model.name, request, backend, bar))
    if report is not None:
        import json

        put(report, "--report", json.dumps([_record(each) for each in done], indent=2) + "\n")
    print_status(_table(done))
    for each in done:
        if each.message:
            print_status(f"relayout: error: {each.name}: {each.message}")
    return max(each.status for each in done)


def _models(folder: Path) -> list[Path]:
    from relayout.model.io import FORMATS

    if not folder.is_dir():
        raise UsageError("no such folder", where=str(folder), expected="a folder with models", found="none")
    models = sorted(path for path in folder.iterdir() if path.suffix in FORMATS and path.is_file())
    if not models:
        raise UsageError("no models", where=f"folder {folder}", expected=f"files {' or '.join(FORMATS)}", found="none")
    return models


def _one(model: Path, target: Path, request: Request, backend: Backend, bar: Bar) -> _Done:
    try:
        outcome = legalize_file(model, request, backend, bar.within, strict=False)
        if outcome.report.ok:
            bar.within("write")
            save(outcome, model, target)
    except Exception as error:
        return _Done(model.name, *_failed(error))
    if not outcome.report.ok:
        return _Done(model.name, FINDINGS, outcome.report, "the verification failed, and it was not written")
    return _Done(model.name, DONE, outcome.report)


def _failed(error: Exception) -> tuple[int, None, str]:
    show_traceback(error)
    status, message = describe(error)
    return status, None, message


def _record(done: _Done) -> dict[str, Any]:
    report = done.report.model_dump(mode="json") if done.report is not None else None
    return {"model": done.name, "exit_status": done.status, "report": report, "error": done.message or None}


def _table(done: list[_Done]) -> str:
    rows: list[tuple[str, ...]] = [("model", "status", "transposes", "", "MB moved", "", "nodes", "")]
    for each in done:
        report = each.report
        if report is None:
            rows.append((each.name, f"failed ({each.status})", *[""] * 6))
            continue
        before, after = report.before, report.after
        status = report.status if report.ok else f"findings ({each.status})"
        bytes_ = f"{before.bytes / 1e6:.2f}", f"{after.bytes / 1e6:.2f}"
        counts = str(before.nodes), str(after.nodes)
        rows.append((each.name, status, str(before.transposes), str(after.transposes), *bytes_, *counts))
    widths = [max(len(row[column]) for row in rows) for column in range(8)]
    lines = []
    for number, row in enumerate(rows):
        cells = [f"{cell:<{widths[i]}}" if i < 2 else f"{cell:>{widths[i]}}" for i, cell in enumerate(row)]
        arrow = "  " if number == 0 or not row[2] else "->"
        pairs = [f"{cells[i]} {arrow} {cells[i + 1]}" for i in (2, 4, 6)]
        lines.append("   ".join([*cells[:2], *pairs]).rstrip())
    return "\n".join(lines)
