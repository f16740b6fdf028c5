"""A setting that fits nothing is a warning, and one that has no meaning an error: legalize and verify say so alike."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from command_line import Run, saved

PLUGIN = """
from relayout import Backend


class Misspelt(Backend):
    name = "misspelt"

    def nth_input_layout_requirement(self, node, n):
        return "NHWC"


class Refusing(Backend):
    name = "refusing"

    def supports(self, node):
        return node.op_type != "Conv"


class Warning(Backend):
    name = "warning"

    def warnings(self, model):
        yield "the bank is empty"
"""
TABLES = {
    "rule.toml": 'name = "t"\n[[rule]]\nop = "Convv"\ndata = "NHWC"\n',
    "attribute.toml": 'name = "t"\n[[rule]]\nop = "Conv"\nwhen.attributes.grop = 1\ndata = "NHWC"\n',
    "rank.toml": 'name = "t"\n[[rule]]\nop = "Conv"\ndata = "NWC"\n',
    "device.toml": 'name = "t"\n[[device]]\nname = "npu"\nop = "Convv"\n[[device]]\nname = "cpu"\n',
    "assign.toml": 'name = "t"\n[[device]]\nname = "npu"\n[[device]]\nname = "cpu"\n'
    '[[assign]]\nop = "Convv"\ndevices = "npu"\n',
    "free.toml": 'name = "t"\n[[device]]\nname = "npu"\nop = "Conv"\ntransfer = 0\n[[device]]\nname = "cpu"\n',
}
WARNED = {
    "a layout of another rank": (("convert-layout", "--desired-layout", "Conv=NWC"), "Conv=NWC fits no node"),
    "an operator that the model lacks": (("convert-layout", "--desired-layout", "LRN=NHWC"), "the model has no LRN"),
    "an option for no node": (("convert-layout", "--backend-option", 'skip=["conv3"]'), "no node of the name conv3"),
    "a rule for no operator": (("rule.toml",), "there is no operator Convv; did you mean Conv?"),
    "a rule for no attribute": (("attribute.toml",), "rule has an attribute grop; did you mean group?"),
    "a rule for another rank": (("rank.toml",), "no rule fits a node of the model"),
    "a device for no operator": (("device.toml",), "device npu: no node of the model fits; did you mean Conv?"),
    "an assignment for no operator": (("assign.toml",), "assign[0]: no node of the model fits; did you mean Conv?"),
    "a device without any cost": (("free.toml",), "npu has no cost"),
    "a misspelt hook": (("plugin.py:Misspelt",), "did you mean nth_input_layout_requirements?"),
    "nodes that are refused": (("plugin.py:Refusing",), "does not run conv1 (Conv), conv2 (Conv)"),
    "a warning of the backend's own": (("plugin.py:Warning",), "the bank is empty"),
}
REFUSED = {
    "no backend": (("",), "there is no backend ''"),
    "a misspelt backend": (("nhwcc",), "did you mean nhwc"),
    "a file without its suffix": (("rule",), "did you mean the file rule.toml?"),
    "a misspelt operator": (("convert-layout", "--desired-layout", "Convv=NHWC"), "did you mean Conv"),
    "an unknown dim": (("nhwc", "--dim", "n=3"), "no symbolic dim of this name"),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables and the plugin in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("plugin.py").write_text(PLUGIN)
    for name, text in TABLES.items():
        Path(name).write_text(text)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("verb", ["legalize", "verify"])
@pytest.mark.parametrize(("backend", "text"), WARNED.values(), ids=WARNED)
def test_what_fits_nothing_is_a_warning(verb: str, backend: tuple[str, ...], text: str, model: Path, run: Run) -> None:
    said = run(verb, model, "--backend", *backend, "--quiet")
    (line, *_) = [line for line in (said.out + said.err).splitlines() if text in line]
    assert "warning: " in line


@pytest.mark.usefixtures("files")
def test_an_operator_of_onnx_that_the_model_lacks_is_no_misspelt_one(tmp_path: Path, run: Run) -> None:
    path = saved(
        tmp_path / "concat.onnx",
        '<ir_version: 10, opset_import: ["" : 20]> g (float[1,4] x) => (float[2,4] y) { y = Concat <axis = 0> (x, x) }',
    )
    said = run("legalize", path, "--backend", "free.toml", "--quiet")
    (line,) = [line for line in (said.out + said.err).splitlines() if "device npu: no node of the model fits" in line]
    assert line.endswith("no node of the model fits")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("verb", ["legalize", "verify"])
@pytest.mark.parametrize(("backend", "text"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_meaning_is_an_error(verb: str, backend: tuple[str, ...], text: str, model: Path, run: Run) -> None:
    said = run(verb, model, "--backend", *backend, "--quiet")
    assert said.status == 2
    assert text in said.err


def test_an_unknown_operator_of_onnx_is_an_error(tmp_path: Path, run: Run) -> None:
    unknown = saved(
        tmp_path / "unknown.onnx",
        '<ir_version: 10, opset_import: ["" : 20]> g (float[1,4] x) => (float[1,4] y) { y = Reluu (x) }',
    )
    for verb in ("legalize", "verify"):
        said = run(verb, unknown, "--backend", "nhwc", "--quiet")
        assert said.status == 2
        assert "unknown.onnx, graph 'g', node 0 (Reluu): ONNX has no operator Reluu\n" in said.err
        assert "did you mean Relu?" in said.err


def test_the_legal_model_in_place_of_its_source_is_a_warning(model: Path, run: Run) -> None:
    said = run("legalize", model, "-o", model, "--backend", "nhwc", "--quiet")
    assert (said.status, "is the source too" in said.err) == (0, True)
    assert onnx.load(model).functions


def test_no_device_need_run_what_moves_data_or_is_constant(tmp_path: Path, run: Run) -> None:
    (tmp_path / "relu.py").write_text(
        "from relayout import Backend\n\n\nclass Relus(Backend):\n    name = 'relus'\n\n"
        "    def supports(self, node):\n        return node.op_type == 'Relu'\n"
    )
    text = """<ir_version: 10, opset_import: ["" : 20]> g (float[1,2,3] x) => (float[1,3,4] y) <int64[2] of = {2, 4}> {
        k = ConstantOfShape (of) t = Transpose <perm = [0, 2, 1]> (x) [product] m = MatMul (t, k) y = Relu (m) }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    said = run("legalize", path, "--backend", tmp_path / "relu.py", "--quiet")
    assert "relus does not run product (MatMul), and there is no other device" in said.err
