"""`relayout explain`, `backends`, `layout`, `version`, and the help of every command."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run, saved
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from installed_packages import install

from relayout.cli import main
from relayout.report.schema import Report


def test_explain_names_producer_and_consumers_of_each_value_and_its_bytes(model: Path, run: Run) -> None:
    said = run("explain", model)
    assert said.status == 0
    first = said.out.split("\n\n")[0].splitlines()
    assert first[0].startswith("1. image: ")
    assert first[0].endswith("transpose, 2048 bytes")
    assert first[1].split()[:3] == ["produced", "by", "input"]
    assert [" ".join(line.split()[:2]) for line in first[2:5]] == ["required by", "required by", "caused by"]
    assert any("input image" in line and "saves 1 transpose, 2048 bytes" in line for line in first[2:])
    assert said.out.endswith(
        "cost 2560 bytes for the backend onnx: 2 transposes (2560)\n"
        "optimal: no legal model costs less than 2560 bytes, over the formats in reach\n"
    )


def test_explain_groups_equal_conversions_and_sums_up_each_kind(tmp_path: Path, run: Run) -> None:
    blocks = "".join(
        f"""
        a{n} = Transpose <perm = [0, 3, 1, 2]> (image)
        [conv{n}] b{n} = Conv (a{n}, weight)
        [norm{n}] c{n} = Softmax <axis = 1> (b{n})
        y{n} = Transpose <perm = [0, 2, 3, 1]> (c{n})
        """
        for n in range(3)
    )
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    three (float[1,8,8,4] image) => (float[1,8,8,4] y0, float[1,8,8,4] y1, float[1,8,8,4] y2)
    <float[4,4,1,1] weight = {{
        1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1
    }}> {{{blocks}}}
    """
    said = run("explain", saved(tmp_path / "three.onnx", text))
    # The three together move more than the transpose of the image, which the graph has before them.
    assert said.out.startswith("1. c0: NCHW -> NHWC, transpose, 2048 bytes\n   and 2 alike: 2. c1, 3. c2\n")
    assert "\n4. image: " in said.out
    assert "   required by  output y0               NHWC\n" in said.out
    [row] = [line.split() for line in said.out.splitlines() if line.startswith("Conv, result 0")]
    assert row[3:] == ["NCHW", "3", "3", "saves", "3", "transposes,", "6144", "bytes"]


def test_explain_stops_at_its_limit_and_says_so(model: Path, run: Run) -> None:
    said = run("explain", model, "--limit", "1")
    assert said.status == 0
    assert "were not dropped: --limit 1 was reached" in said.out


def test_explain_has_the_report_too_and_writes_no_model(model: Path, run: Run) -> None:
    said = run("explain", model, "--backend", "nhwc", "--report", model.parent / "report.json")
    assert "cost 0 bytes" in said.out
    assert Report.model_validate_json((model.parent / "report.json").read_text()).cost == 0
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.onnx", "report.json"]


def test_backends_lists_each_with_its_distribution_and_summary(run: Run) -> None:
    said = run("backends")
    assert said.status == 0
    rows = [line.split(maxsplit=3) for line in said.out.splitlines()]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert {"canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"} <= {row[0] for row in rows}
    assert all(len(row) == 4 and row[1] for row in rows)


def test_backends_lists_the_others_beside_two_of_one_name(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "their-layouts", "nhwc = theirs:B")
    monkeypatch.syspath_prepend(tmp_path)
    said = run("backends")
    assert said.status == 0, said.err
    rows = {line.split()[0]: line for line in said.out.splitlines()}
    assert "broken: several backends are named 'nhwc' (relayout 0.1.0 (relayout_backends" in rows["nhwc"]
    assert "and their-layouts 1.0 (theirs:B)" in rows["nhwc"]
    assert "broken" not in rows["nchw"]
    refused = run("backends", "nhwc")
    assert refused.status == 2
    assert "their-layouts 1.0 (theirs:B)" in refused.err


@pytest.mark.parametrize("name", ["canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"])
def test_backends_shows_the_requirements_of_one(name: str, run: Run) -> None:
    said = run("backends", name)
    assert said.status == 0
    assert said.out.startswith(f"{name}: ")


def test_backends_shows_layouts_by_operator_and_rank(run: Run) -> None:
    blocks = run("backends", "nhwc").out.split("\n\n")
    assert "MaxPool\n  rank 3: NWC -> NWC, NWC\n  rank 4: NHWC -> NHWC, NHWC\n  rank 5: NDHWC -> NDHWC, NDHWC" in blocks
    (conv,) = [block for block in blocks if block.startswith("Conv, ")]
    assert "  rank 4: NHWC, HWIO -> NHWC\n" in conv


