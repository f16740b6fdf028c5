"""`relayout verify`, with its budget."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relayout.cli.exit_status import DONE, FINDINGS
from relayout.cli.job import backend_of, dim_names, read_file
from relayout.cli.option_values import backend_options, check_known, dim_sizes, layouts_by_operator
from relayout.cli.output_files import STDOUT, check_files, put
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_result, tell, terminal_width
from relayout.errors import InputError, UsageError

if TYPE_CHECKING:
    from relayout.report.schema import Finding, Report, Status, Totals
if TYPE_CHECKING:
    from relayout.report.schema import Report

__all__ = ["Budget", "Files", "finding_lines", "over_budget", "read_budget", "run_verify"]



@dataclass(frozen=True, slots=True)
class Files:
    """Where the findings go beside stdout."""

    report: Path | None = None
    junit: Path | None = None
    sarif: Path | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a model may spend on layouts; None is no limit."""

    max_transposes: int | None = None
    max_bytes: int | None = None


def read_budget(path: Path) -> Budget:
    """The budget in a .toml or .json file. Raises InputError, UsageError."""
    where = f"--budget {path}"
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UsageError("the budget cannot be read", where=where, found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        expected = "TOML" if path.suffix == ".toml" else "JSON"
        raise InputError("not a budget", where=where, expected=expected, found=str(error)[:200]) from error
    known = tuple(Budget.__dataclass_fields__)
    if not isinstance(table, dict) or not table:
        raise InputError("not a budget", where=where, expected=" and ".join(known), found=type(table).__name__)
    for key, value in table.items():
        if key not in known:
            raise InputError("not a budget", where=where, expected=" or ".join(known), found=str(key))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError("not a limit", where=f"{where}, {key}", expected="0 or more", found=str(value)[:100])
    return Budget(**table)


def over_budget(budget: Budget, spent: Totals) -> Iterator[Finding]:
    """A finding for each limit that the model exceeds."""
    from relayout.report.schema import Finding

    limits = ("transposes", budget.max_transposes, spent.transposes), ("bytes", budget.max_bytes, spent.bytes)
    for what, limit, found in limits:
        if limit is not None and found > limit:
            yield Finding(
                rule="budget",
                expected=f"at most {limit}",
                found=str(found),
                message=f"the model's {what} exceed the budget",
            )


def run_verify(
    path: Path,
    backend: str | None,
    against: Path | None,
    files: Files,
    budget_file: Path | None,
    *,
    dims: Sequence[str],
    desired: Sequence[str],
    skip: Sequence[str],
    options: Sequence[str],
    quiet: bool,
) -> int:
    """Verify the model at `path`, print what was found, and return the exit status."""
    sizes = dim_sizes(dims)
    chosen = backend_of(backend, layouts_by_operator(desired), skip, backend_options(options))
    results = {"--report": files.report, "--junit": files.junit, "--sarif": files.sarif}
    check_files(results, reads=[path, against, budget_file])
    budget = read_budget(budget_file) if budget_file is not None else Budget()
    from relayout.backend.calls import conversion_operators_of
    from relayout.report.schema import Report
    from relayout.report.totals import totals
    from relayout.verification.verifier import verify

    with Bar(3) as bar:
        bar("read")
        model = read_file(path)
        check_known("--dim", sizes, dim_names(model), "symbolic dim")
        original = read_file(against) if against is not None else model
        operators = conversion_operators_of(chosen)
        before, after = totals(original, sizes, operators), totals(model, sizes, operators)
        bar("verify")
        verification = verify(model, chosen, original if against is not None else None, dims=sizes)
    findings = (*verification.findings, *over_budget(budget, after))
    passed = all(finding.severity != "error" for finding in findings)
    verification = verification.model_copy(update={"findings": findings, "passed": passed})
    status: Status = "verified" if passed else "failed"
    report = Report(status=status, backend=chosen.name, before=before, after=after, verification=verification)
    _write(report, files, path)
    _print(report, quiet, STDOUT not in (files.report, files.junit, files.sarif))
    return DONE if passed else FINDINGS


def _write(report: Report, files: Files, path: Path) -> None:
    from relayout.report.render import render_json, render_junit, render_sarif

    if files.report is not None:
        put(files.report, "--report", render_json(report))
    if files.junit is not None:
        put(files.junit, "--junit", render_junit(report))
    if files.sarif is not None:
        put(files.sarif, "--sarif", render_sarif(report, artifact=path.as_posix()))


def _print(report: Report, quiet: bool, to_stdout: bool) -> None:
    from relayout.report.render import render_text

    if not quiet:
        table = render_text(report.model_copy(update={"verification": None}), width=terminal_width())
        tell(table)
    say = print_result if to_stdout else tell
    say("\n".join(finding_lines(report)))



def finding_lines(report: Report) -> Iterator[str]:
    """One line a finding, whatever its length: it is what one greps for. Then the comparison, and the verdict."""
    verification = report.verification
    assert verification is not None
    for finding in verification.findings:
        operand = "" if finding.operand is None else f", operand {finding.operand}"
        sides = [f"{word} {side}" for word, side in (("expected", finding.expected), ("found", finding.found)) if side]
        place = f"{finding.node or 'model'}{operand}"
        told = f" ({', '.join(sides)})" if sides else ""
        yield f"{finding.severity}: [{finding.rule}] {place}: {finding.message}{told}"
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
