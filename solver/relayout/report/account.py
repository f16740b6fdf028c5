"""The account of a plan: the parts of its cost, which add up to it, and the sentence that says what is proved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from relayout.candidates.tensors import Tensor
from relayout.formulate.objective import Objective
from relayout.formulate.plan import Plan, PlannedConversion, PlannedNode
from relayout.layout.memory_format import MemoryFormat
from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.report.schema import Account, Entry

__all__ = ["account_of", "charged_nodes", "proof_of"]

BytesOf = Callable[[Tensor, MemoryFormat], int]


def account_of(
    plan: Plan, objective: Objective, bytes_of: BytesOf, operators: Set[tuple[str, str]] = frozenset()
) -> Account:
    """The parts of `plan.cost(objective)`. `bytes_of` has the size of a tensor in a format.

    `operators` are the backend's own that only convert: those that the source has already are reorders too. The cost of
    a conversion that transposes and pads is shared out by bytes. Under an objective that counts conversions, one that
    pads and transposes counts as a transpose.
    """
    in_bytes = objective.unit == "bytes"
    reorders = [each for each in plan.conversions if each.by_backend]
    written = [each for each in plan.conversions if not each.by_backend]
    moving = [each for each in written if each.bytes > each.padding or not each.padding]
    padding = [each for each in written if each.padding]
    only_pads = [each for each in padding if each.bytes == each.padding]
    padded = sum(map(_padding_cost, padding)) if in_bytes else len(only_pads)
    passes = sum(each.passes for each in moving)
    transposed = sum(each.cost for each in written) - padded if in_bytes else passes
    present = [each for each in plan.nodes if each.chosen.cost and _is_reorder(each, operators)]
    resized = [each for each in plan.nodes if each.chosen.cost and _is_resized(each)]
    charged = charged_nodes(plan, operators)
    return Account(
        transposes=Entry(
            count=passes,
            bytes=sum(each.bytes - each.padding for each in moving),
            cost=transposed,
        ),
        reorders=Entry(
            count=len(reorders) + len(present),
            bytes=_bytes(reorders) + _traffic(present, bytes_of),
            cost=_cost(reorders) + _charges(present) if in_bytes else len(reorders),
        ),
        pads=Entry(
            count=len(padding) + len(resized),
            bytes=sum(each.padding for each in padding) + _traffic(resized, bytes_of),
            cost=padded + _charges(resized) if in_bytes else padded,
        ),
        operators=Entry(count=len(charged), bytes=_charges(charged), cost=_charges(charged) if in_bytes else 0),
        transfers=Entry(
            count=len(plan.transfers),
            bytes=sum(each.bytes for each in plan.transfers),
            cost=sum(each.cost for each in plan.transfers) if in_bytes else 0,
        ),
    )


def charged_nodes(plan: Plan, operators: Set[tuple[str, str]] = frozenset()) -> list[PlannedNode]:
    """The nodes that cost more than their best alternative, without conversions that the source has already."""
    costly = [each for each in plan.nodes if each.chosen.cost]
    return [each for each in costly if not _is_reorder(each, operators) and not _is_resized(each)]


def _is_reorder(planned: PlannedNode, operators: Set[tuple[str, str]]) -> bool:
    return planned.node is not None and (planned.node.domain, planned.node.op_type) in operators


def _is_resized(planned: PlannedNode) -> bool:
    return planned.node is not None and CONVERSION_KEY in planned.node.metadata_props


def proof_of(bound: int, unit: str) -> str:
    """What the bound proves: of the total, and over the formats in reach of the requirements and the graph."""
    least = f"{bound} bytes" if unit == "bytes" else f"{bound} conversions"
    return f"no legal model costs less than {least}, over the formats in reach"


def _padding_cost(conversion: PlannedConversion) -> int:
    """The share of the padding in the conversion's cost, by bytes."""
    return conversion.cost * conversion.padding // conversion.bytes if conversion.bytes else 0


def _charges(nodes: Iterable[PlannedNode]) -> int:
    return sum(each.chosen.cost for each in nodes)


def _traffic(nodes: Iterable[PlannedNode], bytes_of: BytesOf) -> int:
    """The bytes that these nodes read and write."""
    ends = (end for each in nodes for end in zip(each.ports, each.formats, strict=True))
    return sum(bytes_of(port.operand.tensor, format_) for port, format_ in ends)


def _bytes(conversions: Iterable[PlannedConversion]) -> int:
    return sum(each.bytes for each in conversions)


def _cost(conversions: Iterable[PlannedConversion]) -> int:
    return sum(each.cost for each in conversions)
