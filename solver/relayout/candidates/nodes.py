"""The alternatives of every node, by its rule and the backend's requirements.

A node is seeded first: fixed alternatives are listed, and free nodes get an iteration space. After propagation the
orders of these spaces give the other alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import onnx_ir as ir
from msgspec import Struct, field
from msgspec.structs import replace as replace_fields

from relayout.backend.interface import Implementation, element_size
from relayout.backend.kept_answers import Kept
from relayout.backend.noted_costs import noted_cost
from relayout.candidates.alternatives import (
    Alternative,
    FixedLowering,
    FreeLowering,
    NodeAlternatives,
    NodePorts,
    Port,
    best_alternatives,
    label_of,
    noted_orders,
    of_one_operand,
    ports_of,
    region_edge_ports,
    with_alternatives,
    without_tiles,
)
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.axis_shuffle import AxisShuffle, axis_shuffle, permuted_together
from relayout.candidates.backend_conversions import most_stated_cost
from relayout.candidates.backend_requirements import (
    Requirement,
    RequirementChecker,
    crossing_requirements,
    has_no_rewrite,
)
from relayout.candidates.black_boxes import (
    lacking_conversions,
    produced_formats,
    reachable,
    with_black_boxes,
    without_unreachable,
)
from relayout.candidates.elision import Elision, elision_of
from relayout.candidates.fixed_node import node_lowerings, of_ports, port_axis_names, rewritten_lowering
from relayout.candidates.free_node import (
    FreeNode,
    Pricing,
    known_elements,
    operand_dims,
    operands_on,
    order_of_constant,
)
from relayout.candidates.iteration_space import indexing_maps
from relayout.candidates.node_conflict import unmet
from relayout.candidates.propagation import Candidates, FormatSeed, IterationSpace, OrderSeed, Seed, propagate
from relayout.candidates.representative import RepresentativeNames, representative_key, representative_of
from relayout.candidates.tensors import Operand, Tensors
from relayout.errors import InfeasibleError
from relayout.layout.conversion import Dims, one_each
from relayout.layout.layout import Layout
from relayout.layout.memory_format import MemoryFormat, is_whole
from relayout.layout.metadata_keys import DEVICE_KEY
from relayout.model.tensor_sizes import assumed_extents, tensor_bytes
from relayout.ops import NO_EDIT, Axes, Fixed, Free, Listed, RegionEdge, Relabel, Rule, graphs_of
from relayout.ops.named_axes import operand_by_operand

_ANY = Layout.any(0)
_Lowerings = Sequence[tuple[Requirement, FixedLowering]]
_kept: Kept[NodeSeed] = Kept()
_Answer = tuple[tuple[Requirement, FreeLowering | FixedLowering, int], ...]


class SeedContext(Struct, frozen=True, eq=False):
    """The analysed graph and the backend's requirements. Nodes of one class whose operands have equal views and axis
    names share a prototype, so that the backend is asked once. `keeps_dear`: see `FreeNode`."""

    checker: RequirementChecker
    names: AxisNames
    tensors: Tensors
    elements: Pricing
    keeps_dear: bool = True
    prototypes: dict[object, NodeSeed] = field(default_factory=dict)

    def most_cost(self, operand: Operand, source: MemoryFormat, target: MemoryFormat, device: str) -> int | None:
        """The most that a conversion of the operand's tensor between these formats can cost; None: not known."""
        tensor, base = operand.tensor, self.tensors.operands.get(operand.tensor.base)
        if base is None:
            return None
        shape = ir.Shape(tensor.extents)
        elements, sizes = self.elements(shape), assumed_extents(shape, self.elements)
        backend = self.checker.backend.at(device)
        stated = most_stated_cost(backend, self.names, base, tensor, sizes, source, target)
        return None if stated is None else max(stated, 2 * elements * element_size(tensor.base))


class NodeSpace(Struct, frozen=True, eq=False):
    """An iteration space of a node. `axes` are its ports' axes in the space; `elidable_bytes` as in `Alternative`."""

    space: IterationSpace[_Answer]
    axes: tuple[Axes | None, ...]
    elidable_bytes: int = 0


