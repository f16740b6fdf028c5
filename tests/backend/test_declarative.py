"""A backend from a table of rules answers as the rules state."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from backend_tables import TABLE, conv, node, ruled

from relayout.backend import Backend, Implementation, TensorType, load_backend, rank_of
from relayout.backend.calls import ask
from relayout.backend.declarative import DeclarativeBackend
from relayout.backend.declarative_reader import check_table
from relayout.backend.declarative_schema import BackendTable
from relayout.errors import BackendError
from relayout.layout.layout import Layout
from relayout.legalization import legalize
from relayout.testing import check_backend, generated_graphs


def pool(attributes: str = "<kernel_shape = [3,3]>") -> ir.Node:
    return node(f"(float[1,8,9,9] x) => (float[1,8,R,S] y) {{ y = MaxPool {attributes} (x) }}")


def layouts(backend: Backend, asked: ir.Node) -> list[str]:
    """Each implementation as "inputs -> results @ cost"."""
    return [
        f"{' '.join(map(str, each.inputs))} -> {' '.join(map(str, each.results))} @ {each.cost}"
        for each in ask(backend, asked)
    ]


@pytest.fixture
def acme(tmp_path: Path) -> Backend:
    path = tmp_path / "acme.toml"
    path.write_text(TABLE)
    return load_backend(path)


def test_a_file_is_a_backend_by_its_path_or_its_name(acme: Backend, tmp_path: Path) -> None:
    assert acme.name == "acme"
    assert load_backend(str(tmp_path / "acme.toml")).name == "acme"


def test_the_first_rule_that_fits_decides(acme: Backend) -> None:
    assert layouts(acme, conv()) == ["NHWC OHWI -> NHWC @ 0"]
    assert layouts(acme, pool()) == ["NHWC -> NHWC @ 0", "NCHW -> NCHW @ 1000"]


def test_where_no_rule_fits_the_extended_backend_is_asked(acme: Backend) -> None:
    assert layouts(acme, conv(shape="1,3,9,9", kernel="4,3,3,3")) == ["NHWC HWIO -> NHWC @ 0"]
    assert layouts(acme, node("(float[2,3] x) => (float[2,3] y) { y = Relu (x) }")) == ["** -> ** @ 0"]


def test_the_requirement_methods_agree_with_the_implementations(acme: Backend) -> None:
    assert str(acme.nth_input_layout_requirements(conv(), 1)) == "OHWI"
    assert str(acme.nth_result_layout_requirements(pool(), 0)) == "NHWC"
    relu = node("(float[2,3] x) => (float[2,3] y) { y = Relu (x) }")
    assert str(acme.nth_input_layout_requirements(relu, 0)) == str(acme.nth_result_layout_requirements(relu, 0)) == "**"


def test_json_and_a_dict_say_the_same_as_toml(tmp_path: Path) -> None:
    table = {"name": "j", "rule": [{"op": "Conv", "data": "NHWC", "kernel": "HWIO"}]}
    path = tmp_path / "j.json"
    path.write_text(json.dumps(table))
    assert layouts(load_backend(path), conv()) == layouts(load_backend(table), conv()) == ["NHWC HWIO -> NHWC @ 0"]


def test_operators_without_a_rule_follow_the_extended_backend() -> None:
    table = {"name": "mine", "extends": "canonical"}
    mine, canonical = load_backend(table), load_backend("canonical")
    assert str(mine.default_nd_layout(4)) == "NHWC"
    assert mine.layouts_for_dims() == canonical.layouts_for_dims()
    assert mine.supports(conv())
    assert mine.conversion_cost(TensorType(4, ()), Layout.any(0), Layout.any(0)) is None
    assert mine.is_satisfied_by(TensorType(4, (1, 2, 3, 4)), Layout.parse("NHWC"), Layout.parse("NHWC"))
    softmax = node("(float[1,2,3,4] x) => (float[1,2,3,4] y) { y = Softmax (x) }")
    assert layouts(mine, softmax) == layouts(canonical, softmax)


def test_the_extended_backend_looks_up_neighbours_through_the_one_that_extends_it() -> None:
    contexts: list[Backend] = []

    def extended(context: Backend) -> Backend:
        contexts.append(context)
        return Backend(context)

    backend = DeclarativeBackend(check_table({"name": "mine"}), extended)
    assert contexts == [backend]


def test_the_schema_says_what_a_table_may_hold() -> None:
    schema = BackendTable.model_json_schema()
    table = tomllib.loads(TABLE)
    jsonschema.validate(table, schema)
    # A service validates a request by the model and hands it on as it reads it.
    assert check_table(check_table(table).model_dump()) == check_table(table)
    for wrong in ({"op": []}, {"op": ["Conv"] * 65}, {"op": "Conv", "when": {"attributes": {"group": {}}}}, {"op": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"name": "wrong", "rule": [{"data": "NHWC", **wrong}]}, schema)


# Which nodes


@pytest.mark.parametrize(
    ("pattern", "fits"), [("Conv", True), ("C?nv", True), ("*", True), ("conv", False), ("Con", False)]
)
def test_an_operator_is_named_by_a_pattern(pattern: str, fits: bool) -> None:
    assert layouts(ruled(op=pattern, data="NHWC"), conv()) == [
        f"{'NHWC' if fits else '****'} **** -> {'NHWC' if fits else '****'} @ 0"
    ]


@pytest.mark.parametrize(
    ("domain", "fits"),
    [({}, True), ({"domain": ""}, True), ({"domain": "relayout"}, False), ({"domain": "mine"}, False)],
)
def test_a_rule_without_a_domain_is_about_onnx_operators(domain: dict[str, str], fits: bool) -> None:
    asked = node(
        """(float[1,9,9,8] x, float[4,8,3,3] w) => (float[1,7,7,4] y) {
            y = relayout.Conv <data_layout = "NHWC", kernel_layout = "OIHW"> (x, w) }"""
    )
    found = layouts(ruled(op="Conv", data="NCHW", **domain), asked)
    assert found == (["NCHW OIHW -> NCHW @ 0"] if fits else ["**** **** -> **** @ 0"])


def test_a_rule_for_another_domain_gives_a_layout_per_operand() -> None:
    asked = node("(float[1,2,3,4] x, float[2,3] w) => (float[1,2,3,4] y) { y = mine.Swizzle (x, w) }")
    asked.outputs[0].shape = ir.Shape([1, 2, 3, 4])
    backend = ruled(op="Swizzle", domain="mine", inputs=["N[acme:z]HWC", "*"], results=["NHWC"])
    assert layouts(backend, asked) == ["N[acme:z]HWC ** -> NHWC @ 0"]


def test_operands_beyond_the_list_keep_the_nodes_layout() -> None:
    assert layouts(ruled(op="Conv", inputs=["NHWC"]), conv()) == ["NHWC **** -> **** @ 0"]


def test_layouts_by_role_fit_the_rank_that_they_are_written_for() -> None:
    conv1d = conv(shape="1,8,9", kernel="4,8,3")
    assert layouts(ruled(op="Conv", data="NHWC"), conv1d) == ["*** *** -> *** @ 0"]
    assert layouts(ruled(op="Conv", data="NSC", kernel="SIO"), conv1d) == ["NWC WIO -> NWC @ 0"]
    assert layouts(ruled(op="Conv", data="N[a=64]SC", kernel="*"), conv1d) == ["N[a=64]WC *** -> N[a=64]WC @ 0"]


def test_a_layout_may_be_blocked() -> None:
    backend = ruled(op="Conv", data="NCHWc[tile:4]", kernel="OIHWi[tile:4]o[tile:4]")
    assert layouts(backend, conv()) == ["NCHWc[tile:4] OIHWi[tile:4]o[tile:4] -> NCHWc[tile:4] @ 0"]


@pytest.mark.parametrize(
    ("when", "asked", "fits"),
    [
        ({"rank": 4}, conv(), True),
        ({"rank": [3, 5]}, conv(), False),
        ({"dtype": "float32"}, conv(), True),
        ({"dtype": ["float16", "float"]}, conv(), True),
        ({"dtype": "float16"}, conv(), False),
        ({"attributes": {"group": 1}}, conv(), True),
        ({"attributes": {"group": 1}}, conv(kernel="4,4,3,3", attributes="<group = 2>"), False),
        ({"attributes": {"group": [1, 2]}}, conv(kernel="4,4,3,3", attributes="<group = 2>"), True),
        ({"attributes": {"auto_pad": "NOTSET"}}, conv(), True),
        ({"attributes": {"strides": [1, 1]}}, conv(attributes="<strides = [1,1]>"), True),
        ({"attributes": {"strides": [2, 2]}}, conv(attributes="<strides = [1,1]>"), False),
        ({"attributes": {"no_such": 1}}, conv(), False),
        ({"channels": {"min": 8, "max": 8}}, conv(), True),
        ({"channels": {"min": 9}}, conv(), False),
        ({"channels": {"max": 7}}, conv(), False),
        ({"channels": {"multiple_of": 3}}, conv(), False),
        ({"channels": {"min": 1}}, conv(shape="1,C,9,9"), False),
        ({"kernel": {"max": 3}}, conv(), True),
        ({"kernel": {"max": 2}}, conv(), False),
        ({"kernel": {"min": 2}}, conv(kernel="4,8,1,3"), False),
        ({"kernel": {"min": 1}}, conv(kernel="4,8,K,3"), False),
        ({"kernel": {"min": 3, "max": 3}}, conv(kernel="4,8,K,3", attributes="<kernel_shape = [3,3]>"), True),
    ],
)
def test_a_condition_must_hold_and_be_known(when: dict[str, Any], asked: ir.Node, fits: bool) -> None:
    expected = "NHWC **** -> NHWC @ 0" if fits else "**** **** -> **** @ 0"
    assert layouts(ruled(op="Conv", when=when, data="NHWC"), asked) == [expected]


def test_conditions_read_a_relaid_node_in_its_own_layout() -> None:
    asked = node(
        """(float[1,9,7,8] x, float[3,5,8,4] w) => (float[1,7,3,4] y) {
            y = relayout.Conv <data_layout = "NHWC", kernel_layout = "HWIO"> (x, w) }"""
    )
    asked.outputs[0].shape = ir.Shape([1, 7, 3, 4])
    when = {"channels": {"min": 8, "max": 8}, "kernel": {"min": 3, "max": 5}}
    assert layouts(ruled(op="Conv", when=when, data="NCHW"), asked) == ["NCHW HWIO -> NCHW @ 0"]


def test_a_pool_has_a_window_and_no_kernel() -> None:
    assert layouts(ruled(op="MaxPool", when={"kernel": {"max": 3}}, data="NHWC"), pool()) == ["NHWC -> NHWC @ 0"]
    average = node("(float[1,8,9,9] x) => (float[1,8,1,1] y) { y = GlobalAveragePool (x) }")
    assert layouts(ruled(op="Global*", when={"kernel": {"min": 0}}, data="NHWC"), average) == ["**** -> **** @ 0"]


# Options of the extended backend


OPTIONS = {"desired_layouts": {"Conv": ["NHWC", "OHWI"]}}


@pytest.mark.parametrize("suffix", ["toml", "json", ""])
def test_a_table_passes_options_to_the_backend_that_it_extends(suffix: str, tmp_path: Path) -> None:
    spec: Any = {"name": "mine", "extends": "convert-layout", "options": OPTIONS}
    spec["rule"] = [{"op": "MaxPool", "data": "NCHW"}]
    if suffix:
        table, spec = spec, tmp_path / f"mine.{suffix}"
        spec.write_text(json.dumps(table))
    if suffix == "toml":
        spec.write_text(
            'name = "mine"\nextends = "convert-layout"\noptions.desired_layouts = { Conv = ["NHWC", "OHWI"] }\n'
            '[[rule]]\nop = "MaxPool"\ndata = "NCHW"\n'
        )
    backend = load_backend(spec)
    assert layouts(backend, conv()) == layouts(load_backend("convert-layout", options=OPTIONS), conv())
    assert layouts(backend, conv()) == ["NHWC OHWI -> NHWC @ 0"]
    assert layouts(backend, pool()) == ["NCHW -> NCHW @ 0"]


def test_an_option_that_is_empty_is_not_given() -> None:
    assert load_backend({"name": "mine", "extends": "nhwc", "options": {"tiles": None, "skip": []}}).name == "mine"


@pytest.mark.parametrize(
    ("extends", "options", "where", "expected", "found"),
    [
        ("auto-nhwc", {"devise": "cpu"}, "options", "of device", "devise"),
        ("auto-nhwc", {"device": 3}, "options, device", "text", "3"),
        ("auto-nhwc", {"device": "npu"}, "options, device", "cpu or cuda", "'npu'"),
        ("nhwc", {"device": "cpu"}, "options", "no options", "device"),
        ("convert-layout", {"desired_layouts": {"Conv": ["NQ"]}}, "options, desired layout of Conv", "NCHW", "NQ"),
        ("nhwc", {"a b": 1}, "options.a b", "letters, digits,", "'a b'"),
        ("nhwc", {str(n): 1 for n in range(33)}, "options", "at most 32 items", "'0': 1"),
        ("nhwc", ["device"], "options", "a valid dictionary", "['device']"),
    ],
)
def test_an_option_that_the_extended_backend_does_not_take_is_an_error_that_says_where(
    extends: str, options: Any, where: str, expected: str, found: str
) -> None:
    with pytest.raises(BackendError) as caught:
        load_backend({"name": "mine", "extends": extends, "options": options})
    assert caught.value.where == f"inline backend, {where}"
    assert expected in caught.value.expected
    assert found in caught.value.found


def test_a_request_can_extend_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text('name = "base"\n')
    with pytest.raises(BackendError, match="there is no backend"):
        load_backend({"name": "mine", "extends": "base.toml"})


class Device(Backend):
    """The device of `DEVICE`, as a class."""

    name = "device"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        data, result = (each[0] if each else None for each in (node.inputs, node.outputs))
        if rank_of(data) != 4 or rank_of(result) != 4 or node.op_type not in ("Conv", "MaxPool"):
            return super().implementations(node)
        assert data is not None
        assert result is not None
        if node.op_type == "MaxPool":
            blocked = Layout.parse("NCHWc[tile:16]")
            return [Implementation((blocked,), (blocked,), pads=True)]
        nhwc, nchw, bias = Layout.parse("NHWC"), Layout.parse("NCHW"), [Layout.any(1)] * (len(node.inputs) - 2)
        shapes = [
            value.shape for value in (*node.inputs, *node.outputs) if value is not None and value.shape is not None
        ]
        traffic = sum(4 * prod(extent for extent in shape if isinstance(extent, int)) for shape in shapes)
        slow = Implementation((nchw, Layout.parse("OIHW"), *bias), (nchw,), 100 + traffic // 2)
        fast = Implementation((nhwc, Layout.parse("OHWI"), *bias), (nhwc,))
        is_fast = int(result.shape[1]) % 16 == 0 and max(map(int, data.shape[2:])) <= 9  # type: ignore[index,arg-type]
        kernel = node.inputs[1]
        return [fast, slow] if is_fast and kernel is not None and kernel.const_value is not None else [slow]


DEVICE = """
name = "device"
[[rule]]
op = "Conv"
when = { rank = 4, spatial.max = 9, result.channels.multiple_of = 16, constant = 1 }
[[rule.implementation]]
data = "NHWC"
kernel = "OHWI"
[[rule.implementation]]
data = "NCHW"
kernel = "OIHW"
cost = 100
cost_per_byte = 0.5
[[rule]]
op = "Conv"
when.rank = 4
data = "NCHW"
kernel = "OIHW"
cost = 100
cost_per_byte = 0.5
[[rule]]
op = "MaxPool"
when = { rank = 4, result.rank = 4, variable = 0 }
data = "NCHWc[tile:16]"
pads = true
"""


def test_a_table_reaches_the_optimum_of_the_same_device_as_a_class() -> None:
    table = tomllib.loads(DEVICE)
    costs = set()
    for graph in generated_graphs():
        if graph.name.startswith(("Conv/", "MaxPool")) or graph.name in ("residual-block", "branches"):
            [by_class, by_table] = [legalize(graph.model, each)[1] for each in (Device, table)]
            assert (by_table.cost, by_table.after) == (by_class.cost, by_class.after), graph.name
            costs.add(by_table.cost)
    assert len(costs) > 8


def test_the_conditions_of_a_table_hold_of_its_own_legal_model_alike() -> None:
    names = ("Conv/16-to-32-channels", "Conv/20-to-12-channels", "MaxPool/between-convolutions", "branches")
    graphs = [graph for graph in generated_graphs() if graph.name in names]
    assert check_backend(tomllib.loads(DEVICE), graphs=graphs).faults == ()


@pytest.mark.parametrize(
    ("when", "fits"),
    [
        ({"spatial": {"max": 8}}, True),
        ({"spatial": {"max": 7}}, False),
        ({"result": {"spatial": {"min": 6, "max": 6}, "channels": {"min": 4}}}, True),
        ({"result": {"channels": {"min": 5}}}, False),
        ({"result": {"dtype": "float16"}}, False),
        ({"constant": 1}, False),
        ({"variable": [0, 1]}, True),
        ({"variable": 5}, False),
    ],
)
def test_conditions_on_sizes_results_and_constants(when: dict[str, Any], fits: bool) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) { y = Conv (x, w) }""")
    backend = load_backend({"name": "t", "rule": [{"op": "Conv", "when": when, "data": "NHWC"}]})
    [only] = ask(backend, ir.from_proto(model).graph[0])
    assert str(only.results[0]) == ("NHWC" if fits else "****")


@pytest.mark.parametrize(
    ("kernel", "fits"),
    [("Transpose <perm = [0,3,1,2]> (w)", True), ("Abs (w)", True), ("RandomNormalLike (w)", False), ("Sub (x, w)", 0)],
)
def test_a_kernel_that_is_computed_from_constants_is_one(kernel: str, fits: bool) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[3,3,3,3] x) => (float[3,3,1,1] y) <float[3,3,3,3] w> {{ k = {kernel}
        y = Conv (x, k) }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "w"))
    backend = load_backend({"name": "t", "rule": [{"op": "Conv", "when": {"constant": 1}, "data": "NHWC"}]})
    [only] = ask(backend, ir.from_proto(model).graph[1])
    assert str(only.results[0]) == ("NHWC" if fits else "****")
