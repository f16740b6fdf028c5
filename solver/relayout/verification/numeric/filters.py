"""Filters that keep some elements: a detector finds no object in random data, and all that it computes of one is empty.

NonZero, Compress and NonMaxSuppression choose elements by their values. In the changed model, the first two also keep
one element of each `_STRIDE`, and the last one keeps the best elements, however low their score is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from relayout.verification.constants import constants_of
from relayout.verification.numeric.inputs import Array

_NAME = "relayout_kept"
_FIRST_OPSET, _ALLOWZERO = 10, 14
"""The first versions of ONNX with Mod, and with Reshape to the shape of a tensor without elements."""
_CHOSEN_BY = {"NonZero": 0, "Compress": 1, "NonMaxSuppression": 4}
"""The operand by which an operator chooses elements."""
# A prime number: with extents such as 64 or 80, elements in all columns are kept.
_STRIDE = 61
_LOWEST_SCORE = np.finfo(np.float32).min


def has_filters(model: ir.Model) -> bool:
    return any(True for _ in _filters(model))


def keeping(model: ir.Model) -> ir.Model:
    """A copy whose filters keep some elements."""
    copy = model.clone()
    filters = list(_filters(copy))
    stored = {
        name: _stored(copy.graph, name, array)
        for name, array in {
            "zero": np.array(0),
            "vector": np.array([1]),
            "stride": np.array(_STRIDE),
            "score": np.array([_LOWEST_SCORE]),
        }.items()
    }
    for number, node in enumerate(filters):
        operand = _CHOSEN_BY[node.op_type]
        if node.op_type == "NonMaxSuppression":
            node.replace_input_with(operand, stored["score"])
        else:
            chosen = node.inputs[operand]
            assert chosen is not None  # the schema demands it
            allowzero = {"allowzero": 1} if copy.opset_imports[""] >= _ALLOWZERO else {}
            nodes = _with_more_chosen(chosen, stored, f"{_NAME}_{number}", allowzero)
            assert node.graph is not None
            node.graph.insert_before(node, nodes)
            node.replace_input_with(operand, nodes[-1].outputs[0])
    return copy


def _filters(model: ir.Model) -> Iterator[ir.Node]:
    """The filters that choose by a value which is computed while the model runs."""
    if model.opset_imports.get("", 0) < _FIRST_OPSET:
        return
    constants = constants_of(model.graph)
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in graph:
            operand = _CHOSEN_BY.get(node.op_type) if node.domain == "" else None
            # Without a lowest score, NonMaxSuppression keeps the best elements in any case.
            chosen = node.inputs[operand] if operand is not None and operand < len(node.inputs) else None
            if chosen is not None and (node.op_type == "NonMaxSuppression" or chosen not in constants):
                yield node


def _stored(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    full = f"{_NAME}_{name}"
    value = ir.val(full, const_value=ir.tensor(array, name=full))
    graph.register_initializer(value)
    return value


def _with_more_chosen(
    chosen: ir.Value, stored: Mapping[str, ir.Value], prefix: str, allowzero: Mapping[str, int]
) -> list[ir.Node]:
    """The nodes that compute, of a value by which elements are chosen, one by which more are."""
    nodes: list[ir.Node] = []

    def add(op_type: str, *inputs: ir.Value, **attributes: int | ir.TensorProtocol) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, name=f"{prefix}_{len(nodes)}")
        made.outputs[0].name = made.name
        nodes.append(made)
        return made.outputs[0]

    # Range is newer.
    ones = add("ConstantOfShape", add("Reshape", add("Size", chosen), stored["vector"]), value=ir.tensor([1]))
    marked = add("Equal", add("Mod", add("NonZero", ones), stored["stride"]), stored["zero"])
    marked = add("Reshape", marked, add("Shape", chosen), **allowzero)
    add("Or", add("Cast", chosen, to=int(ir.DataType.BOOL)), marked)
    return nodes
