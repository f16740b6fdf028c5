"""The plan: a solution of the cost problem in terms of the graph, to be rewritten and reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import astuple, replace

from relayout.candidates.alternatives import (
    Alternative,
    FixedLowering,
    FreeLowering,
    Lowering,
    NodeAlternatives,
    OperandDims,
    Port,
    in_source,
)
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.boundary import Boundary
from relayout.candidates.tensors import Tensor, Tensors
from relayout.errors import InternalError
from relayout.formulate.conversion_costs import ConversionCost
from relayout.formulate.def_use import DefUse, TensorUse
from relayout.formulate.formulation import Formulation
from relayout.formulate.objective import Objective
from relayout.formulate.transfers import State, Transfer, TransferChoices, Wanted
from relayout.layout.conversion import Dims, cuts_of, flat, one_each, split_at
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import Axes, Free, Rule
from relayout.solve.problem import Item
from relayout.solve.solver import Solution


class PlannedNode(NodeAlternatives, frozen=True, eq=True, kw_only=True):
    """A node, a graph input or output (`node` is None), or a region edge of a node, with the alternative chosen for
    it."""

    chosen: Alternative

    @property
    def formats(self) -> tuple[MemoryFormat, ...]:
        return self.chosen.formats

    @property
    def layouts(self) -> tuple[str, ...]:
        """The required layout of each port, "" without a requirement."""
        return self.chosen.layouts

    @property
    def device(self) -> str:
        return self.chosen.device

    @property
    def lowering(self) -> Lowering:
        return self.chosen.lowering

    @property
    def is_elided(self) -> bool:
        return self.lowering.is_elided

    def operand_dims(self, port: Port) -> OperandDims:
        """The dimensions of the port's operand."""
        return self.lowering.operand_dims(port, self.rule)

    def results(self) -> Iterator[tuple[Port, MemoryFormat]]:
        """The ports that produce a tensor, each with its format."""
        return ((port, f) for port, f in zip(self.ports, self.formats, strict=True) if port.is_result)

    def operands(self) -> Iterator[tuple[Port, MemoryFormat]]:
        """The ports that read a tensor, each with its format."""
        return ((port, f) for port, f in zip(self.ports, self.formats, strict=True) if not port.is_result)


class PlannedConversion(ConversionCost, frozen=True, kw_only=True):
    """A conversion of `tensor` at a device, from the format produced or received there, or from another copy, to the
    format that `consumers` read. `serves` also includes the consumers of copies made from this one, and those at other
    devices to which `target` is transferred. A copy that is only an origin of others has their consumers.
    """

    tensor: Tensor
    source: MemoryFormat
    target: MemoryFormat
    device: str
    producer: TensorUse
    consumers: tuple[TensorUse, ...]
    serves: tuple[TensorUse, ...]


class PlannedTransfer(Struct, frozen=True):
    """A copy of `tensor` from one device to another, with its size in bytes and its cost."""

    tensor: Tensor
    format: MemoryFormat
    source: str
    target: str
    producer: TensorUse
    consumers: tuple[TensorUse, ...]
    cost: int
    bytes: int


class Plan(Struct, frozen=True, dict=True):
    """The chosen alternatives, conversions and transfers. `nodes` are in the order of the choices (see `TensorUse`)."""

    tensors: Tensors
    names: AxisNames
    boundary: Boundary
    nodes: tuple[PlannedNode, ...]
    conversions: tuple[PlannedConversion, ...]
    transfers: tuple[PlannedTransfer, ...]

    @cached_property
    def of_node(self) -> dict[ir.Node, PlannedNode]:
        """The planned node of each source node that has a choice; one for all operands that have orders of their
        own."""
        found: dict[ir.Node, list[PlannedNode]] = {}
        for each in self.nodes:
            if each.node is not None and each.region_edge is None:
                found.setdefault(each.node, []).append(each)
        rules = self.tensors.rules
        return {node: _joined(node, rules.get(node), choices) for node, choices in found.items()}

    @cached_property
    def region_edges(self) -> dict[ir.Node, tuple[PlannedNode, ...]]:
        """The region edges of each region op that have a choice of their own."""
        found: dict[ir.Node, tuple[PlannedNode, ...]] = {}
        for each in self.nodes:
            if each.node is not None and each.region_edge is not None:
                found[each.node] = (*found.get(each.node, ()), each)
        return found

    @cached_property
    def conversions_of(self) -> dict[Tensor, tuple[PlannedConversion, ...]]:
        """The conversions of each tensor that has any."""
        found: dict[Tensor, list[PlannedConversion]] = {}
        for each in self.conversions:
            found.setdefault(each.tensor, []).append(each)
        return {tensor: tuple(conversions) for tensor, conversions in found.items()}

    @cached_property
    def consumers_of(self) -> dict[Tensor, tuple[TensorUse, ...]]:
        """The uses that read each tensor."""
        found: dict[Tensor, list[TensorUse]] = {}
        for c, each in enumerate(self.nodes):
            for p, port in enumerate(each.ports):
                if not port.is_result:
                    found.setdefault(port.operand.tensor, []).append(TensorUse(c, p))
        return {tensor: tuple(uses) for tensor, uses in found.items()}

    @property
    def keeps_nodes(self) -> bool:
        """Whether every node stays unchanged."""
        return all(each.chosen.is_source for each in self.nodes)

    @property
    def bytes(self) -> int:
        """The bytes that the conversions read and write."""
        return sum(each.bytes for each in self.conversions)

    def cost(self, objective: Objective) -> int:
        """The plan's cost in the objective's unit."""
        if objective.unit == "transposes":
            return sum(each.passes for each in self.conversions)
        own = sum(each.chosen.cost for each in self.nodes)
        return own + sum(each.cost for each in self.conversions) + sum(each.cost for each in self.transfers)

    def format_at(self, use: TensorUse) -> MemoryFormat:
        """The format that the tensor has at this use."""
        return self.nodes[use.choice].formats[use.port]


