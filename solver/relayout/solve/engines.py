"""Two engines: exact elimination with a search on the kernel, and CP-SAT on the whole problem."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from relayout.solve.deadline import Deadline, ExpiredError
from relayout.solve.eliminate import Eliminated, infeasible_scope
from relayout.solve.encode import check_range, network_of
from relayout.solve.network import FORBIDDEN, Network, Tables
from relayout.solve.problem import Item, Problem, Use, cost_of
from relayout.solve.residual import Residual

CELLS = 1 << 16
LARGEST_TABLE = 1 << 24
ALL_SUMS = 1 << 26
"""The entries of the largest table and the sums of all up to which elimination goes on to the end: about as long as the
import of ortools."""

WIDE_SUMS = 1 << 33
SUMS_PER_SECOND = 5 << 25
"""A network without set variables is eliminated if that takes at most so many sums, which is a minute, and about two
thirds of the time that is left."""

WIDE_TABLE = 1 << 26
WIDE_LEFT = 1 << 27
"""The entries of the largest table and of all tables that the elimination may leave: 512 MiB and 1 GiB."""

SOON_SUMS = 1 << 31
SUMS_PER_CELL = 1 << 7
"""If it takes more than the former, ten seconds, or leaves a table above LARGEST_TABLE, the search on the kernel is
tried first, for about as long: a round of it takes as long as so many sums for each entry of the kernel's tables."""

MANY_FORMATS = 16
"""From so many formats on, an item with two consumers has several set variables."""


class Answer(Struct, frozen=True):
    """The result of an engine, with the number of choices in the kernel.

    `seed` is a choice near the conflict of an infeasible problem."""

    status: str
    assignment: tuple[int, ...] | None
    bound: int | None
    engine: str
    kernel: int = 0
    seed: int = 0


def by_reduction(problem: Problem, deadline: Deadline, tables: Tables | None = None) -> Answer:
    """Eliminate, then search on the kernel. If the deadline passes before, the answer is greedy. `tables` are shared
    with similar problems."""
    try:
        return _reduced(problem, deadline, tables)
    except ExpiredError:
        deadline.stage("eliminate")
    assignment = greedy(problem)
    status = "unknown" if assignment is None else "feasible"
    return Answer(status, assignment, least_own_costs(problem), "elimination")


def _reduced(problem: Problem, deadline: Deadline, tables: Tables | None) -> Answer:
    whole: _Whole | None = None
    if any(len(item.conversion) >= MANY_FORMATS and len(item.consumers) > 1 for item in problem.items):
        whole = _Whole(problem, deadline, tables)
        if whole.is_soon and whole.sums <= whole.affordable(SOON_SUMS):
            return whole.answer()
    residual = Residual(network_of(problem, deadline=deadline, tables=tables), deadline)
    deadline.stage("build")
    eliminated = residual.eliminate(CELLS)
    if residual.fits(LARGEST_TABLE, ALL_SUMS):
        eliminated += residual.eliminate(ALL_SUMS)
    deadline.stage("eliminate")
    if not residual.remaining or residual.bound >= FORBIDDEN:
        return _eliminated(problem, residual, eliminated, deadline)
    whole = whole or _Whole(problem, deadline, tables)
    rounds = None
    if whole.sums <= whole.affordable(WIDE_SUMS):
        rounds = whole.sums // (sum(residual.cells()) * SUMS_PER_CELL)
        if rounds == 0 or whole.is_soon:
            return whole.answer()
    # Imported late: the import of ortools takes longer than most runs.
    from relayout.solve.kernel_search import minimise

    engine, kernel = "elimination+cp-sat", sum(1 for x in residual.remaining if x < len(problem.choices))
    first = greedy(problem)
    known = None if first is None else cost_of(problem, first)
    deadline.found(known, 0)
    outcome = minimise(problem, residual, deadline, known, rounds)
    deadline.stage("kernel")
    if rounds is not None and outcome.status in ("feasible", "unknown"):
        with suppress(ExpiredError):
            return whole.answer()
    assignment = first if outcome.states is None else _assignment(residual.network, outcome.states)
    bound = outcome.bound
    if outcome.status in ("feasible", "unknown"):
        bound = max(bound or 0, least_own_costs(problem))
    return Answer(outcome.status, assignment, bound, engine, kernel)


def _eliminated(problem: Problem, residual: Residual, eliminated: list[Eliminated], deadline: Deadline) -> Answer:
    """The answer where elimination leaves nothing, or no allowed state."""
    if residual.bound >= FORBIDDEN:
        seed = next((x for x in infeasible_scope(residual.network, eliminated) if x < len(problem.choices)), 0)
        return Answer("infeasible", None, None, "elimination", seed=seed)
    states = residual.back_substituted({})
    deadline.stage("substitute")
    return Answer("optimal", _assignment(residual.network, states), residual.bound, "elimination")


