"""A model as a graph to draw, and the nodes that each conversion became."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import onnx_ir as ir

from relayout.candidates.aliases import collect_tensors
from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.messages import format_text
from relayout.formulate.formulation import Formulation
from relayout.layout.metadata_keys import DEVICE_KEY, LAYOUT_KEY
from relayout.layout.relaid_constant import AbsentTensor
from relayout.model.tensor_sizes import DimSizes, tensor_bytes
from relayout.ops import all_nodes, extents_of, graphs_of
from relayout.ops.logical_node import node_name
from relayout.report.drawing_schema import (
    Drawing,
    DrawnAlternative,
    DrawnBody,
    DrawnChoice,
    DrawnNode,
    DrawnOperand,
    DrawnValue,
)
from relayout.report.schema import Conversion
from relayout.solve.problem import Item
from relayout.solve.solver import Solution

_MOST_ALTERNATIVES = 16
_MOST_CHARACTERS = 120
_MOST_ELEMENTS = 16
_PROPERTIES = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
_MOVES = frozenset({"Identity", "Pad", "Reshape", "Slice", "Squeeze", "Unsqueeze"})
"""The operators that only move data, beside Transpose."""


def draw(model: ir.Model, dims: Mapping[str, int] | None = None) -> Drawing:
    """The drawing of a model without choices and conversions. `dims` are sizes of symbolic dims, for the bytes."""
    return _Artist(model, dims or {}).drawing()


class _Artist:
    """Numbers the values and nodes of one model."""

    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        self._model = model
        self._tensors = collect_tensors(model.graph, model.opset_imports)
        self._names = AxisNames(self._tensors)
        self._elements = DimSizes(model, dims)
        self._values: dict[ir.Value, int] = {}
        self._drawn: list[DrawnValue] = []

    def drawing(self) -> Drawing:
        graph = self._model.graph
        inputs = self._numbers(graph.inputs)
        numbers = {node: index for index, node in enumerate(all_nodes(graph))}
        around = {inner: index for node, index in numbers.items() for body in graphs_of(node) for inner in body}
        nodes = tuple(self._node(node, around.get(node)) for node in numbers)
        given = {name: getattr(self._model, name) for name in _PROPERTIES}
        return Drawing(
            name=graph.name or "",
            ir_version=self._model.ir_version,
            opsets=dict(self._model.opset_imports),
            properties={name: _cut(str(value)) for name, value in given.items() if value},
            metadata={name: _cut(text) for name, text in sorted(self._model.metadata_props.items())},
            inputs=inputs,
            outputs=self._numbers(graph.outputs),
            nodes=nodes,
            values=tuple(self._drawn),
        )

    def _node(self, node: ir.Node, within: int | None) -> DrawnNode:
        return DrawnNode(
            name=node_name(node),
            operator=node.op_type,
            domain=node.domain,
            attributes={name: _attribute(each) for name, each in node.attributes.items()},
            inputs=tuple(None if value is None else self._number(value) for value in node.inputs),
            outputs=self._numbers(node.outputs),
            within=within,
            bodies=tuple(self._bodies(node)),
            device=node.metadata_props.get(DEVICE_KEY),
            constant=node in self._tensors.constant_nodes,
        )

    def _bodies(self, node: ir.Node) -> Iterator[DrawnBody]:
        for name, each in node.attributes.items():
            if isinstance(each, ir.Attr) and each.type == ir.AttributeType.GRAPH:
                inner = each.as_graph()
                yield DrawnBody(
                    attribute=name, inputs=self._numbers(inner.inputs), outputs=self._numbers(inner.outputs)
                )

    def _numbers(self, values: Sequence[ir.Value]) -> tuple[int, ...]:
        return tuple(self._number(value) for value in values)

    def _number(self, value: ir.Value) -> int:
        if value not in self._values:
            self._values[value] = len(self._drawn)
            self._drawn.append(self._value(value))
        return self._values[value]

    def _value(self, value: ir.Value) -> DrawnValue:
        operand = self._tensors.operands.get(value)
        noted = value.metadata_props.get(LAYOUT_KEY)
        known = value.shape is not None and value.dtype is not None
        return DrawnValue(
            name=value.name or "",
            dtype=None if value.dtype is None else value.dtype.name.lower(),
            shape=extents_of(value),
            layout=noted or (self._names.of(operand) if operand is not None else None),
            bytes=tensor_bytes(self._elements(value.shape), value.dtype) if known else None,
            constant=self._tensors.is_constant(value),
            data=_data(value.const_value),
        )


def _attribute(attribute: ir.Attr) -> str:
    """The value of an attribute as text of at most 120 characters.

    >>> _attribute(ir.AttrInt64s("perm", [0, 2, 3, 1]))
    '[0, 2, 3, 1]'
    """
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    value = attribute.value
    if isinstance(value, ir.Graph):
        return f"a graph of {len(value)} nodes"
    if isinstance(value, ir.TensorProtocol):
        sizes = "x".join(str(extent) for extent in value.shape)
        return _data(value) or f"{value.dtype.name.lower()} [{sizes}]"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _cut(f"[{', '.join(str(each) for each in value[:_MOST_CHARACTERS])}]")
    return _cut(str(value))


def _data(tensor: ir.TensorProtocol | None) -> str | None:
    """The elements of a tensor as text; None where they are absent or too many.

    >>> _data(ir.tensor([[0.1, 2.0]], dtype=ir.DataType.FLOAT))
    '[[0.1, 2.0]]'
    """
    if tensor is None or isinstance(tensor, AbsentTensor) or tensor.size > _MOST_ELEMENTS:
        return None
    if isinstance(tensor, ir.StringTensor):
        return _cut(str([text.decode(errors="replace") for text in tensor.string_data()]))
    return _cut(_nested(tensor.numpy()))


def _nested(data: np.ndarray) -> str:
    """Nested lists, with each number in the fewest digits that tell it from others of its type."""
    return f"[{', '.join(map(_nested, data))}]" if data.ndim else str(data)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def compared(legal: Drawing, source: Drawing, conversions: Sequence[Conversion]) -> Drawing:
    """The drawing of the legal model, with each node's counterpart in the source and the conversions that it performs,
    as the report names their nodes."""
    performed: dict[str, list[int]] = {}
    for number, conversion in enumerate(conversions):
        for name in conversion.nodes or ():
            performed.setdefault(name, []).append(number)
    nodes = []
    for node, origin in zip(legal.nodes, _origins(legal, source), strict=True):
        first = legal.values[node.outputs[0]].name if node.outputs else ""
        nodes.append(node.model_copy(update={"source": origin, "conversions": tuple(performed.get(first, ()))}))
    return legal.model_copy(update={"nodes": tuple(nodes)})


def _origins(legal: Drawing, source: Drawing) -> list[int | None]:
    """The node of the source that each legal node is.

    It has the same operator and name. If it was written anew, its name was made from a result's name; if it has no name
    of its own, it reads the result of the same node, apart from operators that only move data.
    """
    named = {_label(node): index for index, node in reversed([*enumerate(source.nodes)])}
    found: list[int | None] = []
    for node in legal.nodes:
        index = named.pop(_label(node), None)
        found.append(index)
    left = {
        (source.nodes[index].operator, source.values[source.nodes[index].outputs[0]].name): index
        for index in named.values()
        if source.nodes[index].outputs
    }
    for position, node in enumerate(legal.nodes):
        if found[position] is None and node.operator not in _MOVES and node.outputs:
            names = (node.name, legal.values[node.outputs[0]].name)
            stems = [stem for name in names for stem in _stems(name) if (node.operator, stem) in left]
            if stems:
                found[position] = left.pop((node.operator, stems[0]))
    above = {_reads(source, index): index for index in left.values()}
    for position, node in enumerate(legal.nodes):
        if found[position] is None and node.operator not in _MOVES:
            operator, producer, name = _reads(legal, position)
            origin = None if producer is None else found[producer]
            if producer is None or origin is not None:
                found[position] = above.pop((operator, origin, name), None)
    return found


def _reads(drawing: Drawing, index: int) -> tuple[str, int | None, str]:
    """A node's operator and the node whose result it reads first, above operators that only move data; without a
    producer, the name of the value."""
    producers, node = drawing.producers, drawing.nodes[index]
    above = node
    while above.inputs and above.inputs[0] is not None:
        producer = producers.get(above.inputs[0])
        if producer is None:
            return node.operator, None, drawing.values[above.inputs[0]].name
        above = drawing.nodes[producer]
        if above.operator != "Transpose" and above.operator not in _MOVES:
            return node.operator, producer, ""
    return node.operator, None, ""


def _stems(name: str) -> Iterator[str]:
    """The name and what is left of it without its last words, the longest first.

    >>> [*_stems("a_MatMul_1")]
    ['a_MatMul_1', 'a_MatMul', 'a']
    """
    while name:
        yield name
        name = name.rpartition("_")[0]


def with_choices(source: Drawing, choices: Mapping[str, DrawnChoice]) -> Drawing:
    """The drawing of the source with the choice of each node, by the node's label."""
    nodes = [
        node.model_copy(update={"choice": choice}) if (choice := choices.get(_label(node))) is not None else node
        for node in source.nodes
    ]
    return source.model_copy(update={"nodes": tuple(nodes)})


