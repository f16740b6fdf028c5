"""Seeded data for graph inputs and for absent weights, the same for a model and its original.

Data is never symmetric: floats are drawn from a normal distribution with a mean of its own for each position along the
last axis, so that a swapped axis shows in any result that depends on it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.layout.relaid_constant import AbsentTensor, Step, apply_step, shape_before
from relayout.model.shape_inference import all_graphs
from relayout.verification.numeric.symbolic_sizes import Plan, symbol_of

MOST_ELEMENTS = 1 << 30
"""A constant of more is not drawn, however small its share of the model."""

_SPREAD = 1000.0
# Constants of so many elements are no kernels.
_FEW = 8

Array = np.ndarray[Any, Any]


def draw_inputs(inputs: Sequence[ir.Value], plan: Plan, seed: int, lift: float | None = None) -> dict[str, Array]:
    """Return an array for each input, in the input's own shape. With `lift`, floats are positive, from there on."""
    return {str(value.name): _lifted(_draw_input(value, plan, seed), lift) for value in inputs}


def spread(feed: Mapping[str, Array]) -> dict[str, Array]:
    """The same inputs with larger floats of both signs, for thresholds that others never reach."""
    return {
        name: array
        if array.dtype.kind in "biuOSU"
        else np.asarray(array.astype(np.float32) * _SPREAD).astype(array.dtype)
        for name, array in feed.items()
    }


def _lifted(array: Array, lift: float | None) -> Array:
    if lift is None or array.dtype.kind in "biuOSU":
        return array
    return np.asarray(np.abs(array.astype(np.float32)) + lift).astype(array.dtype)


def _draw_input(value: ir.Value, plan: Plan, seed: int) -> Array:
    if value.dtype is None or value.shape is None:
        raise ValueError(f"input {value.name} has no tensor type with a rank")
    stated = _stated_shape(value)
    if stated is None:
        stated = _stated_sizes(value, plan)
    if stated is not None:
        return stated
    shape = [
        extent if isinstance(extent, int) else plan.extents[symbol_of(value, axis)]
        for axis, extent in enumerate(value.shape)
    ]
    generator = np.random.default_rng([seed, zlib.crc32(str(value.name).encode())])
    # NumPy makes a number of zero dimensions, which runtimes refuse.
    drawn = np.asarray(_draw(generator, shape, value.dtype, plan.highest))
    # A single integer is a step, a size or a count.
    if value.dtype.is_integer() and (not shape or any(divides(node, operand) for node, operand in value.uses())):
        drawn = np.asarray(np.maximum(drawn, drawn.dtype.type(1)))
    return drawn


_MOST_SIZES, _SIZES_FROM = 8, 16


def gives_sizes(value: ir.Value) -> bool:
    """Whether an input is a few floats of which operators make a few integers, such as the sizes of an image."""
    found, floats = {value}, [value]
    while floats:
        read = floats.pop()
        if read.dtype is None or not read.dtype.is_floating_point() or not _is_few(read):
            continue
        results = [(node, result) for node, _ in read.uses() for result in node.outputs]
        for node, result in results:
            if node.op_type == "Cast" and result.dtype in (ir.DataType.INT32, ir.DataType.INT64):
                return True
        floats += {result for _, result in results} - found
        found.update(floats)
    return False


def _is_few(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static() and 0 < math.prod(value.shape.numpy()) <= _MOST_SIZES


def draw_sizes(inputs: Sequence[ir.Value], seed: int) -> dict[str, Array]:
    """Return whole numbers, all different, for each of these inputs. An image of the usual floats has no elements."""
    drawn = {}
    for value in inputs:
        assert value.dtype is not None
        assert value.shape is not None
        generator = np.random.default_rng([seed, zlib.crc32(str(value.name).encode())])
        numbers = _SIZES_FROM + generator.permutation(2 * _MOST_SIZES)[: math.prod(value.shape.numpy())]
        drawn[str(value.name)] = np.asarray(numbers.reshape(value.shape.numpy()).astype(value.dtype.numpy()))
    return drawn


def draw_lengths(inputs: Sequence[ir.Value], plan: Plan) -> dict[str, Array]:
    """Return the longest open extent of a sample for each input that has one integer for each sample of a batch. Such
    an input may be the number of frames before the padding."""
    drawn = {}
    for value in inputs:
        shape, dtype = value.shape, value.dtype
        if shape is None or len(shape) != 1 or dtype not in (ir.DataType.INT32, ir.DataType.INT64):
            continue
        # More numbers than one, and no batch of any size, may be a shape.
        if isinstance(shape[0], int) and shape[0] != 1:
            continue
        samples = [each for each in inputs if each.shape is not None and len(each.shape) > 1]
        symbols = [
            symbol_of(each, axis)
            for each in samples
            for axis, extent in enumerate(each.shape or ())
            if axis and each.shape is not None and each.shape[0] == shape[0] and not isinstance(extent, int)
        ]
        longest = max((plan.extents[symbol] for symbol in symbols), default=0)
        if longest:
            batch = shape[0] if isinstance(shape[0], int) else plan.extents[symbol_of(value, 0)]
            drawn[str(value.name)] = np.full([batch], longest, dtype.numpy())
    return drawn


def divides(node: ir.Node, operand: int) -> bool:
    """Whether an operator divides by this operand; onnxruntime ends the process where an integer is divided by 0."""
    return operand == 1 and node.op_type in ("Div", "Mod") and node.domain == ""


# Operators that have the shape of their result as an operand, at this index.
_SHAPED = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}


