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
from hypothesis import given
from hypothesis import strategies as st

from relayout.backend import Backend, Implementation, TensorType, load_backend, rank_of
from relayout.backend.calls import ask
from relayout.backend.declarative import DeclarativeBackend
from relayout.backend.declarative_reader import MAX_BYTES, check_table, line_of
from relayout.backend.declarative_schema import BackendTable
from relayout.errors import BackendError, RelayoutError
from relayout.layout.layout import Layout
from relayout.legalization import legalize
from relayout.testing import check_backend, generated_graphs

TABLE = """\
# An accelerator that likes channels last.
name = "acme"
extends = "nhwc"
description = '''
[[rule]]
op = "not a rule"
'''

[[rule]]
op = "Conv*"
when.rank = 4
when.attributes.group = 1
when.channels = { multiple_of = 4 }
data = "NHWC"
kernel = "OHWI"

[[rule]]
op = ["MaxPool", "AveragePool"]

  [[rule.implementation]]
  data = "NSC"

  [[rule.implementation]]
  data = "NCS"
  cost = 1000

[[rule]]
op = "Soft*"
inputs = ["***C[a=4]"]
"""


def node(text: str, *, opset: int = 20) -> ir.Node:
    """The one node of a graph of these inputs and this node, in ONNX's own text."""
    inputs, _, body = text.partition("=>")
    model = f'<ir_version: 10, opset_import: ["" : {opset}, "relayout" : 1, "mine" : 1]> g {inputs} => {body}'
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(model))).graph[0]


def conv(*, shape: str = "1,8,9,9", kernel: str = "4,8,3,3", attributes: str = "", dtype: str = "float") -> ir.Node:
    result = ",".join(["1", "4", *["R"] * (shape.count(",") - 1)])
    return node(
        f"({dtype}[{shape}] x, {dtype}[{kernel}] w) => ({dtype}[{result}] y) {{ y = Conv {attributes} (x, w) }}"
    )


def pool(attributes: str = "<kernel_shape = [3,3]>") -> ir.Node:
    return node(f"(float[1,8,9,9] x) => (float[1,8,R,S] y) {{ y = MaxPool {attributes} (x) }}")


def layouts(backend: Backend, asked: ir.Node) -> list[str]:
    """Each implementation as "inputs -> results @ cost"."""
    return [
        f"{' '.join(map(str, each.inputs))} -> {' '.join(map(str, each.results))} @ {each.cost}"
        for each in ask(backend, asked)
    ]


def ruled(**rule: Any) -> Backend:
    """A backend of one rule."""
    return load_backend({"name": "ruled", "rule": [rule]})


# What a table says


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


# What is wrong with a table


