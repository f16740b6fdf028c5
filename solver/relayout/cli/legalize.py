"""The verb `legalize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayout.cli.exit_status import DONE, FINDINGS, describe
from relayout.cli.inspect import TOP, Top
from relayout.cli.job import STDIN, STEPS, backend_of, legalize_file, read_file, save, source_at
from relayout.cli.model_files import arrays_in, check_no_folder
from relayout.cli.options import InputsFiles, Model, Quiet, ReportFiles, ReportFormat, Request, with_options
from relayout.cli.output_files import STDOUT, check_files, check_output, is_stdout, put, report_formats, write_report
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_bytes, print_data, print_status, results_stream
from relayout.errors import InfeasibleError, OutOfTimeError, RelayoutError, UsageError
from relayout.model.collector import collector_paused

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend.interface import Backend
    from relayout.model.io import Source
    from relayout.report.schema import Report

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="The legal model: .onnx or .json. - is stdout, in JSON, or in ONNX where the model comes from stdin in "
        "ONNX; -.onnx and -.json set it. Without the option nothing is written.",
        show_default=False,
    ),
]


@with_options("legalize")
@collector_paused()
def legalize(
    model: Model,
    request: Request,
    output: Output = None,
    report: ReportFiles = [],
    format: ReportFormat = None,
    top: Top = TOP,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Let this service do the work. RELAYOUT_KEY is its key.", show_default=False),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the problem, the answer and the bound to a JSON file, from which relayout verify --certificate "
            "derives the bound again. Implies --certify.",
            show_default=False,
        ),
    ] = None,
    inputs: InputsFiles = [],
    quiet: Quiet = False,
) -> int:
    """Make a model legal for a backend at the least cost.

    Without -o it is a dry run, which prints the report."""
    check_no_folder(model, f"for every model of a folder: relayout batch {model} -o FOLDER")
    backend = backend_of(request) if server is None else None
    reports = report_formats(report, format)
    _check_files(model, output, certificate, report or [*reports], inputs, server)
    given = [arrays_in(path) for path in inputs]
    if certificate is not None:
        request = replace(request, options=replace(request.options, certify=True))
    if given:
        request = replace(request, options=replace(request.options, check=True))
    read: list[Source] = []

    def unsolved(error: RelayoutError) -> None:
        # Stdin is read once: without its bytes there is no source to count.
        if reports and (read or model != STDIN):
            found = _unsolved(read_file(model, read[0] if read else source_at(model)), backend, request, error)
            write_report(reports, found, model, describe(error)[0])

    with Bar(STEPS, request.options.time_limit, unsolved) as bar:
        try:
            source = source_at(model)
            read.append(source)
            if backend is None:
                assert server is not None
                from relayout.cli.remote import legalize_remotely

                outcome = legalize_remotely(server, model, source, request, bar, given)
            else:
                outcome = legalize_file(
                    model,
                    request,
                    backend,
                    bar,
                    source=source,
                    time_for_search=bar.time_for_search,
                    improved=bar.improved,
                    inputs=given,
                )
        except (InfeasibleError, OutOfTimeError) as error:
            unsolved(error)
            raise
        done = outcome.report
        status = DONE if done.ok else FINDINGS
        bar("write")
        # The model comes last: where it is, there is all that was asked for beside it.
        if certificate is not None and outcome.certificate is not None:
            from relayout.verification.cost.certificate_findings import written_certificate

            put(certificate, "--certificate", written_certificate(outcome.certificate))
        write_report(reports, done, model, status)
        if done.ok and output is not None:
            if is_stdout(output):
                _print_model(outcome.model, output.suffix or (".onnx" if isinstance(source, bytes) else ".json"))
            else:
                save(outcome, model, output)
    if not quiet:
        _print_report(done, top, is_on_stdout=reports.get(STDOUT) == "text")
    elif done.warnings:
        # A service has read it there.
        _print_warnings(done, outcome.model if server is None else read_file(model, source))
    if not done.ok:
        if quiet:
            from relayout.cli.verify import finding_lines

            print_status("\n".join(finding_lines(done)))
        lost = f", and {output} was not written" if output is not None else ""
        print_status(f"relayout: error: the verification failed{lost}")
    elif output is None and not quiet:
        print_status("nothing was written: -o FILE writes the legal model")
    return status


def _check_files(
    model: Path,
    output: Path | None,
    certificate: Path | None,
    reports: Sequence[Path],
    inputs: Sequence[Path],
    server: str | None,
) -> None:
    """Raise UsageError for a file that cannot be written; warn of one that is the source too."""
    outputs = [("-o", output), ("--certificate", certificate)]
    if output is not None:
        check_output(output)
        if not is_stdout(output) and output.exists() and model.exists() and output.samefile(model):
            print_status(f"relayout: warning: {output} is the source too, and the legal model takes its place")
    if certificate is not None and server is not None:
        expected = "--certify, and the verdict in the report"
        raise UsageError("a service sends no certificate", where="--certificate", expected=expected)
    named = [(option, path) for option, path in outputs if path is not None]
    check_files([*named, *(("--report", path) for path in reports)], reads=[model, *inputs])


def _print_report(report: Report, top: int, *, is_on_stdout: bool) -> None:
    from relayout.report.boundary import boundary_lines
    from relayout.report.render import render_text

    if not is_on_stdout:
        print_status(render_text(report, top=top))
    for line in boundary_lines(report.boundary):
        print_status(line)


def _print_warnings(report: Report, read: ir.Model) -> None:
    """Print the warnings but those about how the model was `read`: they are no fault of a setting."""
    from relayout.model.io import warnings_of

    known = warnings_of(read)
    for warning in report.warnings:
        if warning not in known:
            print_status(f"relayout: warning: {warning}")


def _print_model(model: ir.Model, suffix: str) -> None:
    """Write the model to stdout, as ONNX or as graph JSON."""
    from relayout.model.io import to_json, to_proto

    if suffix == ".json":
        import json

        print_data(json.dumps(to_json(model, shares=True), separators=(",", ":"), allow_nan=False) + "\n")
    elif results_stream().isatty():
        raise UsageError("ONNX is no text", where="-o -", expected="a pipe or a file", found="a terminal")
    else:
        print_bytes(to_proto(model).SerializeToString(deterministic=True))


def _unsolved(model: ir.Model, backend: Backend | None, request: Request, error: RelayoutError) -> Report:
    """The report without a legal model: the totals of the source, and the reason."""
    from relayout.backend.calls import conversion_operators_of
    from relayout.report.schema import Report
    from relayout.report.totals import totals

    # The conversion operators of a backend of the server are not known here.
    operators = conversion_operators_of(backend) if backend is not None else frozenset()
    spent = totals(model, request.options.dims or {}, operators)
    return Report(
        status="infeasible" if isinstance(error, InfeasibleError) else "unknown",
        objective=request.options.objective,
        backend=backend.name if backend is not None else str(request.backend),
        before=spent,
        after=spent,
        warnings=(describe(error)[1],),
    )