class _PortFormat(NamedTuple):
    """A format of a port's tensor, to be considered."""

    port: int
    format: MemoryFormat


class _SpaceOrder(NamedTuple):
    """An order of one of the node's spaces, to be considered; see `OrderSeed`."""

    space: int
    order: MemoryFormat
    is_fallback: bool = False


class NodeSeed(Struct, frozen=True, eq=False):
    """A node before propagation.

    `fixed` are the alternatives that do not depend on the node's neighbours, `start` the formats and orders to
    propagate. `blocking` are views that prevent a required tiling. `prototype`: the first node like this one.
    """

    node: NodePorts
    fixed: tuple[tuple[Requirement, FixedLowering, tuple[MemoryFormat, ...]], ...] = ()
    spaces: tuple[NodeSpace, ...] = ()
    shuffle: AxisShuffle | None = None
    start: tuple[_PortFormat | _SpaceOrder, ...] = ()
    blocking: frozenset[ir.Value] = frozenset()
    has_boxes: bool = False
    is_partial: bool = False
    """Whether there are lowerings in which no port's tensor has a format."""
    is_numbered: bool = False
    """Whether an implementation requires a layout by axis numbers."""
    prototype: NodeSeed | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it is the seed of all nodes like this one."""
        return not (self.has_boxes or self.is_partial)

    def seeds(self) -> Iterator[Seed]:
        for each in self.start:
            if isinstance(each, _PortFormat):
                yield FormatSeed(self.node.ports[each.port].operand.tensor, each.format)
            else:
                yield OrderSeed(self.spaces[each.space].space, each.order, each.is_fallback)

    def like(self, node: NodePorts) -> NodeSeed:
        """The seed of a node that is like this one."""
        spaces = []
        for own in self.spaces:
            its, operands = own.space, operands_on(node, own.axes)
            space = IterationSpace(its.maps, operands, its.accepts, its.suggests, its.cheaper)
            spaces.append(NodeSpace(space, own.axes, own.elidable_bytes))
        shuffle = AxisShuffle(node, self.shuffle.shared, self.shuffle.base) if self.shuffle is not None else None
        return replace_fields(self, node=node, spaces=tuple(spaces), shuffle=shuffle, prototype=self)


def seed_nodes(graph: ir.Graph, context: SeedContext) -> tuple[NodeSeed, ...]:
    """Every node that has a choice, in the order of the graph. Region edges into the graphs inside a node come before
    those graphs' nodes, region edges out of them after."""
    found: list[NodeSeed] = []
    _seed_graph(graph, context, found)
    return tuple(found)


def _seed_graph(graph: ir.Graph, context: SeedContext, found: list[NodeSeed]) -> None:
    tensors = context.tensors
    for node in graph:
        if node in tensors.constant_nodes or node in tensors.dead or isinstance(tensors.rules.get(node), Relabel):
            continue
        if node not in tensors.region_edges:
            found += [_shared_seed(context, each) for each in _choices_of(context, node)]
            continue
        implementations = _stated(context, node)
        found.append(_seed_region_op(context, node, implementations))
        edges = tensors.region_edges[node] if has_no_rewrite(implementations) else ()
        found += [_seed_edge(context, node, implementations, edge) for edge in edges if edge.goes_in]
        for inner in graphs_of(node):
            _seed_graph(inner, context, found)
        found += [_seed_edge(context, node, implementations, edge) for edge in edges if not edge.goes_in]


def _choices_of(context: SeedContext, node: ir.Node) -> list[NodePorts]:
    """The node, or each operand of a node whose operands have orders of their own, and then its constants where the
    backend requires layouts of them. If the backend rewrites such a node, its operands are as in the source."""
    rule = context.tensors.rules.get(node)
    own = NodePorts(label_of(node), node, ports_of(node, context.tensors), rule)
    if not isinstance(rule, Free) or rule.edit_operands is None:
        return [own]
    stated = _stated(context, node)
    if not has_no_rewrite(stated):
        return [replace_fields(own, rule=None)]
    if not any(Requirement(each, own).constants for each in stated):
        return [of_one_operand(own, port) for port in own.ports]
    # A required layout has whole axes, which the others then have too.
    own = replace_fields(own, rule=without_tiles(rule))
    return [*[of_one_operand(own, port) for port in own.ports], replace_fields(own, ports=(), others=own.ports)]


