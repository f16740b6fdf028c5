"""The verb `explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from relayout.cli.exit_status import DONE
from relayout.cli.inspect import TOP
from relayout.cli.job import STEPS, backend_of, legalize_file
from relayout.cli.model_files import check_no_folder
from relayout.cli.options import Model, ReportFiles, ReportFormat, Request, with_options
from relayout.cli.output_files import STDOUT, check_files, report_formats, write_report
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_result, print_status


@with_options("explain")
def explain(
    model: Model,
    request: Request,
    report: ReportFiles = [],
    format: ReportFormat = None,
    top: Annotated[
        int,
        typer.Option(
            "--top",
            metavar="N",
            min=1,
            help="Print at most N conversions, the dearest first, and N kinds of requirements.",
        ),
    ] = TOP,
) -> int:
    """Print the reasons for each conversion.

    The reasons are the requirements behind a conversion of the legal model, each with the saving without it, found by
    solving the problem again."""
    check_no_folder(model, f"name one model: relayout explain {model / 'NAME.onnx'}")
    backend = backend_of(request)
    reports = report_formats(report, format)
    check_files([("--report", path) for path in report or reports], reads=[model])
    with Bar(STEPS, request.options.time_limit) as bar:
        done = legalize_file(
            model, request, backend, bar, time_for_search=bar.time_for_search, improved=bar.improved
        ).report
    write_report(reports, done, model, DONE)
    show = print_status if STDOUT in reports else print_result
    from relayout.report.render import render_text

    show(render_text(done, top=top))
    return DONE
