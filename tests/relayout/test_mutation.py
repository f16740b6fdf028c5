"""Legal models are spoilt, one place at a time, and the verifier must object to every one that is not sound.

A mutant that passes must be sound by an oracle of its own: on inputs that the verifier never saw it computes what the
original computes, and it is not a change of something that has no effect on results but states a layout (an attribute
that names one, an annotation), for there is no sound way to change that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from relayout.backend import Backend, Implementation
from relayout.layout import Layout
from relayout.legalize import legalize
from relayout.model_io import read_model
from relayout.verify import verify
from relayout_backends.convert_layout import ConvertLayout
from relayout_backends.tpu import Tpu

RESIDUAL = """net (float[1,3,12,10] x, float[6,3,3,3] w, float[6] scale, float[6] shift, float[6] mean, float[6] var,
                  float[6,6,3,3] v, float[6,1,3,3] d, float[5,6] m, float[5] bias) => (float[1,5] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,0,1,2]> (x, w)
    b = BatchNormalization (a, scale, shift, mean, var)
    c = Relu (b)
    e = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (c, v)
    f = Add (e, c)
    g = MaxPool <kernel_shape = [3,2], strides = [2,1], pads = [0,1,1,0]> (f)
    h = Conv <kernel_shape = [3,3], group = 6, strides = [1,2]> (g, d)
    i = GlobalAveragePool (h)
    j = Flatten <axis = 1> (i)
    y = Gemm <transB = 1> (j, m, bias) }"""

KERAS = """net (float[1,9,11,3] x, float[8,3,3,3] w, float[4,8,1,1] v, float[8,4,1,1] u, float[8,8,3,1] t,
               float[8] bias) => (float[1,9,11,8] y, float[1,9,8] z) {
    axes = Constant <value = int64[2] {1, 2}> ()
    rows = Constant <value = int64[1] {2}> ()
    a = Transpose <perm = [0,3,1,2]> (x)
    b = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (a, w)
    c = Transpose <perm = [0,2,3,1]> (b)
    d = Add (c, bias)
    e = Sigmoid (d)
    f = Mul (d, e)
    g = ReduceMean <keepdims = 1> (f, axes)
    h = Transpose <perm = [0,3,1,2]> (g)
    i = Conv <kernel_shape = [1,1]> (h, v)
    j = Relu (i)
    k = Conv <kernel_shape = [1,1]> (j, u)
    l = Transpose <perm = [0,2,3,1]> (k)
    m = Mul (f, l)
    n = Transpose <perm = [0,3,1,2]> (m)
    o = Conv <kernel_shape = [3,1], pads = [1,0,1,0]> (n, t)
    p = Transpose <perm = [0,2,3,1]> (o)
    q = Concat <axis = 3> (p, m)
    r, s = Split <axis = 3, num_outputs = 2> (q)
    t1 = Sub (r, s)
    y = Softmax <axis = 3> (t1)
    z = ReduceMax <keepdims = 0> (t1, rows) }"""

MIXED = """net (float[1,4,8,6] x, float[4,5,2,2] w, float[5,5,1,3] v, float[1,5,1,1] gate)
               => (float[1,5,2,9] y, float[1,2,16,12] k) {
    pads = Constant <value = int64[8] {0, 0, 1, 0, 0, 0, 0, 2}> ()
    starts = Constant <value = int64[2] {1, 2}> ()
    ends = Constant <value = int64[2] {9, 14}> ()
    axes = Constant <value = int64[2] {2, 3}> ()
    scales = Constant <value = float[4] {1.0, 1.0, 0.25, 1.0}> ()
    two = Constant <value = int64[1] {2}> ()
    a = ConvTranspose <kernel_shape = [2,2], strides = [2,2]> (x, w)
    b = Pad (a, pads)
    c = Slice (b, starts, ends, axes)
    d = Conv <kernel_shape = [1,3], dilations = [1,2]> (c, v)
    e = PRelu (d, gate)
    f = LRN <size = 3> (e)
    g = InstanceNormalization (f, one, zero)
    h = CumSum (g, along)
    i = Resize <mode = "nearest"> (h, , scales)
    y = AveragePool <kernel_shape = [1,2], pads = [0,1,0,1]> (i)
    j = LeakyRelu (a)
    k, index = TopK <axis = 1> (j, two) }"""

SEQUENCE = """net (float[1,4,14] x, float[6,4,3] w, float[6] gain, float[6] shift, float[5,6,1] v, float[6,6] m)
                  => (float[1,14,6] y, float[1,14] best) {
    a = Conv <kernel_shape = [3], pads = [2,0]> (x, w)
    b = Transpose <perm = [0,2,1]> (a)
    c = LayerNormalization <axis = -1> (b, gain, shift)
    d = MatMul (c, m)
    y = Softmax <axis = -1> (d)
    e = Transpose <perm = [0,2,1]> (d)
    f = Conv <kernel_shape = [1]> (e, v)
    best = ReduceMax <keepdims = 0> (f, one_axis) }"""

QUANTIZED = """net (float[1,3,9,7] x, float[4,3,3,2] w, float[4,4,1,1] v) => (float[1,4,7,6] y) {
    s = Constant <value = float {0.03125}> ()
    z = Constant <value = uint8 {128}> ()
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    a = Conv <kernel_shape = [3,2]> (d, w)
    b = Clip (a, low, high)
    c = Conv <kernel_shape = [1,1]> (b, v)
    y = Add (c, b) }"""

SHUFFLE = """net (float[1,6,5,4] x, float[8,6,1,1] w, float[8,1,3,3] d, float[8,8,1,1] u, float[8,8,1,1] v)
                 => (float[1,8,5,4] y) {
    cut = Constant <value = int64[5] {1, 2, 4, 5, 4}> ()
    whole = Constant <value = int64[4] {1, 8, 5, 4}> ()
    halves = Constant <value = int64[2] {4, 4}> ()
    a = Conv <kernel_shape = [1,1]> (x, w)
    b = Relu (a)
    c = Reshape (b, cut)
    e = Transpose <perm = [0,2,1,3,4]> (c)
    f = Reshape (e, whole)
    g = Conv <kernel_shape = [3,3], pads = [1,1,1,1], group = 8> (f, d)
    h = Conv <kernel_shape = [1,1]> (g, u)
    h2 = Concat <axis = 1> (h, b)
    i = Reshape (h2, cut2)
    j = Transpose <perm = [0,2,1,3,4]> (i)
    k = Reshape (j, whole2)
    l, l2 = Split <axis = 1> (k, eights)
    m = Conv <kernel_shape = [1,1]> (l2, v)
    n = Relu (m)
    y = Add (n, l) }"""

# Where only transposes count, norms and a global pool on channels first are written out on channels last.
NORMS = """net (float[1,7,6,4] x, float[4] scale, float[4] shift, float[4] mean)
               => (float[1,7,6,4] y, float[1,4,1,1] z) {
    a = Transpose <perm = [0,3,1,2]> (x)
    b = BatchNormalization (a, scale, shift, mean, variance)
    c = InstanceNormalization (b, lift, offset)
    z = GlobalAveragePool (c)
    d = Transpose <perm = [0,2,3,1]> (c)
    e = Transpose <perm = [0,3,1,2]> (d)
    f = Transpose <perm = [0,2,3,1]> (e)
    y = LayerNormalization <axis = -1> (f, offset, lift) }"""

PACKED = """net (float[1,8,5,3] x, float[8,8,3,3] w, float[8] bias, float[8] shift, float[12,8,1,1] v)
                => (float[1,12,5,3] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias)
    b = Relu (a)
    y = Conv <kernel_shape = [1,1]> (b, v) }"""

# No channels here are a multiple of four.
FILLED = """net (float[1,6,5,3] x, float[10,6,3,3] w, float[10] bias) => (float[1,10,5,3] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, bias)
    y = Relu (a) }"""

# Height and width are odd, so that the last blocks of the image are half empty.
STRIDED = """net (float[1,3,13,15] x, float[4,3,5,5] w) => (float[1,4,5,6] y) {
    a = Conv <kernel_shape = [5,5], strides = [2,2]> (x, w)
    y = Sigmoid (a) }"""


class Fours(Backend):
    """Convolutions on blocks of four channels, padded where four does not divide them."""

    name = "fours"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "Conv" or node.domain:
            return super().implementations(node)
        data, kernel = Layout.parse("NCHWc[tile:4]"), Layout.parse("OIHWi[tile:4]o[tile:4]")
        others = [Layout.any(1)] * (len(node.inputs) - 2)
        return [Implementation((data, kernel, *others), (data,), pads=True)]


CONSTANTS = {
    "one": np.linspace(0.5, 1.5, 5, dtype=np.float32),
    "zero": np.linspace(-1, 1, 5, dtype=np.float32),
    "along": np.array(3),
    "variance": np.linspace(0.5, 2, 4, dtype=np.float32),
    "lift": np.linspace(-1, 2, 4, dtype=np.float32),
    "offset": np.linspace(3, -2, 4, dtype=np.float32),
    "cut2": np.array([1, 2, 8, 5, 4]),
    "whole2": np.array([1, 16, 5, 4]),
    "eights": np.array([8, 8]),
    "one_axis": np.array([1]),
    "low": np.array(-2, np.float32),
    "high": np.array(2, np.float32),
    "var": np.linspace(0.5, 2, 6, dtype=np.float32),
}


def build(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    generator = np.random.default_rng(0)
    used = {name for node in proto.graph.node for name in node.input}
    for entry in list(proto.graph.input)[1:]:
        shape = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        data = CONSTANTS.get(entry.name, generator.normal(size=shape).astype(np.float32))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, entry.name))
        proto.graph.input.remove(entry)
    for name in sorted(used & set(CONSTANTS) - {tensor.name for tensor in proto.graph.initializer}):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(CONSTANTS[name], name))
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{number}"
    return read_model(proto)


@dataclass
class Mutant:
    name: str
    model: ir.Model
    states_layout: bool


def mutants(model: ir.Model, original: ir.Model) -> Iterator[Mutant]:
    """Every single fault, of the kinds below, in any legal model."""
    known = {key for node in original.graph for key in (node.name, *(value.name for value in node.outputs))}
    for spoil in (spoilt_transposes, spoilt_attributes, spoilt_constants, spoilt_weights, spoilt_bodies):
        for name, change in spoil(model):
            yield Mutant(name, changed(model, change), states_layout=False)
    for name, change in (*spoilt_layouts(model), *spoilt_annotations(model, known)):
        yield Mutant(name, changed(model, change), states_layout=True)


Change = Callable[[ir.Model], None]


def changed(model: ir.Model, change: Change) -> ir.Model:
    mutant = model.clone()
    change(mutant)
    return mutant


def nth_node(model: ir.Model, n: int) -> ir.Node:
    return next(itertools.islice(model.graph, n, None))


def other_perms(perm: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The inverse, and each exchange of two axes."""
    inverse = tuple(perm.index(axis) for axis in range(len(perm)))
    swapped = []
    for i, j in itertools.combinations(range(len(perm)), 2):
        exchanged = list(perm)
        exchanged[i], exchanged[j] = exchanged[j], exchanged[i]
        swapped.append(tuple(exchanged))
    return sorted({inverse, *swapped} - {perm})


