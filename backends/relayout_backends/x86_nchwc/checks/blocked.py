"""Misused blocks: operators that take a blocked value for a plain one, a plain one for blocked, or blocks of another
size.

onnxruntime does not check this: an operator that broadcasts a vector over the channels of a blocked value, that works
along one of its axes, or whose kernel is in blocks of another size, computes wrong numbers without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from relayout.backend import Violation
from relayout.layout.metadata_keys import BLOCK_KEY, DEVICE_KEY
from relayout.verification.operator_facts import constant_ints, is_elementwise
from relayout.verification.subgraph_values import walk
from relayout_backends.x86_nchwc.checks.blocked_types import (
    BLOCKED_DOMAIN,
    POINTWISE,
    Type,
    extent,
    is_one_block,
    noted,
    reads_plain,
    sizes_of_blocks,
    types_of,
)

_GRAIN = 4
"""ReorderInput needs a multiple of four channels."""

# View ops: the type of their results is not known here.
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_ALONG_AN_AXIS = frozenset({"Concat", "Gather", "Slice", "Split"})


def check_blocked(model: ir.Model, target: Callable[[], int], device: str) -> Iterator[Violation]:
    """Yield a violation for each operator that reads a blocked value as a plain one or the reverse.

    By their metadata all nodes must have blocks of one size, and those on `device` the size of its `target`.
    """
    nodes = list(walk(model.graph))
    sizes = sizes_of_blocks(nodes)
    types = {value: kind for value, kind in types_of(model).items() if not is_one_block(value, sizes)}
    if not sizes:
        return
    yield from _check_sizes(nodes, target, device)
    for node in nodes:
        operands = [types.get(value) if value is not None else None for value in node.inputs]
        if node.domain == BLOCKED_DOMAIN:
            yield from _check_blocked_operator(node, operands)
        elif any(kind is not None and kind.is_blocked for kind in operands):
            yield from _check_other_operator(node, operands)
    for value in model.graph.outputs:
        kind = types.get(value)
        producer = value.producer()
        if kind is not None and kind.is_blocked and producer is not None:
            message = f"output {value.name} leaves the graph in blocks"
            yield _fault(producer, None, "a plain result", "blocks", message)


def _check_sizes(nodes: Sequence[ir.Node], target: Callable[[], int], device: str) -> Iterator[Violation]:
    first: int | None = None
    for node in nodes:
        size = noted(node, BLOCK_KEY) if node.domain == BLOCKED_DOMAIN else None
        if size is None:
            continue
        first = first or size
        if size != first:
            yield _fault(node, None, f"blocks of {first}, as before", f"blocks of {size}", "two sizes of blocks")
        elif node.metadata_props.get(DEVICE_KEY, "") in ("", device) and size != target():
            message = "the target has another size of blocks; the backend's option `block` gives its size"
            yield _fault(node, None, f"blocks of {target()}", f"blocks of {size}", message)


# --- onnxruntime's blocked operators ----------------------------------------------------------------------------------


def _check_blocked_operator(node: ir.Node, operands: Sequence[Type | None]) -> Iterator[Violation]:
    size = noted(node, BLOCK_KEY)
    if node.op_type == "ReorderInput":
        if operands[0] is not None and operands[0].is_blocked:
            yield _fault(node, 0, "plain data", "blocks", "blocked data is blocked again")
        channels = extent(node.inputs[0], 3 if node.attributes.get_int("channels_last", 0) else 1)
        if channels is not None and channels % _GRAIN:
            yield _fault(
                node, 0, f"a multiple of {_GRAIN} channels", str(channels), "onnxruntime refuses these channels"
            )
        return
    if node.op_type == "Conv" and (fault := _operand_that_is_missing(node)) is not None:
        yield fault
        return
    yield from _check_extents(node)
    wants_blocks = node.op_type != "Conv" or not reads_plain(node, size)
    places = (0, 3) if node.op_type == "Conv" else (0,)
    for n in places:
        kind = operands[n] if n < len(operands) else None
        blocked = wants_blocks or n != 0
        if kind is None:
            continue
        if kind.is_blocked != blocked:
            expected, found = ("blocks", "plain data") if blocked else ("plain data", "blocks")
            yield _fault(node, n, expected, found, f"operand {n} has the wrong type")
        elif kind.is_blocked and size is not None and kind.size is not None and kind.size != size:
            yield _fault(node, n, f"blocks of {size}", f"blocks of {kind.size}", "the wrong size of blocks")
    if node.op_type == "Conv":
        yield from _check_kernel(node, operands[0], size, wants_blocks)
    if node.op_type == "ReorderOutput":
        yield from _check_crop(node, operands[0], size)


def _operand_that_is_missing(node: ir.Node) -> Violation | None:
    """The first of a convolution's data and kernel that is no tensor of four dims, as where an operand is left out."""
    for n in range(2):
        value = node.inputs[n] if n < len(node.inputs) else None
        rank = None if value is None or value.shape is None else len(value.shape)
        if value is None or rank not in (None, 4):
            found = "none" if value is None else f"{rank} dims"
            return _fault(node, n, "a tensor of 4 dims", found, f"operand {n} is not a convolution's")
    return None


