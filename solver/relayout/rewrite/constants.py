"""Constants in the format that a reader wants, made before the model runs.

A stored constant is re-laid out lazily when it is written. A value computed from constants (a dequantised weight, say)
keeps its computation, on re-laid-out constants, where the op table knows how; else it is computed once, here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from relayout.candidates.alternatives import in_source
from relayout.candidates.tensors import Tensors
from relayout.layout.conversion import one_each
from relayout.layout.memory_format import order_of
from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.layout.relaid_constant import Step, relaid, transform_of
from relayout.model.emit import Emitter, Physical
from relayout.ops import Axes, Free, Relabel, extents_of
from relayout.rewrite.constant_folding import folded_value
from relayout.rewrite.constant_steps import Laid, input_dims, is_turned, space_order, steps_to, view_steps

__all__ = ["Constants"]

class Constants:
    """Every re-laid-out constant of one rewrite, each made once."""

    def __init__(self, tensors: Tensors, emitter: Emitter) -> None:
        self._tensors = tensors
        self._emitter = emitter
        self._made: dict[tuple[ir.Value, object], ir.Value] = {}
        self._numbers: dict[ir.Value, ir.TensorProtocol | None] = {}
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
        pending = [(value, dims)] if self._known(value, dims) is None else []
        while pending:
            # What a computation reads is made before it: chains of computed constants may be of any length.
            wanted = pending[-1]
            missing = [read for read in self._read_by(*wanted) if self._known(*read) is None]
            pending += reversed(missing)
            if not missing:
                self._made[wanted] = self._lay(*wanted)
            while pending and self._known(*pending[-1]) is not None:
                pending.pop()
        made = self._known(value, dims)
        assert made is not None
        return made

    def stepped(self, value: ir.Value, steps: Sequence[Step]) -> ir.Value:
        """`value` re-laid by `steps` (see `relayout.layout.relaid_constant`)."""
        return self._make(value, list(steps))

    def _known(self, value: ir.Value, dims: Laid) -> ir.Value | None:
        extents = extents_of(value)
        as_it_is = dims == in_source(len(dims)) and (extents is None or len(extents) == len(dims))
        return value if as_it_is else self._made.get((value, dims))

    def _read_by(self, value: ir.Value, dims: Laid) -> Iterator[tuple[ir.Value, Laid]]:
        """What `value` with these dimensions is computed from, where it is computed again."""
        again = self._computation(value, dims)
        if again is None:
            return
        producer, rule, order = again
        for operand, axes in zip(producer.inputs, rule.inputs, strict=False):
            if operand is not None and axes is not None:
                yield operand, input_dims(rule, axes, one_each(order_of(order)))

    def _computation(self, value: ir.Value, dims: Laid) -> tuple[ir.Node, Free, Axes] | None:
        """The node, its rule and the order of its axes in which it gives `value` these dimensions, if it can."""
        producer = value.producer()
        if producer is None or len(producer.outputs) > 1 or ir.convenience.get_const_tensor(value) is not None:
            return None
        rule = self._tensors.rules.get(producer)
        own = rule.outputs[0] if isinstance(rule, Free) else None
        if own is None or None in dims or not is_turned(dims, len(own)):
            return None
        assert isinstance(rule, Free)
        order = space_order(rule, own, tuple(group[0].axis for group in dims if group is not None))
        return (producer, rule, order) if order is not None and rule.allows(order) else None

    def _lay(self, value: ir.Value, dims: Laid) -> ir.Value:
        again = self._computation(value, dims)
        if again is not None:
            return self._recomputed(*again)
        extents = extents_of(value)
        assert extents is not None
        if (is_turned(dims, len(extents)) and None not in dims) or all(isinstance(extent, int) for extent in extents):
            return self._make(value, steps_to(dims, extents))
        folded = self._folded(value)
        if folded is not None:
            return self._stored(value, relaid(folded, steps_to(dims, tuple(folded.shape.numpy()))))
        target = tuple(group or () for group in dims)
        own = Physical(value, in_source(len(extents)))
        return self._emitter.convert(own, target, extents, f"{value.name}_laid").value

    def _make(self, value: ir.Value, steps: list[Step]) -> ir.Value:
        if not steps:
            return value
        while (seen := self._seen_of(value)) is not None:
            # Whoever has the data does all the steps.
            value, steps = seen[0], [*seen[1], *steps]
        key = (value, repr(steps))
        if key not in self._made:
            self._made[key] = self._done(value, steps)
        return self._made[key]

    def _done(self, value: ir.Value, steps: list[Step]) -> ir.Value:
        """The steps done to a constant, to what is known of one that is computed, or else as nodes."""
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
        folded = self._folded(value)
        return self._at_run_time(value, steps) if folded is None else self._stored(value, relaid(folded, steps))

    def _seen_of(self, value: ir.Value) -> tuple[ir.Value, list[Step]] | None:
        """The constant that `value` is a view of, and the steps of the view; None: its numbers are known."""
        producer = value.producer()
        if producer is None or not isinstance(self._tensors.rules.get(producer), Relabel):
            return None
        source = producer.inputs[0]
        if source is None or not self._tensors.is_constant(source):
            return None
        if ir.convenience.get_const_tensor(value) is not None:
            return None
        steps = view_steps(producer)
        return (source, steps) if steps is not None and self._folded(value) is None else None

    def _folded(self, value: ir.Value) -> ir.TensorProtocol | None:
        if value not in self._numbers:
            self._numbers[value] = folded_value(value, self._tensors.shapes)
        return self._numbers[value]

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