def _stated(context: SeedContext, node: ir.Node) -> tuple[Implementation, ...]:
    """The backend's implementations of a node.

    A legal model costs what it cost when it was made: a node that an earlier run has written costs what is noted on it,
    on the device where it is, and a conversion that the model has already its traffic, like one that is added.
    """
    stated = context.checker.implementations(node, context.tensors.classes[node])
    if noted_cost(node) is not None:
        noted = [noted_cost(node, each.device) if each.rewrite is None else None for each in stated]
        return tuple(
            [each if cost is None else replace(each, cost=cost) for each, cost in zip(stated, noted, strict=True)]
        )
    if not context.checker.is_conversion(node):
        return stated
    ends = [(v.shape, v.dtype) for v in (node.inputs[0], node.outputs[0]) if v is not None]
    traffic = sum(tensor_bytes(context.elements(shape), dtype) for shape, dtype in ends if shape is not None)
    return tuple([replace(each, cost=each.cost + traffic) for each in stated])


def list_alternatives(
    context: SeedContext, seeds: Sequence[NodeSeed], candidates: Candidates, inputs: Sequence[NodeAlternatives]
) -> tuple[NodeAlternatives, ...]:
    """Every node's alternatives, without those that read an unreachable black box: one that no node, no graph input in
    `inputs` and no conversion produces. Raises InfeasibleError for a node without alternatives."""
    every: list[NodeAlternatives] = []
    shared: dict[object, tuple[Alternative, ...]] = {}
    for seed in seeds:
        orders = [tuple(candidates.orders[own.space]) for own in seed.spaces]
        shuffled = candidates.shuffled[seed.shuffle] if seed.shuffle is not None else ()
        key = (seed.prototype or seed, *orders, tuple(shuffled))
        if key not in shared or seed.has_boxes:
            shared[key] = _alternatives(seed, candidates)
        every.append(with_alternatives(seed.node, shared[key]))
    with_boxes = [n for n, seed in enumerate(seeds) if seed.has_boxes]
    if with_boxes:
        every = without_unreachable(context.checker, context.names, context.tensors, inputs, every, with_boxes)
    for seed, choice in zip(seeds, every, strict=True):
        if not choice.alternatives:
            raise _refused(context, seed, candidates, [*inputs, *every])
    return tuple(every)


def _alternatives(seed: NodeSeed, candidates: Candidates) -> tuple[Alternative, ...]:
    def alternative(
        met: Requirement,
        lowering: FreeLowering | FixedLowering,
        formats: Sequence[MemoryFormat],
        extra: int = 0,
        elidable_bytes: int = 0,
    ) -> Alternative:
        own = met.implementation
        return Alternative(
            tuple(formats),
            lowering,
            met.shown,
            cost=own.cost + extra,
            is_source=seed.node.is_unchanged(formats, lowering),
            device=own.device,
            elidable_bytes=elidable_bytes,
            implementation_index=met.implementation_index,
            is_numbered=own.is_numbered or (seed.is_numbered and _is_kept(seed.node.rule, lowering)),
        )

    found = [alternative(*each) for each in seed.fixed]
    if seed.shuffle is not None:
        found += [alternative(*each) for each in candidates.shuffled[seed.shuffle]]
    for own in seed.spaces:
        for answer, operand_formats in candidates.orders[own.space].values():
            given = iter(operand_formats)
            every = [
                port.source_format if axes is None else next(given)
                for port, axes in zip(seed.node.ports, own.axes, strict=True)
            ]
            for requirement, lowering, extra in answer:
                boxed = with_black_boxes(seed.node, requirement, every, _port_dims(seed.node, own.axes, lowering))
                if boxed is not None:
                    found.append(alternative(requirement, lowering, boxed, extra, own.elidable_bytes))
    return best_alternatives(found)


