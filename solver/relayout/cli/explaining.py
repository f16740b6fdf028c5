"""`relayout explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from relayout.cli.failures import DONE
from relayout.cli.files import check_files, put
from relayout.cli.progress import Bar
from relayout.cli.running import STEPS, Wanted, legalize_file
from relayout.cli.terminal import print_result

if TYPE_CHECKING:
    from relayout.report import Conversion, Report

__all__ = ["explained", "run_explain"]


def run_explain(model: Path, wanted: Wanted, report_file: Path | None) -> int:
    """Legalize `model` without writing it, and print why each conversion is there."""
    check_files({"--report": report_file})
    from relayout.rendering import render_json

    with Bar(STEPS) as bar:
        report = legalize_file(model, wanted, bar).report
    if report_file is not None:
        put(report_file, "--report", render_json(report))
    print_result(explained(report))
    return DONE


def explained(report: Report) -> str:
    """Every conversion with its producer's format, each consumer's requirement, and its bytes; then the sum."""
    count, total = len(report.conversions), sum(conversion.bytes for conversion in report.conversions)
    blocks = [_block(number, conversion) for number, conversion in enumerate(report.conversions, 1)]
    proof = "no legal model has less" if report.status == "optimal" else f"no legal model has less than {report.bound}"
    conversions = "1 conversion" if count == 1 else f"{count} conversions"
    blocks.append(f"{conversions}, {total} bytes, for the backend {report.backend}: {report.status}, {proof}")
    return "\n\n".join(blocks)


def _block(number: int, conversion: Conversion) -> str:
    rows = [("given by", conversion.producer or "", conversion.from_)]
    rows += [("wanted by", f"{by.node}, input {by.operand}", by.layout) for by in conversion.required_by]
    widest = max(len(who) for _, who, _ in rows)
    change = f"{conversion.from_} -> {conversion.to}, {conversion.kind}, {conversion.bytes} bytes"
    head = f"{number}. {conversion.value}: {change}"
    return "\n".join([head, *(f"   {role:<9}  {who:<{widest}}  {layout}".rstrip() for role, who, layout in rows)])
