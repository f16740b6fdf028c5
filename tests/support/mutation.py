"""Mutants of a legal model with one fault each: transposes, attributes, constants, bodies, layouts, annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from graphs import session
from onnx import AttributeProto, ModelProto, NodeProto, helper, numpy_helper
from outside_mutation import Edit, Found, edits, exchanged, insert, rewire

from relayout.layout.layout import Layout


@dataclass
class Mutant:
    name: str
    model: ModelProto
    states_layout: bool


def mutants(legal: ModelProto, original: ModelProto) -> Iterator[Mutant]:
    """All mutants of a legal model, of the kinds below."""
    known = {key for node in original.graph.node for key in (node.name, *node.output)}
    computing = (
        _transposes(legal),
        _attributes(legal),
        edits(_integers, legal),
        edits(_weights, legal),
        _bodies(legal),
    )
    for name, mutant in chain(*computing):
        yield Mutant(name, mutant, states_layout=False)
    for name, mutant in chain(_layouts(legal), _annotations(legal, known)):
        yield Mutant(name, mutant, states_layout=True)


def _other_perms(perm: Sequence[int]) -> list[list[int]]:
    """The inverse, and each permutation with two axes exchanged."""
    inverse = [[*perm].index(axis) for axis in range(len(perm))]
    swapped = [exchanged(perm, i, j) for i, j in combinations(range(len(perm)), 2)]
    return sorted(other for other in [*swapped, *([inverse] if inverse not in swapped else [])] if other != [*perm])


def _with_attribute(model: ModelProto, n: int, name: str, value: object, *, function: int | None = None) -> ModelProto:
    """The model with another value of an attribute of a node, in the graph or in the body of a function."""
    mutant = deepcopy(model)
    node = (mutant.graph if function is None else mutant.functions[function]).node[n]
    _attribute(node, name).CopyFrom(helper.make_attribute(name, value))
    return mutant


def _attribute(node: NodeProto, name: str) -> AttributeProto:
    return next(each for each in node.attribute if each.name == name)


def _transposes(model: ModelProto) -> Found:
    """Transposes dropped, inverted, or with two axes exchanged; and Transposes inserted."""
    values = (*model.graph.value_info, *model.graph.output)
    ranks = {each.name: len(each.type.tensor_type.shape.dim) for each in values}
    for n, node in enumerate(model.graph.node):
        rank = ranks.get(node.output[0])
        if node.op_type == "Transpose":
            yield f"{node.name} dropped", _dropped(model, n)
            perm = _attribute(node, "perm").ints[:]
            for other in _other_perms(perm):
                yield f"{node.name} {perm} -> {other}", _with_attribute(model, n, "perm", other)
        elif rank in (3, 4) and node.op_type != "Constant":
            yield f"Transpose after {node.name}", _transposed(model, n, exchanged(range(rank), rank - 2, rank - 1))


def _dropped(model: ModelProto, n: int) -> ModelProto:
    mutant = deepcopy(model)
    graph, node = mutant.graph, mutant.graph.node[n]
    if node.output[0] in {value.name for value in graph.output}:
        node.op_type = "Identity"
        del node.attribute[:]
        return mutant
    rewire(mutant, node.output[0], node.input[0])
    for value in [each for each in graph.value_info if each.name == node.output[0]]:
        graph.value_info.remove(value)
    del graph.node[n]
    return mutant


def _transposed(model: ModelProto, n: int, perm: Sequence[int]) -> ModelProto:
    """A Transpose before the first consumer of the node's result."""
    mutant = deepcopy(model)
    result = mutant.graph.node[n].output[0]
    uses = [(reader, k) for reader in mutant.graph.node for k, name in enumerate(reader.input) if name == result]
    for reader, k in uses[:1]:
        reader.input[k] = f"{result}_odd"
    name = f"{mutant.graph.node[n].name}_odd"
    insert(mutant, n + 1, [helper.make_node("Transpose", [result], [f"{result}_odd"], name, perm=perm)])
    return mutant


def _attributes(model: ModelProto) -> Found:
    """Axes shifted by one, flags turned, and lists of numbers reversed or rotated."""
    for n, node in enumerate(model.graph.node):
        for attribute in node.attribute:
            name, value, values = attribute.name, attribute.i, attribute.ints[:]
            others: list[int | list[int]] = []
            if name in ("keepdims", "channels_last"):
                others = [1 - value]
            elif name in ("axis", "group"):
                others = [value - 1 if value > 0 else value + 1]
            elif name in ("axes", "pads", "strides", "dilations", "kernel_shape"):
                rotated = [*values[1:], *values[:1]]
                others = [other for other in (values[::-1], rotated) if other != values]
            for other in others[:1] if others[:1] == others[1:] else others:
                text = f"{node.name} {name} {helper.get_attribute_value(attribute)} -> {other}"
                yield text, _with_attribute(model, n, name, other)


