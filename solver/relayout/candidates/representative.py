"""A representative of an operator class: a node like those of a graph, in a graph of its own.

The candidates of a node are functions that hold the node. Those of a representative hold no model, so that they can be
kept for further graphs of a process.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from relayout.candidates.alternatives import NodePorts, Port, label_of
from relayout.candidates.axis_names import AxisNames, KnownNames, OperandNames
from relayout.candidates.tensors import Operand, Tensor
from relayout.layout.relaid_constant import AbsentTensor, is_one_of
from relayout.ops import OperatorClass, is_read


class RepresentativeNames(OperandNames):
    """The axis names of a representative's operands: those of the operands of a node that it is like."""

    def __init__(self, representative: NodePorts, like: NodePorts, names: AxisNames) -> None:
        pairs = zip(representative.ports, like.ports, strict=True)
        self._known = {port.operand.value: names.known(own.operand.value) for port, own in pairs}

    def known(self, value: ir.Value) -> KnownNames:
        return self._known.get(value, ())


def representative_key(node: NodePorts, kind: OperatorClass, names: AxisNames) -> tuple[object, ...] | None:
    """A value that only nodes share whose representatives are equal; None for a node without one: where its class has
    no value, an extent is not known, or metadata say more than the types."""
    own = node.node
    if own is None or kind.key is None or own.metadata_props:
        return None
    for value in (*own.inputs, *own.outputs):
        if value is None:
            continue
        if value.shape is None or not value.shape.is_static() or type(value.type) is not ir.TensorType:
            return None
        if value.metadata_props:
            return None
    views = [port.operand.view for port in node.ports]
    if any(isinstance(extent, str) or extent is None for view in views for extent in view.base_extents):
        return None
    ports = [(port.is_result, port.index, port.operand.view, names.known(port.operand.value)) for port in node.ports]
    # A view op has no rule where it is no view. An operand's own choice has another rule than its node.
    return kind.key, node.rule is None, len(node.others), *ports


def representative_of(node: NodePorts, opsets: Mapping[str, int]) -> NodePorts:
    """The representative of a node that has a `representative_key`. Its constants do not have the node's numbers, on
    which no answer about a class depends."""
    own = node.node
    assert own is not None
    copies = {value: _copy(value) for value in (*own.inputs, *own.outputs) if value is not None}
    outputs = [copies[value] for value in own.outputs]
    made = ir.Node(
        own.domain,
        own.op_type,
        [copies[value] if value is not None else None for value in own.inputs],
        own.attributes,
        overload=own.overload,
        outputs=outputs,
    )
    read = [copies[value] for value in own.outputs if is_read(value)]
    inputs = [copies[value] for value in dict.fromkeys(own.inputs) if value is not None and value.is_graph_input()]
    # The graph holds its nodes, and they the graph.
    ir.Graph(inputs, read, nodes=[made], opset_imports=dict(opsets))
    made.name = None  # the graph has given it one, which a message about it would have
    ports, others = (
        tuple([_port(port, (made.outputs if port.is_result else made.inputs)[port.index]) for port in every])
        for every in (node.ports, node.others)
    )
    return NodePorts(label_of(made), made, ports, node.rule, others=others)


def _port(port: Port, value: ir.Value | None) -> Port:
    assert value is not None
    tensor = port.operand.tensor
    base = value if port.operand.value is tensor.base else ir.Value(name="", type=tensor.base.type)
    copy = Tensor(tensor.index, base, tensor.extents, tensor.constant)
    return Port(Operand(copy, port.operand.view, value), port.is_result, port.index, port.noted_order)


def _copy(value: ir.Value) -> ir.Value:
    assert value.shape is not None
    assert value.dtype is not None
    name, shape = "value" if value.name else "", ir.Shape(value.shape.dims)
    return ir.Value(name=name, shape=shape, type=ir.TensorType(value.dtype), const_value=_data_like(value))


def _data_like(value: ir.Value) -> ir.TensorProtocol | None:
    """The constant of a copy: without data where the value's has none, else of ones, which are made when read."""
    assert value.dtype is not None
    assert value.shape is not None
    constant, producer, dtype = value.const_value, value.producer(), value.dtype
    if constant is None and (producer is None or producer.op_type != "Constant"):
        return None
    extents = value.shape.numpy()
    if is_one_of(constant, AbsentTensor):
        return AbsentTensor(dtype, extents, "")
    return ir.LazyTensor(lambda: ir.Tensor(np.ones(extents, dtype.numpy())), dtype, ir.Shape(extents), name="")
