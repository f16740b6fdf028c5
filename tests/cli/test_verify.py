"""`relayout verify`: findings, reports for programs, budgets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from command_line import Run

from relayout.report.formats import FORMATS
from relayout.report.schema import Report


def test_a_legal_model_passes(model: Path, tmp_path: Path, run: Run) -> None:
    run("legalize", model, "-o", tmp_path / "legal.onnx", "--backend", "nhwc")
    said = run("verify", tmp_path / "legal.onnx", "--backend", "nhwc", "--against", model)
    assert said.status == 0
    assert "features: differs by" in said.out
    assert said.out.endswith("verification for the backend nhwc passed\n")


def test_both_models_run_on_inputs_from_files(model: Path, tmp_path: Path, run: Run) -> None:
    run("legalize", model, "-o", tmp_path / "legal.onnx", "--backend", "nhwc")
    inputs = onnx.load(model).graph.input
    shapes = {each.name: [dim.dim_value or 1 for dim in each.type.tensor_type.shape.dim] for each in inputs}
    for n in range(2):
        random = np.random.default_rng(n)
        np.savez(
            tmp_path / f"{n}.npz", **{name: random.normal(size=shape).astype("f") for name, shape in shapes.items()}
        )
    (tmp_path / "none.npz").write_bytes(b"no zip file")
    compare = ["verify", tmp_path / "legal.onnx", "--against", model]
    said = run(*compare, "--inputs", tmp_path / "0.npz", "--inputs", tmp_path / "1.npz")
    assert said.status == 0
    assert "features: differs by" in said.out
    said = run(*compare, "--inputs", tmp_path / "none.npz")
    assert said.status == 2
    assert "none.npz: the inputs cannot be read" in said.err
    assert "another kind of file" in said.err
    said = run(*compare, "--inputs", tmp_path / "2.npz")
    assert (said.status, "No such file or directory" in said.err) == (2, True)
    said = run("verify", tmp_path / "legal.onnx", model, "--backend", "nhwc", "--inputs", tmp_path / "0.npz")
    assert (said.status, "inputs for many models" in said.err) == (2, True)
    legalize = ["legalize", model, "-o", tmp_path / "again.onnx", "--backend", "nhwc", "--inputs", tmp_path / "0.npz"]
    said = run(*legalize, "--report", tmp_path / "report.json")
    assert said.status == 0
    numeric = json.loads((tmp_path / "report.json").read_text())["verification"]["numeric"]
    assert (numeric["status"], numeric["samples"]) == ("compared", 1)
    np.savez(tmp_path / "other.npz", nothing=np.zeros(3))
    (tmp_path / "again.onnx").unlink()
    said = run(*legalize[:-1], tmp_path / "other.npz")
    assert (said.status, "inputs, nothing: the inputs do not fit the original" in said.err) == (2, True)
    assert not (tmp_path / "again.onnx").exists()


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
    (tmp_path / "acme.toml").write_text('name = "acme"\nextends = "nhwc"\n')
    assert run("legalize", model, "-o", tmp_path / "legal.onnx", "--backend", tmp_path / "acme.toml").status == 0
    said = run("verify", tmp_path / "legal.onnx")
    assert said.status == 2
    assert "there is no backend 'acme'" in said.err
    assert "the model records this backend" in said.err


@pytest.mark.parametrize("command", ["::error::owned", "##[error]owned", "##vso[task.complete result=Succeeded]"])
def test_a_name_in_a_model_is_no_command_to_a_ci(command: str, tmp_path: Path, run: Run) -> None:
    """The runners of CIs read commands from the output of a step: a line that begins with `::` is one."""
    odd = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y) { y = Conv (x, w) }""")
    odd.graph.node[0].name = f"conv\n  {command}\n"
    odd.graph.input[0].name = odd.graph.node[0].input[0] = f"x\n{command}"
    onnx.save(odd, tmp_path / "odd.onnx")
    for verb in ("verify", "legalize", "explain", "inspect"):
        said = run(verb, tmp_path / "odd.onnx", *([] if verb == "inspect" else ["-b", "nhwc"]))
        lines = [line.lstrip() for line in (said.out + said.err).splitlines()]
        assert not [line for line in lines if line.startswith(("::", "##"))], verb
    said = run("verify", tmp_path / "odd.onnx", "-b", "nhwc", "-q")
    assert len(said.out.splitlines()) == 3


