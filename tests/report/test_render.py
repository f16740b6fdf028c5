"""Reports are rendered in every format and read back from JSON."""

from __future__ import annotations

import json
import sys
from subprocess import run
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from relayout.report.render import FORMATS, render_json, render_junit, render_sarif, render_text
from relayout.report.schema import (
    Account,
    Conversion,
    Entry,
    Finding,
    Numeric,
    OutputDifference,
    Report,
    RequiredBy,
    SolverFacts,
    Totals,
    Verification,
)

BEFORE = Totals(nodes=12, transposes=4, bytes=8_000_000)
AFTER = Totals(nodes=9, transposes=1, bytes=2_070_000)
CONVERSION = Conversion(
    from_="NHWC",
    value="image",
    to="NCHW",
    kind="transpose",
    bytes=2_070_000,
    required_by=(RequiredBy(node="conv1", operand=0, layout="NCHW"),),
)
ERROR = Finding(
    rule="layout-requirement",
    node="conv[1]",
    operand=0,
    expected="NHWC",
    found="NCHW",
    message="the backend wants another layout",
)
NOTE = Finding(rule="function-missing", severity="note", node="custom\x00", message="a custom operator without a body")


def report_with(*findings: Finding, **fields: object) -> Report:
    passed = all(finding.severity != "error" for finding in findings)
    facts = {"status": "optimal", "cost": 4, "bound": 4, "backend": "nhwc", "before": BEFORE, "after": AFTER}
    verification = Verification(passed=passed, findings=findings)
    return Report.model_validate({**facts, "verification": verification, **fields})


def test_the_json_has_the_names_of_the_contract() -> None:
    report = report_with(
        conversions=(CONVERSION,),
        solver=SolverFacts(choices=3, kernel_choices=0, engine="reduction", seconds={"a": 0.5}),
    )
    written = json.loads(render_json(report))
    assert list(written) == [
        "schema_version",
        "status",
        "cost",
        "bound",
        "gap",
        "proof",
        "objective",
        "backend",
        "before",
        "after",
        "account",
        "assumed",
        "boundary",
        "conversions",
        "transfers",
        "devices",
        "explanation",
        "solver",
        "verification",
        "warnings",
    ]
    conversion = ["value", "from", "to", "kind", "bytes", "passes", "padding", "producer"]
    assert list(written["conversions"][0]) == [*conversion, "required_by", "saved", "reasons"]
    assert written["conversions"][0]["required_by"] == [{"node": "conv1", "operand": 0, "layout": "NCHW"}]


def test_a_report_that_was_read_back_equals_the_one_that_was_written() -> None:
    numeric = Numeric(
        status="compared",
        runtime="onnxruntime",
        samples=2,
        outputs=(
            OutputDifference(
                name="y", max_abs=float("inf"), max_rel=0.0, tolerance=1e-4, sensitivity=1.0, passed=False
            ),
        ),
    )
    verification = Verification(passed=False, findings=(ERROR, NOTE), numeric=numeric)
    report = report_with(conversions=(CONVERSION,), verification=verification)
    assert Report.model_validate_json(render_json(report)) == report


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Totals.model_validate({"nodes": 1, "transposes": 0, "bytes": 0, "byte": 0})


def test_a_report_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        BEFORE.nodes = 3  # type: ignore[misc]


@pytest.mark.parametrize(("cost", "bound", "gap"), [(4, 4, 0.0), (4, 3, 0.25), (0, 0, 0.0), (None, None, None)])
def test_the_gap_is_relative_to_the_cost(cost: int | None, bound: int | None, gap: float | None) -> None:
    assert report_with(cost=cost, bound=bound).gap == gap


@pytest.mark.parametrize(
    ("status", "findings", "ok"),
    [
        ("optimal", (), True),
        ("feasible", (NOTE,), True),
        ("verified", (ERROR,), False),
        ("infeasible", (), False),
        ("unknown", (), False),
    ],
)
def test_a_report_is_ok_with_a_legal_model_and_without_errors(
    status: str, findings: tuple[Finding, ...], ok: bool
) -> None:
    assert report_with(*findings, status=status).ok is ok


def test_the_table_puts_before_and_after_side_by_side() -> None:
    account = Account(transposes=Entry(count=1, bytes=2_070_000, cost=3), pads=Entry(count=1, bytes=10_000, cost=1))
    after = AFTER.model_copy(update={"pads": 1, "pad_bytes": 10_000})
    text = render_text(report_with(conversions=(CONVERSION,), bound=3, status="feasible", account=account, after=after))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert ["transposes", "4", "8.00", "1", "2.07", "3"] in rows
    assert ["pads", "0", "0.00", "1", "0.01", "1"] in rows
    assert ["total", "4", "8.00", "2", "2.08", "4"] in rows
    assert ["nodes", "12", "", "9", "", ""] in rows
    assert ["status", "", "", "feasible", "", ""] in rows
    assert ["bound", "", "", "", "", "3 (gap 25.00 %)"] in rows
    assert ["image", "NHWC", "NCHW", "transpose", "2.07", "conv1:0 NCHW"] in rows


def test_the_text_shows_findings_as_they_are_named_in_the_model() -> None:
    assert "error: [layout-requirement] conv[1], operand 0" in render_text(report_with(ERROR))
    assert "verification failed" in render_text(report_with(ERROR))
    assert "\x1b[" not in render_text(report_with(ERROR))


def test_junit_counts_errors_as_failures_and_keeps_notes_as_output() -> None:
    suite = ElementTree.fromstring(render_junit(report_with(ERROR, NOTE))).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "layout-requirement"
    assert "custom?" in (suite.findtext("system-out") or "")


def test_junit_of_a_clean_run_is_one_passed_case() -> None:
    suite = ElementTree.fromstring(render_junit(report_with())).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert suite.find("testcase") is not None


def test_sarif_has_a_result_for_each_finding_that_points_at_its_rule() -> None:
    log = json.loads(render_sarif(report_with(ERROR, NOTE), artifact="model.onnx"))
    (run_,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert [result["level"] for result in run_["results"]] == ["error", "note"]
    rules = [rule["id"] for rule in run_["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run_["results"])
    assert run_["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "model.onnx"


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_renders_every_report(name: str) -> None:
    assert FORMATS[name](report_with(ERROR, NOTE, conversions=(CONVERSION,)))
    assert FORMATS[name](report_with(status="infeasible", cost=None, bound=None, verification=None))


def test_rich_is_imported_only_to_draw_tables() -> None:
    program = "import sys, relayout.report.render; sys.exit('rich' in sys.modules)"
    assert run([sys.executable, "-c", program], check=False).returncode == 0
