"""A baseline: what was there stays allowed, and what is worse is an error."""

from __future__ import annotations

import pytest

from relayout.errors import InputError
from relayout.report.baseline import against_baseline, read_baseline
from relayout.report.results import ModelResult, Results, render_json
from relayout.report.schema import Finding, Report, Totals, Verification


def report(transposes: int, *nodes: str, rule: str = "layout-requirement", backend: str = "nhwc") -> Report:
    findings = tuple(Finding(rule=rule, node=node, operand=0, message="wrong") for node in nodes)
    spent = Totals(nodes=9, transposes=transposes, bytes=100 * transposes)
    verification = Verification(passed=not findings, findings=findings)
    return Report(status="failed", backend=backend, before=spent, after=spent, verification=verification)


def judged(now: Report, before: Report) -> list[tuple[str, str, str | None]]:
    verification = against_baseline(now, before).verification
    assert verification is not None
    assert verification.passed == all(each.severity != "error" for each in verification.findings)
    return [(each.severity, each.rule, each.node) for each in verification.findings]


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (report(2, "a"), report(2, "a"), [("note", "layout-requirement", "a")]),
        (report(2, "a", "a"), report(2, "a"), [(way, "layout-requirement", "a") for way in ("note", "error")]),
        (report(2, "b"), report(2, "a"), [("error", "layout-requirement", "b")]),
        (report(2, "a", rule="runtime"), report(2, "a", rule="runtime"), [("error", "runtime", "a")]),
        (report(3), report(2), [("error", "baseline", None)] * 3),
        (report(1), report(2), [("note", "baseline", None)] * 3),
        (report(2), report(2, backend="nchw"), [("error", "baseline", None)]),
        (report(2), report(2, "a"), []),
    ],
)
def test_only_what_is_worse_is_an_error(
    now: Report, before: Report, expected: list[tuple[str, str, str | None]]
) -> None:
    assert judged(now, before) == expected


def test_the_difference_is_reported() -> None:
    verification = against_baseline(report(3), report(2)).verification
    assert verification is not None
    finding = verification.findings[0]
    assert (finding.expected, finding.found) == ("at most 2", "3")
    assert finding.message == "more transposes than in the baseline"


def test_the_reports_of_one_model_and_of_many_are_read() -> None:
    one, other = report(1), report(2)
    gone = ModelResult("b.onnx", 2, error="gone")
    results = ModelResult("a.onnx", 0, 0.0, one), gone, ModelResult("c.onnx", 0, 0.0, other)
    assert read_baseline(render_json(Results(results, is_list=True)), "f") == {"a.onnx": one, "c.onnx": other}
    assert read_baseline(render_json(Results(results[:1])), "f") == {None: one}


WRONG = ["", "{", "[]}", "3", '[{"model": 3}]', '{"report": {}, "model": "a"}', '{"nodes": 1}']


@pytest.mark.parametrize("text", WRONG)
def test_a_file_of_another_kind_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="not a report"):
        read_baseline(text, "file")
