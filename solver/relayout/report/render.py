"""A report as tables for a person. The other formats, and the list of all, are beside it: see `formats`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relayout.report.causes import detail, place
from relayout.report.conversion_table import conversion_rows
from relayout.report.schema import Report

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["render_text"]

# Wider than any name in a model: rich must not break a line.
_UNLIMITED = 1 << 16


def render_text(report: Report, *, color: bool = False, top: int | None = None) -> str:
    """Return a before/after table, the remaining conversions with the consumers that require them, and the findings.

    Tables are as wide as their cells, so that names stay whole. `top`: at most so many rows of conversions.
    """
    from io import StringIO

    from rich.console import Console

    stream = StringIO()
    console = Console(
        file=stream, width=_UNLIMITED, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    console.print(_summary(report))
    if report.conversions:
        console.print(_conversions(report, top))
    if report.devices:
        console.print(_devices(report))
    if report.transfers:
        console.print(_transfers(report))
    if report.verification is not None:
        _print_verification(report, console.print)
    for warning in report.warnings:
        console.print(f"warning: {warning}", markup=False)
    return stream.getvalue()


def _table(title: str, *headings: str) -> Table:
    """A table of text columns, as wide as their cells."""
    from rich.box import ASCII
    from rich.table import Table

    table = Table(box=ASCII, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _summary(report: Report) -> Table:
    table = _table(f"backend {report.backend}, objective {report.objective}", "")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    before, after = report.before, report.after
    table.add_row("transposes", str(before.transposes), str(after.transposes))
    table.add_row("MB moved", _megabytes(before.bytes), _megabytes(after.bytes))
    if before.reorders or after.reorders:
        table.add_row("reorders", str(before.reorders), str(after.reorders))
    table.add_row("nodes", str(before.nodes), str(after.nodes), end_section=True)
    table.add_row("status", "", report.status)
    if report.cost is not None:
        table.add_row("cost", "", str(report.cost))
    if report.bound is not None:
        table.add_row("bound", "", _bound(report))
    return table


def _bound(report: Report) -> str:
    if not report.gap:
        return str(report.bound)
    return f"{report.bound} (gap {100 * report.gap:.2f} %)"


def _conversions(report: Report, top: int | None) -> Table:
    from rich.text import Text

    # Folded constants cost nothing at run time and are many: the text has their number, the JSON has all.
    running = [conversion for conversion in report.conversions if conversion.kind != "folded"]
    rows = conversion_rows(running)
    counts = [""] * any(row.count for row in rows)
    table = _table("conversions that remain", *counts, "value", "from", "to", "kind")
    table.add_column("MB", justify="right")
    table.add_column("required by", no_wrap=True)
    for row in rows[:top]:
        names = [row.count] * len(counts) + [row.value, row.source, row.target, row.kind]
        table.add_row(*(Text(cell) for cell in (*names, _megabytes(row.bytes), "\n".join(row.readers))))
    folded = len(report.conversions) - len(running)
    more = [f"{len(rows) - top} more rows: --top"] if top is not None and len(rows) > top else []
    more += [f"{folded} folded into constants"] if folded else []
    if more:
        table.caption = f"and {', and '.join(more)}"
    return table


def _devices(report: Report) -> Table:
    from rich.text import Text

    table = _table("devices", "device", "backend")
    table.add_column("nodes", justify="right")
    for each in report.devices:
        table.add_row(Text(each.device), Text(each.backend), str(len(each.nodes)))
    return table


def _transfers(report: Report) -> Table:
    from rich.text import Text

    table = _table("transfers", "value", "from", "to", "layout")
    table.add_column("MB", justify="right")
    table.add_column("required by", no_wrap=True)
    for each in report.transfers:
        readers = "\n".join(f"{by.node}:{by.operand}" for by in each.required_by)
        cells = (each.value, each.from_, each.to, each.layout, _megabytes(each.bytes), readers)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _print_verification(report: Report, print_line: Callable[..., None]) -> None:
    verification = report.verification
    if verification is None:
        return
    for finding in verification.findings:
        print_line(f"{finding.severity}: [{finding.rule}] {place(finding)}: {detail(finding)}", markup=False)
    numeric = verification.numeric
    if numeric is not None and numeric.status == "skipped":
        print_line(f"numeric comparison skipped: {numeric.reason}", markup=False)
    elif numeric is not None:
        for output in numeric.outputs:
            print_line(
                f"{output.name}: differs by {output.max_rel:.3g} of its scale (tolerance {output.tolerance:.3g}); "
                f"moves by {output.sensitivity:.3g} when the inputs are redrawn",
                markup=False,
            )
    print_line(f"verification {'passed' if verification.passed else 'failed'}", markup=False)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"
