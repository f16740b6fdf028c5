"""A table with a fault is an error that says where, what was expected and what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from backend_tables import TABLE, conv, node, ruled
from hypothesis import given
from hypothesis import strategies as st

from relayout.backend import load_backend
from relayout.backend.calls import ask
from relayout.backend.declarative_reader import MAX_BYTES, line_of
from relayout.backend.declarative_schema import BackendTable
from relayout.errors import BackendError, RelayoutError


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
        rank = "`when.rank` and `when.result.rank` limit it to nodes with these ranks"
        assert caught.value.hint == f"the rule is in {file}, {place}; {rank}"


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


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("missing.toml", None, "cannot be read\n  found:    No such file or directory"),
        (
            "latin.toml",
            b'# caf\xc3\xa9\nname = "\xe9"',
            "latin.toml, line 2: the backend's file is not UTF-8\n  expected: text in UTF-8\n  found:    byte 0xE9\n"
            "  hint:     save the file as UTF-8",
        ),
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
