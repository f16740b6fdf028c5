"""What the verifier found, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relayout.report import Report

__all__ = ["finding_lines"]


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
