"""Convolutions: onnxruntime's blocked one, its cost relative to the plain one, and the blocks of its kernels.

Kernels are in MLAS's layouts (O and I are blocked outputs and inputs, Bi and Bo indices within a block):

    one group, or groups of whole blocks      O I H W Bi Bo
    depthwise, or fewer inputs than a block   O I H W Bo      the latter read their data as plain NCHW
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relayout.backend import Implementation, Writing, rank_of
from relayout.layout.layout import Layout
from relayout_backends.x86_nchwc.blocks import Blocks, zeros_after
from relayout_backends.x86_nchwc.costs import multiplying, multiplying_depthwise
from relayout_backends.x86_nchwc.shapes import attributes, channels_of, extents, is_float_image, is_known, volume

if TYPE_CHECKING:
    import onnx_ir as ir

ATTRIBUTES = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A convolution with a constant kernel [outputs, inputs, height, width], `inputs` being those of one group."""

    outputs: int
    inputs: int
    height: int
    width: int
    groups: int

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.inputs == 1 and self.outputs == self.groups

    def kernel_steps(self, blocks: Blocks, *, pads_inputs: bool) -> list[dict[str, Any]]:
        """The steps from ONNX's kernel to the blocked one, also of 4 dims. `pads_inputs`: inputs are blocked too."""
        size = blocks.size
        outputs = blocks.padded(self.outputs)
        inputs = blocks.padded(self.inputs) if pads_inputs else self.inputs
        steps: list[dict[str, Any]] = []
        if (outputs, inputs) != (self.outputs, self.inputs):
            steps.append({"op": "pad", "pads": [0, 0, 0, 0, outputs - self.outputs, inputs - self.inputs, 0, 0]})
        if pads_inputs:
            steps += [
                {"op": "reshape", "shape": [outputs // size, size, inputs // size, size, self.height, self.width]},
                {"op": "transpose", "perm": [0, 2, 4, 5, 3, 1]},
            ]
        else:
            steps += [
                {"op": "reshape", "shape": [outputs // size, size, inputs, self.height, self.width]},
                {"op": "transpose", "perm": [0, 2, 3, 4, 1]},
            ]
        return [*steps, {"op": "reshape", "shape": [outputs, inputs, self.height, self.width]}]


def convolutions(node: ir.Node, plain: Implementation, blocks: Blocks) -> Iterator[Implementation]:
    """Yield `plain` and every blocked implementation of `node`, a Conv, each with its cost beyond the cheapest."""
    shape = _shape_of(node)
    if shape is None:
        yield plain
        return
    places = volume(node.outputs[0], (0, 2, 3)) * shape.height * shape.width
    ways = [(plain, _plain_cost(shape, places))]
    for reads_blocks in _readings(shape, blocks):
        blocked = _blocked_implementation(node, shape, blocks, reads_blocks)
        ways.append((blocked, _blocked_cost(shape, blocks, places, reads_blocks)))
    least = min(cost for _, cost in ways)
    for way, cost in ways:
        yield replace(way, cost=cost - least)


def _shape_of(node: ir.Node) -> _Shape | None:
    """Its shape, or None where it cannot be blocked: not float, not 2-D, or its weights are no constants."""
    data, kernel = node.inputs[0], node.inputs[1]
    if not is_float_image(data) or not is_float_image(node.outputs[0]) or kernel is None or not is_known(kernel):
        return None
    known = extents(kernel)
    if known is None or len(known) != 4:
        return None
    outputs, inputs, height, width = known
    shape = _Shape(outputs, inputs, height, width, node.attributes.get_int("group", 1))
    return shape if shape.outputs and shape.inputs * shape.groups == channels_of(data) else None


def _readings(shape: _Shape, blocks: Blocks) -> tuple[bool, ...]:
    """The possible inputs of the blocked operator: blocked (True) or plain (False) data."""
    if shape.is_depthwise:
        return (True,)
    if shape.groups > 1:
        whole = shape.inputs % blocks.size == 0 and (shape.outputs // shape.groups) % blocks.size == 0
        return (True,) if whole else ()
    return (True,) if shape.inputs >= blocks.size else (False, True)


def _blocked_implementation(node: ir.Node, shape: _Shape, blocks: Blocks, reads_blocks: bool) -> Implementation:
    groups = blocks.padded(shape.groups) if shape.is_depthwise else shape.groups
    steps = shape.kernel_steps(blocks, pads_inputs=reads_blocks and not shape.is_depthwise)

    def rewrite(writing: Writing) -> None:
        data = blocks.read(writing) if reads_blocks else writing.read(0)
        operands: list[ir.Value | None] = [data, writing.relaid_constant(1, steps)]
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            operands.append(_bias(writing, shape.outputs, blocks.padded(shape.outputs)))
        blocks.write(writing, "Conv", operands, {**attributes(node, *ATTRIBUTES), "group": groups}, shape.outputs)

    data = blocks.layout if reads_blocks else Layout.parse("NCHW")
    others = [Layout.any(rank_of(operand)) for operand in node.inputs[1:]]
    return Implementation((data, *others), (blocks.layout,), rewrite=rewrite, pads=True)


def _bias(writing: Writing, outputs: int, padded: int) -> ir.Value:
    """The bias with zeros after it, so that it is `padded` long; the model's caller may give it."""
    extra = padded - outputs
    if is_known(writing.node.inputs[2]):
        return writing.relaid_constant(2, [{"op": "pad", "pads": [0, extra]}] if extra else [])
    return zeros_after(writing, writing.read(2), (padded,), 0, extra) if extra else writing.read(2)


def _plain_cost(shape: _Shape, places: int) -> int:
    cost = multiplying_depthwise if shape.is_depthwise else multiplying
    return cost(places * shape.outputs * shape.inputs, blocked=False)


def _blocked_cost(shape: _Shape, blocks: Blocks, places: int, reads_blocks: bool) -> int:
    if shape.is_depthwise:
        return multiplying_depthwise(places * blocks.padded(shape.outputs), blocked=True)
    inputs = blocks.padded(shape.inputs) if reads_blocks else shape.inputs
    return multiplying(places * blocks.padded(shape.outputs) * inputs, blocked=True)
