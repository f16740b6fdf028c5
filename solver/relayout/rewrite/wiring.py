"""A node's operands wired to the copies that were chosen for them, and its results entered."""

from __future__ import annotations

import onnx_ir as ir

from relayout.candidates.alternatives import FixedLowering, NodeAlternatives
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.operand_dims import own_dims, port_dims, present

__all__ = ["give", "wire"]


def wire(context: RewriteContext, choice: NodeAlternatives, node: ir.Node) -> None:
    """Let each input read its copy; constants are re-laid out."""
    form = context.chosen[id(choice)].form
    formats = context.chosen[id(choice)].formats
    rule = context.tensors.rules.get(node)
    assert isinstance(form, FixedLowering)
    ports = {p.index: (p, f) for p, f in zip(choice.ports, formats, strict=True) if not p.is_result}
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if index in ports:
            port, format_ = ports[index]
            dims = port_dims(choice, port, form, rule)
            found = context.copies.read(port.operand.tensor, format_, dims, stem=context.stem(port.operand))
            context.replace(node, index, found.value)
            continue
        own = form.inputs[index] if index < len(form.inputs) else None
        if own is not None and context.tensors.is_constant(value):
            context.replace(node, index, context.constants.laid(value, own))


def give(context: RewriteContext, choice: NodeAlternatives, node: ir.Node) -> None:
    """Enter each result in the format that was chosen for it."""
    alternative = context.chosen[id(choice)]
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        # A result that nobody reads may be gone from what was written.
        if port.is_result and port.index < len(node.outputs):
            own = present(own_dims(choice, port, alternative.form, None))
            context.register(node.outputs[port.index], port.operand, format_, own)