def _stated_shape(value: ir.Value) -> Array | None:
    """The shape that an operator reads from an input, where its result's is known: another one would contradict it."""
    for node, operand in value.uses():
        if _SHAPED.get(node.op_type) == operand and node.domain == "":
            shape = node.outputs[0].shape
            if shape is not None and shape.is_static():
                return np.array(shape.numpy(), np.int64)
    return None


_SIZES = 3
"""The index of the sizes among the operands of a Resize."""


def _stated_sizes(value: ir.Value, plan: Plan) -> Array | None:
    """The sizes that a Resize reads from an input: batch and channels stay, which operators behind it may demand, and
    each of the other axes grows by another number."""
    for node, operand in value.uses():
        read, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Resize" or node.domain != "" or operand != _SIZES or read is None or read.shape is None:
            continue
        rank = len(read.shape)
        made = result.shape if result.shape is not None and len(result.shape) == rank else [None] * rank
        sizes = []
        for axis in node.attributes.get_ints("axes", tuple(range(rank))) or ():
            extent, known = read.shape[axis], made[axis]
            own = extent if isinstance(extent, int) else plan.extents.get(symbol_of(read, axis % rank), 4)
            sizes.append(known if isinstance(known, int) else own if axis % rank < 2 else own + 1 + axis % rank)
        return np.array(sizes, np.int64)
    return None


def _draw(generator: np.random.Generator, shape: Sequence[int], dtype: ir.DataType, highest: int) -> Array:
    if dtype == ir.DataType.STRING:
        return generator.choice(np.array(["", "a", "bc", "def"], dtype=object), size=tuple(shape))
    if dtype == ir.DataType.BOOL:
        return generator.random(tuple(shape)) < 0.5
    if dtype in (ir.DataType.UINT8, ir.DataType.INT8):
        return generator.integers(0, 128, size=tuple(shape)).astype(dtype.numpy())
    if dtype.is_integer():
        return generator.integers(0, highest, size=tuple(shape)).astype(dtype.numpy())
    # A different mean along the last axis: symmetric data would hide a swapped axis.
    lean = generator.normal(size=shape[-1]) if shape else 0.0
    return np.asarray(generator.normal(size=tuple(shape)) + 0.5 * lean).astype(dtype.numpy())


def with_noise(feed: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs with the last bits of each float changed, now up and now down; integers as they are."""
    return {name: _disturbed(array) for name, array in feed.items()}


def with_noise_in_constants(constants: Mapping[str, Array]) -> dict[str, Array]:
    """The constants, with noise in all but small ones: of a scale of Resize, the last bit may decide which element is
    read."""
    return {**constants, **with_noise({name: each for name, each in constants.items() if each.size > _FEW})}


def with_noisy_constants(model: ir.Model) -> ir.Model:
    """A copy of the model with the last bits of its constants' floats changed, as in `with_noise_in_constants`."""
    copy = model.clone()
    for graph in all_graphs(copy):
        for name, value in graph.initializers.items():
            constant = value.const_value
            if constant is not None and constant.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
                [noisy] = with_noise_in_constants({name: constant.numpy()}).values()
                value.const_value = ir.Tensor(noisy, name=name)
    return copy


def _disturbed(array: Array) -> Array:
    if array.dtype not in (np.float32, np.float64):
        return array
    signs = np.random.default_rng(array.size).choice(np.array([-1.0, 1.0]), size=array.shape)
    return np.asarray(array * (1 + 2 * np.finfo(array.dtype).eps * signs)).astype(array.dtype)


def with_weights(model: ir.Model) -> ir.Model:
    """Return the model with data for each absent constant: drawn for its owner's name, transformed by its owner's
    steps.

    The same model if nothing is absent. Raises ValueError where a transform cannot be undone to find the owner's shape.
    """
    values = [value for graph in all_graphs(model) for value in graph.initializers.values()]
    if not any(isinstance(value.const_value, AbsentTensor) for value in values):
        return model
    filled = model.clone()
    for graph in all_graphs(filled):
        for value in graph.initializers.values():
            if isinstance(value.const_value, AbsentTensor):
                # Copies in several layouts have the one constant of their owner.
                owned = value.metadata_props.get(SOURCE_KEY) or str(value.name)
                value.const_value = ir.tensor(
                    _weight(value.const_value, owned), dtype=value.const_value.dtype, name=value.name
                )
    return filled


def _weight(tensor: AbsentTensor, owned: str) -> Array:
    shape = _shape_before(tuple(int(extent) for extent in tensor.shape.numpy()), tensor.transform)
    generator = np.random.default_rng(zlib.crc32(owned.encode()))
    if tensor.dtype.is_floating_point() and len(shape) < 2:
        # One-dimensional weights are scales, variances and shifts: values away from zero suit all.
        data: Array = generator.uniform(0.5, 1.5, size=shape).astype(tensor.dtype.numpy())
    elif tensor.dtype.is_floating_point():
        fan_in = max(1, int(np.prod(shape[1:])))
        data = (generator.normal(size=shape) / np.sqrt(fan_in)).astype(tensor.dtype.numpy())
    else:
        data = _draw(generator, shape, tensor.dtype, 2)
    for step in tensor.transform:
        data = apply_step(data, step)
    return np.ascontiguousarray(data)


def _shape_before(shape: tuple[int, ...], steps: Sequence[Step]) -> tuple[int, ...]:
    for step in reversed(steps):
        before = shape_before(shape, step)
        if before is None:
            raise ValueError(f"the shape before {dict(step)} is not noted")
        shape = before
    if math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"its owner has {math.prod(shape)} elements")
    return shape
