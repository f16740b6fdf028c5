"""A model without the operators that the runtime lacks, or that draw numbers without a seed: cut there, so that what
lies before, beside and after runs.

The results of such an operator become inputs, and its operands outputs. Where a result's type or shape is not known,
what depends on it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

import onnx_ir as ir

from relayout.ops import graphs_of
from relayout.ops.node_reader import constant_tensor
from relayout.verification.constants import RANDOM
from relayout.verification.operator_facts import OURS

_HAS_KERNELS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
    "com.microsoft",
    "com.microsoft.nchwc",
)

# onnxruntime's messages about an operator that it does not have.
_LACKS = re.compile("not a registered|find an implementation|not implemented|No Op registered|No schema", re.I)

Operators = frozenset[tuple[str, str]]
"""Operators by domain and name."""


@dataclass(frozen=True)
class Cut:
    """A model without some nodes. `given` are the inputs in place of their results, `asked` the operands that they
    read, and `left_out` the graph's outputs that cannot be computed."""

    model: ir.Model
    given: tuple[ir.Value, ...]
    asked: tuple[str, ...]
    left_out: tuple[str, ...]


def lacking(model: ir.Model, fault: str = "") -> Operators:
    """The operators of domains that no runtime knows and that have no body; without such, those that `fault` names.

    Those in functions that the graph calls are among them.
    """
    bodies = {(domain, name) for domain, name, _ in model.functions}
    used = {(node.domain, node.op_type) for node in nodes_run_by(model)} - bodies
    unknown = frozenset((domain, name) for domain, name in used if domain not in _HAS_KERNELS and domain != OURS)
    if unknown or not _LACKS.search(fault):
        return unknown
    words = set(re.findall(r"\w+", fault))
    return frozenset((domain, name) for domain, name in used if name in words)


def nodes_run_by(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of the graph, and those of the functions that it calls."""
    pending, seen = [model.graph.all_nodes()], set()
    while pending:
        for node in pending.pop():
            yield node
            called = node.op_identifier()
            if called in model.functions and called not in seen:
                seen.add(called)
                pending.append(model.functions[called].all_nodes())


def holding(model: ir.Model, is_one: Callable[[ir.Node], bool]) -> Callable[[ir.Node], bool]:
    """Whether a node is such a one, or calls a function that runs one."""
    found: set[ir.OperatorIdentifier] = set()
    while more := {
        name
        for name, function in model.functions.items()
        if name not in found and any(is_one(node) or node.op_identifier() in found for node in function.all_nodes())
    }:
        found |= more
    return lambda node: is_one(node) or node.op_identifier() in found


def draws_anew(node: ir.Node) -> bool:
    """Whether two runs on the same inputs may give other results: the node draws numbers without a seed."""
    if "seed" in node.attributes:
        return False
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        training = node.inputs[2]
        known = constant_tensor(training) if training is not None else None
        return training is not None and (known is None or bool(known.numpy()))
    return node.op_type in RANDOM


def cut(model: ir.Model, is_lacking: Callable[[ir.Node], bool], feedable: Set[str] | None = None) -> Cut:
    """The model without these operators, and without a node that holds one inside or calls a function that runs one.

    Their results become inputs where their type and rank are known and, if `feedable` is given, they are among these.
    """
    is_lacking = holding(model, is_lacking)
    if not any(map(is_lacking, model.graph.all_nodes())):
        return Cut(model, (), (), ())
    copy = model.clone()
    graph = copy.graph
    lost: set[ir.Value] = set()
    gone: list[ir.Node] = []
    given: list[ir.Value] = []
    asked: dict[str, None] = {}
    for node in graph:
        inner = [each for body in graphs_of(node) for each in body.all_nodes()]
        reads = {value for each in (node, *inner) for value in each.inputs}
        is_removed = any(map(is_lacking, (node, *inner)))
        if is_removed:
            asked.update(dict.fromkeys(str(value.name) for value in node.inputs if value is not None))
        if not is_removed and not reads & lost:
            continue
        gone.append(node)
        for value in node.outputs:
            known = value.dtype is not None and value.shape is not None and bool(value.name)
            known = known and (feedable is None or value.name in feedable)
            if is_removed and known and not value.is_graph_output():
                given.append(_input_for(value))
            else:
                lost.add(value)
    left_out = tuple(str(value.name) for value in graph.outputs if value in lost)
    kept = [value for value in graph.outputs if value not in lost]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    for node in reversed(gone):
        for each in (each for body in graphs_of(node) for each in body.all_nodes()):
            each.resize_inputs(0)
        graph.remove(node, safe=True)
    graph.inputs.extend(given)
    made = {str(value.name) for node in graph for value in node.outputs}
    return Cut(copy, tuple(given), tuple(name for name in asked if name in made), left_out)


def _input_for(value: ir.Value) -> ir.Value:
    """An input of the same name and kind, which the readers of `value` read from now on."""
    fed = ir.Value(name=value.name, shape=value.shape, type=value.type)
    fed.metadata_props.update(value.metadata_props)
    value.replace_all_uses_with(fed)
    return fed