def set_ints(n: int, name: str, values: tuple[int, ...]) -> Change:
    return lambda model: nth_node(model, n).attributes.add(ir.AttrInt64s(name, values))


def spoilt_transposes(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Transposes dropped, flipped, with two axes exchanged; and one put where there was none."""
    for n, node in enumerate(model.graph):
        if node.op_type == "Transpose":
            yield f"{node.name} dropped", lambda model, n=n: drop(model, nth_node(model, n))  # type: ignore[misc]
            perm = tuple(node.attributes["perm"].as_ints())
            for other in other_perms(perm):
                yield f"{node.name} {perm} -> {other}", set_ints(n, "perm", other)
        elif node.outputs[0].shape is not None and len(node.outputs[0].shape) in (3, 4) and node.op_type != "Constant":
            rank = len(node.outputs[0].shape)
            perm = (*range(rank - 2), rank - 1, rank - 2)
            yield f"Transpose after {node.name}", lambda model, n=n, perm=perm: insert(model, n, perm)  # type: ignore[misc]


def drop(model: ir.Model, node: ir.Node) -> None:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    if result.is_graph_output():
        node.op_type = "Identity"
        node.attributes.clear()
        return
    result.replace_all_uses_with(source)
    model.graph.remove(node, safe=True)


def insert(model: ir.Model, n: int, perm: tuple[int, ...]) -> None:
    """Transpose what the node's first reader gets."""
    node = nth_node(model, n)
    uses = list(node.outputs[0].uses())
    transpose = ir.Node("", "Transpose", [node.outputs[0]], [ir.AttrInt64s("perm", perm)], name=f"{node.name}_odd")
    transpose.outputs[0].name = f"{node.outputs[0].name}_odd"
    model.graph.insert_after(node, transpose)
    for use, operand in uses[:1]:
        use.replace_input_with(operand, transpose.outputs[0])


def spoilt_attributes(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Axes moved by one place, and lists of numbers turned round or rotated."""
    for n, node in enumerate(model.graph):
        for name in ("axis", "keepdims", "group"):
            if name in node.attributes:
                value = node.attributes[name].as_int()
                other = 1 - value if name == "keepdims" else value - 1 if value > 0 else value + 1
                change: Change = lambda model, n=n, name=name, other=other: nth_node(model, n).attributes.add(  # type: ignore[misc]  # noqa: E731
                    ir.AttrInt64(name, other)
                )
                yield f"{node.name} {name} {value} -> {other}", change
        for name in ("axes", "pads", "strides", "dilations", "kernel_shape"):
            if name in node.attributes:
                values = tuple(node.attributes[name].as_ints())
                for other_values in sorted({values[::-1], (*values[1:], values[0])} - {values}):
                    yield f"{node.name} {name} {values} -> {other_values}", set_ints(n, name, other_values)


def spoilt_constants(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Integers that operators read as axes, pads, places or shapes: turned round, rotated, or moved by one."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.INT64 or tensor.size > 16 or not value.uses():
            continue
        data = tensor.numpy()
        others = [np.ascontiguousarray(data[::-1]) if data.ndim else data, np.roll(data, 1), data - 1]
        for other in {other.tobytes(): other for other in others}.values():
            if not np.array_equal(other, data):
                yield f"constant {name} {data.tolist()} -> {other.tolist()}", replace_constant(name, other)
    for n, node in enumerate(model.graph):
        if node.op_type == "Constant" and "value" in node.attributes:
            data = node.attributes["value"].as_tensor().numpy()
            if data.dtype == np.int64 and not np.array_equal(data, np.roll(data, 1)):
                yield (
                    f"{node.name} rotated",
                    lambda model, n=n, data=data: nth_node(model, n).attributes.add(  # type: ignore[misc]
                        ir.AttrTensor("value", ir.tensor(np.roll(data, 1)))
                    ),
                )


def replace_constant(name: str, data: np.ndarray) -> Change:
    def change(model: ir.Model) -> None:
        model.graph.initializers[name].const_value = ir.tensor(data, name=name)
        model.graph.initializers[name].shape = ir.Shape(data.shape)

    return change


def spoilt_weights(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Kernels and other weights with two axes exchanged."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        data = tensor.numpy()
        for i, j in itertools.combinations(range(data.ndim), 2):
            if data.shape[i] == data.shape[j] == 1:
                continue
            other = np.ascontiguousarray(np.swapaxes(data, i, j))
            yield f"weight {name} with axes {i} and {j} exchanged", replace_constant(name, other)
        for axis, extent in enumerate(data.shape):
            if extent > 2 and extent % 2 == 0:
                halves = np.arange(extent).reshape(2, -1).T.reshape(-1)
                yield f"weight {name} shuffled along {axis}", replace_constant(name, np.take(data, halves, axis))


def spoilt_bodies(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Transposes, and integers that others read, in the bodies of functions."""
    for key, function in model.functions.items():
        for n, node in enumerate(function):
            if node.op_type == "Transpose":
                perm = tuple(node.attributes["perm"].as_ints())
                for other in other_perms(perm):
                    yield (
                        f"body of {key} {perm} -> {other}",
                        lambda model, key=key, n=n, other=other: list(  # type: ignore[misc]
                            model.functions[key]
                        )[n].attributes.add(ir.AttrInt64s("perm", other)),
                    )
            elif node.op_type == "Constant":
                data = node.attributes["value"].as_tensor().numpy()
                for other_data in (np.roll(data, 1) if data.size > 1 else data - 1,):
                    if not np.array_equal(other_data, data):
                        yield (
                            f"body of {key}, {node.outputs[0].name} {data.tolist()} -> {other_data.tolist()}",
                            lambda model, key=key, n=n, other=other_data: list(  # type: ignore[misc]
                                model.functions[key]
                            )[n].attributes.add(ir.AttrTensor("value", ir.tensor(np.ascontiguousarray(other)))),
                        )


def spoilt_layouts(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Layouts in the attributes of operators: two dimensions exchanged, other tiles, other padding."""
    for n, node in enumerate(model.graph):
        for name in ("data_layout", "kernel_layout", "out_layout"):
            if node.domain == "relayout" and name in node.attributes:
                letters = node.attributes[name].as_string()
                dims = [str(dim) for dim in Layout.parse(letters).dims]
                others = ["".join(dims[i] for i in perm) for perm in other_perms(tuple(range(len(dims))))]
                others += [letters.replace("tile:4", "tile:2"), letters.replace("pad:2", "pad:1")]
                for other in dict.fromkeys(others):
                    if other == letters:
                        continue
                    yield (
                        f"{node.name} {name} {letters} -> {other}",
                        lambda model, n=n, name=name, other=other: nth_node(  # type: ignore[misc]
                            model, n
                        ).attributes.add(ir.AttrString(name, other)),
                    )


def spoilt_annotations(model: ir.Model, known: set[str | None]) -> Iterator[tuple[str, Change]]:
    """Annotated orders and layouts, two places exchanged; of atoms also two of one dimension.

    Only of values that the original has too: what a backend makes in between lies beside nothing.
    """
    for n, node in enumerate(model.graph):
        for m, value in enumerate(node.outputs):
            extents = value.shape or ()
            if node.name not in known and value.name not in known:
                continue
            for key, separator in (("relayout.order", ","), ("relayout.atoms", ","), ("relayout.layout", "")):
                text = value.metadata_props.get(key)
                if text is None:
                    continue
                parts = text.split(separator) if separator else [str(dim) for dim in Layout.parse(text).dims]
                for place, part in enumerate(parts):
                    if "+" in part:
                        turned = [*parts[:place], "+".join(reversed(part.split("+"))), *parts[place + 1 :]]
                        yield f"{value.name} {key} {text} -> {','.join(turned)}", note(n, m, key, ",".join(turned))
                for i, j in itertools.combinations(range(len(parts)), 2):
                    if extents[i] == 1 or extents[j] == 1:
                        continue  # an axis of extent 1 may stand anywhere
                    other = list(parts)
                    other[i], other[j] = other[j], other[i]
                    yield (
                        f"{value.name} {key} {text} -> {separator.join(other)}",
                        note(n, m, key, separator.join(other)),
                    )


def note(n: int, m: int, key: str, text: str) -> Change:
    return lambda model: nth_node(model, n).outputs[m].metadata_props.update({key: text})


def is_sound(mutant: ir.Model, original: ir.Model) -> bool:
    """Whether both give the same on inputs that the verifier never draws; a mutant that does not run is not sound."""
    sessions = []
    for model in (original, mutant):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        try:
            sessions.append(onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options))
        except Exception:
            return False
    generator = np.random.default_rng(12345)
    for _ in range(4):
        feed = {i.name: generator.uniform(-3, 3, size=i.shape).astype(np.float32) for i in sessions[0].get_inputs()}
        try:
            expected, found = (session.run(None, feed) for session in sessions)
        except Exception:
            return False
        for a, b in zip(expected, found, strict=True):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(a).max()):
                return False
    return True


@dataclass(frozen=True)
class Case:
    """What is spoilt, for which backend, how many mutants the verifier finds at the least, and whom it asks."""

    text: str
    backend: str | Backend
    least: int
    judge: str | Backend | None = None
    objective: str = "bytes"

    @property
    def judges(self) -> str | Backend:
        return self.backend if self.judge is None else self.judge


CASES = {
    "residual-nhwc": Case(RESIDUAL, "nhwc", 180),
    "residual-canonical": Case(RESIDUAL, "canonical", 180),
    "keras-onnx": Case(KERAS, "onnx", 60),
    "keras-nhwc": Case(KERAS, "nhwc", 100),
    "mixed-nhwc": Case(MIXED, "nhwc", 220),
    "sequence-nhwc": Case(SEQUENCE, "nhwc", 40),
    "quantized-nhwc": Case(QUANTIZED, "nhwc", 90),
    "shuffle-onnx": Case(SHUFFLE, "onnx", 40),
    "shuffle-nhwc": Case(SHUFFLE, "nhwc", 140),
    "norms-onnx": Case(NORMS, "onnx", 20, objective="transposes"),
    "packed-convert-layout": Case(PACKED, ConvertLayout(desired_layouts={"Conv": ["NCHW4c", "OIHW4i4o"]}), 200),
    "filled-fours": Case(FILLED, Fours(), 100, judge="onnx"),
    "strided-tpu": Case(STRIDED, Tpu(), 60),
}


def is_passed(model: ir.Model, judge: str | Backend, original: ir.Model) -> bool:
    """Both ways to find a fault, the shorter first."""
    return all(verify(model, judge, against=original, run=run).passed for run in (False, True))


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_that_is_not_sound_is_found(name: str) -> None:
    case = CASES[name]
    original, judge = build(case.text), case.judges
    legal, report = legalize(original, case.backend, objective=case.objective)
    legal = read_model(legal)
    assert report.status == "optimal"
    assert verify(legal, judge, against=original).findings == (), "the legal model itself is sound"
    found, harmless, escaped = 0, 0, []
    for mutant in mutants(legal, original):
        if not is_passed(mutant.model, judge, original):
            found += 1
        elif not mutant.states_layout and is_sound(mutant.model, original):
            harmless += 1
        else:
            escaped.append(mutant.name)
    assert escaped == []
    assert found >= case.least
    assert harmless < found / 4, "most mutants do harm, or they would test nothing"


def test_there_are_mutants_by_the_hundreds() -> None:
    assert sum(case.least for case in CASES.values()) >= 500
