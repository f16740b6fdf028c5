"""The account of a plan: the parts of its cost, which add up to it, and the sentence that says what is proved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relayout.formulate.objective import Objective
from relayout.formulate.plan import Plan, PlannedConversion
from relayout.report.schema import Account, Charge, Entry


def account_of(plan: Plan, objective: Objective, charges: Sequence[Charge]) -> Account:
    """The parts of `plan.cost(objective)`. `charges` are those of the plan's nodes: conversions that the source has
    already, and operators that cost more than their best alternative.

    A pad costs its traffic. Under an objective that counts conversions, one that pads and transposes counts as a
    transpose.
    """
    in_bytes = objective.unit == "bytes"
    reorders = [each for each in plan.conversions if each.by_backend]
    written = [each for each in plan.conversions if not each.by_backend]
    moving = [each for each in written if each.bytes > each.padding or not each.padding]
    padding = [each for each in written if each.padding]
    only_pads = [each for each in padding if each.bytes == each.padding]
    padded = sum(each.padding for each in padding) if in_bytes else len(only_pads)
    passes = sum(each.passes for each in moving)
    transposed = sum(each.cost for each in written) - padded if in_bytes else passes
    present = [each for each in charges if each.kind == "reorder"]
    resized = [each for each in charges if each.kind == "pad"]
    charged = [each for each in charges if each.kind not in ("reorder", "pad")]
    return Account(
        transposes=Entry(
            count=passes,
            bytes=sum(each.bytes - each.padding for each in moving),
            cost=transposed,
        ),
        reorders=Entry(
            count=len(reorders) + len(present),
            bytes=_bytes([*reorders, *present]),
            cost=_cost([*reorders, *present]) if in_bytes else len(reorders),
        ),
        pads=Entry(
            count=len(padding) + len(resized),
            bytes=sum(each.padding for each in padding) + _bytes(resized),
            cost=padded + _cost(resized) if in_bytes else padded,
        ),
        operators=Entry(count=len(charged), bytes=_bytes(charged), cost=_cost(charged) if in_bytes else 0),
        transfers=Entry(
            count=len(plan.transfers),
            bytes=sum(each.bytes for each in plan.transfers),
            cost=sum(each.cost for each in plan.transfers) if in_bytes else 0,
        ),
    )


def proof_of(bound: int, unit: str, *, is_direct: bool, has_transfers: bool) -> str:
    """The meaning of the bound: of the total, and over the formats in reach of the requirements and the graph.

    `is_direct`: a conversion of a converted tensor might cost less. `has_transfers`: a tensor might be read at several
    devices, and cost less if a device that received it transferred it again.
    """
    least = f"{bound} bytes" if unit == "bytes" else f"{bound} conversions"
    limits = ["converted from the format in which it is made"] * is_direct
    limits += ["transferred from the device that makes it"] * has_transfers
    limited = f", with each tensor {' and '.join(limits)}" if limits else ""
    return f"no legal model costs less than {least}, over the formats in reach{limited}"


def _bytes(entries: Iterable[PlannedConversion | Charge]) -> int:
    return sum(each.bytes for each in entries)


def _cost(entries: Iterable[PlannedConversion | Charge]) -> int:
    return sum(each.cost for each in entries)
