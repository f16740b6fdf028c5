"""Random convolutional networks: channels that do and do not fill blocks, and operators between convolutions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from graphs import Net

_CHANNELS = (1, 3, 4, 6, 8, 12, 16, 17, 20, 24, 32, 40, 48)
_ACTIVATIONS = tuple("Relu Sigmoid Tanh LeakyRelu HardSwish HardSigmoid Elu Softplus Abs Exp Cos".split())


class _Drawing:
    """A network under construction. Its values are [batch, channels, height, width], except inside `channels_last`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.net = Net(opset=self.random.choice((11, 13, 17, 20)), seed=seed)
        batch = self.random.choice((1, 1, 2))
        size = self.random.choice(((6, 6), (8, 5), (11, 9)))
        self.values: list[str] = []
        for i in range(self.random.choice((1, 1, 2))):
            channels = self.random.choice((3, 16, 20, 32))
            self.values.append(self.net.input(f"input_{i}", [batch, channels, *size]))

    def pick(self) -> tuple[str, tuple[int, ...]]:
        """One of the last four values, with its channels, height and width."""
        x = self.random.choice(self.values[-4:])
        return x, self.net.shape(x)[1:]

    def keep(self, operator: str, *operands: str, **attributes: Any) -> None:
        self.values.append(self.net.node(operator, *operands, **attributes))

    def weights(self, *shape: int) -> str:
        fan = max(1, int(np.prod(shape[1:])))
        return self.net.constant((self.net.rng.standard_normal(shape) / fan**0.5).astype(np.float32))

    def vector(self, *shape: int) -> str:
        return self.net.constant(self.net.rng.uniform(0.5, 1.5, shape).astype(np.float32))

    def convolution(self) -> None:
        x, (channels, height, width) = self.pick()
        kernel = self.random.choice((1, 1, 3, 3, 5))
        stride = self.random.choice((1, 1, 1, 2))
        depthwise = self.random.random() < 0.3
        outputs = channels if depthwise else self.random.choice(_CHANNELS)
        groups = channels if depthwise else 2 if channels % 2 == outputs % 2 == 0 and self.random.random() < 0.2 else 1
        pads = [self.random.randint(0, kernel // 2) for _ in range(4)]
        if min(height + pads[0] + pads[2], width + pads[1] + pads[3]) < kernel:
            return
        operands = [x, self.weights(outputs, channels // groups, kernel, kernel)]
        if self.random.random() < 0.7:
            operands.append(self.vector(outputs))
        self.keep("Conv", *operands, pads=pads, strides=[stride] * 2, group=groups)

    def pool(self) -> None:
        x, (_, *spatial) = self.pick()
        kernel = self.random.choice((2, 3))
        if min(spatial) < kernel:
            return
        operator = self.random.choice(("MaxPool", "AveragePool"))
        stride = self.random.choice((1, 2))
        pads = [self.random.randint(0, 1) for _ in range(4)]
        chosen: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads}
        if operator == "AveragePool" and self.random.random() < 0.5:
            chosen["count_include_pad"] = 1
        self.keep(operator, x, **chosen)

    def global_pool(self) -> None:
        x, _ = self.pick()
        if self.random.random() < 0.5 or self.net.opset >= 18:
            self.keep(self.random.choice(("GlobalAveragePool", "GlobalMaxPool")), x)
        else:
            self.keep("ReduceMean", x, axes=[2, 3], keepdims=1)

    def activation(self) -> None:
        x, _ = self.pick()
        operators = [a for a in _ACTIVATIONS if a != "HardSwish" or self.net.opset >= 14]
        operator = self.random.choice((*operators, "Clip"))
        if operator == "Exp":
            x = self.net.node("Tanh", x)
        bounds = [np.float32(self.random.choice((-0.5, 0, 0.2))), np.float32(1.5)]
        operands = [x, *(self.net.constant(np.array(bound)) for bound in bounds)] if operator == "Clip" else [x]
        self.keep(operator, *operands)

    def gated(self) -> None:
        x, _ = self.pick()
        self.keep("Mul", x, self.net.node("Sigmoid", x))

    def excited(self) -> None:
        x, shape = self.pick()
        gate = self.net.node("GlobalAveragePool", x)
        if self.random.random() < 0.5:
            gate = self.net.node("Conv", gate, self.weights(shape[0], shape[0], 1, 1))
        self.keep("Mul", x, self.net.node("Sigmoid", gate))

    def normalized(self) -> None:
        x, shape = self.pick()
        self.keep("BatchNormalization", x, *(self.vector(shape[0]) for _ in range(4)))

    def shifted(self) -> None:
        x, shape = self.pick()
        extents = self.random.choice(((), (1,), (shape[0], 1, 1), (1, shape[0], 1, 1), (1, *shape), (shape[2],)))
        operands = [x, self.vector(*extents)]
        operator = self.random.choice(("Add", "Sub", "Mul", "Div"))
        if operator != "Div" and self.random.random() < 0.3:
            operands.reverse()
        self.keep(operator, *operands)

    def joined(self) -> None:
        x, shape = self.pick()
        y = self.random.choice([each for each in self.values if self.net.shape(each)[1:] == shape])
        self.keep(self.random.choice(("Add", "Add", "Sub", "Mul", "Max", "Min")), x, y)

    def concatenated(self) -> None:
        x, (channels, *spatial) = self.pick()
        shapes = {each: self.net.shape(each)[1:] for each in self.values}
        others = [each for each, (own, *rest) in shapes.items() if rest == spatial and own + channels <= 128]
        self.keep("Concat", x, self.random.choice(others or [x]), axis=1)

    def parted(self) -> None:
        x, (channels, *_) = self.pick()
        if channels < 2:
            return
        at = self.random.choice([c for c in (1, 8, 16, channels // 2) if c < channels])
        if self.random.random() < 0.5:
            bounds = [self.net.constant(np.array([n], np.int64)) for n in (at, 1 << 30, 1)]
            self.keep("Slice", x, *bounds)
            return
        parts = [at, channels - at]
        if self.net.opset < 13:
            self.values += self.net.node("Split", x, results=2, axis=1, split=parts)
        else:
            self.values += self.net.node("Split", x, self.net.constant(np.array(parts, np.int64)), results=2, axis=1)

    def padded(self) -> None:
        x, _ = self.pick()
        pads = [0, 0, self.random.randint(0, 2), self.random.randint(0, 2), 0, 0, 1, 0]
        self.keep("Pad", x, self.net.constant(np.array(pads, np.int64)))

    def resized(self) -> None:
        x, (_, height, width) = self.pick()
        if height * width > 150:
            return
        chosen = self.random.choice(
            (
                {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
                {"mode": "nearest"},
                {"mode": "linear"},
                {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            )
        )
        empty = self.net.constant(np.zeros(0, np.float32))
        scales = self.net.constant(np.array([1, 1, 2, 2], np.float32))
        self.keep("Resize", x, empty, scales, **chosen)

    def channels_last(self) -> None:
        """An operator on channels-last data."""
        x, shape = self.pick()
        y = self.net.transpose(x, 0, 2, 3, 1)
        kind = self.random.random()
        if kind < 0.4:
            y = self.net.node("Mul", y, self.vector(shape[0]))
        elif kind < 0.7:
            y = self.net.node("Softmax", y, axis=3)
        elif kind < 0.85 and self.net.opset >= 17:
            y = self.net.node("LayerNormalization", y, self.vector(shape[0]), axis=3)
        self.keep("Transpose", y, perm=(0, 3, 1, 2))

    def soft(self) -> None:
        x, _ = self.pick()
        self.keep("Softmax", x, axis=self.random.choice((1, 3)))

    def model(self) -> onnx.ModelProto:
        steps = 14
        moves: dict[Callable[[], None], int] = {
            self.convolution: 8,
            self.activation: 3,
            self.pool: 2,
            self.global_pool: 1,
            self.gated: 2,
            self.excited: 1,
            self.normalized: 2,
            self.shifted: 3,
            self.joined: 3,
            self.concatenated: 2,
            self.parted: 2,
            self.padded: 1,
            self.resized: 1,
            self.channels_last: 1,
            self.soft: 1,
        }
        while steps > 0 or not self.net.nodes:
            steps -= 1
            self.random.choices(list(moves), list(moves.values()))[0]()
        read = {name for node in self.net.nodes for name in node.input}
        ends = [name for name in self.values if name not in read and not name.startswith("input")]
        for name in ends:
            self.net.output(name)
        if self.random.random() < 0.2:
            extra, _ = self.pick()
            if extra not in ends and not extra.startswith("input"):
                self.net.output(extra)
        self.net.inputs = [value for value in self.net.inputs if value.name in read]
        return self.net.model()


def draw_network(seed: int) -> onnx.ModelProto:
    """The network for this seed."""
    return _Drawing(seed).model()