def _is_kept(rule: Rule | None, lowering: FreeLowering | FixedLowering) -> bool:
    """Whether the node keeps its attributes, which then count the source's axes too, or is decomposed."""
    if lowering.changes_nothing:
        return True
    if not isinstance(rule, Free) or not isinstance(lowering, FreeLowering):
        return False
    return lowering.rewritten is not None or (not rule.axis_names and rule.edit(lowering.axes) is NO_EDIT)


def _port_dims(
    node: NodePorts, axes_of: Sequence[Axes | None], lowering: FreeLowering | FixedLowering
) -> Sequence[Dims | None]:
    """The dimensions of each port's operand."""
    if isinstance(lowering, FixedLowering):
        return of_ports(node.ports, lowering.inputs, lowering.outputs)
    return [operand_dims(axes, lowering.dims) for axes in axes_of]


def _refused(
    context: SeedContext, seed: NodeSeed, candidates: Candidates, choices: Sequence[NodeAlternatives]
) -> InfeasibleError:
    """The error for a node without alternatives. Its operands' possible formats are those of the fixpoint."""
    node, edge = seed.node.node, seed.node.region_edge
    assert node is not None
    produced = produced_formats(choices) if seed.has_boxes else {}

    def unfiltered(stated: Sequence[Implementation]) -> NodeAlternatives:
        tried = (
            _seed_edge(context, node, stated, edge)
            if edge is not None
            else _seed_region_op(context, node, stated)
            if node in context.tensors.region_edges
            else _seed(context, seed.node, stated)
        )
        tensors = list(dict.fromkeys(port.operand.tensor for port in tried.node.ports))
        known = [FormatSeed(tensor, format_) for tensor in tensors for format_ in candidates.formats[tensor]]
        spaces = [own.space for own in tried.spaces]
        shuffles = [tried.shuffle] if tried.shuffle is not None else []
        fixpoint = propagate(tensors, spaces, shuffles, [*tried.seeds(), *known])
        return with_alternatives(tried.node, _alternatives(tried, fixpoint))

    def trial(stated: Sequence[Implementation]) -> NodeAlternatives:
        found = unfiltered(stated)
        return reachable(context.checker, context.names, context.tensors, produced, found) if seed.has_boxes else found

    stated, cause = _stated(context, node), ""
    if constant := _boxed_constant(context, node, stated):
        cause = f"'{constant}' is a constant, which is in no black box; a `rewrite` can write its data"
    elif seed.has_boxes and (placed := unfiltered(stated)).alternatives:
        lacking = lacking_conversions(context.names, context.tensors, produced, placed)
        cause = f"no node and no input of the graph has the black box, and {lacking}"
    elif context.tensors.rules.get(node) is None and node not in context.tensors.region_edges:
        cause = f"relayout does not know {node.op_type}, which stays in the source's order without a `rewrite`"
    elif any(each.is_numbered for each in stated):
        cause = f"{node.op_type} has no form with its operands in these orders; a `rewrite` can write another operator"
    return unmet(seed.node, stated, trial, context.names, cause)


def _boxed_constant(context: SeedContext, node: ir.Node, stated: Sequence[Implementation]) -> str:
    """The name of a constant operand that an implementation requires in a black box; "" if there is none."""
    pairs = [pair for each in stated for pair in zip(node.inputs, each.inputs, strict=True)]
    boxed = [value for value, layout in pairs if any(layout.boxes(i) for i in range(layout.rank))]
    return next((value.name or "" for value in boxed if value is not None and context.tensors.is_constant(value)), "")


