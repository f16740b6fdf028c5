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
