"""`relayout legalize`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from relayout.cli.exit_status import DONE, FINDINGS
from relayout.cli.explain import boundary_lines
from relayout.cli.job import STEPS, Wanted, backend_of, legalize_file, read_file, save
from relayout.cli.option_values import backend_options as parsed_options
from relayout.cli.option_values import dim_sizes, layouts_by_operator, named_layouts
from relayout.cli.output_files import STDOUT, check_files, check_output, put
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_data, tell, terminal_width
from relayout.cli.verify import finding_lines
from relayout.errors import InfeasibleError, OutOfTimeError, RelayoutError

if TYPE_CHECKING:
    from relayout.report.schema import Report

__all__ = ["print_report", "run_legalize", "wanted_of"]

MOST_ROWS = 50


def wanted_of(
    *,
    backend: str | None,
    objective: str,
    dims: Sequence[str],
    time_limit: float | None,
    desired_layouts: Sequence[str],
    skip: Sequence[str],
    backend_options: Sequence[str] = (),
    input_layouts: Sequence[str] = (),
    output_layouts: Sequence[str] = (),
    engine: str = "auto",
    check: bool = False,
    inline: bool = False,
    max_transposes: int | None = None,
    explain: int | None = None,
    strict: bool = True,
) -> Wanted:
    """What the options of the command line ask for. Raises UsageError."""
    # Everything that costs no import first: a mistake on the command line is told at once.
    named = named_layouts("--input-layout", input_layouts), named_layouts("--output-layout", output_layouts)
    sizes, desired = dim_sizes(dims), layouts_by_operator(desired_layouts)
    chosen = backend_of(backend, desired, skip, parsed_options(backend_options))
    from relayout.legalization import Options

    options = Options(objective, *named, sizes, time_limit, engine, max_transposes, explain)
    return Wanted(chosen, options, skip, check, inline, strict)


def run_legalize(model: Path, output: Path, wanted: Wanted, report_file: Path | None, *, quiet: bool) -> int:
    """Legalize `model` into `output`, and return the exit status; nothing is written where something failed."""
    if output != STDOUT:
        check_output(output)
    check_files({"-o": output, "--report": report_file}, reads=[model])
    from relayout.report.render import render_json

    with Bar(STEPS) as bar:
        try:
            outcome = legalize_file(model, wanted, bar)
        except (InfeasibleError, OutOfTimeError) as error:
            if report_file is not None:
                put(report_file, "--report", render_json(_unsolved(model, wanted, error)))
            raise
        report = outcome.report
        if report.ok:
            bar("write")
            if output == STDOUT:
                from relayout.model.io import to_json

                print_data(json.dumps(to_json(outcome.model), separators=(",", ":"), allow_nan=False) + "\n")
            else:
                save(outcome, model, output)
    if report_file is not None:
        put(report_file, "--report", render_json(report))
    if not quiet:
        print_report(report)
        for line in boundary_lines(report.boundary):
            tell(line)
    if not report.ok:
        if quiet:
            tell("\n".join(finding_lines(report)))
        tell(f"relayout: error: {output} was not written, for the verification failed")
    return DONE if report.ok else FINDINGS


def _unsolved(model: Path, wanted: Wanted, error: RelayoutError) -> Report:
    """The report where there is no legal model: what the source spends, and why nothing came of it."""
    from relayout.backend.calls import conversion_operators_of
    from relayout.report.schema import Report
    from relayout.report.totals import totals

    options = wanted.options
    spent = totals(read_file(model), options.dims or {}, conversion_operators_of(wanted.backend))
    return Report(
        status="infeasible" if isinstance(error, InfeasibleError) else "unknown",
        objective=options.objective,
        backend=wanted.backend.name,
        before=spent,
        after=spent,
        warnings=(str(error),),
    )


def print_report(report: Report) -> None:
    """The tables for a person, on stderr."""
    from relayout.report.render import render_text

    left_out = len(report.conversions) - MOST_ROWS
    shown = report.model_copy(update={"conversions": report.conversions[:MOST_ROWS]}) if left_out > 0 else report
    tell(render_text(shown, width=terminal_width()))
    if left_out > 0:
        tell(f"and {left_out} conversions more: --report has them all, relayout explain prints them")