def _shared_seed(context: SeedContext, own: NodePorts) -> NodeSeed:
    """The seed of a node or of its operand, copied from its prototype where there is one."""
    tensors, checker, node, rule = context.tensors, context.checker, own.node, own.rule
    assert node is not None
    is_elidable = isinstance(rule, Free) and rule.elidable_as is not None
    if is_elidable or checker.is_conversion(node) or not own.ports:
        return _seed(context, own, _stated(context, node))
    stated = None if checker.is_shared else _stated(context, node)
    # A backend without equal answers for equal nodes is also asked about the orders of each free node.
    if stated is not None and (isinstance(rule, Free) or any(each.rewrite is not None for each in stated)):
        return _seed(context, own, stated)
    likeness = _noted(node) if stated is None else stated
    key = (tensors.classes[node], likeness, *[_port_key(context, port) for port in own.ports])
    prototype = context.prototypes.get(key)
    if prototype is not None:
        return prototype.like(own)
    stated = _stated(context, node) if stated is None else stated
    kept = _kept_seed(context, own, stated)
    if kept is not None:
        context.prototypes[key] = kept
        return kept.like(own)
    made = _seed(context, own, stated)
    if made.is_shared:
        context.prototypes[key] = made
    return made


def _noted(node: ir.Node) -> tuple[int, str | None] | None:
    """The cost that is noted on a node, and the device that it is for."""
    cost = noted_cost(node)
    return (cost, node.metadata_props.get(DEVICE_KEY)) if cost is not None else None


def _kept_seed(context: SeedContext, own: NodePorts, stated: Sequence[Implementation]) -> NodeSeed | None:
    """The seed of the node's representative, from this graph or an earlier one; None where others cannot use it."""
    assert own.node is not None
    if not context.checker.is_kept or any(each.rewrite is not None for each in stated):
        return None
    key = representative_key(own, context.tensors.classes[own.node], context.names)

    def made() -> NodeSeed:
        representative = representative_of(own, context.tensors.opsets)
        names = RepresentativeNames(representative, own, context.names)
        checker = RequirementChecker(context.checker.backend, names)
        return _seed(replace_fields(context, checker=checker, elements=known_elements), representative, stated)

    found = _kept.of(context.checker.backend, (context.keeps_dear, key), made) if key is not None else None
    return found if found is not None and found.is_shared else None


def _port_key(context: SeedContext, port: Port) -> tuple[object, ...]:
    operand, place = port.operand, (port.is_result, port.index, port.noted_order)
    return *place, id(operand.view), operand.tensor.base.dtype, context.names.known(operand.value)


def _seed_region_op(context: SeedContext, node: ir.Node, implementations: Sequence[Implementation]) -> NodeSeed:
    edges = context.tensors.region_edges[node] if has_no_rewrite(implementations) else ()
    own = NodePorts(label_of(node), node, ports_of(node, context.tensors, edges), context.tensors.rules.get(node))
    return _seed(context, own, implementations, has_others=bool(edges))


def _seed(
    context: SeedContext, own: NodePorts, implementations: Sequence[Implementation], *, has_others: bool = False
) -> NodeSeed:
    """The seed of a choice. `has_others`: the node has other choices too, which are of the same implementation."""
    rule = own.rule
    has_others = has_others or bool(own.others)
    charged = implementations if own.is_charged else [replace(each, cost=0) for each in implementations]
    stated = [Requirement(each, own, index if has_others else 0) for index, each in enumerate(charged)]
    if not own.ports and own.others:
        return _seed_constants(context, own, stated)
    has_boxes = any(any(requirement.boxes) for requirement in stated)
    is_numbered = any(each.is_numbered for each in implementations)
    rewritten = [requirement for requirement in stated if requirement.implementation.rewrite is not None]
    by_backend = [(each, rewritten_lowering(own, rule, each, context.checker)) for each in rewritten]
    written = [(each, lowering) for each, lowering in by_backend if lowering is not None]
    requirements = [requirement for requirement in stated if requirement.implementation.rewrite is None]
    if isinstance(rule, Free):
        seed = _seed_free(context, own, rule, requirements, written)
        mixes = permuted_together(own, rule) if written else ()
        shuffle = axis_shuffle(own, mixes, written) if mixes else None
        return replace_fields(seed, shuffle=shuffle, has_boxes=has_boxes, is_numbered=is_numbered)
    axis_names = port_axis_names(rule, own.ports)
    lowerings = [(each, one) for each in requirements for one in node_lowerings(own, rule, each.implementation)]
    seed = _placed(context, own, written, lowerings, axis_names)
    mixes = rule.permutable_within if isinstance(rule, Fixed | Listed) else ()
    mixed = [(each, lowering) for each, lowering, _ in seed.fixed if each.implementation.rewrite is None]
    shuffle = axis_shuffle(own, mixes, mixed) if mixes else None
    return replace_fields(seed, shuffle=shuffle, has_boxes=has_boxes, is_numbered=is_numbered)