def test_an_output_that_was_not_compared_does_not_pass(tmp_path: Path, run: Run) -> None:
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
    # It was legal already, so it is the source, byte for byte, and records no backend.
    said = run("verify", out, "-b", "onnx", "--against", tmp_path / "odd.onnx", "-q")
    assert said.status == 1
    assert run("verify", out, "-b", "onnx", "--against", tmp_path / "odd.onnx", "-q", "--static").status == 0


@pytest.mark.parametrize(("backend", "status"), [("onnx", "verified"), ("nhwc", "failed")])
def test_the_table_and_the_report_say_whether_the_model_failed(
    backend: str, status: str, plain: Path, tmp_path: Path, run: Run
) -> None:
    said = run("verify", plain, "--backend", backend, "--report", tmp_path / "report.json")
    assert [line.split()[-3] for line in said.err.splitlines() if "| status" in line] == [status]
    assert Report.model_validate_json((tmp_path / "report.json").read_text()).status == status


def test_the_findings_go_to_files_for_programs(model: Path, tmp_path: Path, run: Run) -> None:
    files = [tmp_path / name for name in ("report.json", "junit.xml", "log.sarif")]
    report, junit, sarif = files
    said = run("verify", model, "--backend", "nhwc", *(word for file in files for word in ("--report", file)))
    assert said.status == 1
    verification = Report.model_validate_json(report.read_text()).verification
    assert verification is not None
    found = len(verification.findings)
    assert said.out.rstrip().endswith(f"failed: {found} errors")
    # Findings that differ in their node only are of one cause.
    causes = ElementTree.parse(junit).getroot().findall(".//failure")
    assert sum(len((cause.text or "").splitlines()) for cause in causes) == found > len(causes)
    assert said.out.count("error: [") == len(causes)
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert len(results) == len(causes)
    artifact = results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert artifact == model.as_uri()


def test_the_help_names_the_formats_of_reports(run: Run) -> None:
    assert f"--format {'|'.join(FORMATS)}\n" in run("verify", "--help").out


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_may_be_of_any_format_whatever_its_suffix(name: str, model: Path, run: Run) -> None:
    said = run("verify", model, "--backend", "nhwc", "--report", "-", "--format", name)
    expected = {
        "json": '"verification"', "text": "transposes", "junit": "<testsuites", "sarif": '"runs"',
        "github": "::error file=", "markdown": "| model |",
    }  # fmt: skip
    assert expected[name] in said.out
    # A format without a file is for stdout.
    assert run("verify", model, "--backend", "nhwc", "--format", name).out.count("\n") == said.out.count("\n")


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


@pytest.mark.parametrize(("text", "found"), [("{}", "nothing"), ("[]", "list"), ('{"max": 1}', "max")])
def test_an_error_in_a_budget_says_its_keys_and_what_is_there(text: str, found: str, model: Path, run: Run) -> None:
    budget = model.parent / "budget.json"
    budget.write_text(text)
    said = " ".join(run("verify", model, "--backend", "onnx", "--budget", budget).err.split())
    assert "max_transposes or max_conversions or max_bytes" in said
    assert f"found: {found}" in said


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


def test_a_report_never_overwrites_a_model(model: Path, plain: Path, run: Run) -> None:
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


def test_a_folder_of_models_is_one_run_and_a_bad_one_does_not_stop_it(model: Path, plain: Path, run: Run) -> None:
    folder = model.parent
    (folder / "deep").mkdir()
    (folder / "deep" / "cut.onnx").write_bytes(model.read_bytes()[:-40])
    (folder / "other.json").write_text("{}")
    os.mkfifo(folder / "pipe.onnx")
    said = run("verify", folder, "--backend", "onnx", "--report", folder / "junit.xml", "--report", folder / "all.json")
    assert said.status == 2
    assert "1 .json" in said.err
    rows = [line.split()[:3] for line in said.err.splitlines() if ".onnx  " in line]
    assert rows == [
        [f"{folder}/deep/cut.onnx", "error", rows[0][2]],
        [f"{model}", "passed", "6"],
        [f"{plain}", "passed", "0"],
    ]
    assert f"{plain}: verification for the backend onnx passed" in said.out
    cut = ElementTree.parse(folder / "junit.xml").find("testsuite/testcase/error")
    assert cut is not None
    assert "not an ONNX model" in (cut.text or "")
    assert [each["exit_status"] for each in json.loads((folder / "all.json").read_text())] == [2, 0, 0]