def _label(node: DrawnNode) -> str:
    """The node as the report names it."""
    return f"{node.operator} '{node.name}'"


def drawn_choices(formulation: Formulation, solution: Solution) -> dict[str, DrawnChoice]:
    """The alternatives of every node that has a choice, by its label, with the change of the cost if only this node
    changed.

    A region op has none: its alternatives are coupled with those of its region edges. Of a node whose operands have
    orders of their own, one operand changes in each alternative.
    """
    problem, assignment = formulation.problem, solution.assignment
    assert assignment is not None
    items: dict[int, list[Item]] = {}
    for item in problem.items:
        for user in dict.fromkeys(use.choice for use in item.uses):
            items.setdefault(user, []).append(item)
    tensors, names = formulation.requirements.tensors, formulation.requirements.names
    found, changed = dict[tuple[ir.Node, str], list[DrawnChoice]](), list(assignment)
    for index, choice in enumerate(formulation.requirements.choices):
        if choice.node is None or choice.node in tensors.region_edges or not choice.ports:
            continue
        own = problem.choices[index].costs
        chosen = assignment[index]
        now = _cost_around(items.get(index, ()), assignment)
        changes: list[int | None] = []
        for alternative, cost in enumerate(own):
            changed[index] = alternative
            then = _cost_around(items.get(index, ()), changed)
            changes.append(None if then is None or now is None else cost + then - own[chosen] - now)
        changed[index] = chosen
        drawn = _drawn_choice(choice, names, chosen, changes, formulation)
        found.setdefault((choice.node, choice.label), []).append(drawn)
    return {label: own[0] if len(own) == 1 else _joined(own) for (_, label), own in found.items()}