def _is_met(
    context: SeedContext,
    node: NodePorts,
    requirement: Requirement,
    lowering: FixedLowering,
    axis_names: Sequence[str | None],
) -> bool:
    port_dims = of_ports(node.ports, lowering.inputs, lowering.outputs)
    is_met = context.checker.is_met(node, requirement, port_dims, axis_names)
    is_met = is_met and context.checker.constants_meet(node, requirement, lowering.inputs)
    return is_met and context.checker.runs_listed(node, requirement, lowering)


def _placed(
    context: SeedContext, node: NodePorts, written: _Lowerings, lowerings: _Lowerings, axis_names: Sequence[str | None]
) -> NodeSeed:
    """The seed with the lowerings `written` by the backend, and with the others that meet their requirements."""
    met = [each for each in lowerings if _is_met(context, node, *each, axis_names)]
    fixed: list[tuple[Requirement, FixedLowering, tuple[MemoryFormat, ...]]] = []
    start: list[_PortFormat] = []
    blocking: set[ir.Value] = set()
    is_partial = False
    for requirement, lowering in (*written, *met):
        port_dims = of_ports(node.ports, lowering.inputs, lowering.outputs)
        formats: list[MemoryFormat] = []
        for port, dims in zip(node.ports, port_dims, strict=True):
            format_ = port.format_in(dims)
            if format_ is None:
                # The layout's factors do not nest in the axes of the tensor.
                regrouped = context.tensors.nearest_regrouped(port.operand.value)
                if regrouped is not None and requirement.is_tiled:
                    blocking.add(regrouped)
                is_partial = True
                break
            formats.append(format_)
        else:
            start += [_PortFormat(index, format_) for index, format_ in enumerate(formats)]
            boxed = with_black_boxes(node, requirement, formats, port_dims)
            if boxed is not None:
                fixed.append((requirement, lowering, boxed))
    return NodeSeed(node, tuple(fixed), start=tuple(start), blocking=frozenset(blocking), is_partial=is_partial)


def _seed_constants(context: SeedContext, own: NodePorts, stated: Sequence[Requirement]) -> NodeSeed:
    """The constants of a node whose operands have orders of their own, in the orders that each implementation
    requires."""
    rule, node = own.rule, own.node
    assert isinstance(rule, Free)
    assert node is not None
    others = replace_fields(own, ports=own.others)
    names = context.checker.constant_names(others, rule, of_ports(others.ports, rule.inputs, rule.outputs))
    noted, found = noted_orders(node, is_result=False), []
    for requirement in stated:
        dims: list[Dims | None] = [None] * len(node.inputs)
        for n, layout in requirement.constants.items():
            order = order_of_constant(node.inputs[n], layout, names.get(n, ()), noted[n])
            dims[n] = one_each(order) if order is not None and is_whole(order) else None
        lowering = FixedLowering(tuple(dims), (None,) * len(node.outputs))
        if context.checker.constants_meet(own, requirement, dims, names):
            found.append((requirement, lowering, ()))
    return NodeSeed(own, tuple(found))


