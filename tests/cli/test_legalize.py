"""`relayout legalize`: its output and its files for every kind of input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from command_line import CHANNELS_FIRST, CHANNELS_LAST, Run, input_shape, saved, transposes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relayout
from relayout.cli import main
from relayout.cli.output_files import check_files
from relayout.errors import UsageError
from relayout.report.schema import Report


def test_the_report_fits_the_schema(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--report", tmp_path / "report.json", "-q")
    assert (said.status, said.out, said.err) == (0, "", "")
    report = Report.model_validate_json((tmp_path / "report.json").read_text())
    assert (report.status, report.before.transposes, report.after.transposes) == ("optimal", 6, 2)
    assert report.cost == report.bound == report.after.bytes


def test_the_report_and_the_model_may_go_to_stdout(model: Path, tmp_path: Path, run: Run) -> None:
    report = run("legalize", model, "-o", tmp_path / "legal.onnx", "--report", "-")
    assert Report.model_validate_json(report.out).ok
    assert json.loads(run("legalize", model, "-o", "-").out)["version"] == 1
    assert json.loads(run("legalize", model, "-o", "-.json").out)["version"] == 1
    assert run("legalize", model, "-o", "-", "--report", "-").status == 2


def test_the_tables_on_stdout_are_not_on_stderr_too(plain: Path, run: Run) -> None:
    for command in ("legalize", "verify"):
        said = run(command, plain, "-b", "nchw", "--format", "text")
        assert "| transposes |" in said.out
        assert "| transposes |" not in said.err


def test_the_conversions_that_remain_name_who_requires_them(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx")
    assert "conversions that remain" in said.err
    assert "conv1" in said.err


def test_check_runs_the_verifier_beside_the_source(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "o.onnx", "--backend", "nhwc", "--check", "--report", "-", "-q")
    verification = Report.model_validate_json(said.out).verification
    assert said.status == 0
    assert verification is not None
    assert verification.passed
    assert verification.numeric is not None


def test_inline_leaves_standard_operators_only_and_counts_their_transposes(
    model: Path, tmp_path: Path, run: Run
) -> None:
    said = run("legalize", model, "-o", tmp_path / "o.onnx", "--backend", "nhwc", "--inline", "--report", "-", "-q")
    assert {node.domain for node in onnx.load(tmp_path / "o.onnx").graph.node} <= {"", "ai.onnx"}
    after = Report.model_validate_json(said.out).after
    # The kernels' transposes are there too, and run on constants.
    assert (after.transposes, transposes(tmp_path / "o.onnx")) == (2, 4)


@pytest.mark.parametrize("suffixes", [(".onnx", ".json"), (".json", ".onnx"), (".json", ".json")])
def test_models_are_onnx_or_json_on_both_sides(
    suffixes: tuple[str, str], model: Path, tmp_path: Path, run: Run
) -> None:
    source, target = (tmp_path / f"{name}{suffix}" for name, suffix in zip(("in", "out"), suffixes, strict=True))
    relayout.write_model(relayout.read_model(model), source)
    assert run("legalize", source, "-o", target).status == 0
    assert run("verify", target, "--against", source).status == 0


def test_an_unchanged_model_is_written_as_the_source_file(plain: Path, tmp_path: Path, run: Run) -> None:
    assert run("legalize", plain, "-o", tmp_path / "legal.onnx").status == 0
    assert (tmp_path / "legal.onnx").read_bytes() == plain.read_bytes()


def test_a_legal_model_is_unchanged(model: Path, tmp_path: Path, run: Run) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    for source, target in ((model, first), (first, second)):
        assert run("legalize", source, "-o", target, "--backend", "nhwc").status == 0
    assert first.read_bytes() == second.read_bytes()


def test_a_model_may_be_replaced_by_its_legal_form(model: Path, run: Run) -> None:
    assert run("legalize", model, "-o", model).status == 0
    assert transposes(model) == 2
    before = model.read_bytes()
    assert run("legalize", model, "-o", model).status == 0
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("text", [CHANNELS_LAST, CHANNELS_FIRST], ids=["changed", "unchanged"])
@pytest.mark.parametrize("name", ["model.onnx", "other/legal.onnx"])
def test_weights_in_a_file_follow_the_model(text: str, name: str, tmp_path: Path, run: Run) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / name
    target.parent.mkdir(exist_ok=True)
    proto = onnx.parser.parse_model(text)
    onnx.save(proto, source, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    assert run("legalize", source, "-o", target).status == 0
    assert relayout.verify(target, "onnx", against=proto).passed


def test_an_input_layout_moves_the_boundary(plain: Path, tmp_path: Path, run: Run) -> None:
    assert run("legalize", plain, "-o", tmp_path / "legal.onnx", "--input-layout", "x=NHWC").status == 0
    assert input_shape(tmp_path / "legal.onnx") == ["N", 8, 8, 4]
    assert transposes(tmp_path / "legal.onnx") == 1


def test_any_leaves_the_boundary_layouts_to_the_solver(model: Path, tmp_path: Path, run: Run) -> None:
    layouts = ("--input-layout", "image=any", "--output-layout", "features=any")
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", *layouts)
    assert input_shape(tmp_path / "legal.onnx") == [1, 4, 8, 8]
    assert "input image: NCHW, shape [1,4,8,8], the source's axes in the order 0,3,1,2\n" in said.err
    assert transposes(tmp_path / "legal.onnx") == 0


def test_a_tied_input_and_output_have_one_layout(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--input-layout", "image,features=any")
    order = "the source's axes in the order 0,3,1,2"
    assert f"input image: NCHW, shape [1,4,8,8], {order}, coupled with features\n" in said.err
    assert f"output features: NCHW, shape [1,4,4,4], {order}, coupled with image\n" in said.err
    assert transposes(tmp_path / "legal.onnx") == 0


def test_a_tie_with_a_missing_name_is_2(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--input-layout", "image,nobody=any")
    assert said.status == 2
    assert "--input-layout image,nobody: the graph has no input or output of this name" in said.err
    assert "features, image" in said.err


@pytest.mark.parametrize("skipped", ["conv2", "1"])
def test_desired_layouts_and_skip_are_short_for_options_of_tvms_backend(
    skipped: str, model: Path, tmp_path: Path, run: Run
) -> None:
    wanted = ("--backend", "convert-layout", "--desired-layout", "Conv=NHWC,OHWI", "--skip", skipped)
    assert run("legalize", model, "-o", tmp_path / "legal.onnx", *wanted).status == 0
    graph = onnx.load(tmp_path / "legal.onnx").graph
    assert {node.name: node.domain for node in graph.node if node.op_type == "Conv"} == {
        "conv1": "relayout",
        "conv2": "",
    }


def test_options_reach_a_backend_that_is_named(model: Path, tmp_path: Path, run: Run) -> None:
    wishes = 'desired_layouts={"Conv": ["NHWC", "OHWI"]}'
    tvm = ("--backend", "convert-layout", "--backend-option", wishes, "--backend-option", 'skip=["conv2"]')
    legal = tmp_path / "legal.onnx"
    assert run("legalize", model, "-o", legal, *tvm).status == 0
    domains = {node.name: node.domain for node in onnx.load(legal).graph.node if node.op_type == "Conv"}
    assert domains == {"conv1": "relayout", "conv2": ""}
    assert run("verify", legal, *tvm).status == 0
    assert run("verify", model, *tvm).status == 1
    assert "caused by    Conv 'conv2', input 0    NCHW" in run("explain", model, *tvm).out


def test_text_that_is_no_json_is_an_option_too(model: Path, tmp_path: Path, run: Run) -> None:
    oneflow = ("--backend", "auto-nhwc", "--backend-option")
    for device, kinds in (("cuda", {"relayout"}), ("cpu", {""})):
        assert run("legalize", model, "-o", tmp_path / "legal.onnx", *oneflow, f"device={device}").status == 0
        nodes = onnx.load(tmp_path / "legal.onnx").graph.node
        assert {node.domain for node in nodes if node.op_type == "Conv"} == kinds
    (tmp_path / "models").mkdir()
    model.rename(tmp_path / "models" / "model.onnx")
    assert run("batch", tmp_path / "models", "-o", tmp_path / "legal", *oneflow, "device=cpu").status == 0
    nodes = onnx.load(tmp_path / "legal" / "model.onnx").graph.node
    assert {node.domain for node in nodes} == {""}


def test_a_backends_options_are_listed_with_it(run: Run) -> None:
    said = run("backends", "tpu").out
    assert "--backend-option NAME=VALUE" in said
    assert "space_to_depth=true  (true or false)\n    whether" in said
    assert "max_batch=8  (a whole number)\n    for batches" in said
    assert "--backend-option" not in run("backends", "nhwc").out


def test_the_given_size_of_a_dim_prices_its_bytes(tmp_path: Path, run: Run) -> None:
    model = saved(tmp_path / "model.onnx", CHANNELS_LAST.replace("[1,", "[N,"))
    costs = []
    for size in ("N=1", "N=10"):
        said = run("legalize", model, "-o", tmp_path / "legal.onnx", "--dim", size, "--report", "-")
        costs.append(Report.model_validate_json(said.out).cost)
    assert costs[1] == 10 * (costs[0] or 0) > 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--objective time", "--objective: unknown objective\n  expected: bytes or transposes"),
        ("--time-limit -1", "--time-limit: out of range\n  expected: more than 0"),
        ("--time-limit 0", "more than 0"),
        ("--time-limit nan", "more than 0"),
        ("--time-limit soon", "--time-limit"),
        ("--engine quick", "auto or cp-sat"),
        ("--max-transposes -1", "--max-transposes"),
        ("--input-layout image", "NAME[,NAME]=LAYOUT"),
        ("--input-layout =NHWC", "NAME[,NAME]=LAYOUT"),
        ("--input-layout image=N[a=HWC", "--input-layout image, layout, column 5"),
        ("--input-layout image=any,features=any", "one layout for each time that the option is given"),
        ("--input-layout image=NHQC", "--input-layout image"),
        ("--input-layout image=NHC", "--input-layout image"),
        ("--input-layout picture=NHWC", "no input of this name"),
        ("--input-layout image=NHWC --input-layout image=NCHW", "given twice"),
        ("--output-layout image=NHWC", "no output of this name"),
        ("--dim N", "NAME=N"),
        ("--dim N=0", "1 or more"),
        ("--dim N=\N{SUPERSCRIPT TWO}", "1 or more"),
        ("--dim N=9999999999999999999", "at most 18 digits"),
        ("--dim batch=4", "no symbolic dim of this name"),
        ("--backend nowhere.toml", "nowhere.toml"),
        (
            "--backend onnx --desired-layout Conv=NHWC",
            "--desired-layout: the backend 'onnx' does not take",
        ),
        ("--backend nhwc --skip conv1", "hint:     --backend convert-layout has it"),
        ("--desired-layout Conv", "OP=LAYOUT[,KERNEL]"),
        ("-b convert-layout --desired-layout Conf=NHWC", "did you mean Conv?"),
        ("-b convert-layout --desired-layout Conv=NHWQ", "NHWQ"),
        ("-b convert-layout --desired-layout Conv=NHWC --skip conv3", "did you mean conv2 or conv1?"),
        ("--backend-option max_batch", "NAME=VALUE"),
        ("--backend-option max_batch=4", "no options"),
        ("--backend tpu --backend-option batch=4", "of max_batch, max_channels, space_to_depth"),
        ("--backend tpu --backend-option max-batch=4", "did you mean max_batch?"),
        ("--backend tpu --backend-option max_batch=many", "max_batch: the backend 'tpu' does not take this value"),
        ("--backend tpu --backend-option space_to_depth=1", "true or false"),
        ("--backend tpu --backend-option max_batch=-5", "max_batch: a negative number\n  expected: 0 or more"),
        ("--backend tpu --backend-option max_batch=1 --backend-option max_batch=2", "given twice"),
        ("--backend auto-nhwc --backend-option device=fpga", "cpu or cuda"),
        ("--backend x86-nchwc --backend-option block=4", "8 or 16"),
        ("-b convert-layout --desired-layout Conv=NHWC --backend-option desired_layouts={}", "given twice"),
        ("--report .", "the path is a folder"),
        ("--report nowhere/report.json", "no such folder"),
        ("--report out.onnx", "two results in one file"),
        ("--report out.json --report out.json", "two results in one file"),
        ("--report out.json --format html", "json or text or junit or sarif"),
        ("-o out", "the suffix says the format"),
        ("-o out.txt", ".onnx or .json"),
        ("-o nowhere/out.onnx", "no such folder"),
        ("-o folder.onnx", "the path is a folder"),
        ("-o .", "the path is a folder"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_written(
    option: str, said: str, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    Path("folder.onnx").mkdir()
    there = sorted(model.parent.rglob("*"))
    told = run("legalize", "model.onnx", "-o", "out.onnx", *option.split())
    assert (told.status, told.out) == (2, "")
    assert said in told.err
    assert sorted(model.parent.rglob("*")) == there


def test_a_node_to_skip_needs_a_name_in_the_model(tmp_path: Path, run: Run) -> None:
    nameless = saved(tmp_path / "nameless.onnx", CHANNELS_LAST.replace("[conv1]", "").replace("[conv2]", ""))
    model = onnx.load(nameless)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, nameless)
    said = run("legalize", nameless, "-b", "convert-layout", "--desired-layout", "Conv=NHWC", "--skip", "conv1")
    assert said.status == 2
    assert "the model's nodes have no names\n  expected: named nodes, or TVM's count of a convolution" in said.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("option", ["--report", "--certificate"])
def test_without_what_was_asked_for_beside_it_no_model_is_written(option: str, model: Path, run: Run) -> None:
    legal = model.parent / "legal.onnx"
    said = run("legalize", model, "-b", "nhwc", "-o", legal, option, "/dev/full")
    assert said.status == 2
    assert f"{option} /dev/full: the file cannot be written" in said.err
    assert not legal.exists()


def test_a_folder_of_a_read_only_file_system_is_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for found, flag in (("a read-only file system at", os.ST_RDONLY), ("no permission for", 0)):
        monkeypatch.setattr(os, "statvfs", lambda path, flag=flag: SimpleNamespace(f_flag=flag))
        with pytest.raises(UsageError) as caught:
            check_files([("-o", tmp_path / "legal.onnx")])
        assert caught.value.found == f"{found} {tmp_path}"


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.onnx", b""),
        ("text.onnx", b"this is no model"),
        ("graph.onnx", b'{"version": 1}'),
        ("truncated.onnx", half(onnx.parser.parse_model(CHANNELS_LAST).SerializeToString())),
        ("empty.json", b""),
        ("truncated.json", b'{"version": 1, "name": "x"'),
        ("list.json", b"[1, 2]"),
        ("number.json", b"17"),
        ("other.json", b'{"type": "FeatureCollection"}'),
        ("binary.json", bytes(range(256))),
        ("deep.json", b"[" * 100_000),
    ],
)
@pytest.mark.parametrize("command", ["legalize", "verify", "explain"])
def test_a_file_that_is_no_model_is_2_with_its_name(
    command: str, name: str, content: bytes, tmp_path: Path, run: Run
) -> None:
    (tmp_path / name).write_bytes(content)
    output = ("-o", tmp_path / "out.onnx") if command == "legalize" else ()
    said = run(command, tmp_path / name, *output)
    assert (said.status, said.out) == (2, "")
    assert name in said.err
    assert content or f"expected: {'graph JSON' if name.endswith('.json') else 'an ONNX model'}\n" in said.err
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "what", ["folder.onnx", "missing.onnx", "missing/model.onnx", ".", "model.onnx/model.onnx", "loop"]
)
def test_a_path_that_is_no_file_is_2(what: str, model: Path, run: Run) -> None:
    (model.parent / "folder.onnx").mkdir()
    (model.parent / "loop").symlink_to("loop")
    said = run("legalize", model.parent / what, "-o", model.parent / "out.onnx")
    assert said.status == 2
    assert ("relayout batch" in said.err) == (model.parent / what).is_dir()
    assert not (model.parent / "out.onnx").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_2(model: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    assert run("legalize", model, "-o", folder / "out.onnx").status == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_a_model_or_one_clear_error(tmp_path: Path, content: bytes) -> None:
    for suffix in (".onnx", ".json"):
        (tmp_path / f"model{suffix}").write_bytes(content)
        assert main(["explain", str(tmp_path / f"model{suffix}")]) in (0, 2)
