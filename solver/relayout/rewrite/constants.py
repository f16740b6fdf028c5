"""Constants in the format that a reader wants, made before the model runs.

A stored constant is re-laid out lazily when it is written. A value computed from constants (a dequantised weight, say)
keeps its computation, on re-laid-out constants, where the op table knows how; else it is computed once, here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from relayout.choices import in_source
from relayout.graph_codec import SOURCE_KEY
from relayout.memory_format import Atom, Extent, Order, normal_form, order_of
from relayout.paths import Dims, one_each, steps_of
from relayout.physical import Emitter, Physical
from relayout.rewrite.folding import folded_value
from relayout.rules import Axes, Free, Relabel, extents_of
from relayout.tensors import Step, relaid, transform_of
from relayout.views import Tensors

__all__ = ["Constants", "Laid", "input_dims"]

Laid = tuple[Order | None, ...]
"""Dimensions of a constant as groups of atoms of its own axes; None: a unit dimension that it lacks."""


class Constants:
    """Every re-laid-out constant of one rewrite, each made once."""

    def __init__(self, tensors: Tensors, emitter: Emitter) -> None:
        self._tensors = tensors
        self._emitter = emitter
        self._made: dict[tuple[ir.Value, object], ir.Value] = {}
        self.replaced: dict[ir.Value, list[ir.Value]] = {}
        # A constant of a graph inside another stays there: its name need not be free outside.
        self.home: dict[ir.Value, ir.Graph] = {}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is computed from here on is forgotten in the end: it is not for graphs around this one to read."""
        known = set(self._made)
        yield
        self._made = {key: v for key, v in self._made.items() if key in known or v.producer() is None}

    def laid(self, value: ir.Value, dims: Laid) -> ir.Value:
        """`value` with these dimensions, as a constant or a computation from constants."""
        if dims == in_source(len(dims)):
            return value
        key = (value, dims)
        if key not in self._made:
            self._made[key] = self._lay(value, dims)
        return self._made[key]

    def stepped(self, value: ir.Value, steps: Sequence[Step]) -> ir.Value:
        """`value` re-laid by `steps` (see `relayout.tensors`)."""
        key = (value, repr(steps))
        if steps and key not in self._made:
            self._made[key] = self._make(value, list(steps), None)
        return self._made[key] if steps else value

    def _lay(self, value: ir.Value, dims: Laid) -> ir.Value:
        extents = extents_of(value)
        assert extents is not None
        perm = tuple(group[0].axis for group in dims if group is not None)
        is_turned = _is_turned(dims, len(extents))
        if is_turned and None not in dims:
            return self._make(value, _steps(dims, extents), perm)
        if all(isinstance(extent, int) for extent in extents):
            return self._make(value, _steps(dims, extents), None)
        folded = folded_value(value, self._tensors.shapes)
        if folded is not None:
            return self._stored(value, relaid(folded, _steps(dims, tuple(folded.shape.numpy()))))
        target = tuple(group or () for group in dims)
        own = Physical(value, in_source(len(extents)))
        return self._emitter.convert(own, target, extents, f"{value.name}_laid").value

    def _make(self, value: ir.Value, steps: list[Step], perm: Axes | None) -> ir.Value:
        """`perm`: the steps are this transpose and nothing else."""
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            made = self._stored(value, relaid(tensor, steps))
            known = value.metadata_props.get(SOURCE_KEY) if transform_of(tensor) else None
            made.metadata_props[SOURCE_KEY] = known or value.name or ""
            return made
        producer = value.producer()
        assert producer is not None
        if producer.op_type == "ConstantOfShape" and not any(step["op"] == "pad" for step in steps):
            uniform = self._uniform(producer, steps)
            if uniform is not None:
                return uniform
        rule = self._tensors.rules.get(producer)
        if isinstance(rule, Free) and perm is not None and len(producer.outputs) == 1:
            own = rule.outputs[0]
            order = _space_order(rule, own, perm) if own is not None else None
            if order is not None and rule.allows(order):
                return self._recomputed(producer, rule, order)
        folded = folded_value(value, self._tensors.shapes)
        if folded is not None:
            return self._stored(value, relaid(folded, steps))
        seen = _seen_by(producer) if isinstance(rule, Relabel) else None
        source = producer.inputs[0] if producer.inputs else None
        if seen is not None and source is not None and self._tensors.is_constant(source):
            # Whoever has the data does all the steps.
            return self.stepped(source, [*seen, *steps])
        return self._at_run_time(value, steps)

    def _stored(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        name = self._emitter.fresh(f"{value.name}_laid")
        tensor.name = name
        made = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
            doc_string=value.doc_string,
        )
        self._emitter.constants.append(made)
        self.replaced.setdefault(value, []).append(made)
        if value.graph is not None:
            self.home[made] = value.graph
        return made

    def _uniform(self, producer: ir.Node, steps: Sequence[Step]) -> ir.Value | None:
        """The same number throughout in another shape: nothing to move or to store; None for an unknown shape."""
        source = producer.outputs[0]
        extents = extents_of(source)
        if extents is None or not all(isinstance(extent, int) for extent in extents):
            return None
        shape: Sequence[Any] = extents
        for step in steps:
            shape = step["shape"] if "shape" in step else [shape[p] for p in step["perm"]]
        stem = f"{source.name}_laid"
        given = self._emitter.integers(f"{stem}_shape", shape)
        made = self._emitter.node("ConstantOfShape", [given], {}, source, shape, stem)
        node = made.producer()
        assert node is not None
        node.attributes.update(producer.attributes)
        return made

    def _recomputed(self, producer: ir.Node, rule: Free, order: Axes) -> ir.Value:
        """The same computation in another order of its axes."""
        inputs: list[ir.Value | None] = []
        for index, value in enumerate(producer.inputs):
            axes = rule.inputs[index] if index < len(rule.inputs) else None
            if value is None or axes is None:
                inputs.append(value)
                continue
            inputs.append(self.laid(value, input_dims(rule, axes, one_each(order_of(order)))))
        edit = rule.edit(order)
        for index, array in edit.constants.items():
            inputs += [None] * (index + 1 - len(inputs))
            inputs[index] = self._emitter.constant(f"{producer.outputs[0].name}_{index}", array)
        attributes = {name: attr for name, attr in producer.attributes.items() if name not in edit.attributes}
        for name, setting in edit.attributes.items():
            if setting is not None:
                attributes[name] = ir.convenience.convert_attribute(name, setting)
        source = producer.outputs[0]
        extents, own = extents_of(source), rule.outputs[0]
        assert own is not None
        assert extents is not None
        shape = [extents[own.index(a)] for a in order if a in own]
        result = ir.Value(name=self._emitter.fresh(f"{source.name}_laid"), shape=ir.Shape(shape), type=source.type)
        self._emitter.emitted.append(
            ir.Node(
                producer.domain,
                producer.op_type,
                inputs,
                attributes,
                outputs=[result],
                name=self._emitter.fresh(f"{producer.name or source.name}_laid"),
                doc_string=producer.doc_string,
            )
        )
        return result

    def _at_run_time(self, value: ir.Value, steps: Sequence[Step]) -> ir.Value:
        extents = extents_of(value)
        assert extents is not None
        shape: Sequence[Any] = extents
        made = value
        stem = f"{value.name}_laid"
        for step in steps:
            if step["op"] == "transpose":
                shape = [shape[p] for p in step["perm"]]
                made = self._emitter.node("Transpose", [made], {"perm": list(step["perm"])}, value, shape, stem)
            elif step["op"] == "reshape":
                shape = step["shape"]
                given = self._emitter.integers(f"{stem}_shape", shape)
                made = self._emitter.node("Reshape", [made, given], {}, value, shape, stem)
            elif step["op"] == "pad":
                ends = step["pads"][len(shape) :]
                shape = [extent + zeros for extent, zeros in zip(shape, ends, strict=True)]
                made = self._emitter.padded(made, ends, shape, stem)
            else:
                shape = step["shape"]
                made = self._emitter.cropped(made, range(len(shape)), shape, stem)
        return made