def test_originals_of_a_folder_are_those_at_the_same_paths(model: Path, plain: Path, tmp_path: Path, run: Run) -> None:
    legal = tmp_path / "legal"
    legal.mkdir()
    run("legalize", model, "-o", legal / model.name, "--backend", "nhwc")
    assert run("verify", legal, "--backend", "nhwc", "--against", tmp_path).status == 0
    # Two models of one name in folders: each has the original of its own folder.
    (legal / model.name).unlink()
    for part, backend in ("encoder", "nhwc"), ("decoder", "onnx"):
        (tmp_path / "sources" / part).mkdir(parents=True)
        (legal / part).mkdir()
        source = run("legalize", model, "-o", tmp_path / "sources" / part / "model.onnx", "--backend", backend, "-q")
        assert source.status == 0
        run("legalize", tmp_path / "sources" / part / "model.onnx", "-o", legal / part / "model.onnx", "-q")
    assert run("verify", legal, "--against", tmp_path / "sources").status == 0
    (tmp_path / "sources/encoder/model.onnx").unlink()
    said = run("verify", legal, "--against", tmp_path / "sources")
    assert said.status == 2
    assert "sources/encoder/model.onnx: the model file cannot be read" in said.err
    said = run("verify", model, plain, "--backend", "onnx", "--against", model)
    assert said.status == 2
    assert "one original for many models" in said.err


def test_a_baseline_allows_known_findings_and_no_more(model: Path, plain: Path, run: Run) -> None:
    baseline = model.parent / "report.json"
    assert run("verify", model, "--backend", "nhwc", "--report", baseline).status == 1
    said = run("verify", model, "--backend", "nhwc", "--baseline", baseline)
    assert said.status == 0
    (note,) = [line for line in said.out.splitlines() if "conv1, operand 0" in line]
    assert note.startswith("note: [layout-requirement] in the baseline too: operand 0 of this Conv ")
    run("verify", plain, "--backend", "onnx", "--report", baseline)
    said = run("verify", model, "--backend", "onnx", "--baseline", baseline)
    assert said.status == 1
    assert "[baseline] model: more transposes than in the baseline (expected at most 0, found 6)" in said.out
    assert run("verify", model, plain, "--backend", "onnx", "--baseline", baseline).status == 2
    assert run("verify", model, "--backend", "onnx", "--baseline", plain).status == 2
    assert run("verify", model, "--backend", "onnx", "--baseline", model.parent / "none.json").status == 2
    for text, found in ("{}", "status: Field required"), ('[{"model": "a"}]', "without the key 'report'"):
        baseline.write_text(text)
        assert found in run("verify", model, "--backend", "onnx", "--baseline", baseline).err
    # An error stands alone, without an empty table before it.
    assert run("verify", model.parent / "none.onnx").err.startswith("relayout: error: ")


def test_a_baseline_of_many_models_goes_by_name(model: Path, plain: Path, run: Run) -> None:
    baseline = model.parent / "all.json"
    assert run("verify", model, plain, "--backend", "onnx", "--report", baseline).status == 0
    said = run("verify", model, "--backend", "onnx", "--baseline", baseline)
    assert said.status == 0
    assert f"the baseline has {plain}, which is not among the models" in said.err
    plain.rename(model.parent / "new.onnx")
    said = run("verify", model.parent, "--backend", "onnx", "--baseline", baseline)
    assert "the baseline does not have this model" in said.out


def test_a_folder_without_models_is_2(tmp_path: Path, run: Run) -> None:
    said = run("verify", tmp_path)
    assert said.status == 2
    assert "no models" in said.err
