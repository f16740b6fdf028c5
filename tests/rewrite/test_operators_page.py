"""The page on operators and metadata lists all that legal models have."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net

from relayout import legalize, verify
from relayout.layout import metadata_keys
from relayout.ops.operand_roles import DATA, KERNEL, OPERATORS, kernel_input, native_role

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
ROWS = {
    cells[0].strip("`"): [re.findall(r"[\w.]+", cell) for cell in cells[1:]]
    for line in PAGE.splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
LAYOUTS = {"data_layout", "kernel_layout", "out_layout"}
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
TABLES = {
    "nhwc": {},
    "canonical": {},
    "convert-layout": {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4o"]}},
    "tpu": {},
    "x86-nchwc": {},
}


def test_the_page_has_a_row_for_each_operator_with_named_axes() -> None:
    listed = {name: row for name, row in ROWS.items() if name in OPERATORS}
    assert {*listed} == {*OPERATORS}
    for name, (data, kernel, results, attributes) in listed.items():
        inputs = [native_role(name, 0, n) for n in range(4)]
        assert data == [str(n) for n, role in enumerate(inputs) if role == DATA]
        assert kernel == [str(n) for n, role in enumerate(inputs) if role == KERNEL]
        assert results == [str(n) for n in range(2) if native_role(name, 1, n) == DATA]
        assert {*attributes} == (LAYOUTS if kernel_input(name) is not None else {"data_layout"})


def test_the_page_has_each_key_of_the_metadata() -> None:
    keys = {key for name, key in vars(metadata_keys).items() if name.endswith("_KEY")}
    assert keys <= {*ROWS} | {"relayout.backend", "relayout.backend_options"}


def models() -> list[onnx.ModelProto]:
    """Operators with named axes, in one graph, and a light model of onnx's."""
    net = Net(18)
    value = net.conv(net.input("x", (1, 8, 12, 12)), 8, 8)
    value = net.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    value = net.node("ConvTranspose", value, net.weight(8, 20, 2, 2), strides=[2, 2])
    value = net.node("InstanceNormalization", value, net.weight(20), net.weight(20))
    value = net.node("DepthToSpace", net.node("LRN", value, size=3), blocksize=2)
    value = net.node("Resize", value, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    net.output(net.node("GlobalAveragePool", net.node("AveragePool", value, kernel_shape=[3, 3])))
    return [net.model(), onnx.load(LIGHT / "light_shufflenet.onnx")]


@pytest.mark.parametrize("backend", TABLES)
def test_every_attribute_and_key_that_is_written_is_on_the_page(backend: str) -> None:
    for source in models():
        legal, _ = legalize(ir.from_proto(source), backend, backend_options=TABLES[backend])
        assert {*legal.metadata_props} <= {*ROWS} | {"relayout.backend", "relayout.backend_options"}
        assert legal.metadata_props["relayout.version"] == version("relayout")
        for node in legal.graph.all_nodes():
            assert {*node.metadata_props} <= {*ROWS}
            assert all({*value.metadata_props} <= {*ROWS} for value in node.outputs)
            if node.domain == "relayout":
                operator, _, _ = node.op_type.partition("_")
                own = {*onnx.defs.get_schema(operator, legal.opset_imports[""], "").attributes}
                assert {*node.attributes} - own <= {*ROWS[operator][3]}
                assert "data_layout" in node.attributes


def test_an_operator_in_two_layouts_has_two_names_and_no_overload() -> None:
    net = Net(18)
    value = net.node("Relu", net.conv(net.input("x", (1, 8, 6, 6)), 8, 32))
    net.output(net.conv(value, 32, 32))
    kernels = [
        {"op": ["Conv"], "when": {"channels": {"min": 32}}, "kernel": "HWIO"},
        {"op": ["Conv"], "kernel": "OHWI"},
    ]
    table = {"name": "two", "rule": [{**rule, "data": "NHWC"} for rule in kernels]}
    legal, report = legalize(net.model(), table, check=True)
    assert report.ok
    assert [(f.name, f.overload) for f in legal.functions] == [("Conv", ""), ("Conv_NHWC_HWIO", "")]
    assert not any(node.overload for node in legal.graph.node)
    again, _ = legalize(legal, table)
    assert again.SerializeToString() == legal.SerializeToString()
    assert verify(legal, table, against=net.model(), samples=1).passed
