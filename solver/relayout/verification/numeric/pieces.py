"""The pieces of two models: each computes a value of the model, and the value of the original that it stands for, from
the nearest such pairs before them.

In a piece, the two are given the same random data for the pairs before, the model in its annotated formats. Where all
pieces agree, so do the models: by induction over the nodes, each value of the model is the original's in its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain

import onnx_ir as ir

from relayout.ops import graphs_of
from relayout.verification.counterparts import Counterparts, counterpart
from relayout.verification.memory_format import memory_format_of
from relayout.verification.numeric.cut import Operators
from relayout.verification.numeric.preparation import fits
from relayout.verification.subgraph_values import nesting_of

_MOST_NODES = 2000
"""A piece of more nodes is not made: values of unknown extents, or in a memory order of the backend's own, are no ends
of a piece, and a large model may have nothing else."""


@dataclass(frozen=True)
class Part:
    """The nodes that compute a value in one of the two models, in order; the values that they are given; and the
    constants that they read."""

    nodes: tuple[ir.Node, ...]
    given: tuple[ir.Value, ...]
    constants: tuple[ir.Value, ...]


@dataclass(frozen=True)
class Piece:
    """The computations of a value of the model, and of the original's that it stands for (`source`). `sources` has the
    original's value for each that the model's part is given. Both parts are None where one has too many nodes."""

    value: ir.Value
    source: ir.Value
    mine: Part | None
    theirs: Part | None
    sources: Mapping[ir.Value, ir.Value]


def pieces(both: Counterparts, opaque: Set[str], unknown: Operators) -> Iterator[Piece]:
    """Yield a piece for each value in a known format that both models compute, in the graph and those inside nodes, and
    for each result of the graph. The extents of inputs are known.

    `opaque` are the names of values whose memory is not in the order of their shape. A result of one of the `unknown`
    operators, which no runtime has, is the original's if the operands are: there is a piece for each of those, and none
    for the result.
    """
    model = both.model
    places = {node: place for each in (model, both.original) for place, node in enumerate(each.nodes)}
    for graph, source in both.graphs.items():
        pairs = _Pairs(both.constants, both.scopes[source], opaque)
        for node in model.nodes_of[graph]:
            for value, theirs in pairs.ends(node, unknown):
                yield _piece(value, theirs, pairs, places)
        if graph is model.model.graph:
            for value, theirs in zip(graph.outputs, source.outputs, strict=False):
                if pairs.known(value) is not theirs or value.producer() is None:
                    yield _piece(value, theirs, pairs, places)


class _Pairs:
    """The pairs of values in a graph and the one that it stands for."""

    def __init__(self, constants: Set[ir.Value], scope: Mapping[str, ir.Value], opaque: Set[str]) -> None:
        self.constants, self._scope, self._opaque = constants, scope, opaque
        self._known: dict[ir.Value, ir.Value | None] = {}

    def known(self, value: ir.Value) -> ir.Value | None:
        """The original's value of which this is a relayout: both are tensors of known extents that fit each other.

        Integers and truth values without an annotation are none, as in a comparison of the whole: they may be a shape
        or indices, which change with the layout of another value.
        """
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: ir.Value) -> ir.Value | None:
        if value in self.constants or value.name in self._opaque or not (value.name and _is_static(value)):
            return None
        is_data = value.dtype is not None and value.dtype.is_floating_point()
        if not is_data and memory_format_of(value) is None:
            return None
        source = counterpart(value, self._scope)
        if source is None or source in self.constants or not _is_static(source):
            return None
        return source if fits(value, source) else None

    def ends(self, node: ir.Node, unknown: Operators) -> Iterator[tuple[ir.Value, ir.Value]]:
        """The pairs in which pieces end here: the node's results, or the operands of an unknown operator."""
        made = [(value, theirs) for value in node.outputs if (theirs := self.known(value)) is not None]
        if node.op_identifier()[:2] not in unknown:
            yield from made
            return
        other = made[0][1].producer() if made else None
        if other is not None and other.op_identifier() == node.op_identifier():
            for value, theirs in zip(node.inputs, other.inputs, strict=False):
                if value is None or theirs is None or value in self.constants:
                    continue
                if value.producer() is not None or theirs.producer() is not None:
                    yield value, theirs

    def given(self, value: ir.Value) -> ir.Value | None:
        """The original's value in whose place this one is given, if nothing computes it."""
        return self._scope.get(str(value.name))


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _piece(value: ir.Value, source: ir.Value, pairs: _Pairs, places: Mapping[ir.Node, int]) -> Piece:
    """The piece that ends in this pair. A given value on which the original's does not depend is computed too: the
    model may take another way to a value, such as back from a view of it."""
    computed = {value}

    def is_given(each: ir.Value) -> bool:
        return each not in computed and pairs.known(each) is not None

    while True:
        mine = _part(value, is_given, pairs, places)
        if mine is None:
            break
        found = [(each, pairs.known(each) or pairs.given(each)) for each in mine.given]
        sources = {each: theirs for each, theirs in found if theirs is not None}
        ends = set(sources.values())
        theirs = _part(source, ends.__contains__, pairs, places)
        if theirs is None:
            break
        read = set(theirs.given)
        unread = [each for each, other in sources.items() if other not in read]
        astray = {each for each in unread if each.producer() is not None}
        if not astray:
            # Of an input that the original does not read here, the model may read the extents.
            given = (*theirs.given, *dict.fromkeys(sources[each] for each in unread))
            return Piece(value, source, mine, Part(theirs.nodes, given, theirs.constants), sources)
        computed |= astray
    return Piece(value, source, None, None, {})


def _part(
    value: ir.Value, is_given: Callable[[ir.Value], bool], pairs: _Pairs, places: Mapping[ir.Node, int]
) -> Part | None:
    """All that computes the value from those that are given; None if it has too many nodes."""
    nodes: set[ir.Node] = set()
    given: dict[ir.Value, None] = {}
    constants: dict[ir.Value, None] = {}
    seen, pending = {value}, [value]
    while pending:
        each = pending.pop()
        node = each.producer()
        if is_given(each) or (node is None and each not in pairs.constants):
            given[each] = None
        elif node is None:
            constants[each] = None
        elif node not in nodes:
            nodes.add(node)
            if len(nodes) > _MOST_NODES:
                return None
            new = [read for read in _reads(node) if read not in seen]
            seen.update(new)
            pending += new
    # A node that computes one value computes its other results too.
    given = {each: None for each in given if each.producer() not in nodes}
    return Part(tuple(sorted(nodes, key=places.__getitem__)), tuple(given), tuple(constants))


def _reads(node: ir.Node) -> Iterable[ir.Value]:
    """The values outside the node that it reads, by the graphs inside it too."""
    read = [value for value in node.inputs if value is not None]
    bodies = graphs_of(node)
    if not bodies:
        return read
    inside = set(bodies).union(*chain.from_iterable(nesting_of(body).values() for body in bodies))
    for graph in inside:
        read += [value for each in graph for value in each.inputs if value is not None]
        read.extend(graph.outputs)
    return [value for value in read if value.graph not in inside]


def model_of(part: Part, value: ir.Value, owner: ir.Model) -> ir.Model:
    """The model that computes the value by this part of its owner; it shares no nodes with it."""
    view = ir.GraphView(
        part.given,
        (value,),
        nodes=part.nodes,
        initializers=part.constants,
        opset_imports=owner.graph.opset_imports,
        name="piece",
    )
    return ir.Model(view.clone(), ir_version=owner.ir_version, functions=list(owner.functions.values()))
