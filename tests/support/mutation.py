"""Mutants of a legal model with one fault each: transposes, attributes, constants, bodies, layouts, annotations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from graphs import session

from relayout.layout.layout import Layout


@dataclass
class Mutant:
    name: str
    model: ir.Model
    states_layout: bool


def mutants(model: ir.Model, original: ir.Model) -> Iterator[Mutant]:
    """All mutants of a legal model, of the kinds below."""
    known = {key for node in original.graph for key in (node.name, *(value.name for value in node.outputs))}
    for mutations in (transpose_mutations, attribute_mutations, constant_mutations, weight_mutations, body_mutations):
        for name, change in mutations(model):
            yield Mutant(name, changed(model, change), states_layout=False)
    for name, change in (*layout_mutations(model), *annotation_mutations(model, known)):
        yield Mutant(name, changed(model, change), states_layout=True)


Change = Callable[[ir.Model], None]


def changed(model: ir.Model, change: Change) -> ir.Model:
    mutant = model.clone()
    change(mutant)
    return mutant


def nth_node(model: ir.Model, n: int) -> ir.Node:
    return next(itertools.islice(model.graph, n, None))


def other_perms(perm: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The inverse, and each permutation with two axes exchanged."""
    inverse = tuple(perm.index(axis) for axis in range(len(perm)))
    swapped = []
    for i, j in itertools.combinations(range(len(perm)), 2):
        exchanged = list(perm)
        exchanged[i], exchanged[j] = exchanged[j], exchanged[i]
        swapped.append(tuple(exchanged))
    return sorted({inverse, *swapped} - {perm})


def set_attribute(n: int, attribute: ir.Attr) -> Change:
    return lambda model: nth_node(model, n).attributes.add(attribute)


def set_in_body(key: ir.OperatorIdentifier, n: int, attribute: ir.Attr) -> Change:
    return lambda model: list(model.functions[key])[n].attributes.add(attribute)


def transpose_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Transposes dropped, inverted, or with two axes exchanged; and Transposes inserted."""
    for n, node in enumerate(model.graph):
        if node.op_type == "Transpose":
            yield f"{node.name} dropped", lambda model, n=n: drop(model, nth_node(model, n))  # type: ignore[misc]
            perm = tuple(node.attributes["perm"].as_ints())
            for other in other_perms(perm):
                yield f"{node.name} {perm} -> {other}", set_attribute(n, ir.AttrInt64s("perm", other))
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
    """Insert a Transpose before the first consumer of the node's result."""
    node = nth_node(model, n)
    uses = list(node.outputs[0].uses())
    transpose = ir.Node("", "Transpose", [node.outputs[0]], [ir.AttrInt64s("perm", perm)], name=f"{node.name}_odd")
    transpose.outputs[0].name = f"{node.outputs[0].name}_odd"
    model.graph.insert_after(node, transpose)
    for use, operand in uses[:1]:
        use.replace_input_with(operand, transpose.outputs[0])


def attribute_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Axes shifted by one, and lists of numbers reversed or rotated."""
    for n, node in enumerate(model.graph):
        for name in ("axis", "keepdims", "group", "channels_last"):
            if name in node.attributes:
                value = node.attributes[name].as_int()
                is_flag = name in ("keepdims", "channels_last")
                other = 1 - value if is_flag else value - 1 if value > 0 else value + 1
                yield f"{node.name} {name} {value} -> {other}", set_attribute(n, ir.AttrInt64(name, other))
        for name in ("axes", "pads", "strides", "dilations", "kernel_shape"):
            if name in node.attributes:
                values = tuple(node.attributes[name].as_ints())
                for other_values in sorted({values[::-1], (*values[1:], values[0])} - {values}):
                    yield (
                        f"{node.name} {name} {values} -> {other_values}",
                        set_attribute(n, ir.AttrInt64s(name, other_values)),
                    )


def constant_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Integers that operators read as axes, pads, indices or shapes: reversed, rotated, or shifted by one."""
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
                rotated = ir.AttrTensor("value", ir.tensor(np.roll(data, 1)))
                yield f"{node.name} rotated", set_attribute(n, rotated)


def replace_constant(name: str, data: np.ndarray) -> Change:
    def change(model: ir.Model) -> None:
        model.graph.initializers[name].const_value = ir.tensor(data, name=name)
        model.graph.initializers[name].shape = ir.Shape(data.shape)

    return change


def weight_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Weights with two axes exchanged, or shuffled along one axis."""
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


def body_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Transposes and constants in the bodies of functions."""
    for key, function in model.functions.items():
        for n, node in enumerate(function):
            if node.op_type == "Transpose":
                perm = tuple(node.attributes["perm"].as_ints())
                for other in other_perms(perm):
                    yield f"body of {key} {perm} -> {other}", set_in_body(key, n, ir.AttrInt64s("perm", other))
            elif node.op_type == "Constant":
                data = node.attributes["value"].as_tensor().numpy()
                wrong = np.roll(data, 1) if data.size > 1 else data - 1
                if not np.array_equal(wrong, data):
                    value = ir.AttrTensor("value", ir.tensor(np.ascontiguousarray(wrong)))
                    text = f"{data.tolist()} -> {wrong.tolist()}"
                    yield f"body of {key}, {node.outputs[0].name} {text}", set_in_body(key, n, value)


def layout_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Layout attributes of operators: two dimensions exchanged, other tiles, other padding."""
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
                    yield f"{node.name} {name} {letters} -> {other}", set_attribute(n, ir.AttrString(name, other))


def annotation_mutations(model: ir.Model, known: set[str | None]) -> Iterator[tuple[str, Change]]:
    """Annotated formats and layouts with two entries exchanged, or with the atoms of one dimension reversed.

    Only values that the original also has: an intermediate value of a backend has no counterpart to check against.
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
                for position, part in enumerate(parts):
                    if "+" in part:
                        atoms = "+".join(reversed(part.split("+")))
                        changed_text = ",".join([*parts[:position], atoms, *parts[position + 1 :]])
                        yield f"{value.name} {key} {text} -> {changed_text}", annotate(n, m, key, changed_text)
                for i, j in itertools.combinations(range(len(parts)), 2):
                    if extents[i] == 1 or extents[j] == 1:
                        continue  # the position of an axis of extent 1 does not matter
                    other = list(parts)
                    other[i], other[j] = other[j], other[i]
                    yield (
                        f"{value.name} {key} {text} -> {separator.join(other)}",
                        annotate(n, m, key, separator.join(other)),
                    )


def annotate(n: int, m: int, key: str, text: str) -> Change:
    return lambda model: nth_node(model, n).outputs[m].metadata_props.update({key: text})


def is_sound(mutant: ir.Model, original: ir.Model) -> bool:
    """Whether both compute the same on inputs that the verifier never uses. False if the mutant does not run."""
    sessions = []
    for model in (original, mutant):
        try:
            sessions.append(session(ir.to_proto(model)))
        except Exception:
            return False
    generator = np.random.default_rng(12345)
    for _ in range(4):
        feed = {i.name: generator.uniform(-3, 3, size=i.shape).astype(np.float32) for i in sessions[0].get_inputs()}
        try:
            expected, found = (each.run(None, feed) for each in sessions)
        except Exception:
            return False
        for a, b in zip(expected, found, strict=True):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(a).max()):
                return False
    return True
