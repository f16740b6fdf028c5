"""Random chains of SpaceToDepth and DepthToSpace, as operators or as Reshape, Transpose, Reshape."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from graphs import Net

Shape = tuple[int, int, int, int]

TO_CHANNELS = ((0, 3, 5, 1, 2, 4), (0, 1, 3, 5, 2, 4), (0, 5, 3, 1, 2, 4))
"""Block rows and columns before the channels; after them; columns before rows."""

MOST_CHANNELS = 120


def reshape(net: Net, value: str, *shape: int) -> str:
    return str(net.node("Reshape", value, net.constant(np.array(shape, np.int64))))


def space_to_channels(net: Net, value: str, shape: Shape, block: int, perm: tuple[int, ...]) -> str:
    """SpaceToDepth as Reshape, Transpose, Reshape; `perm` gives the order of the resulting channels."""
    n, c, h, w = shape
    split = reshape(net, value, n, c, h // block, block, w // block, block)
    return reshape(net, net.transpose(split, *perm), n, c * block * block, h // block, w // block)


class BlockChain:
    """A chain under construction. Each step replaces `value`, unless the step does not fit it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.net = Net(opset=self.draw.choice([13, 17]), seed=seed)
        draw = self.draw.choice
        shape = draw([1, 2]), draw([1, 3, 4, 5, 9, 12]), draw([6, 12, 36]), draw([6, 12, 18])
        self.value = self.net.input("x", shape)
        self.passed: list[str] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return self.net.shape(self.value)

    def space_to_depth(self) -> None:
        block = self._fitting_block()
        if block:
            self.value = self.net.node("SpaceToDepth", self.value, blocksize=block)

    def spelled_space_to_depth(self) -> None:
        block = self._fitting_block()
        if block:
            self.value = space_to_channels(self.net, self.value, self.shape, block, self.draw.choice(TO_CHANNELS))

    def depth_to_space(self) -> None:
        block = self._fitting_depth()
        if block:
            mode = self.draw.choice(["DCR", "CRD"])
            self.value = self.net.node("DepthToSpace", self.value, blocksize=block, mode=mode)

    def spelled_depth_to_space(self) -> None:
        block = self._fitting_depth()
        if block:
            n, c, h, w = self.shape
            deep = c // block**2
            first, perm = self.draw.choice(
                [((block, block, deep), (0, 3, 4, 1, 5, 2)), ((deep, block, block), (0, 1, 4, 2, 5, 3))]
            )
            split = self.net.transpose(reshape(self.net, self.value, n, *first, h, w), *perm)
            self.value = reshape(self.net, split, n, deep, h * block, w * block)

    def elementwise(self) -> None:
        self.value = self.net.node(self.draw.choice(["Neg", "Tanh", "LeakyRelu"]), self.value)

    def constant(self) -> None:
        _, c, h, w = self.shape
        shape = self.draw.choice([(1, c, 1, 1), (1, c, h, w), (h, w), (w,), (1,), (c, 1, w), (1, 1, 1, 1)])
        self.value = self.net.node("Mul", self.value, self.net.weight(*shape))

    def convolution(self) -> None:
        outputs, kernel = self.draw.choice([4, 9, 12]), self.draw.choice([1, 3])
        self.value = self.net.conv(self.value, self.shape[1], outputs, kernel)

    def softmax(self) -> None:
        axis = self.draw.choice([axis for axis in (1, 2, 3) if self.shape[axis] > 1])
        self.value = self.net.node("Softmax", self.value, axis=axis)

    def mean(self) -> None:
        axes = self.draw.choice([[1], [2, 3]])
        self.value = self.net.node("Add", self.value, self.net.node("ReduceMean", self.value, axes=axes, keepdims=1))

    def channels_last_between(self) -> None:
        channels_last = self.net.node("Sigmoid", self.net.transpose(self.value, 0, 2, 3, 1))
        self.value = self.net.transpose(channels_last, 0, 3, 1, 2)

    def concatenation(self) -> None:
        if 2 * self.shape[1] <= MOST_CHANNELS // 2:
            self.value = self.net.node("Concat", self.value, self.net.node("Neg", self.value), axis=1)

    def skip(self) -> None:
        alike = [value for value in self.passed if self.net.shape(value) == self.shape]
        if alike:
            self.value = self.net.node("Add", self.value, self.draw.choice(alike))

    def model(self) -> onnx.ModelProto:
        if self.value == "x":
            self.elementwise()
        if self.draw.random() < 0.2:
            self.value = self.net.transpose(self.value, 0, 2, 3, 1)
        self.net.output(self.value)
        return self.net.model()

    def _fitting_block(self) -> int:
        """A block size that divides rows and columns, or 0."""
        _, c, h, w = self.shape
        block = self.draw.choice([2, 3])
        return block if h % block == w % block == 0 and c * block**2 <= MOST_CHANNELS else 0

    def _fitting_depth(self) -> int:
        block = self.draw.choice([2, 3])
        return block if self.shape[1] % block**2 == 0 else 0


_STEPS: tuple[Callable[[BlockChain], None], ...] = (
    BlockChain.channels_last_between,
    BlockChain.concatenation,
    BlockChain.constant,
    BlockChain.convolution,
    BlockChain.depth_to_space,
    BlockChain.depth_to_space,
    BlockChain.elementwise,
    BlockChain.mean,
    BlockChain.skip,
    BlockChain.softmax,
    BlockChain.space_to_depth,
    BlockChain.space_to_depth,
    BlockChain.spelled_depth_to_space,
    BlockChain.spelled_space_to_depth,
)


def block_chain(seed: int) -> onnx.ModelProto:
    """The chain for this seed."""
    chain = BlockChain(seed)
    for _ in range(chain.draw.randint(2, 8)):
        chain.draw.choice(_STEPS)(chain)
        chain.passed.append(chain.value)
    return chain.model()
