"""Constants in their consumers' formats, permuted before the model runs.

A stored constant is permuted lazily when the file is written. A value computed from constants, such as a dequantised
weight, is computed by the model from permuted constants if the operator table has a rule; else it is folded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from relayout.candidates.alternatives import OperandDims, in_source, input_dims
from relayout.candidates.tensors import Tensors
from relayout.layout.conversion import one_each, steps_of
from relayout.layout.memory_format import Atom, Extent, normal_form, order_of
from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.layout.relaid_constant import Step, joined, note_transform, relaid, transform_of
from relayout.model.emit import Emitter, Physical
from relayout.ops import NO_EDIT, Axes, Edit, Free, Relabel, extents_of
from relayout.ops.node_reader import constant_tensor
from relayout.rewrite.constant_folding import folded_value


class Constants:
    """The permuted constants of one rewrite, each computed once."""

    def __init__(self, tensors: Tensors, emitter: Emitter) -> None:
        self._tensors = tensors
        self._emitter = emitter
        self._computed: dict[tuple[ir.Value, object], ir.Value] = {}
        self._folded_values: dict[ir.Value, ir.TensorProtocol | None] = {}
        self.replaced: dict[ir.Value, list[ir.Value]] = {}
        # A constant of a region stays there, because its name may be taken outside.
        self.graph_of: dict[ir.Value, ir.Graph] = {}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A context at whose end the values computed in it are forgotten, because outer graphs cannot read them."""
        outer = {*self._computed}
        yield
        left = ((key, value) for key, value in self._computed.items() if key in outer or value.producer() is None)
        self._computed = dict(left)

    def relaid(self, value: ir.Value, dims: OperandDims) -> ir.Value:
        """`value` with these dimensions, as a constant or a computation from constants."""
        known = self._known(value, dims)
        if known is not None:
            return known
        pending = [(value, dims)]
        while pending:
            # Operands first, without recursion: chains of computed constants may be of any length.
            wanted = pending[-1]
            missing = [read for read in self._operands(*wanted) if self._known(*read) is None]
            pending += reversed(missing)
            if not missing:
                self._computed[wanted] = self._compute(*wanted)
            while pending and self._known(*pending[-1]) is not None:
                pending.pop()
        constant = self._known(value, dims)
        assert constant is not None
        return constant

    def _known(self, value: ir.Value, dims: OperandDims) -> ir.Value | None:
        rank = None if value.shape is None else len(value.shape)
        as_it_is = dims == in_source(len(dims)) and rank in (None, len(dims))
        return value if as_it_is else self._computed.get((value, dims))

    def _operands(self, value: ir.Value, dims: OperandDims) -> Iterator[tuple[ir.Value, OperandDims]]:
        """The operands, with their dimensions, of a recomputation of `value` with these dimensions."""
        source = self._behind_transpose(value, dims)
        if source is not None:
            yield source
            return
        computation = self._computation(value, dims)
        if computation is None:
            return
        producer, rule, order = computation
        for operand, axes in zip(producer.inputs, rule.inputs, strict=False):
            if operand is not None and axes is not None:
                yield operand, input_dims(rule, axes, one_each(order_of(order)))

    def _behind_transpose(self, value: ir.Value, dims: OperandDims) -> tuple[ir.Value, OperandDims] | None:
        """The constant that `value` is a Transpose of, with the dimensions that it has there; None if it is none.

        So a dequantized weight stays quantized: folded, it would take four times the bytes."""
        producer, extents = value.producer(), extents_of(value)
        if producer is None or producer.op_type != "Transpose" or producer in self._tensors.known:
            return None
        source, steps = producer.inputs[0], _view_steps(producer)
        if source is None or extents is None or steps is None or constant_tensor(value) is not None:
            return None
        if not self._tensors.is_constant(source) or None in dims or not _is_permuted(dims, len(extents)):
            return None
        perm = steps[0]["perm"] if steps else range(len(extents))
        order = in_source(len(extents))
        return source, tuple([order[perm[group[0].axis]] for group in dims if group is not None])

    def _computation(self, value: ir.Value, dims: OperandDims) -> tuple[ir.Node, Free, Axes] | None:
        """The producer of `value`, its rule, and the order of its iteration space for these dimensions."""
        producer = value.producer()
        if producer is None or len(producer.outputs) > 1 or constant_tensor(value) is not None:
            return None
        rule = self._tensors.rules.get(producer)
        own = rule.outputs[0] if isinstance(rule, Free) else None
        if own is None or None in dims or not _is_permuted(dims, len(own)):
            return None
        assert isinstance(rule, Free)
        if len(own) != len(rule.extents):
            return None  # an order of the result's axes is none of the iteration space
        order = tuple(own[group[0].axis] for group in dims if group is not None)
        return (producer, rule, order) if rule.allows(order) else None

    def _compute(self, value: ir.Value, dims: OperandDims) -> ir.Value:
        source = self._behind_transpose(value, dims)
        if source is not None:
            known = self._known(*source)
            assert known is not None
            return known
        computation = self._computation(value, dims)
        if computation is not None:
            return self._recomputed(*computation)
        extents = extents_of(value)
        assert extents is not None
        scaled = self._scaled_axis(value, dims, extents)
        if scaled is not None:
            return self._dequantized(value, dims, *scaled)
        if (_is_permuted(dims, len(extents)) and None not in dims) or all(
            isinstance(extent, int) for extent in extents
        ):
            return self.after_steps(value, steps_to(dims, extents))
        folded = self._folded(value)
        if folded is not None:
            return self._stored(value, folded, steps_to(dims, tuple(folded.shape.numpy())))
        target = tuple(group or () for group in dims)
        own = Physical(value, in_source(len(extents)))
        return self._emitter.convert(own, target, extents, f"{value.name}_laid").value

    def _scaled_axis(
        self, value: ir.Value, dims: OperandDims, extents: tuple[Extent, ...]
    ) -> tuple[int | None, int] | None:
        """The axis along which a dequantized constant has scales, None for one scale, and the dimension that has this
        axis; None if it has a dimension with others too, and for any other constant."""
        producer = value.producer()
        if producer is None or producer.op_type != "DequantizeLinear" or producer.domain or None in dims:
            return None
        rule, scales = self._tensors.rules.get(producer), producer.inputs[1]
        if not isinstance(rule, Free) or constant_tensor(value) is not None:
            return None
        # A zero that fills up the quantized constant may be another number.
        if not all(isinstance(extent, int) for extent in extents) or _fills_up(dims, extents):
            return None
        if len(rule.tileable) == len(extents):
            return None, 0
        has_axis = self._tensors.opsets.get("", 1) >= 13 and not producer.attributes.get_int("block_size", 0)
        if not has_axis or scales is None or len(extents_of(scales) or ()) != 1:
            return None
        axis = producer.attributes.get_int("axis", 1) % len(extents)
        places = [place for place, group in enumerate(dims) if any(atom.axis == axis for atom in group or ())]
        others = {atom.axis for place in places for atom in dims[place] or () if extents[atom.axis] != 1}
        return (axis, places[0]) if len(places) == 1 and others == {axis} else None

    def _dequantized(self, value: ir.Value, dims: OperandDims, axis: int | None, place: int) -> ir.Value:
        """A dequantized constant in tiles, from its operand and its scales in tiles. Folded, it would take four times
        the bytes, and runtimes look for the DequantizeLinear before an operator."""
        producer, own = value.producer(), dims[place]
        assert producer is not None
        assert own is not None
        operand, *parameters = producer.inputs
        assert operand is not None
        laid = self.relaid(operand, dims)
        edit = NO_EDIT
        if axis is not None:
            group = tuple([Atom(0, atom.inner, atom.outer) for atom in own if atom.axis == axis])
            parameters = [each and self.relaid(each, (group,)) for each in parameters]
            edit = Edit({"axis": place})
        return self._emitted_anew(producer, [laid, *parameters], extents_of(laid) or (), edit)

    def after_steps(self, value: ir.Value, steps: Sequence[Step]) -> ir.Value:
        """`value` re-laid by `steps` (see `relayout.layout.relaid_constant`)."""
        while (view := self._viewed(value)) is not None:
            # The steps are applied to the base, which has the data.
            value, steps = view[0], joined([*view[1], *steps])
        if not steps:
            return value
        key = (value, repr(list(steps)))
        if key not in self._computed:
            self._computed[key] = self._apply(value, steps)
        return self._computed[key]

    def _apply(self, value: ir.Value, steps: Sequence[Step]) -> ir.Value:
        """The steps applied to a stored constant, to the folded data of a computed one, or else emitted as nodes."""
        tensor = constant_tensor(value)
        if tensor is not None:
            constant = self._stored(value, tensor, steps)
            known = value.metadata_props.get(SOURCE_KEY) if transform_of(tensor) else None
            constant.metadata_props[SOURCE_KEY] = known or value.name or ""
            return constant
        producer = value.producer()
        assert producer is not None
        if producer.op_type == "ConstantOfShape" and not any(step["op"] == "pad" for step in steps):
            uniform = self._uniform(producer, steps)
            if uniform is not None:
                return uniform
        folded = self._folded(value)
        return self._at_run_time(value, steps) if folded is None else self._stored(value, folded, steps)

    def _viewed(self, value: ir.Value) -> tuple[ir.Value, list[Step]] | None:
        """The constant that `value` is a view of, and the steps of the view; None: its data are known."""
        producer = value.producer()
        if producer is None or not isinstance(self._tensors.rules.get(producer), Relabel):
            return None
        source = producer.inputs[0]
        if source is None or not self._tensors.is_constant(source):
            return None
        if constant_tensor(value) is not None:
            return None
        steps = _view_steps(producer)
        return (source, steps) if steps is not None else None

    def _folded(self, value: ir.Value) -> ir.TensorProtocol | None:
        if value not in self._folded_values:
            self._folded_values[value] = folded_value(value, self._tensors.known)
        return self._folded_values[value]

    def _stored(self, value: ir.Value, data: ir.TensorProtocol, steps: Sequence[Step]) -> ir.Value:
        name, tensor = self._emitter.fresh(f"{value.name}_laid"), relaid(data, steps)
        tensor.name = name
        constant = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
            doc_string=value.doc_string,
        )
        note_transform(constant, value, data)
        self._emitter.constants.append(constant)
        self.replaced.setdefault(value, []).append(constant)
        if value.graph is not None:
            self.graph_of[constant] = value.graph
        return constant

    def _uniform(self, producer: ir.Node, steps: Sequence[Step]) -> ir.Value | None:
        """A ConstantOfShape in another shape, which stores no data; None for an unknown shape."""
        source = producer.outputs[0]
        extents = extents_of(source)
        if extents is None or not all(isinstance(extent, int) for extent in extents):
            return None
        shape: Sequence[Any] = extents
        for step in steps:
            shape = step["shape"] if "shape" in step else [shape[p] for p in step["perm"]]
        stem = f"{source.name}_laid"
        new_shape = self._emitter.integers(f"{stem}_shape", shape)
        constant = self._emitter.node("ConstantOfShape", [new_shape], {}, source, shape, stem)
        node = constant.producer()
        assert node is not None
        node.attributes.update(producer.attributes)
        return constant

    def _recomputed(self, producer: ir.Node, rule: Free, order: Axes) -> ir.Value:
        """The same computation in another order of its axes."""
        inputs = list(producer.inputs)
        for index, (value, axes) in enumerate(zip(inputs, rule.inputs, strict=False)):
            if value is not None and axes is not None:
                inputs[index] = self.relaid(value, input_dims(rule, axes, one_each(order_of(order))))
        source = producer.outputs[0]
        extents, own = extents_of(source), rule.outputs[0]
        assert own is not None
        assert extents is not None
        shape = [extents[own.index(a)] for a in order if a in own]
        return self._emitted_anew(producer, inputs, shape, rule.edit(order))

    def _emitted_anew(
        self, producer: ir.Node, inputs: Sequence[ir.Value | None], shape: Sequence[Extent], edit: Edit = NO_EDIT
    ) -> ir.Value:
        """The result, of this shape, of the same operator on other inputs."""
        source = producer.outputs[0]
        result = ir.Value(name=self._emitter.fresh(f"{source.name}_laid"), shape=ir.Shape(shape), type=source.type)
        node = ir.Node(
            producer.domain,
            producer.op_type,
            inputs,
            list(producer.attributes.values()),
            outputs=[result],
            name=self._emitter.fresh(f"{producer.name or source.name}_laid"),
            doc_string=producer.doc_string,
        )
        self._emitter.edit(node, edit, source.name or "")
        self._emitter.emitted.append(node)
        return result

    def _at_run_time(self, value: ir.Value, steps: Sequence[Step]) -> ir.Value:
        extents = extents_of(value)
        assert extents is not None
        shape: Sequence[Any] = extents
        constant = value
        stem = f"{value.name}_laid"
        for step in steps:
            if step["op"] == "transpose":
                shape = [shape[p] for p in step["perm"]]
                constant = self._emitter.node("Transpose", [constant], {"perm": list(step["perm"])}, value, shape, stem)
            elif step["op"] == "reshape":
                shape = step["shape"]
                new_shape = self._emitter.integers(f"{stem}_shape", shape)
                constant = self._emitter.node("Reshape", [constant, new_shape], {}, value, shape, stem)
            elif step["op"] == "pad":
                ends = step["pads"][len(shape) :]
                shape = [extent + zeros for extent, zeros in zip(shape, ends, strict=True)]
                constant = self._emitter.padded(constant, ends, shape, stem)
            else:
                shape = step["shape"]
                constant = self._emitter.cropped(constant, range(len(shape)), shape, stem)
        return constant


