"""Random graphs of onnxruntime's quantized operators, each between Transposes that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from graphs import Net, run
from onnx import helper

_DOMAIN = "com.microsoft"
_OPERATORS = (
    "QLinearAdd QLinearAveragePool QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere"
).split()
_PROBABILITIES = (np.array(1 / 256, np.float32), np.array(0, np.uint8))


class _Value(NamedTuple):
    """A tensor of 8 bits with its scale and zero point, and the source's axes in its order."""

    name: str
    scale: tuple[str, str]
    order: tuple[int, ...]


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.net = Net(17)
        self.extents = [int(self.rng.integers(low, 6)) for low in (1, 2, 2, 2)]
        self.values = [self._input() for _ in range(2)]

    def order(self) -> tuple[int, ...]:
        return tuple(int(axis) for axis in self.rng.permutation(4))

    def scale(self) -> tuple[str, str]:
        scale, zero = self.rng.uniform(0.02, 0.2), self.rng.integers(90, 160)
        return self.net.constant(np.array(scale, np.float32)), self.net.constant(np.array(zero, np.uint8))

    def _input(self) -> _Value:
        order = self.order()
        shape = [self.extents[axis] for axis in order]
        name = self.net.input(f"x{len(self.net.inputs)}", shape, onnx.TensorProto.UINT8)
        return _Value(name, self.scale(), order)

    def turned(self, value: _Value, order: tuple[int, ...]) -> _Value:
        if value.order == order:
            return value
        return value._replace(name=self.net.transpose(value.name, *map(value.order.index, order)), order=order)

    def pick(self, order: tuple[int, ...]) -> _Value:
        return self.turned(self.values[int(self.rng.integers(len(self.values)))], order)

    def add(self, operator: str) -> None:
        """Add the operator, in a random order of axes, on operands that are transposed to that order."""
        order = self.order()
        attributes: dict[str, Any] = {}
        result = self.scale()
        if operator == "QLinearAveragePool":
            last = int(self.rng.integers(2))
            order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
            attributes = {"kernel_shape": [3, 1], "pads": [1, 0, 1, 0], "channels_last": last}
        elif operator in ("QLinearConcat", "QLinearSoftmax"):
            attributes = {"axis": int(self.rng.integers(4))}
        if operator == "QLinearSoftmax":
            attributes["opset"] = int(self.rng.choice([11, 13]))
            result = (self.net.constant(_PROBABILITIES[0]), self.net.constant(_PROBABILITIES[1]))
        operands = [self.pick(order)]
        if operator in ("QLinearAdd", "QLinearConcat", "QLinearMul", "QLinearWhere"):
            operands.append(self.pick(order))
        read = [name for operand in operands for name in (operand.name, *operand.scale)]
        shape = [self.extents[axis] for axis in order]
        if operator == "QLinearConcat":
            made = self.net.node(operator, *result, *read, domain=_DOMAIN, **attributes)
            # Of the two parts as much is kept as each of them has.
            axis, extent = attributes["axis"], shape[attributes["axis"]]
            bounds = [self.net.constant(np.array([number])) for number in (1, extent + 1, axis)]
            made = self.net.node("Slice", made, *bounds)
        else:
            first = [self.net.constant(self.rng.random(shape) < 0.5)] if operator == "QLinearWhere" else []
            made = self.net.node(operator, *first, *read, *result, domain=_DOMAIN, **attributes)
        self.values.append(_Value(made, result, order))


def draw_quantized(seed: int) -> tuple[onnx.ModelProto, Mapping[str, np.ndarray]]:
    """The graph of this seed, with inputs for it."""
    drawing = _Drawing(seed)
    for _ in range(int(drawing.rng.integers(3, 8))):
        drawing.add(str(drawing.rng.choice(_OPERATORS)))
    for value in drawing.values[-2:]:
        drawing.net.output(drawing.turned(value, drawing.order()).name, onnx.TensorProto.UINT8)
    model = drawing.net.model()
    shapes = {entry.name: [dim.dim_value for dim in entry.type.tensor_type.shape.dim] for entry in model.graph.input}
    feeds = {name: drawing.rng.integers(0, 256, shape).astype(np.uint8) for name, shape in shapes.items()}
    for entry, array in zip(model.graph.output, run(model, feeds), strict=True):
        entry.CopyFrom(helper.make_tensor_value_info(entry.name, onnx.TensorProto.UINT8, array.shape))
    return model, feeds
