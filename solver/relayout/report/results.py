"""The results of one run over one or many models, as records of a JSON report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from relayout.report.causes import Cause, causes
from relayout.report.schema import Finding, Report


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model by its name, with the exit status for it, the seconds that it took, and its report or the error."""

    model: str
    status: int
    seconds: float = 0.0
    report: Report | None = None
    error: str = ""

    @property
    def verdict(self) -> str:
        """`passed`, `failed`, or `error` where there is no answer."""
        if self.report is None or self.error:
            return "error"
        return "passed" if self.report.ok else "failed"

    def causes(self) -> list[Cause]:
        """The findings by cause; for a report that is not ok without a finding, its status."""
        found = causes(() if self.report is None else self.report.findings)
        if self.report is None or self.report.ok or any(cause.severity == "error" for cause in found):
            return found
        reason = "; ".join(self.report.warnings) or "there is no legal model"
        return [*found, *causes([Finding(rule=self.report.status, message=reason)])]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a run. `is_list`: many models were asked for, or a folder, even if it has one."""

    models: tuple[ModelResult, ...]
    is_list: bool = False

    def errors(self) -> Iterator[ModelResult]:
        """The models without an answer."""
        return (each for each in self.models if each.verdict == "error")

    def table(self) -> list[tuple[str, str, str, str, str]]:
        """The heads of the columns, and a row for each model."""
        rows = [("model", "verdict", "transposes", "MB moved", "seconds")]
        for each in self.models:
            after = None if each.report is None else each.report.after
            counts = ("", "") if after is None else (str(after.transposes), f"{after.bytes / 1e6:.2f}")
            rows.append((each.model, each.verdict, *counts, f"{each.seconds:.2f}"))
        return rows

    def with_causes(self) -> Iterator[tuple[ModelResult, Cause]]:
        return ((each, cause) for each in self.models for cause in each.causes())


def render_json(results: Results) -> str:
    """One report by its schema; of many models, or where there is an error, records of `model`, `exit_status`,
    `seconds`, `report` and `error`."""
    if not results.is_list and results.models[0].report is not None:
        return results.models[0].report.model_dump_json(indent=2) + "\n"
    records = [_record(each) for each in results.models]
    return json.dumps(records if results.is_list else records[0], indent=2) + "\n"


def _record(result: ModelResult) -> dict[str, Any]:
    report = result.report.model_dump(mode="json") if result.report is not None else None
    return {
        "model": result.model,
        "exit_status": result.status,
        "seconds": round(result.seconds, 3),
        "report": report,
        "error": result.error or None,
    }