def _is_permuted(dims: OperandDims, rank: int) -> bool:
    """Whether the dimensions are all whole axes, each once, and additional unit dimensions."""
    groups = [group for group in dims if group is not None]
    whole = all(len(group) == 1 and group[0].is_whole for group in groups)
    return whole and len({group[0].axis for group in groups}) == rank


def _fills_up(dims: OperandDims, extents: tuple[Extent, ...]) -> bool:
    return any(step["op"] not in ("transpose", "reshape") for step in steps_to(dims, extents))


def steps_to(dims: OperandDims, extents: tuple[Extent, ...]) -> list[Step]:
    """The steps to these dimensions of a constant. Its extents must be known unless its axes are only permuted."""
    if not _is_permuted(dims, len(extents)):
        units = tuple(() if extents[a] == 1 else (Atom(a),) for a in range(len(extents)))
        # A unit axis has no position: it is dropped, and empty groups insert new ones.
        wanted = tuple(
            normal_form(tuple(atom for atom in group or () if extents[atom.axis] != 1), extents) for group in dims
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


def _view_steps(node: ir.Node) -> list[Step] | None:
    """The steps of a view op; None where they are not known."""
    value, result = node.inputs[0], node.outputs[0]
    before, after = extents_of(value), extents_of(result)
    if before is None or after is None or not all(isinstance(extent, int) for extent in (*before, *after)):
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", tuple(range(len(before)))[::-1]) or ()
        return [{"op": "transpose", "perm": list(perm)}]
    return [{"op": "reshape", "shape": list(after), "from": list(before)}] if before != after else []
