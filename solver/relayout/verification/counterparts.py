"""The original, and which of its nodes and values those of the model stand for."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property
from itertools import chain

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.model.io import Source, read_model
from relayout.ops import graphs_of
from relayout.ops.logical_node import node_name
from relayout.verification.model_index import ModelIndex
from relayout.verification.operator_facts import OURS, enter_backend_operators, perm_of
from relayout.verification.subgraph_values import walk

COPY = re.compile(r"_laid(_\d+)?$")
"""The end of the name of a copy in another format."""

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose result has the elements of their first operand."""


class Original:
    """A model that several others are verified against: it is read once, and so is what follows from it alone.

    `source` is as in `read_model`, and must not change while it is in use. `read` is the model that it gave, where the
    caller has it and needs it no more.
    """

    def __init__(self, source: Source, read: ir.Model | None = None) -> None:
        self.source = source
        self._read = read
        self._index: ModelIndex | None = None

    def index_for(self, backend: Backend) -> ModelIndex:
        """The index of the original, in which a backend may state layouts of operators. Raises InputError."""
        if self._index is not None:
            return self._index
        read, self._read = self._read, None
        index = ModelIndex(read if read is not None else read_model(self.source))
        if not enter_backend_operators(index.nodes, backend):
            # The same for every backend.
            self._index = index
        return index


def source_name(value: ir.Value) -> str:
    """The name in the original of the value that this one stands for."""
    return value.metadata_props.get(SOURCE_KEY) or str(value.name)


def first_result(node: ir.Node) -> str:
    """The name in the original of the first result that is not left out; "" where all are."""
    return next((source_name(value) for value in node.outputs if value.name), "")


class Counterparts:
    """A model beside its original: which of the original's graphs, nodes and values those of the model stand for."""

    def __init__(self, model: ModelIndex, original: ModelIndex) -> None:
        self.model, self.original = model, original

    @cached_property
    def graphs(self) -> Mapping[ir.Graph, ir.Graph]:
        """The original's graph that each graph of the model stands for, those inside nodes too.

        Two branches may use one name for different values, so a name says what it stands for only in such a pair. The
        nodes around two graphs have the same first result in a pair of their own, or one that the original makes of the
        other's by view ops, or the same name.
        """
        pairs = {self.model.model.graph: self.original.model.graph}
        for node in self.model.nesting:
            other = self._maker(node.graph and pairs.get(node.graph), first_result(node))
            other = other and behind_views(other)
            if other is None or other.op_type != node.op_type:
                other = self.original.by_name.get(node_name(node))
            if other is not None and other.op_type == node.op_type:
                theirs = bodies_of(other)
                pairs.update((body, theirs[name]) for name, body in bodies_of(node).items() if name in theirs)
        return pairs

    @cached_property
    def nodes(self) -> Mapping[ir.Node, ir.Node]:
        """The original's node that each node of the model stands for: of its name, or else with its first result in the
        graph that its own stands for."""
        pairs: dict[ir.Node, ir.Node] = {}
        mine, theirs = self.model.by_name, self.original.by_name
        for node in self.model.nodes:
            name = node_name(node)
            other = theirs.get(name) if mine.get(name) is node else None
            if other is None:
                other = self._maker(node.graph and self.graphs.get(node.graph), first_result(node))
            if other is not None:
                pairs[node] = other
        return pairs

    @cached_property
    def scopes(self) -> Mapping[object, Mapping[str, ir.Value]]:
        """For each graph of the original the values that it sees by name: two graphs may use one name for different
        values."""
        return _scopes_of(self.original.model.graph, None)

    @cached_property
    def constants(self) -> Set[ir.Value]:
        """The constants of both."""
        return self.model.constants | self.original.constants

    def _maker(self, graph: ir.Graph | None, name: str) -> ir.Node | None:
        """The node that makes the value of this name in a graph of the original."""
        value = self.original.results.get((graph, name))
        return None if value is None else value.producer()


def _scopes_of(graph: ir.Graph, outer: ChainMap[str, ir.Value] | None) -> dict[object, ChainMap[str, ir.Value]]:
    made = (value for node in graph for value in node.outputs)
    own = {str(value.name): value for value in (*graph.inputs, *made)}
    scopes: dict[object, ChainMap[str, ir.Value]] = {graph: ChainMap(own) if outer is None else outer.new_child(own)}
    for inner in chain.from_iterable(map(graphs_of, graph)):
        scopes |= _scopes_of(inner, scopes[graph])
    return scopes


def counterpart(value: ir.Value, scope: Mapping[str, ir.Value]) -> ir.Value | None:
    """The value of the original that this one stands for, among those of a scope. If the original is a legal model, its
    values have notes of an earlier run, and then the value's own name counts."""
    own = scope.get(str(value.name))
    return own if own is not None and source_name(own) == source_name(value) else scope.get(source_name(value))


def behind_views(node: ir.Node) -> ir.Node:
    """The node whose result a view op reads through others: where these are gone, it may make the result of the last
    one. Any other node is itself."""
    while node.op_type in VIEWS and node.inputs[0] is not None and (producer := node.inputs[0].producer()) is not None:
        node = producer
    return node


def moved_from(value: ir.Value, operators: Set[str] = VIEWS) -> list[ir.Value]:
    """The value and those before it, as far back as these operators move it on."""
    found = [value]
    while (node := value.producer()) is not None and node.domain in ("", OURS) and node.op_type in operators:
        if not node.inputs or node.inputs[0] is None:
            break
        value = node.inputs[0]
        found.append(value)
    return found


def through_transposes(value: ir.Value) -> Iterator[tuple[ir.Value, tuple[int, ...]]]:
    """The value, and one after the other those that Transposes make it of, each with the axis of it that each axis of
    the value is."""
    axes = tuple(range(len(value.shape or ())))
    yield value, axes
    while (node := value.producer()) is not None and node.op_type == "Transpose" and node.domain == "":
        source = node.inputs[0]
        perm = perm_of(node, len(axes))
        if source is None or len(perm) != len(axes):
            return
        value, axes = source, tuple([perm[axis] for axis in axes])
        yield value, axes


def behind_transposes(value: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
    """The last of `through_transposes`."""
    *_, last = through_transposes(value)
    return last


def bodies_of(node: ir.Node) -> dict[str, ir.Graph]:
    """The graphs inside a node by the names of its attributes."""
    graphs = [each for each in node.attributes.values() if each.type is ir.AttributeType.GRAPH and not each.is_ref()]
    return {each.name: each.as_graph() for each in graphs}


def ancestors(values: Iterable[ir.Value]) -> dict[ir.Value, None]:
    """These values and all that they are computed from, by graphs inside nodes too."""
    found = dict.fromkeys(values)
    pending = list(found)
    while pending:
        node = pending.pop().producer()
        if node is None:
            continue
        bodies = graphs_of(node)
        inner = [read for body in bodies for each in walk(body) for read in each.inputs]
        for read in (*node.inputs, *inner, *(result for body in bodies for result in body.outputs)):
            if read is not None and read not in found:
                found[read] = None
                pending.append(read)
    return found
