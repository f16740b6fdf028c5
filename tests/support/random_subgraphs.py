"""Random If, Loop and Scan nodes. Their bodies transpose and convolve values, and read outer values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from random_graphs import Builder, Rejected, Val
from random_operands import element_type
from random_operators import floats

Shape = tuple[int, ...]
B, I64 = np.bool_, np.int64
KIND = helper.make_tensor_value_info


class Body:
    """A nested graph under construction; `read` are the outer values that it captures."""

    def __init__(self, b: Builder, tag: str) -> None:
        self.b, self.tag = b, f"g{b._count}_{tag}"
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.read: list[Val] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"{self.tag}_{self.count}"

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        result = self.name()
        self.nodes.append(helper.make_node(operator, inputs, [result], name=f"{result}_n", **attributes))
        return result

    def weight(self, *shape: int) -> str:
        """A constant: an outer one (stored or computed), one of the body, or one computed from either."""
        if self.b.chance(0.25):
            return self._computed(shape)
        if self.b.chance(0.4):
            given = self.b.parameter(shape, None, -0.5, 0.5)
            self.read.append(given)
            return given.name
        return self._stored(self.b.array(shape, None, -0.5, 0.5))

    def _stored(self, array: np.ndarray) -> str:
        name = self.name()
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def _computed(self, shape: Shape) -> str:
        """A constant computed by operators of the body, with numbers in [-1, 1]."""
        draw, rank = self.b.draw, len(shape)
        kind = draw.choice(["one", "soft", "transposed", "product", "large"])
        if kind == "soft" and rank:
            operator = draw.choice(["Softmax", "LogSoftmax", "Hardmax", "LpNormalization"])
            extra = {"p": draw.choice([1, 2])} if operator == "LpNormalization" else {}
            made = self.node(operator, self.weight(*shape), axis=draw.randrange(rank), **extra)
            return self.node("Tanh", made)
        if kind == "transposed" and rank > 1:
            perm = self.b.perm(rank)
            stored = self.weight(*(shape[p] for p in np.argsort(perm)))
            return self.node("Transpose", stored, perm=perm)
        if kind == "product":
            narrow = tuple(e if self.b.chance(0.6) else 1 for e in shape)
            return self.node("Mul", self.weight(*shape), self.weight(*narrow))
        if kind == "large":
            # Larger than the constants that shape inference computes.
            many = 2 + 1100 // max(1, int(np.prod(shape)))
            stored = self._stored(self.b.array((many, *shape), None, -0.5, 0.5))
            if self.b.opset < 18:
                return self.node("ReduceMax", stored, axes=[0], keepdims=0)
            return self.node("ReduceMax", stored, self._stored(np.array([0], I64)), keepdims=0)
        return self.node(draw.choice(["Neg", "Tanh", "Abs", "Identity"]), self.weight(*shape))

    def captured(self, shape: Shape) -> str | None:
        found = self.b.pick(lambda v: v.dtype == self.b.real and v.shape == shape)
        if found is None:
            return None
        self.read.append(found)
        return found.name

    def same_shape(self, value: str, shape: Shape, most: int = 3) -> str:
        """The value after some operators, in the same shape."""
        for _ in range(self.b.draw.randint(0, most)):
            value = self._step(value, shape)
        return value

    def transposed(self, value: str, shape: Shape) -> tuple[str, Shape]:
        """The value after some operators, sometimes transposed."""
        value = self.same_shape(value, shape)
        if not self.b.chance(0.5) or len(shape) < 2:
            return value, shape
        perm = self.b.perm(len(shape))
        return self.node("Transpose", value, perm=perm), tuple(shape[p] for p in perm)

    def _step(self, value: str, shape: Shape) -> str:
        draw, rank = self.b.draw, len(shape)
        step = draw.choice(["one", "around", "around", "conv", "captured", "bias"])
        if step == "around" and rank > 1:
            perm = self.b.perm(rank)
            value = self.node("Transpose", value, perm=perm)
            inner = tuple(shape[p] for p in perm)
            value = self._step(value, inner) if self.b.chance(0.8) else value
            return self.node("Transpose", value, perm=[int(p) for p in np.argsort(perm)])
        if step == "conv" and rank == 4 and shape[1] <= 6:
            size = [min(3, e) for e in shape[2:]]
            return self.node("Conv", value, self.weight(shape[1], shape[1], *size), auto_pad="SAME_UPPER")
        if step == "captured" and (other := self.captured(shape)) is not None:
            return self.node(draw.choice(["Add", "Max", "Sub"]), value, other)
        if step == "bias" and rank:
            return self.node("Add", value, self.weight(shape[-1]))
        return self.node(draw.choice(["Relu", "Neg", "Tanh", "Identity"]), value)

    def info(self, name: str, shape: Sequence[int] | None, dtype: int = 0) -> onnx.ValueInfoProto:
        """The value's type, often without some of its extents."""
        if shape is not None and self.b.chance(0.3):
            shape = [None if self.b.chance(0.5) else e for e in shape]  # type: ignore[misc]
        return KIND(name, dtype or element_type(self.b.real), shape)

    def graph(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, self.weights)


