"""The verb `legalize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayout.cli.exit_status import DONE, FINDINGS
from relayout.cli.explain import boundary_lines
from relayout.cli.job import STEPS, backend_of, legalize_file, read_file, save
from relayout.cli.options import Model, Quiet, ReportFiles, ReportFormat, Request, with_options
from relayout.cli.output_files import STDOUT, check_files, check_output, report_formats, write_reports
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_data, print_status, terminal_width
from relayout.cli.verify import finding_lines
from relayout.errors import InfeasibleError, OutOfTimeError, RelayoutError
from relayout.model.collector import collector_paused

if TYPE_CHECKING:
    from relayout.backend.interface import Backend
    from relayout.report.schema import Report

__all__ = ["legalize"]

MOST_ROWS = 50
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="The legal model: .onnx or .json; - is JSON to stdout.",
        show_default=False,
    ),
]


@with_options("legalize")
@collector_paused()
def legalize(
    model: Model,
    output: Output,
    request: Request,
    report: ReportFiles = [],  # noqa: B006  # typer reads the default, nothing changes it
    format: ReportFormat = None,
    quiet: Quiet = False,
) -> int:
    """Make a model legal for a backend at the least cost."""
    backend = backend_of(request)
    if output != STDOUT:
        check_output(output)
        if output.exists() and output.samefile(model):
            print_status(f"relayout: warning: {output} is the source too, and the legal model takes its place")
    reports = report_formats(report, format)
    check_files([("-o", output), *(("--report", path) for path in report)], reads=[model])
    with Bar(STEPS) as bar:
        try:
            outcome = legalize_file(model, request, backend, bar)
        except (InfeasibleError, OutOfTimeError) as error:
            if reports:
                write_reports(reports, _unsolved(model, backend, request, error), model)
            raise
        done = outcome.report
        if done.ok:
            bar("write")
            if output == STDOUT:
                import json

                from relayout.model.io import to_json

                print_data(json.dumps(to_json(outcome.model), separators=(",", ":"), allow_nan=False) + "\n")
            else:
                save(outcome, model, output)
    write_reports(reports, done, model)
    if not quiet:
        _print_report(done)
        for line in boundary_lines(done.boundary):
            print_status(line)
    if not done.ok:
        if quiet:
            print_status("\n".join(finding_lines(done)))
        print_status(f"relayout: error: the verification failed, and {output} was not written")
    return DONE if done.ok else FINDINGS


def _unsolved(model: Path, backend: Backend, request: Request, error: RelayoutError) -> Report:
    """The report without a legal model: the totals of the source, and the reason."""
    from relayout.backend.calls import conversion_operators_of
    from relayout.report.schema import Report
    from relayout.report.totals import totals

    spent = totals(read_file(model), request.options.dims or {}, conversion_operators_of(backend))
    return Report(
        status="infeasible" if isinstance(error, InfeasibleError) else "unknown",
        objective=request.options.objective,
        backend=backend.name,
        before=spent,
        after=spent,
        warnings=(str(error),),
    )


def _print_report(report: Report) -> None:
    """Print the tables to stderr, with the first conversions only."""
    from relayout.report.render import render_text

    left_out = len(report.conversions) - MOST_ROWS
    shown = report.model_copy(update={"conversions": report.conversions[:MOST_ROWS]}) if left_out > 0 else report
    print_status(render_text(shown, width=terminal_width()))
    if left_out > 0:
        print_status(f"and {left_out} more conversions: --report has all of them, relayout explain prints them")
