"""Factors and offsets of the channels of a blocked value that no convolution produces: they become a convolution.

ONNX's operators broadcast [C/block, 1, 1, block] over blocks sixteen numbers at a time, which takes seven times as long
as onnxruntime's depthwise convolution of one position (`python benchmarks/nchwc.py operators`). Only the order in
memory matters here, not the meaning of the axes of [N, K, H, W, block].
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from relayout.layout.metadata_keys import BLOCK_KEY, CHANNELS_KEY, WRITTEN_FOR_KEY
from relayout_backends.x86_nchwc.absorbing import Channels, affine_of
from relayout_backends.x86_nchwc.blocks import DOMAIN, block_of
from relayout_backends.x86_nchwc.editing import Editing, sources
from relayout_backends.x86_nchwc.shapes import constant


def scale_by_convolutions(editing: Editing) -> None:
    """Replace each operator that scales or shifts the channels of blocks by a depthwise convolution."""
    block = next((block_of(node) for node in editing.graph if block_of(node)), None)
    if block is None:
        return
    for node in list(editing.graph):
        scales = node.domain == "" and node.op_type in ("Add", "Sub", "Mul", "Div") and len(node.inputs) == 2
        if scales and editing.is_own(node):
            _replace(editing, node, block)


def _replace(editing: Editing, node: ir.Node, block: int) -> None:
    result = node.outputs[0]
    data = next((v for v in node.inputs if v is not None and _same(v, result) and constant(v) is None), None)
    if data is None or data.shape is None or data.dtype != ir.DataType.FLOAT:
        return
    shape = data.shape
    if len(shape) != 5 or shape[4] != block or not isinstance(shape[1], int) or shape[2] == shape[3] == 1:
        return
    count = shape[1] * block
    channels = Channels(count, count, block, tuple(shape))
    operands = _scaled(editing, node, data, channels)
    if operands is None:
        return
    hidden = ir.Shape([shape[0], count, shape[2], shape[3]])
    source = editing.view(data, hidden, node, like=(0, count, 0, 0))
    assert source is not None
    convolution = ir.Node(
        DOMAIN, "Conv", [source, *operands], [ir.AttrInt64("group", count)], name=f"{node.name or result.name}_scale"
    )
    convolution.metadata_props.update({BLOCK_KEY: str(block), WRITTEN_FOR_KEY: node.op_type})
    used = _channels_in_use(data)
    if used is not None:
        convolution.metadata_props[CHANNELS_KEY] = used
    made = editing.insert(convolution, node, hidden, result, f"{result.name}_scaled")
    blocked = editing.view(made, shape, node, like=(0, shape[1], 0, 0, block))
    assert blocked is not None
    editing.replace(result, blocked, [node])


def _same(value: ir.Value, result: ir.Value) -> bool:
    return value.shape is not None and result.shape is not None and list(value.shape) == list(result.shape)


def _scaled(editing: Editing, node: ir.Node, data: ir.Value, channels: Channels) -> list[ir.Value] | None:
    """The kernel, and the bias where there is one, of a convolution equal to `node`."""
    found = affine_of(node, data, channels)
    if found is not None:
        factor, offset = found
        kernel = np.ones(channels.count) if factor is None else factor
        stem = node.outputs[0].name
        operands = [editing.constant(f"{stem}_factor", ir.tensor(kernel.astype(np.float32).reshape(-1, 1, 1, 1)))]
        if offset is not None:
            operands.append(editing.constant(f"{stem}_offset", ir.tensor(offset.astype(np.float32))))
        return operands
    gate = next((value for value in node.inputs if value is not data), None)
    if node.op_type != "Mul" or gate is None or gate.shape is None or not _is_gate(gate, channels):
        return None
    # One image: a number for each of its channels is a kernel.
    made = editing.view(gate, ir.Shape([channels.count, 1, 1, 1]), node)
    return None if made is None else [made]


def _is_gate(gate: ir.Value, channels: Channels) -> bool:
    blocks = channels.count // channels.block
    return channels.shape[0] == 1 and gate.shape is not None and list(gate.shape) == [1, blocks, 1, 1, channels.block]


def _channels_in_use(data: ir.Value) -> str | None:
    producer = sources(data)[-1].producer()
    return producer.metadata_props.get(CHANNELS_KEY) if producer is not None else None
