"""The index of a model that all checks share: its nodes in order, its constants, and its operator classes.

An operator class has the nodes with the same operator and attributes on operands of the same types. The facts about an
operator (see `operator_facts`) are functions of exactly that, so the nodes of a class share them. This is the
verifier's own notion: the one in `relayout.ops`, by which candidates are shared, is not used here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from itertools import chain

import onnx_ir as ir

from relayout.layout.metadata_keys import ATOMS_KEY, BOUNDARY_LAYOUT_KEY, LAYOUT_KEY, ORDER_KEY
from relayout.ops.logical_node import node_name
from relayout.report.schema import Finding
from relayout.verification.constants import computed_ahead, stored
from relayout.verification.operator_facts import (
    OURS,
    AxisNames,
    Named,
    axis_path,
    declared_facts,
    named,
    own_names,
    small_constant,
    with_whole_parts,
)
from relayout.verification.subgraph_values import nesting_of, walk

MARKS = (ORDER_KEY, ATOMS_KEY, LAYOUT_KEY, BOUNDARY_LAYOUT_KEY)
"""The annotations of values that checks read."""

_MARKS = frozenset(MARKS)

_OF_SHAPES = frozenset(["Concat", "Div", "Gather", "Mul", "ReduceProd", "Shape"])
"""The operators by which the shape of a Reshape is computed."""

_RESHAPE = ("", "Reshape", "")

_SINGLE = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
_LISTS = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)
_VALUES = (*_SINGLE, *_LISTS)


class OperatorClass:
    """The facts about all nodes of one class; `node` is one of them. `key` is a value that only classes of equal nodes
    share, in all models; None where an attribute, or the operator's facts, are told apart by identity."""

    __slots__ = ("_paths", "facts", "inputs", "key", "names", "node", "own_inputs", "own_results", "results")

    def __init__(self, node: ir.Node, key: Hashable | None) -> None:
        self.node, self.key = node, key
        self.facts: Named | None = named(node)
        inputs, results = node.inputs, node.outputs
        # The names by the operator itself, and with those of tiles that are all of an axis.
        self.own_inputs: tuple[AxisNames | None, ...] = self._own(len(inputs))
        self.own_results: tuple[AxisNames | None, ...] = self._own(len(results), is_result=True)
        self.inputs: tuple[AxisNames | None, ...] = tuple(map(_whole, self.own_inputs, inputs))
        self.results: tuple[AxisNames | None, ...] = tuple(map(_whole, self.own_results, results))
        # The names that the operator itself gives, and the operands that have them. ONNX's global pools determine none.
        tells = self.facts is not None and (not self.facts.pooled or node.domain == OURS)
        own = [(False, *each) for each in enumerate(self.inputs)] + [(True, *each) for each in enumerate(self.results)]
        self.names = [(is_result, n, names) for is_result, n, names in own if tells and names is not None]
        self._paths: dict[tuple[int, int], tuple[int | None, ...] | None] = {}

    def path(self, n: int, m: int) -> tuple[int | None, ...] | None:
        """For each axis of the m-th result, the axis of the n-th input that it is (see `axis_path`)."""
        key = n, m
        if key not in self._paths:
            self._paths[key] = axis_path(self.node, n, m)
        return self._paths[key]

    def _own(self, count: int, *, is_result: bool = False) -> tuple[AxisNames | None, ...]:
        return tuple([own_names(self.node, n, is_result=is_result) for n in range(count)])


def _whole(names: AxisNames | None, value: ir.Value | None) -> AxisNames | None:
    return names if names is None or value is None or value.shape is None else with_whole_parts(names, value.shape)


class ModelIndex:
    """The index of a model, which must not change while it is in use."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nesting = nesting_of(model.graph)
        """The graphs inside each node that has any; an outer node comes before those inside it."""
        self.nodes_of = {graph: tuple(graph) for graph in (model.graph, *chain.from_iterable(self.nesting.values()))}
        """The nodes of each graph, in its order."""
        self.nodes = tuple(walk(model.graph, self.nesting)) if self.nesting else self.nodes_of[model.graph]
        types = _Types()
        self.type_of: Callable[[ir.Value], int] = types.__getitem__
        """The number of a value's type: values of one type are alike in all that a fact reads of them."""
        self.class_of: Callable[[ir.Node], OperatorClass] = _Classes(self, types).__getitem__
        """A node's operator class."""
        self.marks_of: Callable[[ir.Value], tuple[str | None, ...]] = cache(_marks)
        """A value's annotations by `MARKS`, () where it has none."""

    @cached_property
    def by_name(self) -> Mapping[str, ir.Node]:
        """The nodes by their names, or else those of their first results, where these are unique."""
        named = [(node_name(node), node) for node in self.nodes]
        counts = Counter(name for name, _ in named)
        return {name: node for name, node in named if name and counts[name] == 1}

    @cached_property
    def results(self) -> Mapping[tuple[ir.Graph | None, str | None], ir.Value]:
        """The results of nodes by their graph and their name: two graphs may use one name for different values. A
        result that is left out has no name."""
        return {(node.graph, value.name): value for node in self.nodes for value in node.outputs if value.name}

    @cached_property
    def noted(self) -> frozenset[ir.Node]:
        """The nodes with metadata: no other has a device, a noted cost, or a mark of relayout's."""
        return frozenset([node for node in self.nodes if node.metadata_props])

    @cached_property
    def of_shapes(self) -> frozenset[ir.Node]:
        """The nodes that only compute the shapes of Reshapes: no other operator reads their results, and no graph gives
        them. A rewrite adds such nodes where extents are known only at run time."""
        found: set[ir.Node] = set()
        for node in reversed(self.nodes):
            if node.domain != "" or node.op_type not in _OF_SHAPES or any(v.is_graph_output() for v in node.outputs):
                continue
            uses = [use for value in node.outputs for use in value.uses()]
            shapes = [each for each in uses if each.node.op_identifier() == _RESHAPE and each.idx == 1]
            if uses and all(each in shapes or each.node in found for each in uses):
                found.add(node)
        return frozenset(found)

    @cached_property
    def ahead(self) -> frozenset[ir.Node]:
        """The operators on constants, which run before the model does."""
        return frozenset(computed_ahead(self.nodes, self.nesting, self._stored))

    @cached_property
    def made_ahead(self) -> frozenset[ir.Value]:
        """The results of the operators on constants."""
        return frozenset([value for node in self.ahead for value in node.outputs])

    @cached_property
    def constants(self) -> frozenset[ir.Value]:
        """The values that are stored or computed ahead."""
        return self.made_ahead | self._stored

    @cached_property
    def _stored(self) -> frozenset[ir.Value]:
        return frozenset(stored(self.model.graph, self.nesting))


