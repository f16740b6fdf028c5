"""Findings of one cause in one place: a rule that many nodes break in the same way is reported once, with its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from relayout.report.schema import Finding, Severity

# The verifier names values in brackets; everything else in a message is the same for all nodes of a cause.
_VALUE = re.compile(r" \([^()]*\)")
_MOST_PLACES = 5
# Each finding has its own measured numbers, which are as good as expected. The report keeps them.
_MEASURED = frozenset({"rounding"})


@dataclass(frozen=True, slots=True)
class Cause:
    """Findings that differ only in their node, with the `places` where they are, such as `conv1, operand 0`."""

    rule: str
    severity: Severity
    text: str
    places: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def message(self) -> str:
        """One line: the message, the first places, and the number of the others."""
        if len(self.findings) == 1:
            return f"{self.places[0]}: {self.text}"
        more = f" and {len(self.places) - _MOST_PLACES} more" if len(self.places) > _MOST_PLACES else ""
        return f"{self.text}: at {len(self.places)} places, {'; '.join(self.places[:_MOST_PLACES])}{more}"

    def fingerprint(self, model: str) -> str:
        """A hexadecimal text that stays when nodes are added to the cause or the report is written again."""
        first = self.findings[0]
        return fingerprint_of(model, self.rule, _text(first), str(first.operand))


def fingerprint_of(*facts: str) -> str:
    """A hexadecimal text of 64 bits."""
    return sha256("\0".join(facts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def causes(findings: Iterable[Finding]) -> list[Cause]:
    """The findings by cause, in the order of the first of each."""
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.rule, finding.severity, finding.operand, _text(finding)), []).append(finding)
    return [
        Cause(
            rule=group[0].rule,
            severity=group[0].severity,
            text=_text(group[0]) if len(group) > 1 else group[0].message + group[0].sides,
            places=tuple(finding.place for finding in group),
            findings=tuple(group),
        )
        for group in alike.values()
    ]


def _text(finding: Finding) -> str:
    return _VALUE.sub("", finding.message) + ("" if finding.rule in _MEASURED else finding.sides)
