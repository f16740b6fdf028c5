"""Values computed before the run equal those that the model computes."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from examples import EXAMPLES, Constant, Example, Input
from graphs import Net, assert_same_numbers, run
from onnx import helper, numpy_helper
from random_graphs import NEWEST_OPSET, Builder, Rejected
from random_operators import PROPOSALS, propose

from relayout import legalize
from relayout.rewrite.constant_folding import FOLDABLE, folded_value

Array = np.ndarray[Any, Any]


def numbers_of(given: Input | Constant) -> Array:
    if isinstance(given, Constant):
        return np.asarray(given.array, given.dtype)
    rng = np.random.default_rng(7)
    if np.dtype(given.dtype).kind == "f":
        return rng.uniform(given.low, given.high, given.shape).astype(given.dtype)
    return rng.integers(int(given.low), int(given.high), given.shape).astype(given.dtype)


def cast(array: Array, dtype: Any) -> Array:
    finite = array if np.dtype(dtype).kind == "f" else np.nan_to_num(array, posinf=7, neginf=-7)
    return finite.astype(dtype)


@cache
def schemas() -> list[onnx.defs.OpSchema]:
    """All definitions that ONNX has had of its operators; reading them takes as long as a test."""
    return [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]


def versions_of(operator: str) -> list[int]:
    """One opset for each time that ONNX wrote the operator's definition anew."""
    return sorted({max(s.since_version, 7) for s in schemas() if s.name == operator and not s.deprecated})


def by_onnxruntime(example: Example, opset: int, drawn: list[Array | None]) -> list[Array] | None:
    """The result of the operator, or None where it is another thing in this opset: other inputs, other attributes."""
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(drawn)]
    results = [f"y{i}" for i in range(example.results)]
    node = helper.make_node(example.operator, names, results, **example.attributes)
    feeds = {name: array for name, array in zip(names, drawn, strict=True) if array is not None}
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    graph = helper.make_graph([node], "g", given, [helper.make_value_info(r, onnx.TypeProto()) for r in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        return run(onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True), feeds)
    except Exception:  # onnx, onnxruntime: each has its own
        return None


def folded(example: Example, opset: int, drawn: list[Array | None]) -> list[Array | None]:
    tensors = [None if array is None else ir.Tensor(array) for array in drawn]
    inputs = [
        None if t is None else ir.Value(name=f"x{i}", type=ir.TensorType(t.dtype), const_value=t)
        for i, t in enumerate(tensors)
    ]
    outputs = [ir.Value(name=f"y{i}") for i in range(example.results)]
    attributes = [ir.convenience.convert_attribute(name, value) for name, value in example.attributes.items()]
    node = ir.Node("", example.operator, inputs, attributes, outputs=outputs)
    ir.Graph([], outputs, nodes=[node], opset_imports={"": opset})
    found = [folded_value(output, {}) for output in outputs]
    return [None if tensor is None else tensor.numpy() for tensor in found]


HALVES = Constant(np.linspace(-3, 3, 301).astype(np.float16), np.float16)

INFINITE = Constant(np.array([np.inf, -np.inf, np.nan, 1], np.float32), np.float32)

MORE = [
    Example("Clip", (INFINITE,)),
    Example("Sign", (INFINITE,)),
    Example("QuantizeLinear", (HALVES, Constant(np.array(0.05), np.float16), Constant(np.array(3), np.uint8))),
    Example("ReduceMean", (Input((3, 0)), Constant([1])), opset=18),
    Example("Unsqueeze", (Input((2, 6)),), {"axes": [2, 0]}, opset=11),
    Example("Unsqueeze", (Input((2, 6)),), {"axes": [-2, -1]}, opset=11),
    Example("ConstantOfShape", (Constant([2, 3]),), {"value": numpy_helper.from_array(np.array([7], np.int32))}),
    Example("Range", (Constant(np.array(1)), Constant(np.array(9)), Constant(np.array(3)))),
]

FOLDED = [example for example in [*EXAMPLES, *MORE] if example.operator in FOLDABLE]


def test_every_operator_that_is_folded_has_an_example() -> None:
    assert set(FOLDABLE) - {example.operator for example in FOLDED} == set()


def compared(example: Example, opset: int, drawn: list[Array | None]) -> int:
    """How many results were compared, in how many types."""
    count = 0
    for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, np.int8, np.uint8):
        typed = [a if a is None or a.dtype != np.float32 else cast(a, dtype) for a in drawn]
        expected = by_onnxruntime(example, opset, typed)
        if expected is None:
            continue
        for one, other in zip(expected, folded(example, opset, typed), strict=True):
            assert other is None or (one.shape, one.dtype) == (other.shape, other.dtype)
            if other is not None:
                level = 1e-2 if one.dtype == np.float16 else 1e-4
                scale = float(np.abs(one.astype(float)).max(initial=0.1))
                np.testing.assert_allclose(other, one, rtol=level, atol=level * scale / 10, err_msg=f"{opset} {dtype}")
            count += 1
    return count


@pytest.mark.parametrize("example", FOLDED, ids=lambda e: f"{e.operator}-{FOLDED.index(e)}")
def test_a_folded_constant_equals_what_the_model_computes(example: Example) -> None:
    drawn = [None if given is None else numbers_of(given) for given in example.inputs]
    assert sum(compared(example, v, drawn) for v in {*versions_of(example.operator), example.opset}) > 0


@pytest.mark.parametrize("operator", sorted(set(FOLDABLE) & set(PROPOSALS)))
def test_a_folded_result_of_any_node_equals_what_the_model_computes(operator: str) -> None:
    """Of any attributes, in any opset."""
    history = [schema for schema in schemas() if schema.name == operator]
    count = 0
    for seed in range(6):
        opset = Random(f"{operator} {seed}").randint(max(7, min(s.since_version for s in history)), NEWEST_OPSET)
        builder = Builder(seed, opset)
        builder.input(builder.shape(1 + seed % 4))
        try:
            propose(builder, operator)
        except Rejected:
            continue
        nodes = [node for node in builder.nodes if node.op_type == operator]
        if not nodes:
            continue
        node = nodes[-1]
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        attributes = {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
        drawn = [builder.values[name].array if name else None for name in node.input]
        count += compared(Example(operator, (), attributes, results=len(node.output)), opset, drawn)
    assert count > 0


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [9, 11, 12, 13])
@pytest.mark.parametrize("words", [["NHWC", "HWIO"], ["NCHW8c", "OIHW8i8o"]])
def test_a_kernel_that_softmax_computes_is_that_of_the_opset(operator: str, opset: int, words: list[str]) -> None:
    net = Net(opset)
    kernel = net.node(operator, net.weight(16, 16, 3, 3), axis=1)
    net.output(net.node("Conv", net.input("x", (1, 16, 8, 8)), kernel))
    model = net.model()
    legal, report = legalize(model, "convert-layout", backend_options={"desired_layouts": {"Conv": words}}, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert report.cost == report.after.bytes
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("words", [["NHWC", "HWIO"], ["NCHW8c", "OIHW8i8o"]])
def test_a_kernel_is_normalised_by_the_sum_of_its_absolute_values(power: int, words: list[str]) -> None:
    net = Net()
    kernel = net.node("LpNormalization", net.weight(16, 16, 3, 3), axis=1, p=power)
    net.output(net.node("Conv", net.input("x", (1, 16, 8, 8)), kernel))
    model = net.model()
    legal, _ = legalize(model, "convert-layout", backend_options={"desired_layouts": {"Conv": words}})
    assert_same_numbers(model, legal)
