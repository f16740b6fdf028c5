"""Random graphs whose Reshapes merge and split axes of unknown extents, as those of image models of any size do."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import onnx
from graphs import Net, run

from relayout.errors import RelayoutError
from relayout.legalization import legalize
from relayout.verification.verifier import verify

BACKENDS = ("nhwc", "onnx", "tpu", "auto-nhwc", "x86-nchwc", "nchw", "xla-cpu")
SIZES = ({"n": 1, "h": 6, "w": 4}, {"n": 2, "h": 3, "w": 5}, {"n": 3, "h": 1, "w": 2})
EVEN_SIZES = ({"n": 1, "h": 6, "w": 4}, {"n": 2, "h": 2, "w": 8}, {"n": 3, "h": 4, "w": 2})

Axes = list[list[int | str]]
"""The axes of a value, each as its factors: `[["n"], [4, "h"]]` is a matrix of n rows and 4*h columns."""

Kept = list[tuple[str, Axes]]


class NamedNet(Net):
    """A graph of one image (n, 8, h, w), whose values are known by the factors of their axes."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        super().__init__(opset, seed)
        self.image = self.input("x", ("n", 8, "h", "w"))
        self.places = {"n": (self.image, 0), "h": (self.image, 2), "w": (self.image, 3)}
        self.read: dict[str, str] = {}
        self.halves = False

    def region(self, prefix: str) -> NamedNet:
        """A net for a graph inside this one."""
        inner = NamedNet(self.opset, len(prefix))
        inner.prefix, inner.inputs, inner.places, inner.halves = prefix, [], {**self.places}, self.halves
        return inner

    def body(self, name: str, *outputs: str) -> onnx.GraphProto:
        values = [onnx.helper.make_empty_tensor_value_info(value) for value in outputs]
        return onnx.helper.make_graph(self.nodes, name, self.inputs, values, self.constants)

    def branches(self, seed: int, value: str, axes: Axes, kept: Kept) -> str:
        """An If on the mean of the value, whose branches continue from it, and both end with its axes."""
        positive = self.node("Greater", self.node("ReduceMean", value, keepdims=0), self.constant(np.float32(0)))
        made = []
        for name in ("then", "else"):
            draw, inner = random.Random(f"{seed}{name}"), self.region(f"{name}{len(self.nodes)}_")
            own, shape = value, axes
            for _ in range(draw.randint(1, 4)):
                own, shape = _step(draw, inner, own, shape, kept)
            if shape != axes:
                flat = inner.node("ReduceMean", own, keepdims=0)
                own = inner.node("Add", value, flat)
            made.append(inner.body(name, str(inner.node("Tanh", own))))
        return str(self.node("If", positive, then_branch=made[0], else_branch=made[1]))

    def loop(self, seed: int, value: str, axes: Axes, kept: Kept) -> str:
        """A Loop of two rounds with the value as its state."""
        draw, inner = random.Random(seed), self.region(f"loop{len(self.nodes)}_")
        names = [f"{inner.prefix}{name}" for name in ("round", "going", "state")]
        for name, dtype in zip(names, (onnx.TensorProto.INT64, onnx.TensorProto.BOOL), strict=False):
            inner.inputs.append(onnx.helper.make_tensor_value_info(name, dtype, ()))
        inner.inputs.append(onnx.helper.make_tensor_value_info(names[2], onnx.TensorProto.FLOAT, [None] * len(axes)))
        own, shape = names[2], axes
        for _ in range(draw.randint(1, 4)):
            own, shape = _step(draw, inner, own, shape, kept)
        state = inner.node(
            "Tanh", own if shape == axes else inner.node("Add", names[2], inner.node("ReduceMean", own, keepdims=0))
        )
        body = inner.body("body", str(inner.node("Identity", names[1])), str(state))
        return str(self.node("Loop", self.constant(np.array(2)), "", value, body=body))

    def pool(self, value: str, axes: Axes) -> tuple[str, Axes]:
        """Every second row and column of an image whose rows and columns are axes of their own."""
        pooled = str(self.node("MaxPool", value, kernel_shape=[1, 1], strides=[2, 2]))
        names = [f"{axis[0]}/2" for axis in axes[2:]]
        self.places.update({name: (pooled, place) for place, name in enumerate(names, 2)})
        return pooled, [*axes[:2], *([name] for name in names)]

    def window(self, value: str, axes: Axes, place: int) -> tuple[str, Axes]:
        """The last three, or fewer, of an axis of unknown extent."""
        bounds = [self.constant([number]) for number in (-3, 2**63 - 1, place)]
        cut = str(self.node("Slice", value, *bounds))
        name = f"{axes[place][0]}".replace("//", "/") + "<3"
        self.places[name] = cut, place
        return cut, [*axes[:place], [name], *axes[place + 1 :]]

    def extent(self, factors: list[int | str]) -> str:
        """The extent of an axis, as a vector of one element that is computed from the shape of an image."""
        known = self.constant(np.array([math.prod(f for f in factors if isinstance(f, int))]))
        for name in (f for f in factors if isinstance(f, str)):
            whole, _, divisor = name.partition("//")
            if whole not in self.read:
                value, place = self.places[whole]
                self.read[whole] = self.node("Gather", self.node("Shape", value), self.constant([place]))
            if name not in self.read:
                self.read[name] = self.node("Div", self.read[whole], self.constant([int(divisor)]))
            known = self.node("Mul", known, self.read[name])
        return known

    def reshape(self, value: str, axes: Axes, *, infers: int | None = None) -> str:
        """A Reshape to these axes; that of number `infers` is -1."""
        if all(isinstance(f, int) for axis in axes for f in axis):
            return str(self.node("Reshape", value, self.constant([math.prod(map(int, axis)) for axis in axes])))
        parts = [self.constant([-1]) if p == infers else self.extent(axis) for p, axis in enumerate(axes)]
        return str(self.node("Reshape", value, self.node("Concat", *parts, axis=0)))

    def attention(self, image: str, channels: int) -> str:
        """The sum of an image (n, channels, h, w) and an attention in each window of 2x2 of its pixels, as in Swin."""
        cut = self.reshape(self.transpose(image, 0, 2, 3, 1), [["n"], ["h//2"], [2], ["w//2"], [2], [channels]])
        pixels = self.reshape(self.transpose(cut, 0, 1, 3, 2, 4, 5), [["n", "h//2", "w//2"], [4], [channels]])
        query, key, value = (self.node("MatMul", pixels, self.weight(channels, channels)) for _ in range(3))
        weights = self.node("Softmax", self.node("MatMul", query, self.transpose(key, 0, 2, 1)), axis=-1)
        mixed = self.node("MatMul", self.node("MatMul", weights, value), self.weight(channels, channels))
        cut = self.reshape(mixed, [["n"], ["h//2"], ["w//2"], [2], [2], [channels]])
        pixels = self.reshape(self.transpose(cut, 0, 1, 3, 2, 4, 5), [["n"], ["h"], ["w"], [channels]])
        return str(self.node("Add", image, self.transpose(pixels, 0, 3, 1, 2)))


