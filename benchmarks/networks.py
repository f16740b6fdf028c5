"""Generate ONNX networks as exporters of channels-last frameworks write them: each convolution between Transposes.

`blocks` has any size. In the other, small families, a local or greedy optimiser keeps conversions that the optimum
avoids. The same arguments give the same model on every machine.

    python benchmarks/networks.py FOLDER [NODES ...]     the small families, or `blocks` of these sizes
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FAMILIES", "blocks"]

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


class _Net:
    """A graph under construction. Each call adds a node and returns the name of its result. Values are NHWC."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        result = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], name=f"node_{len(self.nodes)}", **attributes))
        return result

    def constant(self, array: np.ndarray) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def in_nchw(self, operator: str, value: str, *inputs: str, **attributes: Any) -> str:
        """An operator that ONNX defines for NCHW, between Transposes."""
        inside = self.node(operator, self.node("Transpose", value, perm=TO_NCHW), *inputs, **attributes)
        return self.node("Transpose", inside, perm=TO_NHWC)

    def conv(self, value: str, channels: int, results: int, kernel: int = 3) -> str:
        scale = (channels * kernel * kernel) ** -0.5
        weight = self.numbers.standard_normal((results, channels, kernel, kernel), np.float32) * np.float32(scale)
        return self.in_nchw("Conv", value, self.constant(weight), pads=[kernel // 2] * 4)

    def model(self, *outputs: str) -> onnx.ModelProto:
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "generated", self.inputs, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        # Sizes in bytes need the shapes of the outputs, and onnxruntime needs them too.
        shapes = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.output}
        for output in model.graph.output:
            output.CopyFrom(shapes[output.name])
        return model


def residual_chain(blocks: int) -> onnx.ModelProto:
    """x = x + conv(x), `blocks` times. The first skip connection is the graph input."""
    net = _Net(blocks)
    value = net.input("x", (1, 6, 6, 4))
    for _ in range(blocks):
        value = net.node("Add", value, net.conv(value, 4, 4))
    return net.model(value)


def input_injection(blocks: int) -> onnx.ModelProto:
    """The input is added after every convolution, so one converted copy serves all."""
    net = _Net(blocks)
    raw = value = net.input("x", (1, 16, 16, 8))
    for _ in range(blocks):
        value = net.node("Relu", net.node("Add", net.conv(value, 8, 8), raw))
    return net.model(value)


def squeeze_excite(blocks: int) -> onnx.ModelProto:
    """A gate computed from the mean over all pixels; its rank is lower than that of the scaled value."""
    net = _Net(blocks)
    value = net.conv(net.input("x", (2, 16, 16, 3)), 3, 16)
    for _ in range(blocks):
        inner = net.node("Relu", net.conv(value, 16, 16))
        gate = net.node("ReduceMean", inner, axes=[1, 2], keepdims=0)
        weight = net.constant(net.numbers.standard_normal((16, 16), np.float32) * np.float32(0.25))
        gate = net.node("Sigmoid", net.node("MatMul", gate, weight))
        gate = net.node("Reshape", gate, net.integers(-1, 1, 1, 16))
        value = net.node("Add", value, net.node("Mul", inner, gate))
    return net.model(net.conv(value, 16, 3))


def upsample(scale: int) -> onnx.ModelProto:
    """A Transpose to NHWC after an upsampling, instead of before it, moves `scale` squared times the bytes."""
    net = _Net(scale)
    weight = net.constant(net.numbers.standard_normal((8, 8, 3, 3), np.float32))
    value = net.node("Conv", net.input("x", (1, 8, 16, 16)), weight, pads=[1] * 4)
    scales = net.constant(np.array([1, 1, scale, scale], np.float32))
    value = net.node("Resize", value, "", scales, mode="nearest")
    return net.model(net.node("Relu", net.node("Transpose", value, perm=TO_NHWC)))


def fan_out(readers: int) -> onnx.ModelProto:
    """One value with many consumers, each a Transpose behind an elementwise operator."""
    net = _Net(readers)
    value = net.node("Relu", net.input("x", (1, 16, 16, 8)))
    names = ("Sigmoid", "Tanh", "Exp", "Abs")
    branches = []
    for reader in range(readers):
        inner = net.node("Transpose", net.node(names[reader % 4], value), perm=TO_NCHW)
        weight = net.constant(net.numbers.standard_normal((4, 8, 1, 1), np.float32))
        branches.append(net.node("Conv", inner, weight))
    return net.model(net.node("Concat", *branches, axis=1))


def pinned_output(blocks: int) -> onnx.ModelProto:
    """A chain whose first value is also a graph output, so that one consumer requires NHWC."""
    net = _Net(blocks)
    value = first = net.conv(net.input("x", (1, 16, 16, 3)), 3, 8)
    for _ in range(blocks):
        value = net.node("Relu", net.conv(value, 8, 8))
    return net.model(first, net.node("ReduceMean", value, axes=[1, 2], keepdims=0))


FAMILIES: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual_chain_10": lambda: residual_chain(10),
    "residual_chain_100": lambda: residual_chain(100),
    "residual_chain_1000": lambda: residual_chain(1000),
    "input_injection_8": lambda: input_injection(8),
    "squeeze_excite_4": lambda: squeeze_excite(4),
    "upsample_8": lambda: upsample(8),
    "fan_out_6": lambda: fan_out(6),
    "pinned_output_4": lambda: pinned_output(4),
}