@pytest.mark.parametrize(
    ("right", "wrong", "line", "where", "expected", "found"),
    [
        ('name = "acme"', 'name = "a b"', 2, "name", "letters, digits,", "'a b'"),
        ('name = "acme"', "", None, "name", "the key 'name'", "none"),
        ('name = "acme"', 'name = "acme"\nversion = 2', 3, "version", "1", "2"),
        ('extends = "nhwc"', 'extend = "nhwc"', 3, "extend", "the keys assign, description, device, exten", "'extend'"),
        ("rank = 4", 'rank = "4"', 11, "rule[0].when.rank", "a valid integer", "'4'"),
        ("rank = 4", "rank = [4, 9]", 11, "rule[0].when.rank[1]", "less than or equal to 8", "9"),
        ("rank = 4", 'dtype = "flot"', 11, "rule[0].when.dtype", "an element type such as float32", "'flot'"),
        ("group = 1", "group = true", 12, "rule[0].when.attributes.group", "a number, a string, or a list", "True"),
        (
            "multiple_of = 4",
            "multiple_of = 0",
            13,
            "rule[0].when.channels.multiple_of",
            "greater than or equal to 1",
            "0",
        ),
        (
            "multiple_of",
            "multipleof",
            13,
            "rule[0].when.channels.multipleof",
            "one of the keys max, min",
            "'multipleof'",
        ),
        ('"OHWI"', '"OHWQ"', 15, "rule[0].kernel", "the letters OI and the spatial W, HW, DHW, or S", "'OHWQ'"),
        ('"OHWI"', '"NHWC"', 15, "rule[0].kernel", "the letters OI", "'NHWC'"),
        ('"NSC"', '"NSC["', 21, "rule[1].implementation[0].data", "'a=BYTES' or 'namespace:data'", "column"),
        (
            "when.channels = { multiple_of = 4 }",
            "when.channels = { min = 16, max = 8 }",
            13,
            "rule[0].when.channels.max",
            "at least the min, 16",
            "8",
        ),
        ("cost = 1000", "cost = -1", 25, "rule[1].implementation[1].cost", "greater than or equal to 0", "-1"),
        ("cost = 1000", "cost = 1.5", 25, "rule[1].implementation[1].cost", "a valid integer", "1.5"),
        (
            'op = ["MaxPool", "AveragePool"]',
            'op = ["MaxPool", "A[vV]*"]',
            18,
            "rule[1].op[1]",
            "an operator's name",
            "'A[vV]*'",
        ),
        ('op = ["MaxPool", "AveragePool"]', "op = []", 18, "rule[1].op", "at least 1 item", "[]"),
        (
            'op = ["MaxPool", "AveragePool"]',
            'op = "MaxPool"\ndata = "NSC"',
            17,
            "rule[1]",
            "in the rule, or in its",
            "both",
        ),
        (
            'inputs = ["***C[a=4]"]',
            'inputs = ["***C[a=0]"]',
            29,
            "rule[2].inputs[0]",
            "a number of bytes from 1",
            "'0'",
        ),
        (
            'inputs = ["***C[a=4]"]',
            "inputs = []",
            27,
            "rule[2]",
            "data, kernel, inputs, results or any_order",
            "an implementation without",
        ),
        ('inputs = ["***C[a=4]"]', "inputs = 4", 29, "rule[2].inputs", "a list", "4"),
        (
            'data = "NSC"',
            'data = "NSC"\nkernel = "OSI"',
            22,
            "rule[1].implementation[0].kernel",
            "no layout for the role kernel, as no operand of MaxPool has it",
            "'OSI'",
        ),
        ('op = "Conv*"', 'op = ["Conv", "Global*"]', 15, "rule[0].kernel", "no operand of Global* has it", "'OHWI'"),
        (
            'op = "Conv*"',
            'op = "Relu"',
            14,
            "rule[0].data",
            "no layout for the role data, as no operand of Relu",
            "'NHWC'",
        ),
        ('data = "NSC"', 'data = "NSC"\n[rules]', 22, "rules", "one of the keys", "'rules'"),
        (
            'data = "NSC"',
            'inputs = ["NHWC"]\ndata = "NSC"',
            21,
            "rule[1].implementation[0].inputs",
            "layouts by role (data, kernel), or by operand (inputs): inputs would hide data",
            "both",
        ),
        (
            'data = "NSC"',
            'inputs = ["NHWC", "*"]',
            21,
            "rule[1].implementation[0].inputs",
            "at most 1 input, as MaxPool has",
            "2",
        ),
        (
            'data = "NSC"',
            'data = "NSC"\nresults = ["*", "*", "*"]',
            22,
            "rule[1].implementation[0].results",
            "at most 2 results, as MaxPool has",
            "3",
        ),
        ('name = "acme"', 'name = "acme"\nhost = "cpu"', 3, "host", "devices, each in a table [[device]]", "'cpu'"),
        ('extends = "nhwc"', 'extends = "nwhc"', 3, "extends", "one of ", "'nwhc'"),
    ],
)
def test_an_error_has_a_line_a_key_and_what_was_expected(
    right: str, wrong: str, line: int | None, where: str, expected: str, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "acme.toml"
    assert right in TABLE
    path.write_text(TABLE.replace(right, wrong))
    with pytest.raises(BackendError) as caught:
        load_backend(path)
    assert caught.value.where == ", ".join(filter(None, [str(path), f"line {line}" if line else "", where]))
    assert expected in caught.value.expected
    assert found in caught.value.found


def test_an_answer_that_does_not_fit_a_node_names_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "acme.toml"
    device = tmp_path / "board.toml"
    rule = '[[device]]\nname = "npu"\n\n[[device.rule]]\nop = "Relu"\ninputs = ["NHW"]\n'
    device.write_text(f'name = "board"\nhost = "npu"\n\n{rule}')
    conv = '[[rule]]\nop = "Conv"\ndata = "NHWC"\n'
    path.write_text(f'name = "acme"\n\n{conv}\n[[rule]]\nop = "Relu"\ninputs = ["NHW"]\n')
    relu = node("(float[1,2,3,4] x) => (float[1,2,3,4] y) { y = Relu (x) }")
    for file, place in ((path, "line 7, rule[1]"), (device, "line 7, device[0].rule[0]")):
        with pytest.raises(BackendError) as caught:
            ask(load_backend(file), relu)
        assert caught.value.expected == "a layout of rank 4, as the tensor"
        assert caught.value.hint == f"the rule is in {file}, {place}"


def test_a_layout_by_role_needs_one_operator_of_a_pattern_with_the_role() -> None:
    for operator in ("*", "Conv*", ["Conv", "ConvTranspose"], "conv"):
        ruled(op=operator, data="NHWC", kernel="OHWI")
    with pytest.raises(BackendError) as caught:
        ruled(op=["Conv", "MaxPool"], data="NHWC", kernel="OHWI")
    assert caught.value.hint == "leave it out; a rule for MaxPool alone may have layouts by operand (inputs, results)"


def test_a_misspelt_key_comes_with_the_right_one() -> None:
    with pytest.raises(BackendError) as caught:
        load_backend({"name": "a", "rule": [{"op": "Conv", "kernl": "OIHW"}]})
    assert caught.value.hint == "did you mean kernel?"
    assert caught.value.where == "inline backend, rule[0].kernl"
    assert "2 faults, this is the first" not in caught.value.problem


def test_several_faults_are_counted() -> None:
    with pytest.raises(BackendError, match="2 faults, this is the first"):
        load_backend({"name": 3, "extends": 4})


def test_an_unknown_backend_to_extend_is_named_with_near_ones() -> None:
    with pytest.raises(BackendError) as caught:
        load_backend({"name": "mine", "extends": "nhw"})
    assert caught.value.where == "inline backend, extends"
    assert "nhwc" in caught.value.hint


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


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("missing.toml", None, "cannot be read\n  found:    No such file or directory"),
        ("latin.toml", b'name = "\xe9"', "cannot be read"),
        ("broken.toml", b"name = ", "is not TOML"),
        ("broken.json", b'{"name": ', "is not JSON"),
        ("deep.json", b"[" * 100_000, "is not JSON"),
        ("deep.toml", b"a = " + b"[" * 100_000, "is not TOML"),
        ("list.json", b"[]", "is not a table"),
        ("large.toml", b"#" * (MAX_BYTES + 1), "is too large"),
        ("number.json", b'{"name": ' + b"1" * 5000 + b"}", "is not JSON"),
    ],
)
def test_a_file_that_is_no_table_is_an_error_that_names_it(
    name: str, data: bytes | None, problem: str, tmp_path: Path
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(BackendError, match=problem) as caught:
        load_backend(tmp_path / name)
    assert str(tmp_path / name) in caught.value.where


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*BackendTable.model_fields, "op", "when", "data", "inputs", "cost"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(table=st.dictionaries(st.sampled_from(list(BackendTable.model_fields)), JSON))
def test_any_json_is_a_backend_or_a_backend_error(table: dict[str, Any]) -> None:
    try:
        backend = load_backend({"name": "fuzzed", **table})
        outcome = len(ask(backend, conv()))
    except RelayoutError as error:
        outcome = len(error.problem)
    assert outcome > 0


@pytest.mark.parametrize(
    ("text", "line", "where", "expected", "hint"),
    [
        ('[[device]]\nname = "npu"\nbackend = "nwhc"', 4, "device[0].backend", "one of ", "did you mean"),
        ('[[device]]\nname = "npu"\n[[device]]\nname = "npu"', 5, "device[1].name", "a name of its own", ""),
        ('[[device]]\nname = "npu"\n[[assign]]\ndevices = "gpu"', 5, "assign[0].devices", "npu", ""),
        ('[[rules]]\nop = "Conv"', 2, "rules", "one of the keys", "did you mean rule?"),
        ('[rule]\nop = "Conv"', 2, "rule", "a list", "write [[rule]]"),
        ('[[rule]]\nop = "Conv"\nwhen.channels = 3', 4, "rule[0].when.channels", "keys of max, min, multiple_of", ""),
    ],
)
def test_the_error_of_a_table_around_a_key_has_a_line_too(
    text: str, line: int, where: str, expected: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "acme.toml"
    path.write_text(f'name = "acme"\n{text}\n')
    with pytest.raises(BackendError) as caught:
        load_backend(path)
    assert caught.value.where == f"{path}, line {line}, {where}"
    assert expected in caught.value.expected
    assert hint in caught.value.hint


# Lines


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("name",), 1),
        (("a", "b"), 3),
        (("a", "b", "c"), 3),
        (("rule", 0), 5),
        (("rule", 0, "op"), 6),
        (("rule", 1, "when"), 12),
        (("rule", 1, "when", "rank"), 13),
        (("rule", 1, "when", "dtype"), 12),
        (("rule", 1, "implementation", 0, "data"), 15),
        (("rule", 1, "implementation", 1), 16),
        (("nowhere",), None),
    ],
)
def test_the_line_of_a_key_is_found(place: tuple[int | str, ...], line: int | None) -> None:
    text = '''name = "x" # name = 3
[a]
"b" = """
name = 4"""
[[ rule ]]
op = [
  "Conv",
]

[[rule]]
op = "Pool"
[rule.when]
rank = 4
[[rule.implementation]]
data = "NHWC"
[[rule.implementation]]
data = "NCHW"
'''
    assert line_of(text, place) == line


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