def draw_named(seed: int, *, halves: bool = False) -> onnx.ModelProto:
    """A chain of convolutions, normalizations, products, elementwise operators, Transposes and Reshapes. Every fourth
    graph has an If or a Loop. With `halves`, Reshapes split rows and columns, which are even, by 2, and some products
    are an attention in windows."""
    draw = random.Random(seed)
    net = NamedNet()
    net.halves = halves
    value, axes = net.image, [["n"], [8], ["h"], ["w"]]
    kept: Kept = []
    for _ in range(draw.randint(4, 14)):
        value, axes = _step(draw, net, value, axes, kept)
        if seed % 4 == 3 and draw.random() < 0.3:
            value = (net.branches if draw.random() < 0.6 else net.loop)(draw.randrange(1000), value, axes, kept)
        if draw.random() < 0.4:
            kept.append((value, axes))
    net.output(value)
    if kept and draw.random() < 0.3:
        net.output(net.node("Relu", draw.choice(kept)[0]))
    return net.model()


def _step(draw: random.Random, net: NamedNet, value: str, axes: Axes, kept: Kept) -> tuple[str, Axes]:
    kind = draw.choice(["Transpose", "Reshape", "Reshape", "Conv", "Conv", "MatMul", "norm", "Add", "Relu"])
    same = [other for other, own in kept if own == axes and other != value]
    if kind == "Transpose" and len(axes) > 1:
        perm = draw.sample(range(len(axes)), len(axes))
        if draw.random() < 0.6 and len(axes) > 2:
            perm = draw.choice([[0, *range(2, len(axes)), 1], [0, len(axes) - 1, *range(1, len(axes) - 1)]])
        return net.transpose(value, *perm), [axes[place] for place in perm]
    if kind == "Reshape":
        target = _grouped(draw, [factor for axis in axes for factor in axis], halves=net.halves)
        infers = draw.randrange(len(target)) if draw.random() < 0.5 else None
        return net.reshape(value, target, infers=infers), target
    is_image = len(axes) == 4 and all(axis in (["h"], ["w"]) for axis in axes[2:])
    if kind == "MatMul" and net.halves and axes[0] == ["n"] and axes[2:] == [["h"], ["w"]] and draw.random() < 0.5:
        channels = math.prod(f for f in axes[1] if isinstance(f, int))
        if axes[1] == [channels]:
            return net.attention(value, channels), axes
    if kind == "Conv" and is_image and draw.random() < 0.3:
        return net.pool(value, axes)
    if kind == "Conv" and len(axes) == 4 and all(isinstance(f, int) for f in axes[1]):
        channels = math.prod(map(int, axes[1]))
        kernel = draw.choice([1, 3])
        return net.conv(value, channels, channels, kernel, group=draw.choice([1, channels])), axes
    if kind == "MatMul" and len(axes) > 1 and all(isinstance(f, int) for f in axes[-1]):
        columns = math.prod(map(int, axes[-1]))
        return str(net.node("MatMul", value, net.weight(columns, columns))), axes
    if kind == "norm" and len(axes) > 2 and all(isinstance(f, int) for f in axes[1]):
        channels = math.prod(map(int, axes[1]))
        scale, shift = net.weight(channels), net.weight(channels)
        return str(net.node("InstanceNormalization", value, scale, shift)), axes
    if kind == "norm":
        return str(net.node("Softmax", value, axis=draw.randrange(len(axes)))), axes
    if kind == "Add" and same:
        return str(net.node("Add", value, draw.choice(same))), axes
    open_axes = [place for place, axis in enumerate(axes) if len(axis) == 1 and isinstance(axis[0], str)]
    if kind == "Add" and open_axes and not net.prefix:  # inside an If, inference does not follow what a Slice reads
        return net.window(value, axes, draw.choice(open_axes))
    return str(net.node(draw.choice(["Relu", "Tanh", "Sigmoid"]), value)), axes


