"""Every row of the operator table computes the same numbers with its operands in every order of their axes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from examples import EXAMPLES, Constant, Example, Input, row_of
from graphs import Net, assert_same_numbers, run
from onnx import helper

from relayout.legalization import legalize
from relayout.model.dims.operator_placeholders import insert_operator_placeholders
from relayout.ops import rows
from relayout.ops.contributed import CONTRIBUTED
from relayout.verification.operator_facts import is_contributed

ORDERS = 7


def feeds_of(example: Example, perm: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    feeds: dict[str, np.ndarray] = {}
    for index, given in enumerate(example.inputs):
        if not isinstance(given, Input):
            continue
        kind = np.dtype(given.dtype).kind
        drawn = (
            rng.uniform(given.low, given.high, given.shape)
            if kind == "f"
            else rng.integers(int(given.low), int(given.high), given.shape)
        )
        array = drawn.astype(given.dtype)
        feeds[f"x{index}"] = array.transpose(perm) if given.permuted and array.ndim == len(perm) else array
    return feeds


def wrapped(example: Example, perm: tuple[int, ...]) -> onnx.ModelProto:
    """The node, with every operand of the main rank arriving in the order `perm` and leaving in it."""
    net = Net(example.opset)
    inverse = tuple(int(p) for p in np.argsort(perm))
    names: list[str] = []
    for index, given in enumerate(example.inputs):
        if given is None:
            names.append("")
        elif isinstance(given, Constant):
            names.append(net.constant(np.asarray(given.array, given.dtype)))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(np.dtype(given.dtype))
            permuted = given.permuted and len(given.shape) == len(perm)
            shape = tuple(given.shape[p] for p in perm) if permuted else given.shape
            value = net.input(f"x{index}", shape, dtype)
            names.append(net.transpose(value, *inverse) if permuted else value)
    while names and not names[-1]:
        names.pop()
    results: Any = net.node(
        example.operator, *names, results=example.results, domain=example.domain, **example.attributes
    )
    main = next(given.shape for given in example.inputs if isinstance(given, Input))
    if example.domain:
        main, kind = _computed(net, results, feeds_of(example, perm))
        inferred = {results: kind}
    else:
        inferred = _inferred(net)
    for result in (results,) if isinstance(results, str) else results:
        # onnx infers no shape for some operators that are functions; these keep their input's.
        rank, dtype = inferred.get(result, (len(perm), onnx.TensorProto.FLOAT))
        net.output(net.transpose(result, *perm) if rank == len(perm) else result, dtype)
    model = net.model()
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape"):
            shape = [main[p] for p in perm] if len(main) == len(perm) else main
            value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    return onnx.shape_inference.infer_shapes(model) if example.domain else model


def _inferred(net: Net) -> dict[str, tuple[int, int]]:
    """Each value's rank and element type."""
    graph = helper.make_graph(net.nodes, "part", net.inputs, [], net.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", net.opset)])
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found = {v.name: v.type.tensor_type for v in inferred.graph.value_info}
    return {name: (len(t.shape.dim), t.elem_type) for name, t in found.items() if t.HasField("shape")}


def _computed(net: Net, result: str, feeds: dict[str, np.ndarray]) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The shape of a result that onnx does not infer, and its rank and element type."""
    net.outputs.append(onnx.ValueInfoProto(name=result))
    (array,) = run(net.model(), feeds)
    net.outputs.clear()
    return array.shape, (array.ndim, helper.np_dtype_to_tensor_dtype(array.dtype))


def orders_of(example: Example) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Some orders of the operands' axes, the source's first, and all of them."""
    rank = max(len(given.shape) for given in example.inputs if isinstance(given, Input))
    every = list(permutations(range(rank)))
    return every[:: max(1, len(every) // ORDERS)], every


def test_every_row_has_an_example() -> None:
    shown = [row_of(example) for example in EXAMPLES]
    assert [f"{r.operator} since {r.since}" for r in rows() if r not in shown] == []


def test_the_table_covers_at_least_120_operators_of_onnx() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    operators = {r.operator for r in rows() if not r.domain}
    assert operators - known == {"SimplifiedLayerNormalization"}, "onnxruntime has it in ONNX's domain"
    assert len(operators) >= 120


def label(example: Example) -> str:
    return (
        f"{example.domain}{'.' if example.domain else ''}{example.operator}-{example.opset}-{EXAMPLES.index(example)}"
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=label)
def test_a_row_computes_the_same_in_every_order(example: Example) -> None:
    sampled, every = orders_of(example)
    fewest = []
    for perm in sampled:
        model = wrapped(example, perm)
        legal, report = legalize(model)
        assert report.status == "optimal"
        assert report.verification is not None
        assert report.verification.passed
        assert report.after.bytes <= report.before.bytes
        assert_same_numbers(model, legal, feeds_of(example, perm))
        fewest.append(report.after.transposes if perm != every[0] else 1)
    if example.moves:
        others = (wrapped(example, perm) for perm in every if perm not in sampled)
        rest = (legalize(model, verify=False)[1].after.transposes for model in others)
        assert min(fewest) == 0 or 0 in rest


# Left out they are nothing; kept they are operators with named axes.
KEPT = ("DepthToSpace", "SpaceToDepth")
FIXED = [
    e
    for e in EXAMPLES
    if any(
        (r.kind == "fixed" or r.operator in KEPT) and (r.domain, r.operator) == (e.domain, e.operator) for r in rows()
    )
]


@pytest.mark.parametrize("example", FIXED, ids=label)
def test_a_named_operator_computes_the_same_channels_last(example: Example) -> None:
    rank = max(len(given.shape) for given in example.inputs if isinstance(given, Input))
    for perm in (tuple(range(rank)), (0, *range(2, rank), 1)):
        model = wrapped(example, perm)
        legal, report = legalize(model, "nhwc")
        assert_same_numbers(model, legal, feeds_of(example, perm))
    # A kernel that is computed at run time is converted at run time.
    run_time = [given for given in example.inputs if isinstance(given, Input) and len(given.shape) == rank]
    assert report.after.transposes == len(run_time) - 1 or example.operator in ("MaxUnpool", "DeformConv", "GridSample")


def test_each_contributed_operator_has_a_placeholder_in_inference_and_is_known_to_the_verifier() -> None:
    contributed = [example for example in EXAMPLES if example.domain == CONTRIBUTED]
    assert {example.operator for example in contributed} == {
        row.operator for row in rows() if row.domain == CONTRIBUTED
    }
    for example in contributed:
        (main, *_) = [given.shape for given in example.inputs if isinstance(given, Input)]
        model = wrapped(example, tuple(range(len(main))))
        (node,) = [each for each in ir.from_proto(model).graph if each.domain == CONTRIBUTED]
        assert is_contributed(node), example.operator
        assert insert_operator_placeholders(model), example.operator
