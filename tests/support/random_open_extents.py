"""Random graphs with extents that are computed while they run, and the bytes that their Transposes move at given sizes.

Slices, Pads, pools and Resizes between Transposes: ends, pads and sizes are inputs of the graph, or negative ends that
onnx's inference does not follow before opset 10.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from graphs import Net, run
from onnx import TensorProto, helper

from relayout.legalization import legalize
from relayout.model.io import read_model

PERMS = [(0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2)]
I64 = TensorProto.INT64
LONG = 9
"""The extents of the image that is the only float input."""


def draw_open(seed: int) -> onnx.ModelProto:
    """A graph of Transposes and of operators whose results have extents that are not known before the run."""
    draw = random.Random(seed)
    net = Net(opset=draw.choice([9, 17, 17]))
    values = [net.input("x", (draw.choice([1, 2]), draw.choice([3, 4]), LONG, LONG))]
    for _ in range(draw.randint(4, 10)):
        value = draw.choice(values[-5:])
        step = _step(draw, net, value)
        values.append(step)
        if draw.random() < 0.2:
            # Parts of one value that are transposed alike: one Transpose before them moves the whole.
            perm = draw.choice(PERMS)
            parts = [_step(draw, net, step, draw.choice(["Slice", "Slice", "pool", "Pad"])) for _ in range(2)]
            values += [net.transpose(part, *perm) for part in parts]
    read = {name for node in net.nodes for name in node.input}
    for value in values[1:]:
        if value not in read:
            net.output(value)
    return net.model()


def _step(draw: random.Random, net: Net, value: str, kind: str = "") -> str:
    kind = kind or draw.choice(["Transpose"] * 5 + ["Slice"] * 3 + ["Pad", "pool", "Resize", "Relu", "Add"])
    if kind == "Transpose":
        return net.transpose(value, *draw.choice(PERMS))
    if kind == "pool":
        stride = draw.choice([1, 2])
        pooled = draw.choice(["MaxPool", "AveragePool"])
        return str(net.node(pooled, value, kernel_shape=[2, 2], strides=[stride, stride], pads=[1, 1, 1, 1]))
    if kind == "Add":
        return str(net.node("Add", value, net.constant(np.float32(draw.random()))))
    if kind == "Relu" or (kind == "Resize" and net.opset < 11):
        return str(net.node("Relu", value))
    axis = draw.randrange(4)
    if kind == "Slice" and net.opset < 10:
        return str(net.node("Slice", value, axes=[axis], starts=[0], ends=[-1]))
    if kind == "Slice":
        ends = net.input(f"ends{len(net.inputs)}", (1,), I64)
        return str(net.node("Slice", value, net.constant([0]), ends, net.constant([axis])))
    if net.opset < 11:
        return str(net.node("Pad", value, pads=[0] * 4 + [int(a == axis) for a in range(4)]))
    if kind == "Pad":
        return str(net.node("Pad", value, net.input(f"pads{len(net.inputs)}", (8,), I64)))
    return str(net.node("Resize", value, "", "", net.input(f"sizes{len(net.inputs)}", (4,), I64), mode="nearest"))


def draw_sizes(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """An image, and small, large or mixed ends, pads and sizes for the inputs that state them."""
    generator = np.random.default_rng(seed)
    bias = ("small", "large", "mixed")[seed % 3]
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type != I64:
            feeds[value.name] = generator.standard_normal(shape).astype(np.float32)
            continue
        lows, highs = {"ends": (1, 2 * LONG), "pads": (0, 5), "size": (1, 2 * LONG)}[value.name[:4]]
        few = np.full(shape, lows, np.int64)
        many = np.full(shape, highs, np.int64)
        mixed = generator.integers(lows, highs + 1, shape)
        feeds[value.name] = {"small": few, "large": many, "mixed": mixed}[bias]
        if bias == "small" and generator.random() < 0.3:
            feeds[value.name] = mixed
    return feeds


def bytes_moved(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> tuple[int, list[np.ndarray]]:
    """The bytes that the model's Transposes read and write on these inputs, and its results. A Transpose that moves
    only axes that are known to be of extent 1 moves nothing: it is a Reshape. Others run, whatever the extents."""
    probe = deepcopy(model)
    shapes = {
        value.name: value.shape for node in read_model(model).graph for value in (*node.inputs, *node.outputs) if value
    }
    moved = [node for node in probe.graph.node if node.op_type == "Transpose"]
    listed = {value.name for value in (*probe.graph.input, *probe.graph.output)}
    given = {node.input[0] for node in moved}
    for name in sorted(given - listed):
        probe.graph.output.append(helper.make_value_info(name, helper.make_tensor_type_proto(TensorProto.FLOAT, None)))
    results = run(probe, feeds)
    found = dict(zip((value.name for value in probe.graph.output), results, strict=True)) | dict(feeds)
    total = sum(2 * found[node.input[0]].nbytes for node in moved if _moves(node, shapes[node.input[0]]))
    return total, results[: len(model.graph.output)]


def worse_sizes(seed: int) -> list[str]:
    """The sizes at which the legal model of a random graph, for `onnx`, moves more bytes or computes something else."""
    model, draws = draw_open(seed), 6
    legal, _ = legalize(model, verify=False)
    found = []
    for number in range(draws):
        feeds = draw_sizes(model, draws * seed + number)
        try:
            before, expected = bytes_moved(model, feeds)
        except Exception:  # onnxruntime refuses some sizes, such as an empty pool
            continue
        after, results = bytes_moved(legal, feeds)
        same = all(np.allclose(one, other, atol=1e-5) for one, other in zip(expected, results, strict=True))
        if after > before or not same:
            found.append(f"draw {number}: {before} bytes, then {after}" if same else f"draw {number}: other numbers")
    return found


def _moves(node: onnx.NodeProto, shape: Any) -> bool:
    perm = [axis for axis in node.attribute[0].ints if shape is None or shape[axis] != 1]
    return perm != sorted(perm)
