"""Why each conversion that is left cannot go: the requirements behind it, and what lifting each of them would save."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from relayout.candidates.alternatives import NodeAlternatives
from relayout.formulate.formulation import Formulation, PlannedConversion, TensorUse
from relayout.report.explain.conversions import required_layout, who
from relayout.report.explain.relaxed_problem import Lifting, Spent, spent
from relayout.report.explain.requirement_trace import Requirement, behind
from relayout.report.schema import Conversion, Explanation, Part, Reason, Saving, SharedReason

__all__ = ["LIMIT", "explained"]

LIMIT = 1000
"""So many problems are solved, unless the caller says otherwise."""

_Kind = tuple[str, Part, int | None, str]


@dataclass(slots=True)
class _Question:
    """Everything that is to be solved for one model, and what came of it."""

    lifting: Lifting
    assignment: Sequence[int]
    objective: str
    base: Spent
    limit: int
    deadline: float | None
    answers: dict[frozenset[TensorUse], tuple[Saving, Spent]] = field(default_factory=dict)
    left_out: set[frozenset[TensorUse]] = field(default_factory=set)

    @property
    def formulation(self) -> Formulation:
        return self.lifting.formulation

    def saving(self, uses: Iterable[TensorUse]) -> Saving | None:
        """What is saved without these requirements; None where it is over the limit, or they cannot be lifted."""
        key = frozenset(use for use in uses if self.lifting.value_of(use) is not None)
        if not key:
            return None
        if key not in self.answers:
            left = None if self.deadline is None else self.deadline - perf_counter()
            if len(self.answers) >= self.limit or (left is not None and left <= 0):
                self.left_out.add(key)
                return None
            found = self.lifting.spent_without(key, left)
            if found is None:
                self.left_out.add(key)
                return None
            self.answers[key] = self._difference(found), found
        return self.answers[key][0]

    def _difference(self, found: Spent) -> Saving:
        base = self.base
        transposes, moved = len(base.made) - len(found.made), base.bytes - found.bytes
        cost = transposes if self.objective == "transposes" else base.cost - found.cost
        return Saving(cost=cost, transposes=transposes, bytes=moved, exact=base.proved and found.proved)


def explained(
    formulation: Formulation,
    assignment: Sequence[int],
    conversions: Sequence[Conversion],
    *,
    objective: str,
    proved: bool,
    limit: int = LIMIT,
    deadline: float | None = None,
) -> tuple[tuple[Conversion, ...], Explanation]:
    """The conversions with their reasons, and the reasons by kind.

    `conversions` are those of the assignment, in order; `proved`: it is the optimum. At most `limit` problems are
    solved, and none is begun after `deadline` (of `perf_counter`); what is left out is counted.
    """
    base = spent(formulation, assignment, proved=proved)
    question = _Question(Lifting(formulation), assignment, objective, base, limit, deadline)
    made = list(formulation.conversions(assignment))
    held_by = [behind(question.lifting, assignment, each) for each in made]
    # The conversions themselves first, then what is nearest to them, so that a limit leaves out what is far.
    saved = [question.saving(each.wanted_by) for each in made]
    for distance in range(max(map(len, held_by), default=0)):
        for requirements in held_by:
            for requirement in requirements[distance : distance + 1]:
                question.saving(requirement.uses)
    reasons = [_reasons(question, each, requirements) for each, requirements in zip(made, held_by, strict=True)]
    shared = _shared(question, reasons)
    told = tuple(
        conversion.model_copy(update={"saved": saving, "reasons": tuple(reason for _, reason in own)})
        for conversion, saving, own in zip(conversions, saved, reasons, strict=True)
    )
    return told, Explanation(
        solved=len(question.answers), limit=limit, left_out=len(question.left_out), shared=tuple(shared)
    )


def _reasons(
    question: _Question, made: PlannedConversion, requirements: Sequence[Requirement]
) -> list[tuple[Requirement, Reason]]:
    """What was found out of the requirements behind this conversion, those that save most first.

    One that saves something and leaves this conversion where it is, is a reason for another. All of a node is told only
    where it saves more than each of its operands does.
    """
    best: dict[int, int] = {}
    found: list[tuple[Requirement, Reason]] = []
    for requirement in sorted(requirements, key=lambda each: len(each.uses)):
        answer = question.answers.get(frozenset(requirement.uses))
        if answer is None:
            continue
        saved, without = answer
        if saved.cost > 0 and (made.tensor, made.device, made.target) in without.made:
            continue
        known = best.get(requirement.choice)
        if len(requirement.uses) > 1 and known is not None and saved.cost <= known:
            continue
        best[requirement.choice] = max(saved.cost, known or 0)
        found.append((requirement, _reason(question, requirement, saved)))
    return sorted(found, key=lambda each: _by_saving(each[1]))


def _by_saving(each: Reason | SharedReason) -> tuple[int, int]:
    return -each.saved.cost, -each.saved.transposes


def _reason(question: _Question, requirement: Requirement, saved: Saving) -> Reason:
    choices = question.formulation.requirements.choices
    use = requirement.uses[0]
    choice = choices[use.choice]
    alone = len(requirement.uses) == 1 and choice.node is not None
    layouts = [required_layout(question.formulation, question.assignment, each) for each in requirement.uses]
    return Reason(
        node=choice.label if len(requirement.uses) > 1 else who(choice, use.port),
        lifts=requirement.lifts,
        operand=max(choice.ports[use.port].index, 0) if alone else None,
        layout=", ".join(dict.fromkeys(layouts)),
        by="boundary" if choice.node is None else _whose(question, choice, requirement),
        saved=saved,
    )


def _whose(question: _Question, choice: NodeAlternatives, requirement: Requirement) -> Literal["backend", "operator"]:
    picked = question.assignment[requirement.choice]
    stated = choice.layouts[picked] if picked < len(choice.layouts) else ()
    return "backend" if any(stated[use.port] for use in requirement.uses if stated) else "operator"


def _shared(
    question: _Question, reasons: Sequence[Sequence[tuple[Requirement, Reason]]]
) -> list[SharedReason]:
    """The reasons by kind, each with what is saved where all of its requirements are lifted at once."""
    members: dict[_Kind, dict[Requirement, None]] = {}
    conversions: dict[_Kind, int] = {}
    for own in reasons:
        for requirement, reason in own:
            members.setdefault(_kind(question, requirement, reason), {})[requirement] = None
        for kind in {_kind(question, requirement, reason) for requirement, reason in own}:
            conversions[kind] = conversions.get(kind, 0) + 1
    found = []
    for kind, requirements in members.items():
        saved = question.saving(use for requirement in requirements for use in requirement.uses)
        if saved is not None:
            operator, lifts, operand, layout = kind
            if lifts == "boundary" and len(requirements) == 1:
                operator = question.formulation.requirements.choices[next(iter(requirements)).choice].label
            found.append(
                SharedReason(
                    operator=operator,
                    lifts=lifts,
                    operand=operand,
                    layout=layout,
                    requirements=len(requirements),
                    conversions=conversions[kind],
                    saved=saved,
                )
            )
    return sorted(found, key=_by_saving)


def _kind(question: _Question, requirement: Requirement, reason: Reason) -> _Kind:
    choice = question.formulation.requirements.choices[requirement.choice]
    if choice.node is not None:
        return choice.node.op_type, reason.lifts, reason.operand, reason.layout
    ends = ["graph input" if port.is_result else "graph output" for port in choice.ports]
    return ends[0] if len(ends) == 1 else "tie", reason.lifts, None, reason.layout
