"""The account of a plan: the parts of its cost, which add up to it, and the sentence that says what is proved."""

from __future__ import annotations

from collections.abc import Iterable, Set

from relayout.formulate.objective import Objective
from relayout.formulate.plan import Plan, PlannedConversion, PlannedNode
from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.report.schema import Account, Entry

__all__ = ["account_of", "charged_nodes", "proof_of"]


def account_of(plan: Plan, objective: Objective, operators: Set[tuple[str, str]] = frozenset()) -> Account:
    """The parts of `plan.cost(objective)`.

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
    present = [each.chosen.cost for each in plan.nodes if each.chosen.cost and _is_reorder(each, operators)]
    resized = [each.chosen.cost for each in plan.nodes if each.chosen.cost and _is_resized(each)]
    charges = [each.chosen.cost for each in charged_nodes(plan, operators)]
    return Account(
        transposes=Entry(
            count=passes,
            bytes=sum(each.bytes - each.padding for each in moving),
            cost=transposed,
        ),
        reorders=Entry(
            count=len(reorders) + len(present),
            bytes=_bytes(reorders) + sum(present),
            cost=_cost(reorders) + sum(present) if in_bytes else len(reorders),
        ),
        pads=Entry(
            count=len(padding) + len(resized),
            bytes=sum(each.padding for each in padding) + sum(resized),
            cost=padded + sum(resized) if in_bytes else padded,
        ),
        operators=Entry(count=len(charges), bytes=sum(charges), cost=sum(charges) if in_bytes else 0),
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


def _bytes(conversions: Iterable[PlannedConversion]) -> int:
    return sum(each.bytes for each in conversions)


def _cost(conversions: Iterable[PlannedConversion]) -> int:
    return sum(each.cost for each in conversions)
