"""The reasons for each remaining conversion: the requirements behind it, and the saving from relaxing each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from relayout.formulate.def_use import TensorUse
from relayout.formulate.formulation import Formulation
from relayout.formulate.plan import Plan, PlannedConversion
from relayout.report.explain.conversions import name_of, required_layout
from relayout.report.explain.relaxed_problem import Relaxation, Spent, spent
from relayout.report.explain.requirement_trace import Requirement, requirements_behind
from relayout.report.schema import Conversion, Explanation, Part, Reason, Saving, SharedReason
from relayout.solve.deadline import Deadline

_Kind = tuple[str, Part, int | None, str]


class _Savings(Struct):
    """The relaxed problems of one model, solved and cached within the limits."""

    relaxation: Relaxation
    plan: Plan
    base: Spent
    limit: int
    deadline: Deadline
    solved: dict[frozenset[TensorUse], tuple[Saving, Spent]] = {}
    unsolved: set[frozenset[TensorUse]] = set()

    def of(self, uses: Iterable[TensorUse]) -> Saving | None:
        """The saving without these requirements; None beyond the limits, or if they cannot be relaxed."""
        key = frozenset(use for use in uses if self.relaxation.item_of(use) is not None)
        if not key:
            return None
        if key not in self.solved:
            left = self.deadline.left()
            is_over = len(self.solved) >= self.limit or (left is not None and left <= 0)
            found = None if is_over else self.relaxation.spent_without(key, left)
            if found is None:
                self.unsolved.add(key)
                return None
            self.solved[key] = self._difference(found), found
        return self.solved[key][0]

    def _difference(self, found: Spent) -> Saving:
        base = self.base
        return Saving(
            cost=base.cost - found.cost,
            transposes=len(base.conversions) - len(found.conversions),
            bytes=base.bytes - found.bytes,
            exact=base.proved and found.proved,
        )


def explained(
    formulation: Formulation,
    plan: Plan,
    conversions: Sequence[Conversion],
    *,
    proved: bool,
    limit: int,
    deadline: Deadline,
) -> tuple[tuple[Conversion, ...], Explanation]:
    """The conversions with their reasons, and the reasons by kind.

    `conversions` are those of the plan, in order; `proved`: the plan is optimal. At most `limit` problems are solved,
    and none is started after `deadline`; the others are counted.
    """
    relaxation, planned = Relaxation(formulation), plan.conversions
    savings = _Savings(relaxation, plan, spent(formulation, plan, proved=proved), limit, deadline)
    required = [requirements_behind(relaxation, plan, each) for each in planned]
    # First the conversions themselves, then the nearest requirements, so that a limit omits the farthest.
    saved = [savings.of(each.consumers) for each in planned]
    for distance in range(max(map(len, required), default=0)):
        for requirements in required:
            for requirement in requirements[distance : distance + 1]:
                savings.of(requirement.uses)
    reasons = [_reasons(savings, each, requirements) for each, requirements in zip(planned, required, strict=True)]
    shared = _shared(savings, reasons)
    explained_conversions = tuple(
        conversion.model_copy(update={"saved": saving, "reasons": tuple(reason for _, reason in own)})
        for conversion, saving, own in zip(conversions, saved, reasons, strict=True)
    )
    return explained_conversions, Explanation(
        solved=len(savings.solved), limit=limit, unsolved=len(savings.unsolved), shared=tuple(shared)
    )


def _reasons(
    savings: _Savings, conversion: PlannedConversion, requirements: Sequence[Requirement]
) -> list[tuple[Requirement, Reason]]:
    """The reasons for this conversion, those that save most first.

    A requirement without which this conversion remains is a reason for another one. All requirements of a node together
    are reported only if they save more than each alone.
    """
    best: dict[int, int] = {}
    found: list[tuple[Requirement, Reason]] = []
    for requirement in sorted(requirements, key=lambda each: len(each.uses)):
        answer = savings.solved.get(frozenset(requirement.uses))
        if answer is None:
            continue
        saved, without = answer
        if saved.cost > 0 and (conversion.tensor, conversion.device, conversion.target) in without.conversions:
            continue
        known = best.get(requirement.choice)
        if len(requirement.uses) > 1 and known is not None and saved.cost <= known:
            continue
        best[requirement.choice] = max(saved.cost, known or 0)
        found.append((requirement, _reason(savings, requirement, saved)))
    return sorted(found, key=lambda each: _by_saving(each[1]))


def _by_saving(each: Reason | SharedReason) -> tuple[int, int]:
    return -each.saved.cost, -each.saved.transposes


def _reason(savings: _Savings, requirement: Requirement, saved: Saving) -> Reason:
    plan, use = savings.plan, requirement.uses[0]
    planned = plan.nodes[use.choice]
    is_single = len(requirement.uses) == 1 and planned.node is not None
    layouts = [required_layout(plan, each) for each in requirement.uses]
    is_stated = any(planned.layouts[each.port] for each in requirement.uses)
    return Reason(
        node=planned.label if len(requirement.uses) > 1 else name_of(planned, use.port),
        part=requirement.part,
        operand=max(planned.ports[use.port].index, 0) if is_single else None,
        layout=", ".join(dict.fromkeys(layouts)),
        by="boundary" if planned.node is None else "backend" if is_stated else "operator",
        saved=saved,
    )


def _shared(savings: _Savings, reasons: Sequence[Sequence[tuple[Requirement, Reason]]]) -> list[SharedReason]:
    """The reasons by kind, each with the saving from relaxing all of its requirements at once."""
    members: dict[_Kind, dict[Requirement, None]] = {}
    conversions: dict[_Kind, int] = {}
    for own in reasons:
        for requirement, reason in own:
            members.setdefault(_kind(savings, requirement, reason), {})[requirement] = None
        for kind in {_kind(savings, requirement, reason) for requirement, reason in own}:
            conversions[kind] = conversions.get(kind, 0) + 1
    found = []
    for kind, requirements in members.items():
        saved = savings.of(use for requirement in requirements for use in requirement.uses)
        if saved is not None:
            operator, part, operand, layout = kind
            if part == "boundary" and len(requirements) == 1:
                operator = savings.plan.nodes[next(iter(requirements)).choice].label
            found.append(
                SharedReason(
                    operator=operator,
                    part=part,
                    operand=operand,
                    layout=layout,
                    requirements=len(requirements),
                    conversions=conversions[kind],
                    saved=saved,
                )
            )
    return sorted(found, key=_by_saving)


def _kind(savings: _Savings, requirement: Requirement, reason: Reason) -> _Kind:
    planned = savings.plan.nodes[requirement.choice]
    if planned.node is not None:
        return planned.node.op_type, reason.part, reason.operand, reason.layout
    ends = ["graph input" if port.is_result else "graph output" for port in planned.ports]
    return ends[0] if len(ends) == 1 else "coupled values", reason.part, None, reason.layout
