"""The types of values around onnxruntime's blocked operators: blocked, plain, or unknown.

The operators of the domain com.microsoft.nchwc read and make tensors of the shape [N, C, H, W] whose memory is N,
C/block, H, W, block. The metadata of their nodes has the size of the block, and the number of channels without padding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from relayout.layout.metadata_keys import BLOCK_KEY, CHANNELS_KEY
from relayout.verification.operator_facts import is_elementwise, named
from relayout.verification.subgraph_values import walk

BLOCKED_DOMAIN = "com.microsoft.nchwc"

# Elementwise on the first operand; any further operand is a parameter.
POINTWISE = frozenset({"Bernoulli", "Cast", "CastLike", "Clip", "DequantizeLinear", "Dropout", "QuantizeLinear"})
_LARGEST = 16
_NOT_FINITE_AT_ZERO = frozenset({"Div", "Log", "Mod", "Reciprocal"})


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: `size` channels to a block (None: unknown), `channels` of them in use (None: unknown)."""

    is_blocked: bool
    size: int | None = None
    channels: int | None = None
    padding_is_finite: bool = True


PLAIN = Type(is_blocked=False)


def types_of(model: ir.Model) -> dict[ir.Value, Type]:
    """The known types of values; empty for a model without blocked operators."""
    nodes = list(walk(model.graph))
    if not any(node.domain == BLOCKED_DOMAIN for node in nodes):
        return {}
    sizes = sizes_of_blocks(nodes)
    types = {value: PLAIN for value in model.graph.inputs if extent(value, 1) is not None and not _one_place(value)}
    _carry_forward(nodes, types, sizes)
    # A view may give blocks: a value that is read as blocks, and not known to be plain, is taken for blocked.
    for node in reversed(nodes):
        for value in _wanted_in_blocks(node, types, sizes):
            types.setdefault(value, Type(True, noted(node, BLOCK_KEY)))
    _carry_forward(nodes, types, sizes)
    return types


def sizes_of_blocks(nodes: Iterable[ir.Node]) -> frozenset[int | None]:
    """The sizes of blocks that the metadata of blocked operators name; None stands for a node without it."""
    return frozenset(noted(node, BLOCK_KEY) for node in nodes if node.domain == BLOCKED_DOMAIN)


def is_one_block(value: ir.Value, sizes: Collection[int | None]) -> bool:
    """Whether a value has one block of channels, and as many rows and columns: its blocks are channels-last data of the
    same shape, so that it may be read as either."""
    extents = {extent(value, axis) for axis in (1, 2, 3)}
    return len(extents) == 1 and extents <= {*sizes}


def _carry_forward(nodes: Sequence[ir.Node], types: dict[ir.Value, Type], sizes: Collection[int | None]) -> None:
    for node in nodes:
        # A reader may take one block for channels-last data, and its results tell nothing then.
        operands = [
            types.get(value) if value is not None and not is_one_block(value, sizes) else None for value in node.inputs
        ]
        for result in node.outputs:
            kind = _made(node, operands, result)
            if kind is not None and not _one_place(result):
                types[result] = kind


def _wanted_in_blocks(node: ir.Node, types: Mapping[ir.Value, Type], sizes: Collection[int | None]) -> list[ir.Value]:
    """The operands that must be blocked, given the node and its results."""
    if node.domain == BLOCKED_DOMAIN:
        plain = node.op_type == "ReorderInput" or reads_plain(node, noted(node, BLOCK_KEY))
        operands = [*([] if plain else node.inputs[:1]), *(node.inputs[3:4] if node.op_type == "Conv" else [])]
    elif _keeps_places(node) and any(
        result in types and types[result].is_blocked and not is_one_block(result, sizes) for result in node.outputs
    ):
        parameters = 1 if node.op_type in POINTWISE or node.op_type in ("Slice", "Split") else len(node.inputs)
        operands = list(node.inputs[:parameters])
    else:
        return []
    full = extent(node.outputs[0], 2), extent(node.outputs[0], 3)
    return [
        value
        for value in operands
        if value is not None and not value.is_initializer() and not _one_place(value) and extent(value, 1) is not None
        if node.domain == BLOCKED_DOMAIN or (extent(value, 2), extent(value, 3)) == full
    ]