def _grouped(draw: random.Random, factors: list[int | str], *, halves: bool) -> Axes:
    """The factors in their order as other axes; a number may become two, and rows or columns too with `halves`."""
    split: list[int | str] = []
    for factor in factors:
        if halves and factor in ("h", "w") and draw.random() < 0.3:
            split += [f"{factor}//2", 2]
            continue
        parts = draw.choice([2, 4]) if isinstance(factor, int) and factor > 4 and draw.random() < 0.4 else 1
        split += [parts, int(factor) // parts] if parts > 1 else [factor]
    axes: Axes = [[split[0]]]
    for factor in split[1:]:
        joins = draw.random() < (0.35 if len(axes) < 5 else 1)
        axes = [*axes[:-1], [*axes[-1], factor]] if joins else [*axes, [factor]]
    return [_merged(axis) for axis in axes]


def _merged(axis: list[int | str]) -> list[int | str]:
    """The axis with adjacent numbers as one, and halves that follow each other."""
    found: list[int | str] = []
    for factor in axis:
        if found and factor == 2 and isinstance(last := found[-1], str) and last.endswith("//2"):
            found[-1] = last.removesuffix("//2")
        elif found and isinstance(factor, int) and isinstance(last := found[-1], int):
            found[-1] = last * factor
        else:
            found.append(factor)
    return found


def faults_of_named(seed: int, backend: str, *, halves: bool = False) -> Iterator[str]:
    """The faults of the legal model of one graph, each in a line."""
    model = draw_named(seed, halves=halves)
    try:
        legal, report = legalize(model, backend)
        again, second = legalize(legal, backend, verify=False)
    except RelayoutError as error:
        yield f"{error}"
        return
    if report.status != "optimal":
        yield report.status
    is_same = again.SerializeToString() == legal.SerializeToString()
    if second.cost > report.cost:
        yield f"cost {report.cost}, then {second.cost}"
    elif second.cost == report.cost and not is_same:
        yield "the second run gives another model"
    if backend == "onnx" and report.after.bytes > report.before.bytes:
        yield f"{report.before.bytes} bytes became {report.after.bytes}"
    for finding in verify(legal, backend, model, run=False).findings:
        if finding.severity == "error":
            yield f"{finding}"
    made = {"legal": legal} if is_same else {"legal": legal, "again": again}
    for number, sizes in enumerate(EVEN_SIZES if halves else SIZES):
        shape = [sizes["n"], 8, sizes["h"], sizes["w"]]
        drawn = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
        for name, one in made.items():
            try:
                for expected, found in zip(run(model, {"x": drawn}), run(one, {"x": drawn}), strict=True):
                    # Normalizations of few pixels amplify rounding.
                    scale = float(np.abs(expected).max(initial=1.0))
                    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * scale)
            except Exception as error:
                yield f"{name} model at {sizes}: {str(error)[:300]}"
