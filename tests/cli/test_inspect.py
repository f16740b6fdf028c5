"""`relayout inspect`: facts of a model, differences, pictures; and the dry run of `legalize`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from command_line import CHANNELS_LAST, Run, saved

from relayout.report.inspection.schema import Difference, Inspection


def test_a_model_is_shown_with_its_transposes_and_layouts(model: Path, run: Run) -> None:
    before = model.read_bytes()
    said = run("inspect", model)
    assert said.status == 0
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "Transpose 6" in lines
    assert "11 nodes, 6 transposes of data, 10752 bytes read and written by them" in lines
    at = lines.index("0.00 MB in: NHWC -> NCHW (0,3,1,2)")
    assert lines[at + 1 : at + 3] == ["from input image", "to Conv 'conv1'"]
    at = lines.index("image: NHWC [1,8,8,4] FLOAT")
    assert lines[at + 1] == "from input image"
    assert model.read_bytes() == before


def test_the_json_fits_the_schema_and_describes_the_graph(model: Path, run: Run) -> None:
    facts = Inspection.model_validate_json(run("inspect", model, "--json", "-").out)
    assert facts.totals.transposes == 6
    assert [each.bytes for each in facts.transposes] == [2048] * 5 + [512]
    conv1 = next(node for node in facts.nodes if node.name == "conv1")
    assert (conv1.inputs, conv1.outputs, conv1.is_conversion) == (("a", "weight"), ("b",), False)


def test_a_transpose_of_a_constant_costs_nothing_and_its_origin_is_the_exporters_line(tmp_path: Path, run: Run) -> None:
    proto = onnx.parser.parse_model(CHANNELS_LAST)
    proto.graph.node[0].doc_string = "/app/net.py(12): forward\n/app/main.py(3): <module>\n"
    trace = '  File "main.py", line 3, in <module>\n    f()\n  File "net.py", line 7, in forward\n    x.permute()\n'
    proto.graph.node[2].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    turned = onnx.helper.make_node("Transpose", ["weight"], ["w"], perm=[1, 0, 2, 3])
    proto.graph.node.insert(0, turned)
    proto.graph.node[2].input[1] = "w"
    onnx.save(proto, tmp_path / "m.onnx")
    facts = Inspection.model_validate_json(run("inspect", tmp_path / "m.onnx", "--json", "-").out)
    by_output = {each.output: each for each in facts.transposes}
    assert (by_output["w"].is_constant, by_output["w"].bytes, facts.totals.transposes) == (True, 0, 6)
    assert by_output["a"].origin == "/app/net.py:12"
    assert by_output["c"].origin == "net.py:7 in forward"


def test_two_models_are_compared(model: Path, tmp_path: Path, run: Run) -> None:
    run("legalize", model, "-o", tmp_path / "legal.onnx")
    said = run("inspect", model, tmp_path / "legal.onnx", "--json", tmp_path / "difference.json")
    found = Difference.model_validate_json((tmp_path / "difference.json").read_text())
    assert (found.before.transposes, found.after.transposes) == (6, 2)
    [transposes] = [each for each in found.operators if each.operator == "Transpose"]
    assert (transposes.before, transposes.count) == (6, 2)
    assert len(found.removed) - len(found.added) == 4
    assert "removed conversions" in said.out
    assert "no difference" in run("inspect", model, model).out


def test_the_drawings_have_each_conversion_and_its_neighbours(model: Path, tmp_path: Path, run: Run) -> None:
    dot, svg = tmp_path / "m.dot", tmp_path / "m.svg"
    run("inspect", model, "--dot", dot, "--svg", svg)
    assert dot.read_text().count("lightsalmon") == svg.read_text().count("lightsalmon") == 6
    texts = {text.text for text in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"conv1", "perm 0,3,1,2", "2048 bytes", "input image", "output features", "NCHW 1x4x8x8"} <= texts
    assert "n" in run("inspect", model, "--dot", "-", "--hops", "0").out
    assert "conv1" not in run("inspect", model, "--dot", "-", "--hops", "0").out


@pytest.mark.parametrize("verb", ["inspect", "explain"])
def test_a_folder_gets_the_hint_to_name_one_model(verb: str, model: Path, run: Run) -> None:
    for arguments in ([model.parent], [model, model.parent])[: 2 if verb == "inspect" else 1]:
        said = run(verb, *arguments)
        assert said.status == 2
        assert f"hint:     name one model: relayout {verb} {model.parent / 'NAME.onnx'}" in said.err


def test_an_option_that_has_no_effect_is_refused(model: Path, run: Run) -> None:
    assert "--hops: there is no picture" in run("inspect", model, "--hops", "2").err
    assert "--dim batch: the model has no symbolic dim" in run("inspect", model, "--dim", "batch=2").err
    assert "--values: a difference lists no values" in run("inspect", model, model, "--values").err


def test_a_name_with_markup_is_text_in_a_drawing(tmp_path: Path, run: Run) -> None:
    text = CHANNELS_LAST.replace("[conv1]", "[CONV]")
    path = saved(tmp_path / "m.onnx", text)
    proto = onnx.load(path)
    proto.graph.node[1].name = '<script>"\\'
    onnx.save(proto, path)
    assert ElementTree.fromstring(run("inspect", path, "--svg", "-").out) is not None
    assert '\\"\\\\' in run("inspect", path, "--dot", "-").out


def test_a_drawing_never_overwrites_a_model(model: Path, run: Run) -> None:
    assert run("inspect", model, "--svg", model).status == 2


def test_legalize_without_an_output_is_a_dry_run(model: Path, tmp_path: Path, run: Run) -> None:
    said = run("legalize", model, "--report", tmp_path / "report.json")
    assert said.status == 0
    assert "nothing was written: -o FILE writes the legal model" in said.err
    assert json.loads((tmp_path / "report.json").read_text())["after"]["transposes"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "report.json"]


def test_a_name_of_many_letters_or_lines_stays_on_one_line_of_the_table(tmp_path: Path, run: Run) -> None:
    source = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[1,4,9,9] x) => (float[1,9,9,4] y) { a = Relu (x)  y = Transpose <perm = [0, 2, 3, 1]> (a) }""")
    for name, text in ("x", "x" * 5000), ("a", "two\nlines"):
        for each in (*source.graph.input, *source.graph.node):
            each.name = each.name.replace(name, text)
        for node in source.graph.node:
            node.input[:] = [text if each == name else each for each in node.input]
            node.output[:] = [text if each == name else each for each in node.output]
    onnx.save(source, tmp_path / "named.onnx")
    said = run("inspect", tmp_path / "named.onnx", "--values").out
    assert max(map(len, said.splitlines())) < 150
    assert "two\\nlines" in said