def _keeps_places(node: ir.Node) -> bool:
    """Whether a blocked result of `node` implies a blocked operand."""
    kept = node.op_type in ("Concat", "Identity", "Slice", "Split", *POINTWISE)
    return node.domain == "" and (kept or is_elementwise(node))


def reads_plain(node: ir.Node, size: int | None) -> bool:
    """Whether this is a blocked convolution with plain data: one group of fewer channels than a block."""
    channels = extent(node.inputs[0], 1)
    one_group = node.op_type == "Conv" and node.attributes.get_int("group", 1) == 1
    return one_group and channels is not None and channels < (size or _LARGEST)


def _made(node: ir.Node, operands: Sequence[Type | None], result: ir.Value) -> Type | None:
    known = [kind for kind in operands if kind is not None]
    blocked = next((kind for kind in known if kind.is_blocked), None)
    if node.domain == BLOCKED_DOMAIN:
        return _made_by_blocked(node, operands)
    if node.domain != "":
        return None
    if is_elementwise(node) or node.op_type in ("Identity", *POINTWISE):
        if blocked is not None:
            finite = all(kind.padding_is_finite for kind in known) and node.op_type not in _NOT_FINITE_AT_ZERO
            return Type(True, blocked.size, blocked.channels, finite or blocked.channels == extent(result, 1))
        data = [value for value in node.inputs if value is not None and not value.is_initializer()]
        return PLAIN if known and len(known) == len(data) else None
    if node.op_type == "Slice" and blocked is not None:
        all_in_use = blocked.channels is not None and blocked.channels == extent(node.inputs[0], 1)
        return Type(True, blocked.size, extent(result, 1) if all_in_use else None, blocked.padding_is_finite)
    if node.op_type in ("Concat", "Split") and known and len(known) == len(operands):
        if all(kind.is_blocked for kind in known) and node.attributes.get_int("axis", 0) % 4 < 2:
            return _along(node, known, result)
        return None if blocked is not None else PLAIN
    facts = named(node)
    is_data = facts is not None and any(result is node.outputs[m] for m in facts.results if m < len(node.outputs))
    return PLAIN if is_data and result.shape is not None and len(result.shape) == 4 else None


def _along(node: ir.Node, known: Sequence[Type], result: ir.Value) -> Type:
    channels = known[0].channels
    along_channels = node.attributes.get_int("axis", 0) % 4 == 1
    if along_channels and node.op_type == "Split":
        channels = extent(result, 1)
    elif along_channels:
        counts = [kind.channels for kind in known if kind.channels is not None]
        channels = sum(counts) if len(counts) == len(known) else None
    return Type(True, known[0].size, channels, all(kind.padding_is_finite for kind in known))


def _made_by_blocked(node: ir.Node, operands: Sequence[Type | None]) -> Type | None:
    if node.op_type == "ReorderOutput":
        return PLAIN
    size, channels = noted(node, BLOCK_KEY), noted(node, CHANNELS_KEY)
    if node.op_type == "ReorderInput":
        # Channels that are no multiple of four were padded before, and the node's metadata has their number.
        channels = channels or extent(node.inputs[0], 3 if node.attributes.get_int("channels_last", 0) else 1)
    elif node.op_type != "Conv" and operands[0] is not None:
        channels = operands[0].channels or channels
        size = size or operands[0].size
    return Type(True, size, channels)


def _one_place(value: ir.Value) -> bool:
    """Whether an image has one position: blocks and plain data are the same memory then."""
    return extent(value, 2) == extent(value, 3) == 1


def noted(node: ir.Node, key: str) -> int | None:
    """The number under `key` in a node's metadata."""
    text = node.metadata_props.get(key, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def extent(value: ir.Value | None, axis: int) -> int | None:
    """The extent of a tensor of four dims along `axis`, where it is known."""
    if value is None or value.shape is None or len(value.shape) != 4:
        return None
    number = value.shape[axis]
    return number if isinstance(number, int) else None
