"""A node's operands wired to the copies that were chosen for them, and its results entered."""

from __future__ import annotations

import onnx_ir as ir

from relayout.candidates.alternatives import LaidForm, NodeChoice
from relayout.rewrite.context import Workshop
from relayout.rewrite.operand_dims import own_dims, port_dims, present

__all__ = ["give", "wire"]


def wire(shop: Workshop, choice: NodeChoice, node: ir.Node) -> None:
    """Let each input read its copy; constants are re-laid out."""
    form = shop.chosen[id(choice)].form
    formats = shop.chosen[id(choice)].formats
    rule = shop.tensors.rules.get(node)
    assert isinstance(form, LaidForm)
    ports = {p.index: (p, f) for p, f in zip(choice.ports, formats, strict=True) if not p.is_result}
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if index in ports:
            port, format_ = ports[index]
            dims = port_dims(choice, port, form, rule)
            found = shop.copies.read(port.operand.tensor, format_, dims, stem=shop.stem(port.operand))
            shop.replace(node, index, found.value)
            continue
        own = form.inputs[index] if index < len(form.inputs) else None
        if own is not None and shop.tensors.is_constant(value):
            shop.replace(node, index, shop.constants.laid(value, own))


def give(shop: Workshop, choice: NodeChoice, node: ir.Node) -> None:
    """Enter each result in the format that was chosen for it."""
    alternative = shop.chosen[id(choice)]
    for port, format_ in zip(choice.ports, alternative.formats, strict=True):
        # A result that nobody reads may be gone from what was written.
        if port.is_result and port.index < len(node.outputs):
            own = present(own_dims(choice, port, alternative.form, None))
            shop.register(node.outputs[port.index], port.operand, format_, own)