def _check_kernel(node: ir.Node, data: Type | None, size: int | None, reads_blocks: bool) -> Iterator[Violation]:
    outputs, inputs = extent(node.inputs[1], 0), extent(node.inputs[1], 1)
    groups = node.attributes.get_int("group", 1)
    channels = extent(node.inputs[0], 1)
    if size is not None and outputs is not None and outputs % size:
        yield _fault(node, 1, f"a multiple of {size} outputs", str(outputs), "the kernel is not padded to whole blocks")
    if inputs is not None and channels is not None and inputs * groups != channels:
        message = "the kernel has another number of channels than the data, padding included"
        yield _fault(node, 1, f"{channels} channels", str(inputs * groups), message)
    depthwise = groups > 1 and inputs == 1
    if data is not None and not data.padding_is_finite and reads_blocks and not depthwise:
        message = "the padding of these blocks is not a number, and a convolution sums over it"
        yield _fault(node, 0, "zeros beyond the channels in use", "a division by zero or a logarithm of it", message)


def _check_extents(node: ir.Node) -> Iterator[Violation]:
    """Yield a fault where the result's rows or columns are not those that the operator computes: onnx infers no shapes
    of these operators, so those behind them hold only if the declared one does."""
    result = node.outputs[0]
    for place in range(2):
        computed, declared = _computed_extent(node, place), extent(result, 2 + place)
        if computed is not None and declared is not None and computed != declared:
            message = f"{'columns' if place else 'rows'} of the result {result.name} that the operator does not compute"
            yield _fault(node, None, str(computed), str(declared), message)


