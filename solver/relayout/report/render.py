"""A report as JSON, as tables for a person, as JUnit XML and as SARIF 2.1.0.

Each format is one function from a report to text and one entry in `FORMATS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from relayout.report.schema import Account, Finding, Report

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["FORMATS", "render_json", "render_junit", "render_sarif", "render_text"]


def render_json(report: Report) -> str:
    """Return the report by its schema, indented, with a final line break."""
    return report.model_dump_json(indent=2) + "\n"


def render_text(report: Report, *, color: bool = False, width: int = 120) -> str:
    """Return the account, the remaining conversions with the consumers that require them, and the findings."""
    from io import StringIO

    from rich.console import Console

    stream = StringIO()
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    console.print(_summary(report))
    for line in _notes(report):
        console.print(line, markup=False, soft_wrap=True)
    if report.conversions:
        console.print(_conversions(report))
    if report.devices:
        console.print(_devices(report))
    if report.transfers:
        console.print(_transfers(report))
    if report.verification is not None:
        _print_verification(report, console.print)
    for warning in report.warnings:
        console.print(f"warning: {warning}", markup=False)
    return stream.getvalue()


def render_junit(report: Report) -> str:
    """Return JUnit XML: a failed case for each error, and one passed case where nothing failed.

    Warnings and notes are the output of the passed case, so that a CI shows them without failing.
    """
    findings = _findings(report)
    errors = [finding for finding in findings if finding.severity == "error"]
    cases = max(1, len(errors))
    counts = {"tests": str(cases), "failures": str(len(errors)), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "relayout", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": f"relayout verify ({report.backend})", **counts})
    for finding in errors:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"relayout.{finding.rule}", "name": _printable(_device(finding))}
        )
        failure = ElementTree.SubElement(
            case, "failure", {"type": finding.rule, "message": _printable(finding.message)}
        )
        failure.text = _printable(_detail(finding))
    if not errors:
        ElementTree.SubElement(suite, "testcase", {"classname": "relayout.verify", "name": "no errors"})
    remarks = [f"{finding.severity}: {_detail(finding)}" for finding in findings if finding.severity != "error"]
    if remarks:
        ElementTree.SubElement(suite, "system-out").text = _printable("\n".join(remarks))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def render_sarif(report: Report, *, artifact: str | None = None) -> str:
    """Return SARIF 2.1.0, one result for each finding; `artifact` is the URI of the model that was verified."""
    from importlib.metadata import version

    findings = _findings(report)
    rules = sorted({finding.rule for finding in findings})
    driver = {
        "name": "relayout",
        "version": version("relayout"),
        "rules": [{"id": rule, "shortDescription": {"text": rule.replace("-", " ")}} for rule in rules],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "results": [_sarif_result(finding, rules.index(finding.rule), artifact) for finding in findings],
    }
    if artifact is not None:
        run["artifacts"] = [{"location": {"uri": artifact}}]
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2) + "\n"


FORMATS: dict[str, Callable[[Report], str]] = {
    "json": render_json,
    "text": render_text,
    "junit": render_junit,
    "sarif": render_sarif,
}


def _table(title: str, *headings: str) -> Table:
    """A table of text columns; long texts are wrapped."""
    from rich.box import ASCII
    from rich.table import Table

    table = Table(box=ASCII, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _summary(report: Report) -> Table:
    """The account: each kind of conversion in the source and in the legal model, with what it costs there."""
    table = _table(f"backend {report.backend}, objective {report.objective}", "")
    for heading in ("source", "MB", "legal", "MB", "cost"):
        table.add_column(heading, justify="right")
    before, after = report.before, report.after
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
            cost = "" if report.account is None else str(entry.cost)
            table.add_row(name, str(old), _megabytes(old_bytes), str(new), _megabytes(new_bytes), cost)
    olds, news = sum(row[1] for row in counted), sum(row[3] for row in counted)
    moved = _megabytes(sum(row[2] for row in counted)), _megabytes(sum(row[4] for row in counted))
    total = "" if report.cost is None else str(report.cost)
    table.add_row("total", str(olds), moved[0], str(news), moved[1], total, end_section=True)
    table.add_row("nodes", str(before.nodes), "", str(after.nodes), "", "", end_section=True)
    table.add_row("status", "", "", report.status, "", "")
    if report.bound is not None:
        table.add_row("bound", "", "", "", "", _bound(report))
    return table


def _bound(report: Report) -> str:
    if not report.gap:
        return str(report.bound)
    return f"{report.bound} (gap {100 * report.gap:.2f} %)"


def _notes(report: Report) -> Iterator[str]:
    """What the bound proves, why the file has other Transposes than those counted, and the sizes that were assumed."""
    if report.proof is not None:
        yield f"{report.status}: {report.proof}"
    for name, totals in (("source", report.before), ("legal model", report.after)):
        kinds = (
            (totals.transposes_of_constants, "read only constants and do not run"),
            (totals.transposes_in_functions, "are in bodies that define operators of relayout"),
        )
        why = [f"{count} {text}" for count, text in kinds if count]
        if name == "source" and totals == report.after:
            continue
        if why:
            stored, running = totals.transposes_in_file, totals.transposes
            yield f"{name}: {stored} Transposes are stored, {running} run: {', '.join(why)}"
        if totals.transposes_of_units:
            units = totals.transposes_of_units
            yield f"{name}: {units} of the transposes that run only move{'s' * (units == 1)} dims of extent 1, 0 bytes"
    if report.assumed:
        sizes = ", ".join(f"{name}={size}" for name, size in report.assumed.items())
        yield f"assumed sizes: {sizes} (--dim NAME=N gives others)"


def _conversions(report: Report) -> Table:
    from rich.text import Text

    table = _table("conversions that remain", "value", "from", "to", "kind")
    table.add_column("MB", justify="right")
    table.add_column("required by", overflow="fold")
    # Folded constants cost nothing at run time and are many: the text has their number, the JSON has all.
    running = [conversion for conversion in report.conversions if conversion.kind != "folded"]
    for conversion in running:
        readers = ", ".join(f"{by.node}:{by.operand} {by.layout}".rstrip() for by in conversion.required_by)
        kind = conversion.kind if conversion.passes == 1 else f"{conversion.passes} {conversion.kind}s"
        cells = (conversion.value, conversion.from_, conversion.to, kind, _megabytes(conversion.bytes))
        table.add_row(*(Text(cell) for cell in (*cells, readers)))
    folded = len(report.conversions) - len(running)
    if folded:
        table.caption = f"and {folded} folded into constants"
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
    table.add_column("required by", overflow="fold")
    for each in report.transfers:
        readers = ", ".join(f"{by.node}:{by.operand}" for by in each.required_by)
        cells = (each.value, each.from_, each.to, each.layout, _megabytes(each.bytes), readers)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _print_verification(report: Report, print_line: Callable[..., None]) -> None:
    verification = report.verification
    if verification is None:
        return
    for finding in verification.findings:
        print_line(f"{finding.severity}: {_detail(finding)}", markup=False)
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


def _findings(report: Report) -> Sequence[Finding]:
    return () if report.verification is None else report.verification.findings


def _device(finding: Finding) -> str:
    node = finding.node if finding.node else "model"
    return node if finding.operand is None else f"{node}, operand {finding.operand}"


def _detail(finding: Finding) -> str:
    text = f"[{finding.rule}] {_device(finding)}: {finding.message}"
    sides = [f"{label} {side}" for label, side in (("expected", finding.expected), ("found", finding.found)) if side]
    return f"{text} ({', '.join(sides)})" if sides else text


def _sarif_result(finding: Finding, rule_index: int, artifact: str | None) -> dict[str, Any]:
    location: dict[str, Any] = {
        "logicalLocations": [
            {"name": finding.node or "model", "fullyQualifiedName": _device(finding), "kind": "element"}
        ]
    }
    if artifact is not None:
        location["physicalLocation"] = {"artifactLocation": {"uri": artifact, "index": 0}}
    properties = finding.model_dump(include={"operand", "expected", "found"}, exclude_none=True)
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.severity,
        "message": {"text": _detail(finding)},
        "locations": [location],
        **({"properties": properties} if properties else {}),
    }


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"


def _printable(text: str) -> str:
    """Replace characters that XML 1.0 does not allow: node names come from files and may contain any."""
    return "".join(
        c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c < "\ufffe") else "?" for c in text
    )
