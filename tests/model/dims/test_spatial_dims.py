"""Extents behind joins and cuts are formulas of the inputs' dims."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from relayout import legalize, read_model


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


def dims(text: str) -> dict[str, list[str]]:
    graph = read_model(model(text)).graph
    return {str(value.name): [str(dim) for dim in value.shape or ()] for node in graph for value in node.outputs}


@pytest.mark.parametrize(
    ("first", "second", "extent"),
    [
        ("past", "new", "new + past"),
        ("n", "n", "2*n"),
        ("n", "1", "n + 1"),
        ('"n + 1"', "2", "n + 3"),
        ('"2*n"', '"n + 4"', "3*n + 4"),
        ('"(h - 1)//2"', "n", "(h - 1)//2 + n"),
    ],
)
def test_values_are_joined_to_the_sum_of_their_lengths(first: str, second: str, extent: str) -> None:
    found = dims(
        f"(float[n, h] sizes, float[{first}, 4, 8] x, float[{second}, 4, 8] y) => (float[out, 4, 8] z)"
        " { z = Concat <axis = 0> (x, y) }"
    )
    assert found["z"] == [extent, "4", "8"]


def test_a_length_that_no_input_has_is_not_added() -> None:
    found = dims("""(float[n] x) => (float[out] z) {
        places = NonZero (x)
        rows = Cast <to = 1> (places)
        flat = Squeeze (rows)
        z = Concat <axis = 0> (x, flat) }""")
    assert found["z"] == ["out"]


@pytest.mark.parametrize(
    ("tokens", "start", "end", "extent"),
    [
        ('"n + 1"', 1, 2**63 - 1, "n"),
        ('"n + 5"', 1, -2, "n + 2"),
        ('"n + 1"', 2, 2**63 - 1, "out"),  # no token may be left
        ("n", 1, 2**63 - 1, "out"),
        ("n", -3, 2**63 - 1, "min(3, n)"),
        ('"n + 1"', -3, 2**31 - 1, "min(3, n + 1)"),
        ("n", 0, 3, "min(3, n)"),
        ("n", 0, 0, "out"),  # none is left
        ("n", -3, -1, "out"),
        ("n", -3, 3, "out"),
        ("n", 1, 3, "out"),
    ],
)
def test_a_cut_leaves_a_formula_of_the_tokens(tokens: str, start: int, end: int, extent: str) -> None:
    found = dims(f"""(float[n] sizes, float[b, {tokens}, 8] x) => (float[b, out, 8] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{1}}>
        {{ y = Slice (x, start, end, axis) }}""")
    assert found["y"] == ["b", extent, "8"]


def legal_at(source: onnx.ModelProto, bytes_before: int) -> onnx.ModelProto:
    """The legal model, which a second run leaves as it is; at one new position after 512, the source moves so much."""
    sizes = {"past": 512, "new": 1}
    legal, report = legalize(source, dims=sizes)
    assert dict(report.assumed) == {"b": 1}
    assert report.before.bytes == bytes_before
    again, second = legalize(legal, dims=sizes)
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    return legal


def test_a_cache_has_the_size_of_what_it_is_joined_of() -> None:
    """As PyTorch names the dims of a decoder's outputs."""
    source = model("""(float[b, 2, past, 8] cache, float[b, 2, new, 8] k, float[b, 2, new, 8] q) =>
        (float[b, 2, Concatkey_dim_2, 8] key, float[b, 2, new, Concatkey_dim_2] scores) {
        key = Concat <axis = 2> (cache, k)
        columns = Transpose <perm = [0, 1, 3, 2]> (key)
        scores = MatMul (q, columns) }""")
    legal = legal_at(source, bytes_before=2 * (2 * 8 * 513) * 4)
    assert legal.graph.output[0].type.tensor_type.shape.dim[2].dim_param == "Concatkey_dim_2"


def test_the_cache_of_a_sliding_window_has_at_most_the_window() -> None:
    """As PyTorch writes it: the last positions of past and new ones are the next past."""
    source = model("""(float[b, 2, past, 8] cache, float[b, 2, new, 8] k, float[b, 2, new, 8] q) =>
        (float[b, 2, Slice_dim_2, 8] next, float[b, 2, new, Concat_dim_2] scores)
        <int64[1] start = {-7}, int64[1] end = {9223372036854775807}, int64[1] axis = {2}> {
        kept = Slice (cache, start, end, axis)
        key = Concat <axis = 2> (kept, k)
        next = Slice (key, start, end, axis)
        columns = Transpose <perm = [0, 1, 3, 2]> (key)
        scores = MatMul (q, columns) }""")
    graph = read_model(source).graph
    assert [str(value.shape) for value in graph.outputs] == [
        "[b,2,min(7, min(7, past) + new),8]",
        "[b,2,new,min(7, past) + new]",
    ]
    legal_at(source, bytes_before=2 * (2 * 8 * 8) * 4)
