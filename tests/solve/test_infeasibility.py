"""An infeasible problem is explained by a conflict and by the fewest requirements to drop."""

from __future__ import annotations

from relayout.solve.conflict import Requirement
from relayout.solve.deadline import Deadline
from relayout.solve.infeasibility import explain_infeasibility
from relayout.solve.problem import Choice, Item, Problem, Use
from relayout.solve.solver import solve

NO_CONVERSION = ((0, None), (None, 0))


def chain(length: int, pinned: dict[int, int]) -> Problem:
    """A chain of choices coupled to one format, some of them pinned; no conversion exists."""
    choices = tuple(Choice(f"c{c}", (0,) if c in pinned else (0, 0)) for c in range(length))

    def use(choice: int) -> Use:
        return Use(choice, (pinned[choice],) if choice in pinned else (0, 1))

    return Problem(choices, tuple(Item(f"v{c}", use(c), (use(c + 1),), NO_CONVERSION) for c in range(length - 1)))


def test_the_conflict_of_a_long_chain_is_the_part_between_the_two_contradicting_choices() -> None:
    solution = solve(chain(60, {20: 0, 40: 1}))
    assert solution.conflict == tuple(Requirement(v, k) for v in range(20, 40) for k in (0, 1))


def test_a_requirement_that_pins_an_operand_is_dropped_before_one_that_couples_it() -> None:
    (dropped,) = solve(chain(30, {10: 0, 20: 1})).relaxation
    assert dropped.requirement in (Requirement(10, 0), Requirement(19, 1))


def test_of_relaxations_of_equal_size_the_cheapest_is_taken() -> None:
    for costs, dropped in (((9, 0), Requirement(0, 0)), ((0, 9), Requirement(0, 1))):
        choices = (Choice("gives 0", (0,)), Choice("wants 1", (0,)), Choice("wants either", costs))
        value = Item("v", Use(0, (0,)), (Use(1, (1,)), Use(2, (0, 1))), NO_CONVERSION)
        assert [one.requirement for one in solve(Problem(choices, (value,))).relaxation] == [dropped]


def test_two_separate_contradictions_need_two_dropped_requirements() -> None:
    one, other = chain(4, {0: 0, 3: 1}), chain(4, {0: 1, 3: 0})
    moved = tuple(
        Item(
            value.name,
            Use(value.producer.choice + 4, value.producer.formats),
            tuple(Use(use.choice + 4, use.formats) for use in value.consumers),
            value.conversion,
        )
        for value in other.items
    )
    solution = solve(Problem((*one.choices, *other.choices), (*one.items, *moved)))
    assert len(solution.relaxation) == 2
    assert len(solution.conflict) == 6


def test_a_dropped_requirement_has_the_format_of_its_operand() -> None:
    (dropped,) = solve(chain(2, {0: 0, 1: 1})).relaxation
    assert dropped.format == (1 if dropped.requirement.use == 0 else 0)


def test_after_the_deadline_no_unproved_infeasibility_is_reported() -> None:
    solution = solve(chain(60, {20: 0, 40: 1}), time_limit=0.0)
    assert (solution.status, solution.assignment, solution.conflict) == ("unknown", None, ())


def test_a_limit_on_conversions_has_a_conflict_and_no_relaxation() -> None:
    item = Item("v", Use(0, (0,)), (Use(1, (1,)),), ((0, 1), (1, 0)))
    problem = Problem((Choice("a", (0,)), Choice("b", (0,))), (item,))
    conflict, relaxation = explain_infeasibility(problem, Deadline(), 0, most=0)
    assert (conflict, relaxation) == ((Requirement(0, 0), Requirement(0, 1)), ())