def _joined(node: ir.Node, rule: Rule | None, operands: Sequence[PlannedNode]) -> PlannedNode:
    """The node of these choices: its own, or those of operands with orders of their own. Then each operand, constants
    too, has all tiles of the others."""
    if not isinstance(rule, Free) or not operands[0].others:
        return operands[0]
    dims: dict[tuple[bool, int], Dims] = {}
    cuts: set[tuple[int, int]] = set()
    for each in operands:
        lowering = each.lowering
        if isinstance(lowering, FixedLowering):
            dims.update({(False, n): own for n, own in enumerate(lowering.inputs) if own is not None})
            continue
        assert isinstance(lowering, FreeLowering)
        (port,) = each.ports
        dims[port.is_result, port.index] = lowering.dims
        axes = port.entry(rule.inputs, rule.outputs) or ()
        cuts |= {(axes[axis], end) for axis, end in cuts_of(flat(lowering.dims))}

    def split(axes: Axes, own: Dims) -> Iterator[MemoryFormat]:
        extents = tuple([rule.extents[axis] for axis in axes])
        for group in own:
            ends = frozenset([(group[0].axis, end) for axis, end in cuts if axis == axes[group[0].axis]])
            yield from one_each(split_at(group, ends, extents)) if ends else (group,)

    inputs, outputs = (
        tuple([tuple(split(axes or (), dims.get((r, n)) or in_source(len(axes or ())))) for n, axes in enumerate(side)])
        for r, side in ((False, rule.inputs), (True, rule.outputs))
    )
    first = operands[0]
    chosen = replace(
        next((each.chosen for each in operands if each.is_charged), first.chosen),
        formats=tuple(chain.from_iterable(each.formats for each in operands)),
        lowering=FixedLowering(inputs, outputs),
        layouts=tuple(chain.from_iterable(each.layouts for each in operands)),
        is_source=all(each.chosen.is_source for each in operands),
        is_numbered=any(each.chosen.is_numbered for each in operands),
    )
    ports = tuple(chain.from_iterable(each.ports for each in operands))
    return PlannedNode(first.label, node, ports, rule, chosen=chosen)


def plan(formulation: Formulation, solution: Solution) -> Plan:
    """The plan of a feasible solution."""
    assert solution.assignment is not None
    return plan_of(formulation, _with_fewest_devices(formulation, solution.assignment))


def plan_of(formulation: Formulation, assignment: Sequence[int]) -> Plan:
    """The plan of an assignment of the requirements' choices, with the cheapest transfers."""
    requirements = formulation.requirements
    conversions: list[PlannedConversion] = []
    transfers: list[PlannedTransfer] = []
    items = dict(zip(formulation.provenance, formulation.problem.items, strict=True))
    for index, def_use in enumerate(formulation.def_use):
        if def_use.transfers is not None:
            own = _between_devices(formulation, def_use, def_use.transfers, assignment)
            conversions += own[0]
            transfers += own[1]
        elif len(def_use.formats) > 1:
            conversions += _at_one_device(formulation, def_use, items[index], assignment)
    return Plan(
        requirements.tensors,
        requirements.names,
        requirements.boundary,
        tuple(
            [
                PlannedNode(*astuple(choice), chosen=choice.alternatives[picked])
                for choice, picked in zip(requirements.choices, assignment, strict=True)
            ]
        ),
        tuple(conversions),
        tuple(transfers),
    )


def _with_fewest_devices(formulation: Formulation, assignment: Sequence[int]) -> tuple[int, ...]:
    """The assignment of the requirements' choices, with each elided node only at devices that use its result."""
    choices = formulation.requirements.choices
    picked = list(assignment[: len(choices)])
    # In reverse order: an elided node may feed another one.
    for def_use in reversed(formulation.def_use):
        chosen = def_use.producer.choice
        alternatives, own = choices[chosen].alternatives, formulation.chosen(def_use.producer, picked)
        if def_use.transfers is None or not own.other_devices:
            continue
        produced, wanted = formulation.states(def_use, picked)
        transfers = _planned(def_use.transfers, produced, wanted).values()
        needed = {device for device in own.devices if device in wanted} | {each.source for each in transfers}
        same = (i for i, a in enumerate(alternatives) if a.is_elided and a.formats == own.formats)
        picked[chosen] = next((i for i in same if {*alternatives[i].devices} == needed), picked[chosen])
    return tuple(picked)


