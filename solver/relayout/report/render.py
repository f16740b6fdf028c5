"""A report as tables for a person. The other formats, and the list of all, are beside it: see `formats`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from relayout.report.causes import causes
from relayout.report.conversion_list import (
    charge_entries,
    conversion_entries,
    factors_explained,
    listed,
    megabytes,
    transfer_entries,
)
from relayout.report.explain.text import explanation_text
from relayout.report.schema import (
    Account,
    Finding,
    OutputDifference,
    Price,
    Report,
    Verification,
    check_report_type,
)
from relayout.report.text_table import how_many

if TYPE_CHECKING:
    from rich.table import Table

# Wider than any name in a model: rich must not break a line.
_UNLIMITED = 1 << 16
_NUMBERS = ("MB", "cost", "legal", "model", "nodes", "source")
_SIZES = 8
"""More assumed sizes than these are counted."""


def render_text(report: Report, *, top: int | None = None) -> str:
    """Return the account, the remaining conversions with the consumers that require them, and the findings; of an
    explanation, each conversion with its reasons.

    Lines are as long as the names in them, which stay whole. `top`: at most so many entries of each list, the dearest.
    Raises UsageError for another object than a report.
    """
    check_report_type(report)
    if report.explanation is not None:
        return explanation_text(report, top)
    from io import StringIO

    from rich.console import Console

    stream = StringIO()
    console = Console(file=stream, width=_UNLIMITED, force_terminal=False, color_system=None, highlight=False)
    console.print(_summary(report))
    for line in _notes(report):
        console.print(line, markup=False, soft_wrap=True)
    for line in (*_conversions(report, top), *_charges(report, top)):
        console.print(line, markup=False, soft_wrap=True)
    if report.devices:
        console.print(_devices(report))
    for line in (*_transfers(report, top), factors_explained(report)):
        if line:
            console.print(line, markup=False, soft_wrap=True)
    if report.verification is not None:
        _print_verification(report.verification, console.print)
    for warning in report.warnings:
        console.print(f"warning: {warning}", markup=False)
    # rich fills the line of a title up to the width of its table.
    return "".join(f"{line.rstrip(' ')}\n" for line in stream.getvalue().splitlines())


def _table(title: str, *headings: str) -> Table:
    """A table as wide as its cells: text, except for numbers below the headings in `_NUMBERS`."""
    from rich.box import ASCII
    from rich.table import Table

    table = Table(box=ASCII, title=title, title_justify="left")
    for heading in headings:
        if heading in _NUMBERS:
            table.add_column(heading, justify="right")
        else:
            table.add_column(heading, no_wrap=True)
    return table


def _summary(report: Report) -> Table:
    """The account: each kind of conversion in the source and in the legal model, with what it costs there.

    Where nothing was solved there is no cost, and where there is one model, one column has its counts.
    """
    before, after = report.before, report.after
    is_solved, is_one = report.cost is not None, _is_one_model(report)
    heads = ("", "source", "MB", "model" if is_one else "legal", "MB", "cost")
    shown = [n for n in range(len(heads)) if not (is_one and n in (1, 2)) and (is_solved or n != 5)]
    title = f"backend {report.backend}{f', objective {report.objective}' * is_solved}"
    table = _table(title, *(heads[n] for n in shown))

    def add(*cells: object, ends: bool = False) -> None:
        table.add_row(*(str(cells[n]) for n in shown), end_section=ends)

    account = report.account or Account()
    counted = (
        ("transposes", before.transposes, before.bytes, after.transposes, after.bytes, account.transposes),
        ("reorders", before.reorders, before.reorder_bytes, after.reorders, after.reorder_bytes, account.reorders),
        ("pads", before.pads, before.pad_bytes, after.pads, after.pad_bytes, account.pads),
        ("operators", 0, 0, account.operators.count, account.operators.bytes, account.operators),
        ("transfers", 0, 0, account.transfers.count, account.transfers.bytes, account.transfers),
    )
    for name, old, old_bytes, new, new_bytes, entry in counted:
        if name == "transposes" or old or new:
            cost = "" if report.account is None else entry.cost
            add(name, old, megabytes(old_bytes), new, megabytes(new_bytes), cost)
    olds, news = sum(row[1] for row in counted), sum(row[3] for row in counted)
    moved = megabytes(sum(row[2] for row in counted)), megabytes(sum(row[4] for row in counted))
    add("total", olds, moved[0], news, moved[1], report.cost, ends=True)
    add("nodes", before.nodes, "", after.nodes, "", "", ends=True)
    add("status", "", "", report.status, "", "")
    if report.bound is not None:
        add("bound", "", "", "", "", _bound(report))
    return table


def _is_one_model(report: Report) -> bool:
    """Whether the report is about the source alone, or about a legal model alone."""
    return report.cost is None and report.before == report.after


def _bound(report: Report) -> str:
    if not report.gap:
        return str(report.bound)
    return f"{report.bound} (gap {100 * report.gap:.2f} %)"


def _notes(report: Report) -> Iterator[str]:
    """The meaning of the bound, why the file has other Transposes than those counted, and the sizes assumed."""
    if report.proof is not None:
        yield f"{report.status}: {report.proof}"
    last = "model" if _is_one_model(report) else "legal model"
    for name, totals in (("source", report.before), (last, report.after)):
        kinds = (
            (totals.transposes_of_constants, "on constants alone"),
            (totals.transposes_in_functions, "in bodies that define operators of relayout"),
        )
        why = [f"{count} {text}" for count, text in kinds if count]
        if name == "source" and totals == report.after:
            continue
        if why:
            stored = f"{how_many(totals.transposes_in_file, 'Transpose')} in the file"
            yield f"{name}: {stored}: {totals.transposes} at run time, {', '.join(why)}"
        if totals.transposes_of_units:
            units = totals.transposes_of_units
            yield f"{name}: {units} of the transposes that run only move{'s' * (units == 1)} dims of extent 1, 0 bytes"
    if report.assumed:
        # Names that the model gives come before those that inference generates: a user knows their sizes.
        names = sorted(report.assumed, key=lambda name: name.startswith("unk__"))
        sizes = ", ".join(f"{name}={report.assumed[name]}" for name in names[:_SIZES])
        more = f" and {len(names) - _SIZES} more" if len(names) > _SIZES else ""
        yield f"assumed sizes: {sizes}{more} (--dim NAME=N gives others)"


def _conversions(report: Report, top: int | None) -> Iterable[str]:
    # Folded constants cost nothing at run time and are many: the text has their number, the JSON has all.
    running = [conversion for conversion in report.conversions if conversion.kind != "folded"]
    folded = len(report.conversions) - len(running)
    more = [f"{folded} folded into constants"] if folded else []
    return listed("conversions that remain", conversion_entries(running), top, *more) if report.conversions else ()


def _charges(report: Report, top: int | None) -> Iterable[str]:
    return listed("operators that have a cost", charge_entries(report.charges), top) if report.charges else ()


def _transfers(report: Report, top: int | None) -> Iterable[str]:
    return listed("transfers", transfer_entries(report.transfers), top) if report.transfers else ()


def _devices(report: Report) -> Table:
    from rich.text import Text

    table = _table("devices", "device", "backend", "nodes")
    for each in report.devices:
        table.add_row(*map(Text, (each.device, each.backend, str(len(each.nodes)))))
    return table


def _print_verification(verification: Verification, print_line: Callable[..., None]) -> None:
    unknown = price_line(verification.price)
    if verification.passed and not verification.findings and verification.numeric is None and not unknown:
        return  # the usual case, in which there is nothing to tell
    for line in cause_lines(verification.findings):
        print_line(line, markup=False)
    # A comparison that was skipped has no outputs, and a finding that says why.
    for output in verification.numeric.outputs if verification.numeric is not None else ():
        print_line(difference_line(output), markup=False)
    for name in verification.numeric.kept if verification.numeric is not None else ():
        print_line(f"{name}: not run; computed as in the original, from values that were compared", markup=False)
    if unknown:
        print_line(unknown, markup=False)
    is_compared = verification.numeric is not None and verification.numeric.status == "compared"
    verdict = "passed" if verification.passed else "failed"
    print_line(f"verification {verdict}{'' if is_compared else ', without a run of the models'}", markup=False)


def cause_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line for each cause: a network has many nodes that break one rule in the same way."""
    for cause in causes(findings):
        yield f"{cause.severity}: [{cause.rule}] {cause.message}".replace("\n", "\\n")


def difference_line(output: OutputDifference) -> str:
    return (
        f"{output.name}: differs by {output.max_rel:.3g} of its scale (tolerance {output.tolerance:.3g}); "
        f"moves by {output.sensitivity:.3g} when the inputs are redrawn"
    )


def price_line(price: Price | None) -> str:
    """The part of the cost that the verifier did not compute again, or that only the model states; "" if it computed
    all."""
    if price is None:
        return ""
    parts = []
    if price.noted:
        parts.append(
            f"{price.noted} of it for operators that are decomposed into others, as the model's metadata notes "
            "(`relayout.node_cost`)"
        )
    is_confirmed = price.computed == price.claimed
    if price.not_computed:
        parts.append(f"{'taken on trust' if is_confirmed else 'not computed'}: {'; '.join(price.not_computed)}")
    if not parts:
        return ""
    confirmed = f"the cost {price.claimed}" if is_confirmed else f"{price.computed} of the cost {price.claimed}"
    return f"computed again: {'; '.join([confirmed, *parts])}"