def _seed_free(
    context: SeedContext, own: NodePorts, rule: Free, requirements: Sequence[Requirement], written: _Lowerings
) -> NodeSeed:
    requirements = sorted(requirements, key=lambda requirement: requirement.implementation.cost)
    # The representative of a class is outside the graph, and must not hold it.
    is_inside = any(port.operand.tensor.base in context.tensors.operands for port in own.ports)
    is_priced = not (context.keeps_dear or context.checker.prices_by_traffic)
    has_stated = is_priced and is_inside and bool(rule.decompositions)
    free = FreeNode(
        own,
        rule,
        requirements,
        checker=context.checker,
        elements=context.elements,
        keeps_dear=context.keeps_dear,
        most_cost=context.most_cost if has_stated else None,
    )
    space: IterationSpace[_Answer] = IterationSpace(
        free.maps, free.operands, free.answers, free.suggested, free.cheaper if has_stated else None
    )
    pieces = elision_of(rule.elidable_as, *own.ports) if rule.elidable_as is not None else None
    spaces = [NodeSpace(space, free.axes, _elidable_bytes(context, own) if pieces is not None else 0)]
    if pieces is not None:
        spaces.append(_elided(context, own, pieces))
    # Some packed layouts are not expressible as an order of the space: both tiles of an axis side by side, a tile that
    # is the whole axis, or a tile of an axis whose extent differs in the result.
    packed = operand_by_operand(rule) if rule.axis_names else None
    axis_names = port_axis_names(packed, own.ports)
    tiled = [each for each in requirements if each.is_tiled] if packed is not None else []
    lowerings = [(each, one) for each in tiled for one in node_lowerings(own, packed, each.implementation)]
    seed = _placed(context, own, written, lowerings, axis_names)
    sources = [_SpaceOrder(n, each.space.source_order()) for n, each in enumerate(spaces)]
    start: list[_PortFormat | _SpaceOrder] = [*sources, *seed.start]
    start += [_SpaceOrder(0, order) for requirement in requirements for order in free.required_orders(requirement)]
    # Operands without axes in the space, such as pads that are computed, are read as the source has them.
    ports = enumerate(zip(own.ports, free.axes, strict=True))
    start += [_PortFormat(n, port.source_format) for n, (port, axes) in ports if axes is None]
    if rule.axis_names:
        # The source's layout needs no requirement: the node can always run in ONNX's own layout.
        start.append(_SpaceOrder(0, free.native(), is_fallback=True))
    return replace_fields(seed, spaces=tuple(spaces), start=tuple(start))


def _elided(context: SeedContext, own: NodePorts, pieces: Elision) -> NodeSpace:
    """The space of an elided node. It runs nothing, so any device is possible."""
    assert own.node is not None
    nothing = (_ANY,) * len(own.node.inputs), (_ANY,) * len(own.node.outputs)
    free = [Requirement(Implementation(*nothing, device=device), own) for device in context.checker.devices]

    def accepts(order: MemoryFormat) -> _Answer:
        return tuple((requirement, pieces.lowering(order), 0) for requirement in free)

    maps = indexing_maps(pieces.rule, pieces.operands)
    return NodeSpace(IterationSpace(maps, pieces.operands, accepts), tuple(axes for _, axes in pieces.operands))


def _elidable_bytes(context: SeedContext, own: NodePorts) -> int:
    """The bytes that the node reads and writes unless it is elided; a materialized view moves nothing."""
    assert own.node is not None
    result = own.node.outputs[0]
    if result in context.tensors.materialized or result.shape is None:
        return 0
    return 2 * context.elements(result.shape) * element_size(result)


def _seed_edge(
    context: SeedContext, node: ir.Node, implementations: Sequence[Implementation], edge: RegionEdge
) -> NodeSeed:
    """The seed of a region edge: a value that crosses the border of the graphs inside the node."""
    ports = region_edge_ports(node, edge, context.tensors)
    own = NodePorts(f"{label_of(node)} {edge.name}", node, ports, edge.rule, edge)
    requirements = crossing_requirements(own, edge, implementations)
    free = FreeNode(own, edge.rule, requirements, checker=context.checker, elements=context.elements)
    space: IterationSpace[_Answer] = IterationSpace(free.maps, free.operands, free.answers_by_requirement)
    orders = [space.source_order(), *chain.from_iterable(map(free.required_orders, requirements))]
    return NodeSeed(
        own, spaces=(NodeSpace(space, free.axes),), start=tuple([_SpaceOrder(0, order) for order in orders])
    )