def _is_turned(dims: Laid, rank: int) -> bool:
    """Whether each dimension is a whole axis, every axis once, or a unit dimension that the constant lacks."""
    groups = [group for group in dims if group is not None]
    whole = all(len(group) == 1 and group[0].is_whole for group in groups)
    return whole and len({group[0].axis for group in groups}) == rank


def _steps(dims: Laid, extents: tuple[Extent, ...]) -> list[Step]:
    """What makes these dimensions of a constant of these extents; known ones but where it is only turned."""
    if not _is_turned(dims, len(extents)):
        units = tuple(() if extents[a] == 1 else (Atom(a),) for a in range(len(extents)))
        wanted = tuple(
            () if group is None or extents[group[0].axis] == 1 else normal_form(group, extents) for group in dims
        )
        return [*steps_of(units, wanted, extents)]
    perm = tuple(group[0].axis for group in dims if group is not None)
    steps: list[Step] = []
    if perm != tuple(range(len(perm))):
        steps.append({"op": "transpose", "perm": list(perm)})
    if None in dims:
        shape = [extents[group[0].axis] if group is not None else 1 for group in dims]
        steps.append({"op": "reshape", "shape": shape, "from": [extents[axis] for axis in perm]})
    return steps


def _seen_by(node: ir.Node) -> list[Step] | None:
    """The steps that a node does which only says how its input is seen; None where they are not known."""
    value, result = node.inputs[0], node.outputs[0]
    before, after = extents_of(value) if value is not None else None, extents_of(result)
    if before is None or after is None or not all(isinstance(extent, int) for extent in (*before, *after)):
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", tuple(range(len(before)))[::-1]) or ()
        return [{"op": "transpose", "perm": list(perm)}]
    return [{"op": "reshape", "shape": list(after), "from": list(before)}] if before != after else []


def input_dims(rule: Free, axes: Axes, dims: Dims) -> Laid:
    """An input's own dimensions when the space has `dims`; `axes` are the input's axes in the space.

    None where a unit dimension stands in for an axis that it lacks. Those at the front are left out: broadcasting adds
    them.
    """
    found: list[Order | None] = []
    for group in dims:
        axis = group[0].axis
        if axis in axes:
            own = [atom for atom in group if atom.axis in axes]
            found.append(tuple(Atom(axes.index(atom.axis), atom.inner, atom.outer) for atom in own))
        elif axis in rule.broadcasts and found:
            found.append(None)
    return tuple(found)


def _space_order(rule: Free, own: Axes, perm: tuple[int, ...]) -> Axes | None:
    """The order of the space that lays the result out by `perm`, where the result has all of the space's axes."""
    if len(own) != len(rule.extents):
        return None
    return tuple(own[p] for p in perm)
