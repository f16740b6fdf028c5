"""The definition of a constant value, known before the model runs, for the solver, the report and the backends.

Constants are initializers, results of `Constant`, Shapes and Sizes of known extents, known extents taken from shapes
with unknown ones, and results that ONNX's own operators compute from constants alone. Such an operator never runs with
data, so a conversion of its results is free.

Not constant are:

- an initializer that is a graph input too: it is a default, which a caller may replace;
- the result of an operator that draws random numbers;
- the result of an operator of any other domain: relayout cannot evaluate it, so it runs with the model;
- the result of a region op (If, Loop, Scan): its subgraphs get layouts together with the graph around them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import onnx_ir as ir

from relayout.ops import graphs_of
from relayout.ops.node_reader import constant_tensor

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


_remembered: ContextVar[dict[tuple[ir.Value, Set[str]], bool] | None] = ContextVar("remembered", default=None)


def constant_values(graph: ir.Graph, outer: Set[ir.Value] = frozenset()) -> set[ir.Value]:
    """Return the constant values of `graph` and the graphs inside it; `outer` are those of the graphs around it."""
    constants = {*outer, *graph.initializers.values()}.difference(graph.inputs)
    for node in graph:
        for inner in graphs_of(node):
            constants |= constant_values(inner, constants)
        if gives_constants(node, constants):
            constants.update(node.outputs)
    return constants


def gives_constants(node: ir.Node, constants: Container[ir.Value]) -> bool:
    """Whether the results of `node` are constant where `constants` are."""
    for value in node.inputs:
        if value is not None and value not in constants:
            return known_result(node) is not None and _is_evaluable(node)
    return _is_evaluable(node)


def _is_evaluable(node: ir.Node) -> bool:
    """Whether `node` can be evaluated once for all runs, given constant inputs."""
    return node.domain == "" and node.op_type not in _RANDOM and not graphs_of(node)


@contextmanager
def remembering_constants() -> Iterator[None]:
    """Remember the answers of `hangs_on_constants`, for a stage in which no graph changes.

    Each answer is a walk up to an input of the graph, so those for all nodes of a deep graph would take quadratic time.
    """
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


def hangs_on_constants(value: ir.Value, *, never: Set[str] = frozenset()) -> bool:
    """Whether `value` is a constant, or computed from constants alone, by none of the operators `never`."""
    remembered = _remembered.get()
    if remembered is None:
        remembered = {}
    answer = remembered[value, never] = _hangs_on_constants(value, never, remembered)
    return answer


def _hangs_on_constants(value: ir.Value, never: Set[str], known: Mapping[tuple[ir.Value, Set[str]], bool]) -> bool:
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()  # depth first: an input of the graph is soon reached
        answer = known.get((current, never))
        if answer is not None:
            if not answer:
                return False
            continue
        if not current.is_graph_input() and constant_tensor(current) is not None:
            continue
        producer = current.producer()
        if producer is None or not _is_evaluable(producer) or producer.op_type in never or not producer.inputs:
            return False
        fresh = [operand for operand in producer.inputs if operand is not None and operand not in seen]
        seen.update(fresh)
        pending += fresh
    return True


def known_result(node: ir.Node) -> np.ndarray | None:
    """The result of a node that reads values of the run and gives the same in each, an array of any shape; else None.

    A Shape or Size of known extents is one, and a Gather that reads a known extent of a shape with unknown ones.
    """
    outputs, operator = node.outputs, node.op_type
    if len(outputs) != 1:
        return None
    if operator not in ("Shape", "Size"):
        # Shape propagation leaves the numbers that it finds here. A Constant has its own. Few nodes have any.
        found = outputs[0].const_value
        is_known = found is not None and node.domain == "" and bool(node.inputs)
        return found.numpy() if found is not None and is_known else None
    source = node.inputs[0] if node.domain == "" else None
    if source is None or source.shape is None or not source.shape.is_static():
        return None
    shape = np.array(source.shape.numpy(), np.int64)
    if operator == "Size":
        return np.array(shape.prod(), np.int64)
    return shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(shape))]
