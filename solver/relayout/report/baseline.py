"""The comparison of a run with an earlier one: requirements that were broken before are notes, and what is worse is an
error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from relayout.errors import InputError
from relayout.model.graph_json.json_text import parse_json
from relayout.report.schema import Finding, Report, Totals

RULE = "baseline"
# Wrong numbers, or a comparison that was not made, stay errors whatever was there before.
_KNOWN = "layout-requirement"
# More nodes are no fault: a conversion that is gone may leave a Reshape.
_COUNTS = {"transposes": "transposes", "conversions": "conversions", "moved": "bytes moved by conversions"}


def read_baseline(text: str, where: str) -> dict[str | None, Report]:
    """The reports of a JSON report by model; the report of one model has None. Raises InputError."""
    try:
        found: Any = parse_json(text)
        if isinstance(found, dict) and "report" not in found:
            return {None: Report.model_validate(found)}
        records = found if isinstance(found, list) else [found]
        return {each["model"]: Report.model_validate(each["report"]) for each in records if each["report"] is not None}
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise _no_report(where, f"{place}: {fault['msg']}" if place else fault["msg"]) from error
    except KeyError as error:
        raise _no_report(where, f"a record without the key {error}") from error
    except (ValueError, TypeError) as error:
        raise _no_report(where, str(error)) from error


def _no_report(where: str, found: str) -> InputError:
    expected = "what `relayout verify --report FILE.json` writes"
    return InputError("not a report", where=where, expected=expected, found=found.partition("\n")[0][:200])


def against_baseline(report: Report, earlier: Report | None) -> Report:
    """The report with a finding for each count that differs, and with notes for the broken requirements that `earlier`
    has too. Without an earlier report a note says so."""
    findings = report.findings
    if earlier is None:
        findings = (*findings, Finding(rule=RULE, severity="note", message="the baseline does not have this model"))
    elif report.backend != earlier.backend:
        message = "the baseline is of another backend"
        findings = (*findings, Finding(rule=RULE, expected=earlier.backend, found=report.backend, message=message))
    else:
        known = Counter(map(_key, earlier.findings))
        findings = (*_judged(findings, known), *_counts(report.after, earlier.after))
    return report.with_findings(findings)


def _judged(findings: tuple[Finding, ...], known: Counter[tuple[object, ...]]) -> Iterator[Finding]:
    for finding in findings:
        if finding.severity == "error" and finding.rule == _KNOWN and known[_key(finding)] > 0:
            known[_key(finding)] -= 1
            yield finding.model_copy(update={"severity": "note", "message": f"in the baseline too: {finding.message}"})
        else:
            yield finding


def _counts(now: Totals, before: Totals) -> Iterator[Finding]:
    for attribute, name in _COUNTS.items():
        found, expected = getattr(now, attribute), getattr(before, attribute)
        if found > expected:
            yield Finding(
                rule=RULE, expected=f"at most {expected}", found=str(found), message=f"more {name} than in the baseline"
            )
        elif found < expected:
            message = f"fewer {name} than in the baseline ({found} for {expected}): write it again to keep that"
            yield Finding(rule=RULE, severity="note", message=message)


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.node, finding.operand
