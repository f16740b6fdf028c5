"""The verb `verify`, with its budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayout.cli.exit_status import DONE, FINDINGS
from relayout.cli.job import backend_of, check_dims, read_file
from relayout.cli.options import Model, Quiet, ReportFiles, ReportFormat, Request, with_options
from relayout.cli.output_files import STDOUT, check_files, report_formats, write_reports
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_result, print_status, terminal_width
from relayout.errors import InputError, UsageError

if TYPE_CHECKING:
    from relayout.report.schema import Report

__all__ = ["finding_lines", "read_budget", "verify"]

Original = Annotated[
    Path | None,
    typer.Option(
        "--against",
        metavar="ORIGINAL",
        help="Compare the boundary with the original's, run both on random inputs, and compare the results.",
        show_default=False,
    ),
]
BudgetFile = Annotated[
    Path | None,
    typer.Option(
        "--budget",
        metavar="FILE",
        help="A .toml or .json file with max_transposes, max_conversions and max_bytes; the options of these names "
        "come first. Exceeding a limit is a finding.",
        show_default=False,
    ),
]


@with_options("verify")
def verify(
    model: Model,
    request: Request,
    against: Original = None,
    report: ReportFiles = [],  # noqa: B006
    format: ReportFormat = None,
    budget: BudgetFile = None,
    quiet: Quiet = False,
) -> int:
    """List what breaks a backend's contract.

    The exit status is 1 where something does."""
    if request.backend is not None:
        backend_of(request)  # a wrong name is told before the model is read
    reports = report_formats(report, format)
    check_files([("--report", path) for path in report], reads=[model, against, budget])
    limits = read_budget(budget) if budget is not None else {}
    limits |= {name: value for name, value in asdict(request.options).items() if value is not None}
    from relayout.backend.calls import conversion_operators_of
    from relayout.report.budget import within_budget
    from relayout.report.schema import Report
    from relayout.report.totals import totals
    from relayout.verification.verifier import verify

    dims, samples = request.options.dims or {}, request.options.samples
    with Bar(3) as bar:
        bar("read")
        subject = read_file(model)
        check_dims(request, subject)
        backend = backend_of(request, subject)
        original = read_file(against) if against is not None else None
        operators = conversion_operators_of(backend)
        after = totals(subject, dims, operators)
        before = after if original is None else totals(original, dims, operators)
        bar("verify")
        # The files themselves: the verifier also runs them as they are, without relayout's reader.
        static = request.options.static
        verification = verify(model, backend, against, samples=samples, dims=dims, static=static)
    done = Report(status="failed", backend=backend.name, before=before, after=after, verification=verification)
    done = within_budget(done, limits)
    passed = done.verification is not None and done.verification.passed
    done = done.model_copy(update={"status": "verified" if passed else "failed"})
    write_reports(reports, done, model)
    if not quiet:
        from relayout.report.render import render_text

        print_status(render_text(done.model_copy(update={"verification": None}), width=terminal_width()))
    show = print_status if STDOUT in report else print_result
    show("\n".join(finding_lines(done)))
    return DONE if passed else FINDINGS


def read_budget(path: Path) -> dict[str, int]:
    """The limits in a .toml or .json file, by option. Raises InputError, UsageError."""
    import json
    import tomllib

    from relayout.report.budget import LIMITS

    where = f"--budget {path}"
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UsageError("the budget cannot be read", where=where, found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        expected = "TOML" if path.suffix == ".toml" else "JSON"
        raise InputError("not a budget", where=where, expected=expected, found=str(error)[:200]) from error
    known = tuple(LIMITS)
    if not isinstance(table, dict) or not table:
        raise InputError("not a budget", where=where, expected=" and ".join(known), found=type(table).__name__)
    for key, value in table.items():
        if key not in known:
            raise InputError("not a budget", where=where, expected=" or ".join(known), found=str(key))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError("not a limit", where=f"{where}, {key}", expected="0 or more", found=str(value)[:100])
    return table


def finding_lines(report: Report) -> Iterator[str]:
    """One line per finding, then the comparison and the verdict."""
    verification = report.verification
    assert verification is not None
    for finding in verification.findings:
        operand = "" if finding.operand is None else f", operand {finding.operand}"
        sides = [f"{name} {side}" for name, side in (("expected", finding.expected), ("found", finding.found)) if side]
        location = f"{finding.node or 'model'}{operand}"
        both = f" ({', '.join(sides)})" if sides else ""
        yield f"{finding.severity}: [{finding.rule}] {location}: {finding.message}{both}"
    numeric = verification.numeric
    if numeric is not None and numeric.status == "skipped":
        yield f"not compared: {numeric.reason}"
    for output in numeric.outputs if numeric is not None else ():
        yield (
            f"{output.name}: differs by {output.max_rel:.3g} of its scale (tolerance {output.tolerance:.3g}); "
            f"moves by {output.sensitivity:.3g} when the inputs are redrawn"
        )
    errors = sum(finding.severity == "error" for finding in verification.findings)
    verdict = "passed" if verification.passed else f"failed: {errors} error{'s' if errors != 1 else ''}"
    yield f"verification for the backend {report.backend} {verdict}"
