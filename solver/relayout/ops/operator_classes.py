"""Operator classes: nodes with the same operator and attributes on operands of the same types.

Networks repeat their blocks. Results that depend on nothing else, such as the rule, are computed once per class.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import onnx_ir as ir
from msgspec import Struct

from relayout.layout.memory_format import Extent
from relayout.layout.relaid_constant import AbsentTensor, is_one_of
from relayout.ops.node_reader import (
    NOTED_ORDER,
    NodeSnapshot,
    Reading,
    constant_array,
    extents_of,
    is_read,
    noted_order,
)
from relayout.ops.registry import built_rule, row_of
from relayout.ops.rule import Rule

_SUBGRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_TYPES = (ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS)
_MUTABLE = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS, ir.AttributeType.SPARSE_TENSOR, *_SUBGRAPHS, *_TYPES)


class OperatorClass(Struct, frozen=True, eq=False):
    """One class; all its nodes have `rule` (None: pinned). `key` is a value that only classes of equal nodes share, in
    all graphs of a process; None where an attribute has data or graphs, which are told apart by identity."""

    rule: Rule | None
    has_graphs: bool
    key: Hashable = None


_Signature = tuple[str, str, tuple[object, ...], tuple[int, ...], tuple[tuple[int, bool], ...]]
"""Domain, operator, attributes, and the numbers of the operands' types, with whether each result is used."""


class _Known(Struct, eq=False):
    """The classes of one signature. They differ in the numbers of the constant inputs `reads`, and in `NOTED_ORDER`."""

    reads: frozenset[int]
    classes: dict[object, OperatorClass]


class OperatorClasses:
    """The classes of the nodes seen so far, under these opsets."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = dict(opsets)
        # Each value's type, numbered in order of appearance.
        self._types: dict[object, int] = {}
        self._values: dict[ir.Value | None, int] = {None: -1}
        # The parts of signatures for attributes and shapes, by identity: nodes share attributes, and values shapes.
        self._attributes: dict[int, tuple[ir.Attr, object]] = {}
        self._extents: dict[int, tuple[ir.Shape | None, tuple[Extent, ...] | None]] = {}
        self._known: dict[object, _Known] = {}

    def of(self, node: ir.Node) -> OperatorClass:
        """The node's class."""
        attributes: list[object] = []
        for attribute in node.attributes.data.values():
            known_attribute = self._attributes.get(id(attribute))
            if known_attribute is None:
                known_attribute = self._attributes[id(attribute)] = attribute, _told(attribute)
            attributes.append(known_attribute[1])
        values, inputs, outputs = self._values, node.inputs, node.outputs
        for value in (*inputs, *outputs):
            if value not in values:
                values[value] = self._types.setdefault(self._type(value), len(self._types))
        signature = (
            node.domain,
            node.op_type,
            tuple(attributes),
            tuple([values[value] for value in inputs]),
            tuple([(values[value], bool(value.name) and is_read(value)) for value in outputs]),
        )
        known = self._known.get(signature)
        if known is None:
            known = self._known[signature] = _Known(frozenset(), {})
        found = known.classes.get(_numbers(node, known.reads))
        if found is None:
            found, reads = self._made(node, signature)
            if not reads <= known.reads:
                known.reads |= reads
                known.classes.clear()
            known.classes[_numbers(node, known.reads)] = found
        return found

    def extents_of(self, value: ir.Value) -> tuple[Extent, ...] | None:
        """The value's extents; those of a shape are computed once for all values that share it."""
        shape = value.shape
        known = self._extents.get(id(shape))
        if known is None:
            known = self._extents[id(shape)] = shape, extents_of(value)
        return known[1]

    def _type(self, value: ir.Value | None) -> tuple[object, ...]:
        """All that a rule or a backend may read of an operand, except its numbers."""
        assert value is not None
        constant, producer, dtype = value.const_value, value.producer(), value.dtype
        is_constant = constant is not None or (producer is not None and producer.op_type == "Constant")
        kind = "constant" if is_constant else ""
        if constant is not None and is_one_of(constant, AbsentTensor):
            kind = "absent"
        return self.extents_of(value), type(value.type), dtype, kind, value.is_graph_input()

    def _made(self, node: ir.Node, signature: _Signature) -> tuple[OperatorClass, frozenset[int]]:
        kinds = {attribute.type for attribute in node.attributes.values()}
        has_graphs = not kinds.isdisjoint(_SUBGRAPHS)
        row = None if has_graphs else row_of(node, self._opsets)
        rule, reads = None, frozenset[int]()
        if row is not None:
            reading = Reading(NodeSnapshot.of(node), row[1])
            rule, reads = built_rule(row[0], reading), frozenset(reading.reads)
        key = self._key(signature, _numbers(node, reads)) if kinds.isdisjoint(_MUTABLE) else None
        return OperatorClass(rule, has_graphs, key), reads

    def _key(self, signature: _Signature, numbers: Any) -> Hashable:
        """The signature by the types themselves, under these opsets, with the numbers that the rule reads."""
        domain, op_type, attributes, inputs, outputs = signature
        types = [*self._types, None]
        results = tuple([(types[number], is_used) for number, is_used in outputs])
        operands = tuple([types[number] for number in inputs])
        return domain, op_type, attributes, operands, results, numbers, tuple(sorted(self._opsets.items()))


def _told(attribute: ir.Attr) -> tuple[object, ...]:
    """An attribute in a signature; data, graphs and types, which may change, by identity."""
    kind, given = attribute.type, attribute.value
    if kind in _MUTABLE:
        given = id(given)
    return attribute.name, kind, tuple(given) if isinstance(given, list) else given, attribute.ref_attr_name


def _numbers(node: ir.Node, reads: frozenset[int]) -> Any:
    """The numbers of these inputs, as far as a rule can read them, and the annotated order if it reads that."""
    arrays = [constant_array(node.inputs[index]) for index in sorted(reads - {NOTED_ORDER})]
    order = noted_order(node.outputs[0]) if NOTED_ORDER in reads else ()
    return order, tuple([None if a is None else (a.dtype.str, a.shape, str(a.tolist())) for a in arrays])
