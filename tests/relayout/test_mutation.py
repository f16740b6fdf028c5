"""Legal models are spoilt, one place at a time, and the verifier must object to every one that is not sound.

A mutant that passes must be sound by an oracle of its own: on inputs that the verifier never saw it computes what the
original computes, and it is not a change of something that has no effect on results but states a layout (an attribute
that names one, an annotation), for there is no sound way to change that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from relayout.legalize import legalize
from relayout.model_io import read_model
from relayout.verify import verify

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

CONSTANTS = {
    "one": np.linspace(0.5, 1.5, 5, dtype=np.float32),
    "zero": np.linspace(-1, 1, 5, dtype=np.float32),
    "along": np.array(3),
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


def mutants(model: ir.Model) -> Iterator[Mutant]:
    """Every single fault, of the kinds below, in any legal model."""
    for spoil in (spoilt_transposes, spoilt_attributes, spoilt_constants, spoilt_weights, spoilt_bodies):
        for name, change in spoil(model):
            yield Mutant(name, changed(model, change), states_layout=False)
    for spoil in (spoilt_layouts, spoilt_annotations):
        for name, change in spoil(model):
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
        for other in (np.ascontiguousarray(data[::-1]) if data.ndim else data, np.roll(data, 1), data - 1):
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
            other = np.ascontiguousarray(np.swapaxes(data, i, j))
            yield f"weight {name} with axes {i} and {j} exchanged", replace_constant(name, other)


def spoilt_bodies(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Transposes in the bodies of functions."""
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


def spoilt_layouts(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Layouts in the attributes of operators, two letters exchanged."""
    for n, node in enumerate(model.graph):
        for name in ("data_layout", "kernel_layout", "out_layout"):
            if node.domain == "relayout" and name in node.attributes:
                letters = node.attributes[name].as_string()
                for perm in other_perms(tuple(range(len(letters)))):
                    other = "".join(letters[i] for i in perm)
                    yield (
                        f"{node.name} {name} {letters} -> {other}",
                        lambda model, n=n, name=name, other=other: nth_node(  # type: ignore[misc]
                            model, n
                        ).attributes.add(ir.AttrString(name, other)),
                    )


def spoilt_annotations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Annotated orders and layouts, two places exchanged."""
    for n, node in enumerate(model.graph):
        for m, value in enumerate(node.outputs):
            extents = value.shape or ()
            for key, separator in (("relayout.order", ","), ("relayout.layout", "")):
                text = value.metadata_props.get(key)
                if text is None:
                    continue
                parts = text.split(separator) if separator else list(text)
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


# What is spoilt, for which backend, and how many mutants at the least the verifier finds.
CASES = [
    (RESIDUAL, "nhwc", 180),
    (RESIDUAL, "canonical", 180),
    (KERAS, "onnx", 60),
    (KERAS, "nhwc", 100),
    (MIXED, "nhwc", 220),
    (SEQUENCE, "nhwc", 40),
    (QUANTIZED, "nhwc", 90),
]
KINDS = ("residual", "residual", "keras", "keras", "mixed", "sequence", "quantized")
IDS = [f"{kind}-{case[1]}" for kind, case in zip(KINDS, CASES, strict=True)]


@pytest.mark.parametrize(("text", "backend", "least"), CASES, ids=IDS)
def test_every_mutant_that_is_not_sound_is_found(text: str, backend: str, least: int) -> None:
    original = build(text)
    legal, report = legalize(original, backend)
    assert report.status == "optimal"
    assert verify(legal, backend, against=original).findings == (), "the legal model itself is sound"
    found, harmless, escaped = 0, 0, []
    for mutant in mutants(legal):
        if not verify(mutant.model, backend, against=original).passed:
            found += 1
        elif not mutant.states_layout and is_sound(mutant.model, original):
            harmless += 1
        else:
            escaped.append(mutant.name)
    assert escaped == []
    assert found >= least
    assert harmless < found / 5, "most mutants do harm, or they would test nothing"


def test_there_are_mutants_by_the_hundreds() -> None:
    assert sum(least for _, _, least in CASES) >= 500
