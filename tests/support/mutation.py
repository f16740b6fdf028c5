"""Mutants of a legal model with one fault each: transposes, attributes, constants, bodies, layouts, annotations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from graphs import session
from onnx import AttributeProto, ModelProto, helper, numpy_helper

from relayout.layout.layout import Layout


@dataclass
class Mutant:
    name: str
    model: ModelProto
    states_layout: bool


def mutants(model: ir.Model, original: ir.Model) -> Iterator[Mutant]:
    """All mutants of a legal model, of the kinds below. They are protobufs, which are copied in no time."""
    legal = ir.to_proto(model)
    known = {key for node in original.graph for key in (node.name, *(value.name for value in node.outputs))}
    for mutations in (transpose_mutations, attribute_mutations, constant_mutations, weight_mutations, body_mutations):
        for name, change in mutations(model):
            yield Mutant(name, changed(legal, change), states_layout=False)
    for name, change in (*layout_mutations(model), *annotation_mutations(model, known)):
        yield Mutant(name, changed(legal, change), states_layout=True)


Change = Callable[[ModelProto], None]


def changed(model: ModelProto, change: Change) -> ModelProto:
    mutant = ModelProto()
    mutant.CopyFrom(model)
    change(mutant)
    return mutant


def other_perms(perm: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The inverse, and each permutation with two axes exchanged."""
    inverse = tuple(perm.index(axis) for axis in range(len(perm)))
    swapped = []
    for i, j in itertools.combinations(range(len(perm)), 2):
        exchanged = list(perm)
        exchanged[i], exchanged[j] = exchanged[j], exchanged[i]
        swapped.append(tuple(exchanged))
    return sorted({inverse, *swapped} - {perm})


def attribute_of(node: onnx.NodeProto, name: str) -> AttributeProto:
    return next(attribute for attribute in node.attribute if attribute.name == name)


def set_attribute(n: int, attribute: AttributeProto) -> Change:
    return lambda model: attribute_of(model.graph.node[n], attribute.name).CopyFrom(attribute)


def set_in_body(key: ir.OperatorIdentifier, n: int, attribute: AttributeProto) -> Change:
    def change(model: ModelProto) -> None:
        body = next(each for each in model.functions if (each.domain, each.name, each.overload) == key)
        attribute_of(body.node[n], attribute.name).CopyFrom(attribute)

    return change


def transpose_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Transposes dropped, inverted, or with two axes exchanged; and Transposes inserted."""
    for n, node in enumerate(model.graph):
        if node.op_type == "Transpose":
            yield f"{node.name} dropped", lambda model, n=n: drop(model, n)  # type: ignore[misc]
            perm = tuple(node.attributes["perm"].as_ints())
            for other in other_perms(perm):
                yield f"{node.name} {perm} -> {other}", set_attribute(n, helper.make_attribute("perm", other))
        elif node.outputs[0].shape is not None and len(node.outputs[0].shape) in (3, 4) and node.op_type != "Constant":
            rank = len(node.outputs[0].shape)
            perm = (*range(rank - 2), rank - 1, rank - 2)
            yield f"Transpose after {node.name}", lambda model, n=n, perm=perm: insert(model, n, perm)  # type: ignore[misc]


def drop(model: ModelProto, n: int) -> None:
    graph, node = model.graph, model.graph.node[n]
    source, result = node.input[0], node.output[0]
    if result in {value.name for value in graph.output}:
        node.op_type = "Identity"
        del node.attribute[:]
        return
    for reader in graph.node:
        reader.input[:] = [source if name == result else name for name in reader.input]
    del graph.node[n]
    for value in [each for each in graph.value_info if each.name == result]:
        graph.value_info.remove(value)


def insert(model: ModelProto, n: int, perm: tuple[int, ...]) -> None:
    """Insert a Transpose before the first consumer of the node's result."""
    graph, node = model.graph, model.graph.node[n]
    result = node.output[0]
    uses = [(reader, k) for reader in graph.node for k, name in enumerate(reader.input) if name == result]
    for reader, k in uses[:1]:
        reader.input[k] = f"{result}_odd"
    graph.node.insert(n + 1, helper.make_node("Transpose", [result], [f"{result}_odd"], f"{node.name}_odd", perm=perm))


def attribute_mutations(model: ir.Model) -> Iterator[tuple[str, Change]]:
    """Axes shifted by one, and lists of numbers reversed or rotated."""
    for n, node in enumerate(model.graph):
        for name in ("axis", "keepdims", "group", "channels_last"):
            if name in node.attributes:
                value = node.attributes[name].as_int()
                is_flag = name in ("keepdims", "channels_last")
                other = 1 - value if is_flag else value - 1 if value > 0 else value + 1
                yield f"{node.name} {name} {value} -> {other}", set_attribute(n, helper.make_attribute(name, other))
        for name in ("axes", "pads", "strides", "dilations", "kernel_shape"):
            if name in node.attributes:
                values = tuple(node.attributes[name].as_ints())
                for other_values in sorted({values[::-1], (*values[1:], values[0])} - {values}):
                    yield (
                        f"{node.name} {name} {values} -> {other_values}",
                        set_attribute(n, helper.make_attribute(name, other_values)),
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
                rotated = helper.make_attribute("value", numpy_helper.from_array(np.roll(data, 1)))
                yield f"{node.name} rotated", set_attribute(n, rotated)


def replace_constant(name: str, data: np.ndarray) -> Change:
    def change(model: ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name == name)
        tensor.CopyFrom(numpy_helper.from_array(data, name))
        for value in model.graph.value_info:
            if value.name == name:
                value.type.CopyFrom(helper.make_tensor_type_proto(value.type.tensor_type.elem_type, data.shape))

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
                    yield f"body of {key} {perm} -> {other}", set_in_body(key, n, helper.make_attribute("perm", other))
            elif node.op_type == "Constant":
                data = node.attributes["value"].as_tensor().numpy()
                wrong = np.roll(data, 1) if data.size > 1 else data - 1
                if not np.array_equal(wrong, data):
                    value = helper.make_attribute("value", numpy_helper.from_array(np.ascontiguousarray(wrong)))
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
                    attribute = helper.make_attribute(name, other)
                    yield f"{node.name} {name} {letters} -> {other}", set_attribute(n, attribute)


def annotation_mutations(model: ir.Model, known: set[str | None]) -> Iterator[tuple[str, Change]]:
    """Annotated formats and layouts with two entries exchanged, or with the atoms of one dimension reversed.

    Only values that the original also has: an intermediate value of a backend has no counterpart to check against.
    """
    for node in model.graph:
        for value in node.outputs:
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
                        yield f"{value.name} {key} {text} -> {changed_text}", annotate(value.name, key, changed_text)
                for i, j in itertools.combinations(range(len(parts)), 2):
                    if extents[i] == 1 or extents[j] == 1:
                        continue  # the position of an axis of extent 1 does not matter
                    other = list(parts)
                    other[i], other[j] = other[j], other[i]
                    yield (
                        f"{value.name} {key} {text} -> {separator.join(other)}",
                        annotate(value.name, key, separator.join(other)),
                    )


def annotate(name: str | None, key: str, text: str) -> Change:
    def change(model: ModelProto) -> None:
        value = next(each for each in (*model.graph.value_info, *model.graph.output) if each.name == name)
        next(entry for entry in value.metadata_props if entry.key == key).value = text

    return change


def is_sound(mutant: ModelProto, original: ModelProto) -> bool:
    """Whether both compute the same on inputs that the verifier never uses. False if the mutant does not run."""
    sessions = []
    for model in (original, mutant):
        try:
            sessions.append(session(model))
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
