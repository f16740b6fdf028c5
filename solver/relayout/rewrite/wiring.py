"""Connects a node's operands to the planned copies and registers its results."""

from __future__ import annotations

import onnx_ir as ir

from relayout.candidates.alternatives import FixedLowering
from relayout.formulate.plan import PlannedNode
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.operand_dims import port_dims, present

__all__ = ["connect_operands", "register_results"]


def connect_operands(context: RewriteContext, planned: PlannedNode, node: ir.Node) -> None:
    """Connect each input to its planned copy; constants are permuted."""
    lowering = planned.lowering
    assert isinstance(lowering, FixedLowering)
    ports = {port.index: (port, format_) for port, format_ in planned.operands()}
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if index in ports:
            port, format_ = ports[index]
            context.replace_input(node, index, context.read(port.operand, format_, port_dims(planned, port)))
            continue
        own = lowering.inputs[index] if index < len(lowering.inputs) else None
        if own is not None and context.tensors.is_constant(value):
            context.replace_input(node, index, context.constants.relaid(value, own))


def register_results(context: RewriteContext, planned: PlannedNode, node: ir.Node) -> None:
    """Register each result in its planned format."""
    for port, format_ in planned.results():
        # The node may have lost an unused result.
        if port.index < len(node.outputs):
            own = present(planned.operand_dims(port))
            context.register(node.outputs[port.index], port.operand, format_, own)
