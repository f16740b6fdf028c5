"""Random convolutional networks: channels that do and do not fill blocks, and operators between convolutions."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from graphs import Net

__all__ = ["draw_network"]

_CHANNELS = (1, 3, 4, 6, 8, 12, 16, 17, 20, 24, 32, 40, 48)
_ACTIVATIONS = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "HardSwish",
    "HardSigmoid",
    "Elu",
    "Softplus",
    "Abs",
    "Exp",
    "Cos",
)


class _Drawing:
    """A network under construction. Its values are [batch, channels, height, width], except inside `channels_last`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.net = Net(opset=self.random.choice((11, 13, 17, 20)), seed=seed)
        self.batch = self.random.choice((1, 1, 2))
        size = self.random.choice(((6, 6), (8, 5), (11, 9)))
        self.values: list[tuple[str, tuple[int, int, int]]] = []
        for i in range(self.random.choice((1, 1, 2))):
            channels = self.random.choice((3, 16, 20, 32))
            self.values.append((self.net.input(f"input_{i}", [self.batch, channels, *size]), (channels, *size)))

    def pick(self) -> tuple[str, tuple[int, int, int]]:
        """One of the last four values."""
        return self.random.choice(self.values[-4:])

    def like(self, shape: tuple[int, int, int]) -> str | None:
        """Another value of this shape."""
        found = [name for name, each in self.values if each == shape]
        return self.random.choice(found) if found else None

    def keep(self, name: str, shape: tuple[int, int, int]) -> None:
        self.values.append((name, shape))

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
        spatial = [(extent + pads[i] + pads[i + 2] - kernel) // stride + 1 for i, extent in enumerate((height, width))]
        if min(spatial) < 1:
            return
        operands = [x, self.weights(outputs, channels // groups, kernel, kernel)]
        if self.random.random() < 0.7:
            operands.append(self.vector(outputs))
        name = self.net.node("Conv", *operands, pads=pads, strides=[stride] * 2, group=groups)
        self.keep(name, (outputs, spatial[0], spatial[1]))

    def pool(self) -> None:
        x, (channels, height, width) = self.pick()
        kernel = self.random.choice((2, 3))
        if min(height, width) < kernel:
            return
        operator = self.random.choice(("MaxPool", "AveragePool"))
        stride = self.random.choice((1, 2))
        pads = [self.random.randint(0, 1) for _ in range(4)]
        chosen: dict[str, object] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads}
        if operator == "AveragePool" and self.random.random() < 0.5:
            chosen["count_include_pad"] = 1
        spatial = [(e + pads[i] + pads[i + 2] - kernel) // stride + 1 for i, e in enumerate((height, width))]
        self.keep(self.net.node(operator, x, **chosen), (channels, spatial[0], spatial[1]))

    def global_pool(self) -> None:
        x, (channels, *_) = self.pick()
        if self.random.random() < 0.5 or self.net.opset >= 18:
            name = self.net.node(self.random.choice(("GlobalAveragePool", "GlobalMaxPool")), x)
        else:
            name = self.net.node("ReduceMean", x, axes=[2, 3], keepdims=1)
        self.keep(name, (channels, 1, 1))

    def activation(self) -> None:
        x, shape = self.pick()
        operators = [a for a in _ACTIVATIONS if a != "HardSwish" or self.net.opset >= 14]
        operator = self.random.choice((*operators, "Clip"))
        if operator == "Exp":
            x = self.net.node("Tanh", x)
        bounds = [np.float32(self.random.choice((-0.5, 0, 0.2))), np.float32(1.5)]
        operands = [x, *(self.net.constant(np.array(bound)) for bound in bounds)] if operator == "Clip" else [x]
        self.keep(self.net.node(operator, *operands), shape)

    def gated(self) -> None:
        x, shape = self.pick()
        self.keep(self.net.node("Mul", x, self.net.node("Sigmoid", x)), shape)

    def excited(self) -> None:
        x, shape = self.pick()
        gate = self.net.node("GlobalAveragePool", x)
        if self.random.random() < 0.5:
            gate = self.net.node("Conv", gate, self.weights(shape[0], shape[0], 1, 1))
        self.keep(self.net.node("Mul", x, self.net.node("Sigmoid", gate)), shape)

    def normalized(self) -> None:
        x, shape = self.pick()
        self.keep(self.net.node("BatchNormalization", x, *(self.vector(shape[0]) for _ in range(4))), shape)

    def shifted(self) -> None:
        x, shape = self.pick()
        extents = self.random.choice(((), (1,), (shape[0], 1, 1), (1, shape[0], 1, 1), (1, *shape), (shape[2],)))
        operands = [x, self.vector(*extents)]
        operator = self.random.choice(("Add", "Sub", "Mul", "Div"))
        if operator != "Div" and self.random.random() < 0.3:
            operands.reverse()
        self.keep(self.net.node(operator, *operands), shape)

    def joined(self) -> None:
        x, shape = self.pick()
        y = self.like(shape)
        if y is not None:
            self.keep(self.net.node(self.random.choice(("Add", "Add", "Sub", "Mul", "Max", "Min")), x, y), shape)

    def concatenated(self) -> None:
        x, shape = self.pick()
        others = [each for each in self.values if each[1][1:] == shape[1:] and each[1][0] + shape[0] <= 128]
        y, other = self.random.choice(others or [(x, shape)])
        self.keep(self.net.node("Concat", x, y, axis=1), (shape[0] + other[0], *shape[1:]))

    def parted(self) -> None:
        x, (channels, *spatial) = self.pick()
        if channels < 2:
            return
        at = self.random.choice([c for c in (1, 8, 16, channels // 2) if c < channels])
        if self.random.random() < 0.5:
            bounds = [self.net.constant(np.array([n], np.int64)) for n in (at, 1 << 30, 1)]
            self.keep(self.net.node("Slice", x, *bounds), (channels - at, *spatial))  # type: ignore[arg-type]
            return
        parts = [at, channels - at]
        if self.net.opset < 13:
            names = self.net.node("Split", x, results=2, axis=1, split=parts)
        else:
            names = self.net.node("Split", x, self.net.constant(np.array(parts, np.int64)), results=2, axis=1)
        for name, part in zip(names, parts, strict=True):
            self.keep(name, (part, *spatial))  # type: ignore[arg-type]

    def padded(self) -> None:
        x, (channels, height, width) = self.pick()
        pads = [0, 0, self.random.randint(0, 2), self.random.randint(0, 2), 0, 0, 1, 0]
        name = self.net.node("Pad", x, self.net.constant(np.array(pads, np.int64)))
        self.keep(name, (channels, height + pads[2] + pads[6], width + pads[3] + pads[7]))

    def resized(self) -> None:
        x, (channels, height, width) = self.pick()
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
        self.keep(self.net.node("Resize", x, empty, scales, **chosen), (channels, 2 * height, 2 * width))

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
        self.keep(self.net.transpose(y, 0, 3, 1, 2), shape)

    def soft(self) -> None:
        x, shape = self.pick()
        self.keep(self.net.node("Softmax", x, axis=self.random.choice((1, 3))), shape)

    def model(self, steps: int) -> onnx.ModelProto:
        moves: list[tuple[int, Callable[[], None]]] = [
            (8, self.convolution),
            (3, self.activation),
            (2, self.pool),
            (1, self.global_pool),
            (2, self.gated),
            (1, self.excited),
            (2, self.normalized),
            (3, self.shifted),
            (3, self.joined),
            (2, self.concatenated),
            (2, self.parted),
            (1, self.padded),
            (1, self.resized),
            (1, self.channels_last),
            (1, self.soft),
        ]
        while steps > 0 or not self.net.nodes:
            steps -= 1
            self.random.choices([move for _, move in moves], [weight for weight, _ in moves])[0]()
        read = {name for node in self.net.nodes for name in node.input}
        ends = [name for name, _ in self.values if name not in read and not name.startswith("input")]
        for name in ends:
            self.net.output(name)
        if self.random.random() < 0.2:
            extra = self.pick()[0]
            if extra not in ends and not extra.startswith("input"):
                self.net.output(extra)
        self.net.inputs = [value for value in self.net.inputs if value.name in read]
        return self.net.model()


def draw_network(seed: int, steps: int = 14) -> onnx.ModelProto:
    """The network for this seed."""
    return _Drawing(seed).model(steps)