def _marks(value: ir.Value) -> tuple[str | None, ...]:
    notes = value.metadata_props
    return () if _MARKS.isdisjoint(notes) else tuple([notes.get(key) for key in MARKS])


class _Types(dict[ir.Value, int]):
    """The number of each value's type, in order of appearance.

    The type is all that a fact, or a backend that answers by type, reads of an operand: shape and element type, whether
    it is a constant, and the numbers of one that may list axes.
    """

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def __missing__(self, value: ir.Value) -> int:
        shape, kind, producer = value.shape, value.type, value.producer()
        is_constant = value.const_value is not None or (producer is not None and producer.op_type == "Constant")
        type_ = (
            None if shape is None else shape.dims,
            None if kind is None else kind.dtype,
            type(kind),
            is_constant,
            value.is_graph_input(),
            small_constant(value) if is_constant else None,
        )
        number = self[value] = self.numbers.setdefault(type_, len(self.numbers))
        return number


class _Classes(dict[ir.Node, OperatorClass]):
    """The operator class of each node."""

    def __init__(self, index: ModelIndex, types: _Types) -> None:
        self._index, self._types = index, types
        self._opsets = tuple(sorted(index.model.opset_imports.items()))
        self._known: dict[Hashable, OperatorClass] = {}
        # The nodes hold their attributes, and do not change, so the identity of one is a key.
        self._attributes: dict[int, Hashable] = {}

    def __missing__(self, node: ir.Node) -> OperatorClass:
        domain, type_of, attributes = node.domain, self._types.__getitem__, node.attributes.data
        signature = (
            domain,
            node.op_type,
            node.overload,
            tuple([self._attributes.get(id(each)) or self._attribute(node, each) for each in attributes.values()]),
            tuple([type_of(value) if value is not None else None for value in node.inputs]),
            tuple([(type_of(value), bool(value.name)) for value in node.outputs]),
            id(declared_facts(node)) if domain else None,
        )
        found = self._known.get(signature)
        if found is None:
            found = self._known[signature] = OperatorClass(node, self._key(node))
        self[node] = found
        return found

    def _key(self, node: ir.Node) -> Hashable | None:
        """All that the signature has, as values, under these opsets."""
        attributes, types = node.attributes.data.values(), [*self._types.numbers]
        if node.domain not in ("", OURS) or not all(each.type in _VALUES for each in attributes):
            return None
        return (
            self._opsets,
            node.op_identifier(),
            tuple([self._attribute(node, each) for each in attributes]),
            tuple([types[self._types[value]] if value is not None else None for value in node.inputs]),
            tuple([(types[self._types[value]], bool(value.name)) for value in node.outputs]),
        )

    def _attribute(self, node: ir.Node, attribute: ir.Attr) -> Hashable:
        """All that tells attributes apart."""
        kind, given = attribute.type, attribute.value
        if kind in _LISTS and given is not None:
            given = tuple(given)
        elif kind is ir.AttributeType.TENSOR and node in self._index.ahead:
            # No fact reads the tensor of an operator on constants, and no backend is asked about such an operator.
            return attribute.name, kind, None, attribute.ref_attr_name
        elif kind not in _SINGLE:
            given = id(given)  # a tensor or a graph is the same only where it is the same object
        found = self._attributes[id(attribute)] = attribute.name, kind, given, attribute.ref_attr_name
        return found


def checked_once(index: ModelIndex, check: Callable[[ir.Node, OperatorClass], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a check of all nodes that reads of each only what its class has: where it found nothing for one
    node of a class, it would find nothing for the others."""
    sound: set[OperatorClass] = set()
    for node in index.nodes:
        kind = index.class_of(node)
        if kind not in sound:
            found = list(check(node, kind))
            if not found:
                sound.add(kind)
            yield from found
