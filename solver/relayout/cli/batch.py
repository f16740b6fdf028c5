"""The verb `batch`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from relayout.cli.batch_journal import Journal
from relayout.cli.batch_pools import on_cluster, one_by_one, preload, processes
from relayout.cli.batch_work import Done, Item, table_of
from relayout.cli.job import backend_of, check_dims_of_folder
from relayout.cli.options import Request, with_options
from relayout.cli.output_files import check_files, put, report_formats
from relayout.cli.processors import processors
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_status
from relayout.errors import UsageError
from relayout.report.text_table import padded


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
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes. [default: as many as cores]",
                     show_default=False),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Send the models to this Dask scheduler, such as tcp://host:8786.",
                     show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip the models that a run before has done.")] = False,
) -> int:  # fmt: skip
    """Legalize every model of a folder, several at once.

    A model that fails does not stop the others."""
    gc.enable()
    if jobs is not None and scheduler is not None:
        raise UsageError("two places to work in", where="--scheduler", expected="one of them", found="--jobs too")
    models = _models(folder)
    count = 1 if scheduler is not None else min(jobs or processors(), len(models))
    if count > 1:
        preload()
    # A wrong backend or option is one error, not one for each model.
    backend_of(request)
    if report is not None:
        check_files([("--report", report)])
        if report_formats([report], None)[report] != "json":
            raise UsageError(
                "the report of a batch is JSON",
                where=f"--report {report}",
                expected=".json",
                found=report.suffix,
                hint=f"for other formats: relayout verify {output} --report {report}",
            )
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            "the folder cannot be created",
            where=f"-o {output}",
            expected="a folder",
            found=error.strerror or str(error),
        ) from error
    if output.samefile(folder):
        print_status(f"relayout: warning: the legal models take the places of their sources in {folder}")
    items = [Item(model, output / model.name, request) for model in models]
    journal = Journal(output)
    done = {each.name: each for each in journal.open(items, resume)}
    left = [item for item in items if item.name not in done]
    try:
        with Bar(len(models)) as bar:
            for each in _legalized(left, count, scheduler, bar):
                done[each.name] = each
                journal.add(each)
                bar(each.name)
    finally:
        journal.close(finished=len(done) == len(items) and not any(each.status for each in done.values()))
    ordered = [done[item.name] for item in items]
    if report is not None:
        import json

        put(report, "--report", json.dumps([each.record() for each in ordered], indent=2) + "\n")
    print_status(_table(ordered))
    for each in ordered:
        if each.message:
            print_status(f"relayout: error: {each.name}: {each.message}")
    if all(each.report is not None for each in ordered):
        # A model without an answer may have the dim.
        check_dims_of_folder(request.options.dims, frozenset().union(*(each.dims for each in ordered)))
    return max(each.status for each in ordered)


def _legalized(items: list[Item], count: int, scheduler: str | None, bar: Bar) -> Iterator[Done]:
    """The models, as they are done, from `count` processes at most."""
    if scheduler is not None:
        return on_cluster(items, scheduler, table_of(items[0].request) if items else b"")
    if min(count, len(items)) <= 1:
        return one_by_one(items, bar.within)
    bar.catch_termination()
    return processes(items, count)


def _models(folder: Path) -> list[Path]:
    from relayout.model.io import FORMATS

    if not folder.is_dir():
        is_file = folder.is_file()
        raise UsageError(
            "it is no folder" if is_file else "no such folder",
            where=str(folder),
            expected="a folder with models",
            found="a file" if is_file else "none",
            hint=f"for one model: relayout legalize {folder}" if is_file else "",
        )
    # A link to nothing is an error later.
    files = (path for path in folder.iterdir() if path.is_file() or not path.exists())
    models = sorted(path for path in files if path.suffix in FORMATS)
    if not models:
        raise UsageError("no models", where=f"folder {folder}", expected=f"files {' or '.join(FORMATS)}", found="none")
    return models


def _table(done: list[Done]) -> str:
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
    lines = []
    for number, (row, cells) in enumerate(zip(rows, padded(rows, right=set(range(2, 8))), strict=True)):
        arrow = "  " if number == 0 or not row[2] else "->"
        pairs = [f"{cells[i]} {arrow} {cells[i + 1]}" for i in (2, 4, 6)]
        lines.append("   ".join([*cells[:2], *pairs]).rstrip())
    return "\n".join(lines)