def _planned(choices: TransferChoices, produced: State, wanted: Wanted) -> dict[str, Transfer]:
    """The transfers of a tensor for an assignment that the solver has found possible."""
    plan = choices.plan(produced, wanted)
    if plan is None:
        raise InternalError(f"no transfer of {choices.name} to the devices that read it", found=", ".join(wanted))
    return plan


def _at_one_device(
    formulation: Formulation, def_use: DefUse, item: Item, assignment: Sequence[int]
) -> Iterator[PlannedConversion]:
    """The conversions of a tensor that stays at one device."""
    producer = formulation.chosen(def_use.producer, assignment)
    produced = def_use.number[producer.formats[def_use.producer.port]]
    read = _readers(formulation, def_use, def_use.consumers, assignment)
    return _copies(formulation, def_use, producer.device, item.copies(produced, read.keys()), read, read)


def _between_devices(
    formulation: Formulation, def_use: DefUse, choices: TransferChoices, assignment: Sequence[int]
) -> tuple[list[PlannedConversion], list[PlannedTransfer]]:
    """The conversions and transfers of a tensor that several devices use."""
    produced, wanted = formulation.states(def_use, assignment)
    incoming = _planned(choices, produced, wanted)
    at: dict[str, list[TensorUse]] = {}
    for use in def_use.consumers:
        for device in formulation.chosen(use, assignment).devices:
            at.setdefault(device, []).append(use)
    read = {device: _readers(formulation, def_use, uses, assignment) for device, uses in at.items()}
    transfers, sent = [], dict[str, dict[int, list[TensorUse]]]()
    for device, transfer in incoming.items():
        for f in transfer.formats:
            # The consumers in this format, or else all consumers of its conversions there.
            receivers, format_ = read[device].get(f, at[device]), def_use.formats[f]
            size = formulation.costs.bytes_of(def_use.tensor, format_)
            cost = formulation.costs.transfer(def_use.tensor, format_, transfer.source, device)
            uses = def_use.producer, tuple(receivers)
            transfers.append(PlannedTransfer(def_use.tensor, format_, transfer.source, device, *uses, cost, size))
            sent.setdefault(transfer.source, {}).setdefault(f, []).extend(receivers)
    edges: dict[str, list[tuple[int, int]]] = {}
    for device, f, g in choices.conversions(produced, wanted, incoming):
        edges.setdefault(device, []).append((f, g))
    conversions: list[PlannedConversion] = []
    for device, own in edges.items():
        here, beyond = read.get(device, {}), sent.get(device, {})
        needed = {f: [*here.get(f, ()), *beyond.get(f, ())] for f in sorted(here.keys() | beyond.keys())}
        conversions += _copies(formulation, def_use, device, own, here, needed)
    return conversions, transfers


def _readers(
    formulation: Formulation, def_use: DefUse, uses: Iterable[TensorUse], assignment: Sequence[int]
) -> dict[int, list[TensorUse]]:
    """The uses of a tensor by the number of the format that they read."""
    found: dict[int, list[TensorUse]] = {}
    for use in uses:
        found.setdefault(def_use.number[formulation.chosen(use, assignment).formats[use.port]], []).append(use)
    return found


def _copies(
    formulation: Formulation,
    def_use: DefUse,
    device: str,
    edges: Iterable[tuple[int, int]],
    read: Mapping[int, Sequence[TensorUse]],
    needed: Mapping[int, Sequence[TensorUse]],
) -> Iterator[PlannedConversion]:
    """The conversions at one device: one for each format that is `needed` and is made, and those to formats from which
    these are made. `edges` are pairs of numbers of formats, from and to; `read` are the uses at this device."""
    origins = {target: origin for origin, target in edges}
    served: dict[int, list[TensorUse]] = {}
    for wanted, uses in needed.items():
        path = [wanted]
        while path[-1] in origins:
            path.append(origins[path[-1]])
        for each in reversed(path[:-1]):
            served.setdefault(each, []).extend(uses)
    for target, serves in served.items():
        source = origins[target]
        cost = formulation.costs.table(def_use.tensor, device, def_use.formats).rows[source][target]
        if cost is None:
            raise InternalError(f"tensor '{def_use.tensor.base.name}' is wanted in a format that cannot be made")
        yield PlannedConversion(
            *astuple(cost),
            tensor=def_use.tensor,
            source=def_use.formats[source],
            target=def_use.formats[target],
            device=device,
            producer=def_use.producer,
            consumers=tuple(read.get(target, serves)),
            serves=tuple(serves),
        )