def test_a_backend_without_requirements_is_shown_to_have_none(run: Run) -> None:
    assert run("backends", "onnx").out.endswith("\n\nAll operators are as ONNX defines them.\n")


def test_a_hook_may_be_about_nodes_that_no_sample_is_like(tmp_path: Path, run: Run) -> None:
    (tmp_path / "wide.py").write_text(
        'from relayout import Backend\n\n\nclass Wide(Backend):\n    """Wide pools on NHWC."""\n\n    name = "wide"\n\n'
        "    def nth_input_layout_requirements(self, node, n):\n"
        '        wide = node.op_type == "MaxPool" and node.inputs[0].shape[1] == 4096\n'
        '        return "NHWC" if wide else super().nth_input_layout_requirements(node, n)\n'
    )
    assert run("backends", tmp_path / "wide.py").out.endswith("\n\nAll sample nodes are as ONNX defines them.\n")


def test_backends_shows_a_file_with_its_alternatives_and_their_costs(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\n[[rule]]\nop = "MaxPool"\n'
        '[[rule.implementation]]\ndata = "NHWC"\n[[rule.implementation]]\ndata = "NCHW"\ncost = 64\n'
    )
    said = run("backends", tmp_path / "mine.toml")
    assert said.out.startswith("mine: a table that extends onnx\n")
    assert "  rank 4: NHWC -> NHWC, NHWC or NCHW -> NCHW, NCHW (64 bytes more)\n" in said.out


def test_backends_shows_the_requirements_of_products_of_matrices(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\n[[rule]]\nop = ["Gemm", "MatMul"]\nwhen = { rank = 2, result.rank = 2 }\n'
        'inputs = ["**", "{0,1}"]\n'
    )
    blocks = run("backends", tmp_path / "mine.toml").out.split("\n\n")
    assert "Gemm, MatMul\n  rank 2: any, {0,1} -> any" in blocks


def test_backends_shows_the_options_that_a_file_gives(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\nextends = "auto-nhwc"\noptions = { device = "cpu" }\n')
    said = run("backends", tmp_path / "mine.toml")
    assert said.out.startswith('mine: a table that extends auto-nhwc with device="cpu"\n')


def test_a_wrong_verb_before_a_backend_gets_the_nearest(run: Run) -> None:
    ended = run("backends", "chekc", "nhwc")
    assert (ended.status, "Did you mean 'check'?" in ended.err) == (2, True)


def test_a_backend_that_is_not_there_is_2(run: Run) -> None:
    assert "did you mean nhwc or nchw?" in run("backends", "nhcw").err


def test_layout_shows_dims_and_tvms_notation(run: Run) -> None:
    said = run("layout", "N[a=32]C[acme:x]HWc[tile:16]")
    assert said.status == 0
    assert "rank    5" in said.out
    rows = [line.split() for line in said.out.splitlines()]
    assert ["0", "N", "32"] in rows
    assert ["1", "C", "1", "acme:x"] in rows
    assert ["4", "c", "1", "16"] in rows


def test_layout_reads_and_writes_tvms_notation(run: Run) -> None:
    assert "TVM     NCHW16c" in run("layout", "NCHWc[tile:16]").out
    assert "layout  NCHWc[tile:16]" in run("layout", "--tvm", "NCHW16c").out


def test_layout_reads_tvms_and_xlas_notation(run: Run) -> None:
    assert "layout  NCHWc[tile:16]" in run("layout", "NCHW16c").out
    assert "XLA     {1,3,2,0} of NCHW" in run("layout", "NHWC").out
    said = run("layout", "{1,0}").out
    assert "layout  {1,0}" in said
    assert "XLA     {1,0}" in said
    assert "depends on the tensor's axes" in run("layout", "XY").out


@pytest.mark.parametrize(("text", "column"), [("N[a=3HWC", 6), ("NN", 2), ("N!", 2), ("-N", None)])
def test_a_wrong_layout_is_2_with_a_caret_under_the_fault(text: str, column: int | None, run: Run) -> None:
    said = run("layout", text)
    assert said.status == 2
    if column is not None:
        *_, shown, caret = said.err.rstrip("\n").split("\n")
        assert shown.strip() == text
        assert caret.index("^") - shown.index(text) == column - 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=20))
def test_any_text_is_a_layout_or_a_layout_error(text: str) -> None:
    assert main(["layout", "--", text]) in (0, 2)


def test_the_version_is_the_packages(run: Run) -> None:
    from importlib.metadata import version

    assert run("--version").out == f"relayout {version('relayout')}\n"


@pytest.mark.parametrize("command", ["legalize", "verify", "explain", "backends", "layout", "batch", "serve"])
def test_every_command_has_its_help(command: str, run: Run) -> None:
    said = run(command, "--help")
    assert said.status == 0
    assert f"Usage: relayout {command}" in said.out
    assert command in run("--help").out
