"""Ranks and types that rules of operators find where onnx's inference does not."""

from __future__ import annotations

import onnx
import pytest
from graphs import assert_same_numbers
from model_files import parse

from relayout import legalize, read_model

SEQUENCE = "q = SplitToSequence <axis = 0, keepdims = 0> (z)  y = ConcatFromSequence <axis = 0> (q)"


@pytest.mark.parametrize(
    ("operator", "gates"),
    [
        ('"", h = GRU <hidden_size = 2> (x, w, r, "", "")', 3),
        ('"", h = LSTM <hidden_size = 2> (x, w, r, "", "")', 4),
        ('"", h = RNN <hidden_size = 2> (x, w, r, "", "")', 1),
        ('l, "", h = LayerNormalization <axis = 2> (x, s, "")', 1),
    ],
)
def test_a_result_that_a_node_leaves_out_stands_for_no_operand(operator: str, gates: int) -> None:
    """Its name is empty, and the type of that name would be the type of all operands that are left out."""
    text = f"""g (float[2, 3] z, float[2, b, 4] x) => (float[d] y, float h) <float[4] s = {{1, 2, 3, 4}}>
        {{ {operator}  {SEQUENCE} }}"""
    model = parse(text, opset=17)
    model.graph.output[1].type.tensor_type.ClearField("shape")
    for name, columns in (("w", 4), ("r", 2)):
        numbers = [0.1 * (n % 7) for n in range(2 * gates * columns)]
        tensor = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [1, 2 * gates, columns], numbers)
        model.graph.initializer.append(tensor)
    legal, report = legalize(model, "nhwc")
    assert report.status == "optimal"
    assert_same_numbers(model, legal)


def test_a_rank_that_a_rule_finds_tells_the_number_of_extents_that_a_shape_has() -> None:
    """The extent of the Shape's result had a name already, so that a round seemed to find nothing new."""
    text = """g (float[8] x, float[2, 2, 2] z, bool[2] c) => (y)
        { k = Compress <axis = 0> (z, c)  s = Shape (k)  r = Reshape (x, s)  y = Sin (r) }"""
    model = read_model(parse(text, opset=9))
    shapes = {value.name: value.shape for node in model.graph for value in node.outputs}
    assert shapes["s"] == [3]
    assert [shapes[name] and len(shapes[name]) for name in "kry"] == [3, 3, 3]


@pytest.mark.parametrize(("least", "shape"), [(2, ["b", 3, 4]), (4, None)])
def test_an_if_whose_condition_is_known_has_the_shape_of_the_branch_that_runs(least: int, shape: list | None) -> None:
    """As `tile` is exported: the other branch adds as many dims as are missing, so that it has no rank."""
    text = f"""g (float[b, 3, 4] x, bool[3] c) => (y) <int64[1] least = {{{least}}}>
        {{ s = Shape (x)  n = Shape (s)  few = Less (n, least)
           r = If (few) <
               then_branch = g () => (more) {{ k = Compress <axis = 0> (s, c)  more = Reshape (x, k) }},
               else_branch = g () => (same) {{ same = Identity (x) }}>
           y = Sin (r) }}"""
    model = read_model(parse(text, opset=17))
    shapes = {value.name: value.shape for node in model.graph for value in node.outputs}
    assert [shapes[name] for name in "ry"] == [shape, shape]


@pytest.mark.parametrize("opset", [9, 13, 14, 20])
def test_a_reshape_has_as_many_dims_as_its_target_has_numbers(opset: int) -> None:
    model = read_model(
        onnx.parser.parse_model(f"""<ir_version: 7, opset_import: ["" : {opset}]> g (float[n] x, int64[4] d) => (y) {{
            r = Reshape (x, d) y = Relu (r) }}""")
    )
    assert [len(value.shape or ()) for node in model.graph for value in node.outputs] == [4, 4]


def test_each_open_dim_of_a_completed_rank_has_a_name_and_its_size_follows_from_the_elements() -> None:
    """A legal model has names for such dims when it is read again, and must count them as before."""
    model = onnx.parser.parse_model("""<ir_version: 7, opset_import: ["" : 13]>
        g (float[1,2,5,6] x, float[2,2] w, int64[4] d) => (y) { k = Reshape (w, d) y = Conv (x, k) }""")
    dims = [dim for node in read_model(model).graph for value in node.outputs for dim in value.shape or ()]
    assert [str(dim) for dim in dims if not isinstance(dim, int) and dim.value is None] == []
    _, report = legalize(model, "nhwc")
    assert report.ok
    (kernel,) = (each for each in report.conversions if each.value == "k")
    assert kernel.bytes == 2 * 4 * 4
