"""`relayout verify`: findings, reports for programs, budgets."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from command_line import Run

from relayout.report.render import FORMATS
from relayout.report.schema import Report


def test_a_legal_model_passes(model: Path, tmp_path: Path, run: Run) -> None:
    run("legalize", model, "-o", tmp_path / "legal.onnx", "--backend", "nhwc")
    said = run("verify", tmp_path / "legal.onnx", "--backend", "nhwc", "--against", model)
    assert said.status == 0
    assert "features: differs by" in said.out
    assert said.out.endswith("verification for the backend nhwc passed\n")


def test_another_model_does_not_pass_against_the_source(model: Path, plain: Path, run: Run) -> None:
    said = run("verify", plain, "--backend", "onnx", "--against", model)
    assert said.status == 1
    assert "error: [" in said.out


def test_without_a_backend_the_recorded_one_counts(model: Path, plain: Path, tmp_path: Path, run: Run) -> None:
    assert run("legalize", model, "-o", tmp_path / "legal.onnx", "--backend", "nhwc").status == 0
    said = run("verify", tmp_path / "legal.onnx")
    assert (said.status, said.out) == (0, "verification for the backend nhwc passed\n")
    said = run("verify", plain)
    assert said.status == 2
    assert "the model records no backend" in said.err


def test_what_was_not_compared_does_not_pass(tmp_path: Path, run: Run) -> None:
    odd = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
        g (float[2] x) => (float[2] y) { y = mine.Odd (x) }""")
    onnx.save(odd, tmp_path / "odd.onnx")
    out = tmp_path / "out.onnx"
    said = run("legalize", tmp_path / "odd.onnx", "-o", out, "--check", "-q")
    assert said.status == 1
    assert "error: [not-compared]" in said.err
    assert not out.exists()
    assert run("legalize", tmp_path / "odd.onnx", "-o", out, "--check", "--static", "-q").status == 0
    said = run("verify", out, "--against", tmp_path / "odd.onnx", "-q")
    assert said.status == 1
    assert run("verify", out, "--against", tmp_path / "odd.onnx", "-q", "--static").status == 0


@pytest.mark.parametrize(("backend", "status"), [("onnx", "verified"), ("nhwc", "failed")])
def test_the_table_and_the_report_say_whether_the_model_failed(
    backend: str, status: str, plain: Path, tmp_path: Path, run: Run
) -> None:
    said = run("verify", plain, "--backend", backend, "--report", tmp_path / "report.json")
    assert [line.split()[-4] for line in said.err.splitlines() if "| status" in line] == [status]
    assert Report.model_validate_json((tmp_path / "report.json").read_text()).status == status


def test_the_findings_go_to_files_for_programs(model: Path, tmp_path: Path, run: Run) -> None:
    files = [tmp_path / name for name in ("report.json", "junit.xml", "log.sarif")]
    report, junit, sarif = files
    said = run("verify", model, "--backend", "nhwc", *(word for file in files for word in ("--report", file)))
    assert said.status == 1
    verification = Report.model_validate_json(report.read_text()).verification
    assert verification is not None
    found = len(verification.findings)
    assert said.out.count("error: [") == found
    assert ElementTree.parse(junit).getroot().attrib["failures"] == str(found)
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert len(results) == found
    artifact = results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert artifact == model.as_posix()


def test_the_help_names_the_formats_of_reports(run: Run) -> None:
    assert f"--format {'|'.join(FORMATS)} " in run("verify", "--help").out


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_may_be_of_any_format_whatever_its_suffix(name: str, model: Path, run: Run) -> None:
    said = run("verify", model, "--backend", "nhwc", "--report", "-", "--format", name)
    expected = {"json": '"verification"', "text": "transposes", "junit": "<testsuites", "sarif": '"runs"'}
    assert expected[name] in said.out


def test_a_report_on_stdout_has_stdout_to_itself(model: Path, run: Run) -> None:
    said = run("verify", model, "--backend", "nhwc", "--report", "-")
    assert not Report.model_validate_json(said.out).ok
    assert "conv1" in said.err


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("within.toml", "max_transposes = 6\n", 0),
        ("within.json", '{"max_transposes": 6, "max_bytes": 100000}', 0),
        ("count.toml", "max_transposes = 5\n", 1),
        ("bytes.toml", "max_bytes = 1\n", 1),
        ("word.toml", 'max_bytes = "few"\n', 2),
        ("bool.toml", "max_bytes = true\n", 2),
        ("negative.toml", "max_bytes = -1\n", 2),
        ("unknown.toml", "max_nodes = 5\n", 2),
        ("empty.toml", "", 2),
        ("list.json", "[]", 2),
        ("broken.toml", "max_bytes = \n", 2),
        ("binary.json", "\x00", 2),
    ],
)
def test_a_budget_is_kept_or_a_finding(name: str, text: str, status: int, model: Path, run: Run) -> None:
    budget = model.parent / name
    budget.write_text(text)
    said = run("verify", model, "--backend", "onnx", "--budget", budget)
    assert said.status == status
    assert ("[budget]" in said.out) == (status == 1)
    assert (name in said.err) == (status == 2)


@pytest.mark.parametrize("verb", ["verify", "legalize"])
@pytest.mark.parametrize("option", ["--max-conversions", "--max-transposes", "--max-bytes"])
def test_a_budget_may_be_given_by_options(verb: str, option: str, model: Path, run: Run) -> None:
    target = model.parent / "legal.onnx"
    spent = Report.model_validate_json(run("legalize", model, "-o", target, "--report", "-").out).after
    exact = {"--max-conversions": spent.conversions, "--max-transposes": spent.transposes, "--max-bytes": spent.moved}
    words = ["verify", target] if verb == "verify" else ["legalize", model, "-o", model.parent / "again.onnx"]
    assert run(*words, option, str(exact[option])).status == 0
    over = run(*words, option, str(exact[option] - 1))
    assert over.status == (3 if verb == "legalize" and option != "--max-bytes" else 1)


def test_a_budget_that_is_not_there_is_2(model: Path, run: Run) -> None:
    assert run("verify", model, "--budget", model.parent / "none.toml").status == 2


def test_no_report_takes_the_place_of_a_model(model: Path, plain: Path, run: Run) -> None:
    option = "--report"
    before = model.read_bytes(), plain.read_bytes()
    spelled = model.parent / ".." / model.parent.name / model.name
    for arguments in (["verify", model, option, spelled], ["verify", plain, "--against", model, option, model]):
        said = run(*arguments)
        assert said.status == 2
        assert "a result would overwrite an input" in said.err
    for command in (["explain", model], ["legalize", model, "-o", model.parent / "legal.onnx"]):
        assert run(*command, "--report", model).status == 2
    assert (model.read_bytes(), plain.read_bytes()) == before
