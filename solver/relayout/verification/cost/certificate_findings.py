"""The verdict on a certificate in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayout.report.schema import Finding, Report, Verification
from relayout.verification.cost.certificate import Verdict, check

__all__ = ["with_proof"]


def with_proof(report: Report, certificate: Mapping[str, Any]) -> Report:
    """The report with the checker's verdict among the findings; a fault makes the verification fail."""
    before = report.verification or Verification(passed=True)
    finding = _finding(check(certificate), certificate)
    passed = before.passed and finding.severity != "error"
    verification = before.model_copy(update={"findings": (finding, *before.findings), "passed": passed})
    return report.model_copy(update={"verification": verification})


def _finding(verdict: Verdict, certificate: Mapping[str, Any]) -> Finding:
    size = f"{len(certificate['choices'])} choices and {len(certificate['items'])} items"
    if verdict.fault is not None:
        message = "the solution is not what it claims to be"
        return Finding(rule="certificate", expected=f"cost {certificate['cost']}", found=verdict.fault, message=message)
    if verdict.on_trust:
        share = f"{verdict.bound} of {certificate['bound']}, in the solver's unit"
        message = f"the cost was derived again; of the bound only a part, over {size}: the rest is taken on trust"
        return Finding(rule="certificate", severity="note", found=share, message=message)
    message = f"the cost and the bound were derived again, over {size}"
    return Finding(rule="certificate", severity="note", found=str(verdict.cost), message=message)
