"""Concat along the channels of blocked values, in whole blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.backend import Implementation
from relayout.writing import Writing
from relayout_backends.x86_nchwc.blocks import Blocks
from relayout_backends.x86_nchwc.shapes import channels_of, is_float_image

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["concatenation"]


def concatenation(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """Concat along the channels; only the last operand's blocks may be padded, or padding would end up in between."""
    if node.attributes.get_int("axis", 0) % 4 != 1 or not all(map(is_float_image, node.inputs)):
        return None
    if any(channels_of(value) % blocks.size for value in node.inputs[:-1]):
        return None

    def rewrite(writing: Writing) -> None:
        operands = [blocks.read(writing, index) for index in range(len(node.inputs))]
        shape = blocks.hidden(writing.shape_of(0, is_result=True))
        writing.give(0, writing.emit("Concat", operands, {"axis": 1}, shape=shape))

    return Implementation((blocks.layout,) * len(node.inputs), (blocks.layout,), rewrite=rewrite, pads=True)