def _scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    return KIND(name, dtype, [])


def _named(b: Builder, results: int) -> tuple[int, list[str]]:
    """The number of the next node and the names of its results. Call it once all operands exist."""
    return b._count, [f"v{b._count}" + (f"_{i}" if i else "") for i in range(results)]


def branches(b: Builder) -> Any:
    """An If with one or two results, whose branches read outer values or constants."""
    x = floats(b, 1, 4)
    condition = b.input((), B) if b.chance(0.7) else b.node("Greater", [floats(b, 0, 0), b.constant(0.0, b.real)])
    if condition.rank:
        raise Rejected("no scalar")
    count = b.draw.choice([1, 1, 2])
    perm = b.perm(x.rank)
    shape = tuple(x.shape[p] for p in perm)
    graphs, read = [], [condition, x]
    for index in range(2):
        body = Body(b, str(index))
        results = []
        for _ in range(count):
            if b.chance(0.1):
                value = body.node("Identity", body.weight(*shape))
            else:
                start = body.captured(x.shape) or x.name
                value = body.node("Transpose", body.same_shape(start, x.shape, 2), perm=perm)
                value = body.same_shape(value, shape, 1)
            results.append(body.info(value, shape))
        graphs.append(body.graph(f"branch{index}", [], results))
        read += body.read
    number, names = _named(b, count)
    proto = helper.make_node(
        "If", [condition.name], names, name=f"n{number}", then_branch=graphs[0], else_branch=graphs[1]
    )
    return b.add(proto, read)


def loop(b: Builder) -> Any:
    """A Loop with a state that is transposed inside, sometimes a second state, and a scan result."""
    x = floats(b, 1, 4)
    body = Body(b, "l")
    ends = [f"{body.tag}_{each}" for each in ("round", "going", "state", "other")]
    states = [(ends[2], x)]
    if b.chance(0.3):
        second = b.pick(lambda v: v.dtype == b.real and v.rank >= 1) or b.parameter(x.shape)
        states.append((ends[3], second))
    going = body.node("Identity", ends[1])
    last = [body.same_shape(name, value.shape) for name, value in states]
    last = [body.node("Identity", value) if value in ends else value for value in last]
    outputs = [_scalar(going, TensorProto.BOOL)]
    outputs += [body.info(value, state.shape) for value, (_, state) in zip(last, states, strict=True)]
    if b.chance(0.4):
        seen, shape = body.transposed(last[0], x.shape)
        seen = body.node("Identity", seen) if seen == last[0] else seen
        outputs.append(body.info(seen, shape))
    inputs = [_scalar(ends[0], TensorProto.INT64), _scalar(ends[1], TensorProto.BOOL)]
    inputs += [KIND(name, element_type(b.real), list(value.shape)) for name, value in states]
    rounds = b.ints(b.draw.choice([1, 2, 2]))
    number, names = _named(b, len(outputs) - 1)
    given = [rounds.name, "", *(value.name for _, value in states)]
    graph = body.graph("body", inputs, outputs)
    proto = helper.make_node("Loop", given, names, name=f"n{number}", body=graph)
    return b.add(proto, [rounds, *(value for _, value in states), *body.read])


def scan(b: Builder) -> Any:
    """A Scan along any axis, with or without a state, into a result along any axis."""
    if b.opset < 11:
        raise Rejected("no Scan along any axis yet")
    x = floats(b, 2, 5)
    body, axis = Body(b, "s"), b.draw.randrange(x.rank)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    names = [f"{body.tag}_{each}" for each in ("state", "piece")]
    state = b.pick(lambda v: v.dtype == b.real and v.shape == shape) or b.parameter(shape) if b.chance(0.5) else None
    made = body.same_shape(names[1], shape)
    outputs = []
    if state is not None:
        made = body.node("Add", names[0], made)
        outputs.append(body.info(made, shape))
    result, transposed = body.transposed(made, shape)
    result = body.node("Tanh", result) if result in (made, *names) else result
    outputs.append(body.info(result, transposed))
    inputs = [KIND(name, element_type(b.real), list(shape)) for name in (names if state is not None else names[1:])]
    axes = {"scan_input_axes": [axis - (x.rank if b.chance(0.2) else 0)]} if axis or b.chance(0.5) else {}
    if b.chance(0.6):
        axes["scan_output_axes"] = [b.draw.randrange(len(transposed) + 1)]
    if b.chance(0.3):
        axes["scan_input_directions"] = [1]
    number, made_names = _named(b, len(outputs))
    given = [*([state.name] if state is not None else []), x.name]
    graph = body.graph("body", inputs, outputs)
    proto = helper.make_node("Scan", given, made_names, name=f"n{number}", body=graph, num_scan_inputs=1, **axes)
    return b.add(proto, [x, *([state] if state is not None else []), *body.read])