def _computed_extent(node: ir.Node, place: int) -> int | None:
    """The rows (place 0) or columns (1) of a blocked operator's result; None where they are not known."""
    read = extent(node.inputs[0], 2 + place)
    if node.op_type.startswith("Global"):
        return 1
    if node.op_type == "Upsample":
        scales = node.attributes.get_ints("scales")
        return read * scales[2 + place] if read is not None and scales is not None else None
    if node.op_type not in ("Conv", "MaxPool", "AveragePool") or read is None:
        return None
    attributes = node.attributes
    kernel = attributes.get_ints("kernel_shape")
    window = kernel[place] if kernel else extent(node.inputs[1], 2 + place) if node.op_type == "Conv" else None
    if window is None:
        return None
    stride, dilation = ((attributes.get_ints(name) or (1, 1))[place] for name in ("strides", "dilations"))
    pads, automatic = attributes.get_ints("pads") or (0, 0, 0, 0), attributes.get_string("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return -(-read // stride)
    padded = read + (pads[place] + pads[2 + place] if automatic == "NOTSET" else 0)
    left = padded - dilation * (window - 1) - 1
    if not attributes.get_int("ceil_mode", 0):
        return left // stride + 1
    count = -(-left // stride) + 1
    # Runtimes differ in whether a window may start in the padding at the end.
    return count if (count - 1) * stride < read + pads[place] else None


def _check_crop(node: ir.Node, data: Type | None, size: int | None) -> Iterator[Violation]:
    channels, padded = node.attributes.get_int("channels"), extent(node.inputs[0], 1)
    if channels is None:
        return
    if data is not None and data.channels is not None and data.channels != channels:
        yield _fault(node, 0, f"{channels} channels", str(data.channels), "another number of channels is in use")
    elif padded is not None and size is not None and not padded - size < channels <= padded:
        expected = f"{channels} channels in whole blocks of {size}"
        yield _fault(node, 0, expected, f"{padded} with the padding", "these blocks hold another number of channels")


# --- every other operator ---------------------------------------------------------------------------------------------


def _check_other_operator(node: ir.Node, operands: Sequence[Type | None]) -> Iterator[Violation]:
    """Yield the faults of a plain operator with a blocked operand."""
    if node.domain == "relayout":
        yield _misread(node, operands, "plain data, as in its layouts")
    if node.domain != "" or node.op_type in _VIEWS:
        return
    if is_elementwise(node):
        yield from _check_broadcast(node, operands)
    elif node.op_type in POINTWISE:
        yield from _check_parameters(node)
    elif node.op_type in _ALONG_AN_AXIS:
        yield from _check_axis(node, operands)
    elif node.op_type in ("Shape", "Size"):
        kind, padded = operands[0], extent(node.inputs[0], 1)
        if kind is not None and kind.channels not in (None, padded) and not _reads_no_channels(node):
            yield _fault(node, 0, f"{kind.channels} channels", f"{padded} with the padding", "the padding is counted")
    elif node.op_type != "Identity":
        yield _misread(node, operands, "plain data")


def _reads_no_channels(shape: ir.Node) -> bool:
    """Whether the results of a Shape are gathered one by one, and the number of channels is none of them."""
    result = shape.outputs[0]
    if shape.op_type != "Shape" or result.is_graph_output() or "start" in shape.attributes:
        return False
    gathered = [constant_ints(user, "", 1) if (user.op_type, n) == ("Gather", 0) else None for user, n in result.uses()]
    return all(axes is not None and not {1, -3} & {*axes} for axes in gathered)


def _check_broadcast(node: ir.Node, operands: Sequence[Type | None]) -> Iterator[Violation]:
    """An elementwise operand must have the memory of the blocks, or one value for each image."""
    full = _image_extents(node.outputs[0])
    counts = {kind.channels for kind in operands if kind is not None and kind.channels is not None}
    for n, (value, kind) in enumerate(zip(node.inputs, operands, strict=True)):
        extents = _image_extents(value)
        if value is None or extents is None or all(size == 1 for size in extents):
            continue
        if full is not None and any(a != b and isinstance(a, int) for a, b in zip(extents, full, strict=True)):
            message = "an operand that broadcasts over channels or positions meets blocks, which are in another order"
            yield _fault(node, n, "one value an image, or the blocks' own shape", f"{list(extents)}", message)
        elif kind is not None and not kind.is_blocked and not value.is_initializer():
            yield _fault(node, n, "blocks, as the other operand", "plain data", "blocks and plain data are mixed")
    if len(counts) > 1:
        found = " and ".join(map(str, sorted(counts)))
        yield _fault(node, None, "the same number of channels", found, "another number of channels is in use")


def _check_parameters(node: ir.Node) -> Iterator[Violation]:
    for n, value in enumerate(node.inputs[1:], start=1):
        if value is not None and value.shape is not None and any(size != 1 for size in value.shape):
            message = "a parameter for each channel meets blocks, which are in another order"
            yield _fault(node, n, "one value for all", f"shape {list(value.shape)}", message)


def _check_axis(node: ir.Node, operands: Sequence[Type | None]) -> Iterator[Violation]:
    """Along images every operator is right; along channels those that join and split whole blocks."""
    if node.op_type == "Slice":
        yield from _check_slice(node, operands)
        return
    axis = node.attributes.get_int("axis", 0) % 4
    if axis == 0 and (node.op_type != "Gather" or operands[0] is not None):
        return
    if axis != 1 or node.op_type == "Gather":
        yield _misread(node, operands, f"plain data along axis {axis}")
        return
    if node.op_type == "Split":
        parts = constant_ints(node, "split", 1) or tuple(extent(result, 1) or 0 for result in node.outputs)
        size = operands[0].size if operands[0] is not None else None
        if size is not None and any(part % size for part in parts):
            yield _fault(node, 0, f"parts of whole blocks of {size}", str(list(parts)), "a block is split")
        return
    for n, kind in enumerate(operands):
        if kind is not None and not kind.is_blocked:
            yield _fault(node, n, "blocks, as the other operands", "plain data", "blocks and plain data are mixed")
        elif kind is not None and n < len(operands) - 1 and kind.size and (kind.channels or 0) % kind.size:
            expected = f"channels in whole blocks of {kind.size}"
            yield _fault(node, n, expected, str(kind.channels), "padding ends up between the channels")


def _image_extents(value: ir.Value | None) -> tuple[object, ...] | None:
    """The extents of channels, height and width, as a broadcast aligns them; None where the rank is not known."""
    if value is None or value.shape is None:
        return None
    extents = list(value.shape)[-3:]
    return (*[1] * (3 - len(extents)), *extents)


def _check_slice(node: ir.Node, operands: Sequence[Type | None]) -> Iterator[Violation]:
    axes, starts, ends, steps = (
        _numbers(node, name, place, default)
        for place, name, default in ((3, "axes", (0,)), (1, "starts", None), (2, "ends", None), (4, "steps", (1,)))
    )
    if axes is None or any(axis % 4 > 1 for axis in axes):
        yield _misread(node, operands, "plain data along the axes that are sliced")
        return
    size, channels = operands[0].size if operands[0] is not None else None, extent(node.inputs[0], 1)
    if starts is None or ends is None or steps is None or size is None or channels is None:
        return
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=False):
        if axis % 4 == 1 and (start % size or (end % size and end < channels) or step != 1):
            found = f"from {start} to {end} in steps of {step}"
            yield _fault(node, 0, f"whole blocks of {size}", found, "a block is split")


def _numbers(node: ir.Node, name: str, place: int, default: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The numbers of an attribute or a constant operand, or `default` where there is neither; None if not known."""
    given = name in node.attributes or (len(node.inputs) > place and node.inputs[place] is not None)
    return constant_ints(node, name, place) if given else default


def _misread(node: ir.Node, operands: Sequence[Type | None], expected: str) -> Violation:
    place = next((n for n, kind in enumerate(operands) if kind is not None and kind.is_blocked), None)
    return _fault(node, place, expected, "blocks", "a blocked value is read as if it were plain")


def _fault(node: ir.Node, operand: int | None, expected: str, found: str, message: str) -> Violation:
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return Violation(node, f"{kind}: {message}", operand, expected, found, rule="blocked-value")
