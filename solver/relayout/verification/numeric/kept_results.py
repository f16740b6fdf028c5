"""Results that need no run: the model computes them as the original does, from values that are compared.

No runtime has the plugins of an accelerator, and onnxruntime refuses nodes whose kernel is for another device. A legal
model has such a node as the original has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Set

import onnx_ir as ir

from relayout.ops import graphs_of
from relayout.ops.node_reader import constant_tensor
from relayout.verification.counterparts import source_name
from relayout.verification.memory_format import memory_format_of
from relayout.verification.numeric.cut import Operators, draws_anew

_ONNXRUNTIME = "com.microsoft"

# onnxruntime's messages about a node that does not take its operands.
_REFUSES = re.compile(r"while running (\w+) node")

_Pair = tuple[ir.Value | None, ir.Value | None]


def kept_behind(
    value: ir.Value,
    source: ir.Value,
    is_compared: Callable[[ir.Value, ir.Value], bool],
    opaque: Set[str],
    functions: Container[ir.OperatorIdentifier],
) -> set[str] | None:
    """The names of the values of which `is_compared` is true and from which the model computes `value` as the original
    computes `source`; None where it computes it otherwise.

    Behind it are nodes of the same operators and attributes, in one format in both models, the models' inputs, and
    constants of the same data. No value is among them whose name is in `opaque`, those of the model's whose memory is
    not in the order of their shape, and no node that calls one of the `functions`.
    """
    seen: set[_Pair] = {(None, None)}
    compared: set[str] = set()
    pending: list[_Pair] = [(value, source)]
    while pending:
        pair = mine, theirs = pending.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if mine is None or theirs is None or mine.name in opaque or not _are_in_one_format(mine, theirs):
            return None
        if is_compared(mine, theirs):
            compared.add(str(mine.name))
            continue
        node, other = mine.producer(), theirs.producer()
        if _is_identity(node) or _is_identity(other):
            # A rewrite drops an Identity.
            pending.append((_behind_identity(mine), _behind_identity(theirs)))
            continue
        if node is None or other is None:
            are_one_input = mine.is_graph_input() and theirs.is_graph_input() and mine.name == theirs.name
            if node is not other or not (are_one_input or _are_same_data(mine, theirs)):
                return None
        elif mine.index() != theirs.index() or not _are_alike(node, other) or node.op_identifier() in functions:
            return None
        else:
            pending += zip(node.inputs, other.inputs, strict=True)
    return compared


def refused(model: ir.Model, original: ir.Model, fault: str) -> Operators:
    """The operator of onnxruntime's own that it does not run, as `fault` says, if all its nodes in the model are the
    original's, in the same formats; else none.

    ONNX's own operators are not among them: the random operands may be the reason.
    """
    named = _REFUSES.search(fault)
    operator = (_ONNXRUNTIME, named[1]) if named is not None else None
    nodes = [node for node in model.graph.all_nodes() if node.op_identifier()[:2] == operator]
    made = {str(value.name): node for node in original.graph.all_nodes() for value in node.outputs}
    others = [made.get(source_name(node.outputs[0])) for node in nodes]
    are_kept = all(other is not None and _is_kept(node, other) for node, other in zip(nodes, others, strict=True))
    return frozenset([operator] if operator is not None and nodes and are_kept else [])


def _is_kept(node: ir.Node, other: ir.Node) -> bool:
    """Whether the node is the other one, in the same formats."""
    values, sources = (*node.inputs, *node.outputs), (*other.inputs, *other.outputs)
    return _are_alike(node, other) and all(map(_are_in_one_format, values, sources))


def _are_in_one_format(value: ir.Value | None, source: ir.Value | None) -> bool:
    if value is None or source is None:
        return value is source
    return memory_format_of(value) == memory_format_of(source)


def _is_identity(node: ir.Node | None) -> bool:
    return node is not None and node.op_identifier()[:2] == ("", "Identity")


def _behind_identity(value: ir.Value) -> ir.Value | None:
    node = value.producer()
    return node.inputs[0] if node is not None and _is_identity(node) else value


def _are_alike(node: ir.Node, other: ir.Node) -> bool:
    """Whether the two compute the same from the same operands: they are of one version of one operator, have the same
    attributes, and no graphs inside."""
    mine, theirs = ((each.op_identifier(), _version(each), len(each.inputs)) for each in (node, other))
    return (
        mine == theirs
        and not graphs_of(node)
        and not draws_anew(node)
        and node.attributes.keys() == other.attributes.keys()
        and all(_are_equal(each, other.attributes[name]) for name, each in node.attributes.items())
    )


def _version(node: ir.Node) -> int | None:
    return node.graph.opset_imports.get(node.domain) if node.graph is not None else None


def _are_equal(attribute: ir.Attr, other: ir.Attr) -> bool:
    if attribute.type != other.type or attribute.is_ref() or other.is_ref():
        return False
    if attribute.type == ir.AttributeType.TENSOR:
        return _are_same_tensors(attribute.as_tensor(), other.as_tensor())
    return bool(attribute.value == other.value)


def _are_same_data(value: ir.Value, other: ir.Value) -> bool:
    mine, theirs = constant_tensor(value), constant_tensor(other)
    return mine is not None and theirs is not None and _are_same_tensors(mine, theirs)


def _are_same_tensors(tensor: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    if tensor.dtype != other.dtype or tuple(tensor.shape) != tuple(other.shape):
        return False
    if tensor.dtype == ir.DataType.STRING:
        return tuple(tensor.numpy().flat) == tuple(other.numpy().flat)
    return tensor.tobytes() == other.tobytes()
