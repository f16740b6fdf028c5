"""The budget: limits on the conversions of a model, each an option; exceeding one is a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from relayout.report.schema import Finding, Report, Totals

LIMITS = {
    "max_transposes": ("transposes", "transposes"),
    "max_conversions": ("conversions", "conversions (transposes, reorders and pads)"),
    "max_bytes": ("moved", "bytes that conversions read and write"),
}
"""By option: the property of the totals that is limited, and its name in messages."""


def over_budget(limits: Mapping[str, Any], spent: Totals) -> Iterator[Finding]:
    """A finding for each limit that the model exceeds. `limits` are by option; None and other options are no limits."""
    for option, (counted, name) in LIMITS.items():
        limit, found = limits.get(option), getattr(spent, counted)
        if limit is not None and found > limit:
            yield Finding(
                rule="budget",
                expected=f"at most {limit}",
                found=str(found),
                message=f"the model has more {name} than the budget",
            )


def within_budget(report: Report, limits: Mapping[str, Any]) -> Report:
    """The report with a finding for each limit that the legal model exceeds."""
    over = tuple(over_budget(limits, report.after))
    return report.with_findings((*report.findings, *over)) if over else report