def _integers(name: str, data: np.ndarray) -> Iterator[Edit]:
    """Integers that operators read as axes, pads, indices or shapes: reversed, rotated, or shifted by one."""
    if data.dtype == np.int64 and data.size <= 16:
        others = (data[::-1] if data.ndim else data, np.roll(data, 1), data - 1)
        for other in {other.tobytes(): other for other in others if not np.array_equal(other, data)}.values():
            yield f"constant {name} {data.tolist()} -> {other.tolist()}", other


def _weights(name: str, data: np.ndarray) -> Iterator[Edit]:
    """Weights with two axes exchanged, or shuffled along one axis."""
    if data.dtype != np.float32 or data.ndim < 2:
        return
    for i, j in combinations(range(data.ndim), 2):
        if not data.shape[i] == data.shape[j] == 1:
            yield f"weight {name} with axes {i} and {j} exchanged", np.swapaxes(data, i, j)
    for axis, extent in enumerate(data.shape):
        if extent > 2 and extent % 2 == 0:
            halves = np.arange(extent).reshape(2, -1).T.reshape(-1)
            yield f"weight {name} shuffled along {axis}", np.take(data, halves, axis)


def _bodies(model: ModelProto) -> Found:
    """Transposes and constants in the bodies of functions."""
    for f, function in enumerate(model.functions):
        for n, node in enumerate(function.node):
            if node.op_type == "Transpose":
                for other in _other_perms(_attribute(node, "perm").ints):
                    text = f"body of {function.name}, {node.output[0]} -> {other}"
                    yield text, _with_attribute(model, n, "perm", other, function=f)
            elif node.op_type == "Constant":
                data = numpy_helper.to_array(_attribute(node, "value").t)
                wrong = np.roll(data, 1) if data.size > 1 else data - 1
                if not np.array_equal(wrong, data):
                    value = numpy_helper.from_array(wrong)
                    text = f"body of {function.name}, {node.output[0]} {data.tolist()} -> {wrong.tolist()}"
                    yield text, _with_attribute(model, n, "value", value, function=f)


def _layouts(model: ModelProto) -> Found:
    """Layout attributes of operators: two dimensions exchanged, other tiles, other padding."""
    for n, node in enumerate(model.graph.node):
        for attribute in node.attribute:
            if node.domain == "relayout" and attribute.name in ("data_layout", "kernel_layout", "out_layout"):
                letters = attribute.s.decode()
                dims = [str(dim) for dim in Layout.parse(letters).dims]
                others = ["".join(exchanged(dims, i, j)) for i, j in combinations(range(len(dims)), 2)]
                others += [letters.replace("tile:4", "tile:2"), letters.replace("pad:2", "pad:1")]
                for other in dict.fromkeys(others):
                    if other != letters:
                        text = f"{node.name} {attribute.name} {letters} -> {other}"
                        yield text, _with_attribute(model, n, attribute.name, other)


def _annotations(model: ModelProto, known: Set[str]) -> Found:
    """Annotated formats and layouts with two entries exchanged, or with the atoms of one dimension reversed.

    Only values that the original also has: an intermediate value of a backend has no counterpart to check against.
    """
    makers = {result: node.name for node in model.graph.node for result in node.output}
    for side in ("value_info", "output"):
        for v, value in enumerate(getattr(model.graph, side)):
            extents = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if known.isdisjoint([value.name, makers.get(value.name, "")]):
                continue
            for p, entry in enumerate(value.metadata_props):
                if entry.key not in ("relayout.order", "relayout.atoms", "relayout.layout"):
                    continue
                separator = "" if entry.key == "relayout.layout" else ","
                parts = (
                    [str(dim) for dim in Layout.parse(entry.value).dims] if not separator else entry.value.split(",")
                )
                reversed_ = (
                    [*parts[:place], "+".join(reversed(part.split("+"))), *parts[place + 1 :]]
                    for place, part in enumerate(parts)
                    if "+" in part
                )
                # The position of an axis of extent 1 does not matter.
                places = [place for place in range(len(parts)) if extents[place] != 1]
                for other in (*reversed_, *(exchanged(parts, i, j) for i, j in combinations(places, 2))):
                    mutant, text = deepcopy(model), separator.join(other)
                    getattr(mutant.graph, side)[v].metadata_props[p].value = text
                    yield f"{value.name} {entry.key} {entry.value} -> {text}", mutant


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