def _joined(operands: Sequence[DrawnChoice]) -> DrawnChoice:
    """The choice of a node from those of its operands."""
    now = [next(each for each in own.alternatives if each.chosen) for own in operands]

    def with_operand(place: int, alternative: DrawnAlternative) -> DrawnAlternative:
        row = [*now[:place], alternative, *now[place + 1 :]]
        return DrawnAlternative(
            operands=tuple(chain.from_iterable(each.operands for each in row)),
            cost=sum(each.cost for each in row),
            change=alternative.change,
            chosen=all(each.chosen for each in row),
            source=all(each.source for each in row),
            elided=False,
            device=alternative.device,
        )

    others = [
        with_operand(place, each) for place, own in enumerate(operands) for each in own.alternatives if not each.chosen
    ]
    others.sort(key=lambda each: (each.change is None, each.change or 0))
    return DrawnChoice(
        operands=tuple(chain.from_iterable(own.operands for own in operands)),
        alternatives=(with_operand(0, now[0]), *others[: _MOST_ALTERNATIVES - 1]),
        count=sum(own.count - 1 for own in operands) + 1,
    )


def _cost_around(items: Sequence[Item], assignment: Sequence[int]) -> int | None:
    """The packed cost of the conversions of these items; None: one does not exist."""
    total = 0
    for item in items:
        source = item.producer.formats[assignment[item.producer.choice]]
        price = item.cost_of(source, {use.formats[assignment[use.choice]] for use in item.consumers})
        if price is None:
            return None
        total += price
    return total


def _drawn_choice(
    choice: NodeAlternatives, names: AxisNames, chosen: int, changes: Sequence[int | None], formulation: Formulation
) -> DrawnChoice:
    def rank(index: int) -> tuple[bool, bool, int, int]:
        change = changes[index]
        return index != chosen, change is None, change or 0, index

    order = sorted(range(len(choice.alternatives)), key=rank)
    listed = []
    for index in order[:_MOST_ALTERNATIVES]:
        alternative, change = choice.alternatives[index], changes[index]
        operands = tuple(
            DrawnOperand(
                layout=asked or format_text(names, port.operand, format_),
                required=bool(asked),
            )
            for port, format_, asked in zip(choice.ports, alternative.formats, alternative.layouts, strict=True)
        )
        listed.append(
            DrawnAlternative(
                operands=operands,
                cost=alternative.cost,
                change=None if change is None else _unpacked(formulation, change),
                chosen=index == chosen,
                source=alternative.is_source,
                elided=alternative.is_elided,
                device=alternative.device,
            )
        )
    return DrawnChoice(
        operands=tuple(f"{'result' if port.is_result else 'input'} {port.index}" for port in choice.ports),
        alternatives=tuple(listed),
        count=len(choice.alternatives),
    )


def _unpacked(formulation: Formulation, change: int) -> int:
    """The change in the objective's unit. It is negative only if the solution is not optimal."""
    size = formulation.scale.unpacked(abs(change))
    return size if change >= 0 else -size