class _Growing(_Net):
    """Random blocks on a tensor of 8 channels, whose resolution changes sometimes."""

    size = 28

    def activated(self, value: str, channels: int = 8, results: int = 8) -> str:
        return self.node("Relu", self.conv(value, channels, results, self.draw.choice((1, 3))))

    def residual(self, value: str) -> str:
        inner = value
        for _ in range(self.draw.randint(2, 3)):
            inner = self.activated(inner)
        return self.node("Relu", self.node("Add", inner, value))

    def inception(self, value: str) -> str:
        pooled = self.in_nchw("MaxPool", value, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
        branches = [self.activated(pooled)]
        for _ in range(self.draw.randint(2, 3)):
            inner = value
            for _ in range(self.draw.randint(1, 2)):
                inner = self.activated(inner)
            branches.append(inner)
        return self.activated(self.node("Concat", *branches, axis=3), 8 * len(branches))

    def squeeze_excite(self, value: str) -> str:
        inner = self.activated(value)
        gate = self.node("ReduceMean", inner, axes=[1, 2], keepdims=0)
        gate = self.node("Reshape", gate, self.integers(-1, 1, 1, 8))
        gate = self.node("Sigmoid", self.activated(self.activated(gate)))
        return self.node("Add", self.node("Mul", inner, gate), value)

    def resize(self, value: str) -> str:
        self.size = self.draw.choice([size for size in (14, 28, 56) if size != self.size])
        sizes = self.integers(1, self.size, self.size, 8)
        return self.node("Resize", value, "", "", sizes, mode="nearest")


def blocks(nodes: int, *, seed: int = 0) -> onnx.ModelProto:
    """Residual, inception and squeeze-excite blocks: `nodes` to `nodes` + 40 nodes, Transposes included."""
    net = _Growing(seed)
    kinds = (net.residual, net.inception, net.squeeze_excite)
    value = net.conv(net.input("x", (1, 28, 28, 3)), 3, 8)
    while len(net.nodes) < nodes:
        if net.draw.random() < 0.05:
            value = net.resize(value)
        value = net.draw.choice(kinds)(value)
    return net.model(value)


def main(arguments: Sequence[str]) -> None:
    folder, *sizes = arguments
    made = {f"blocks_{size}": partial(blocks, int(size)) for size in sizes} or FAMILIES
    for name, build in made.items():
        onnx.save(build(), str(Path(folder) / f"{name}.onnx"))


if __name__ == "__main__":
    main(sys.argv[1:])