class _Whole:
    """The network without set variables, and the sums that its elimination takes; FORBIDDEN: it leaves too much.
    `is_soon`: no search is tried first.

    An item with two consumers of hundreds of formats has dozens of set variables. Without them, the choices of a chain
    of blocks meet in tables of three or four. Items that reuse copies, and those of too many combinations, keep theirs.
    """

    def __init__(self, problem: Problem, deadline: Deadline, tables: Tables | None) -> None:
        self._problem, self._deadline = problem, deadline
        self._residual = Residual(network_of(problem, widest=WIDE_SUMS, deadline=deadline, tables=tables), deadline)
        size = self._residual.elimination_size(by_size=True)
        self.sums = size.sums if size.largest <= WIDE_TABLE and size.all <= WIDE_LEFT else FORBIDDEN
        self.is_soon = self.sums <= SOON_SUMS and size.largest <= LARGEST_TABLE
        deadline.stage("build")

    def affordable(self, most: int) -> float:
        """The sums that there is time for: at most so many."""
        left = self._deadline.left()
        return most if left is None else min(most, left * SUMS_PER_SECOND)

    def answer(self) -> Answer:
        eliminated = self._residual.eliminate(self.sums, by_size=True)
        self._deadline.stage("eliminate")
        return _eliminated(self._problem, self._residual, eliminated, self._deadline)


def by_cpsat(problem: Problem, deadline: Deadline, hint: Sequence[int] | None, max_conversions: int | None) -> Answer:
    """Solve the whole problem with CP-SAT. Raises InputError if the costs are too large."""
    check_range(problem)
    from relayout.solve.or_tools import solve_whole

    free = free_choices(problem)
    try:
        outcome = solve_whole(problem, hint=hint, deadline=deadline, max_conversions=max_conversions)
    except ExpiredError:
        deadline.stage("cp-sat")
        return Answer("unknown", None, least_own_costs(problem), "cp-sat", free)
    deadline.stage("cp-sat")
    assignment = None if outcome.states is None else tuple([outcome.states[c] for c in range(len(problem.choices))])
    return Answer(outcome.status, assignment, outcome.bound, "cp-sat", free)


def free_choices(problem: Problem) -> int:
    """The number of choices with more than one alternative."""
    return sum(1 for choice in problem.choices if len(choice.costs) > 1)


def _assignment(network: Network, states: list[int] | dict[int, int]) -> tuple[int, ...]:
    return tuple([alternatives[states[c]] for c, alternatives in enumerate(network.alternatives)])


def least_own_costs(problem: Problem) -> int:
    """A lower bound without search: the sum of the least own cost of every choice."""
    return sum([min(choice.costs) for choice in problem.choices])


def greedy(problem: Problem) -> tuple[int, ...] | None:
    """Each choice, in order, takes the cheapest alternative given the earlier choices; None: no alternative exists."""
    produced: list[list[int]] = [[] for _ in problem.choices]
    read: list[list[tuple[int, Use]]] = [[] for _ in problem.choices]
    for index, value in enumerate(problem.items):
        produced[value.producer.choice].append(index)
        for use in value.consumers:
            read[use.choice].append((index, use))
    sources: list[int | None] = [None] * len(problem.items)
    wanted: list[set[int]] = [set() for _ in problem.items]
    assignment: list[int] = []
    for c, choice in enumerate(problem.choices):
        best: tuple[int, int] | None = None
        for a, own in enumerate(choice.costs):
            price = _price(problem.items, produced[c], read[c], sources, wanted, a)
            if price is not None and (best is None or own + price < best[0]):
                best = own + price, a
        if best is None:
            return None
        assignment.append(best[1])
        for index in produced[c]:
            sources[index] = problem.items[index].producer.formats[best[1]]
        for index, use in read[c]:
            wanted[index].add(use.formats[best[1]])
    return tuple(assignment)


def _price(
    values: Sequence[Item],
    produced: Sequence[int],
    read: Sequence[tuple[int, Use]],
    sources: Sequence[int | None],
    wanted: Sequence[set[int]],
    alternative: int,
) -> int | None:
    """The cost of the conversions that one alternative adds; None: one of them does not exist."""
    total = 0
    fresh: set[tuple[int, int]] = set()
    here = {index: values[index].producer.formats[alternative] for index in produced}
    for index, use in read:
        target = use.formats[alternative]
        source = here.get(index, sources[index])
        if source is None or target == source or target in wanted[index] or (index, target) in fresh:
            continue
        fresh.add((index, target))
        price = values[index].conversion[source][target]
        if price is None:
            return None
        total += price
    for index, source in here.items():
        for target in wanted[index] - {source}:
            price = values[index].conversion[source][target]
            if price is None:
                return None
            total += price
    return total
