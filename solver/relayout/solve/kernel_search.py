"""Search on the kernel that elimination leaves: a lower bound, an assignment, reduced-cost fixing, and CP-SAT at last.

If many formats meet in a table, dual ascent gives the bound: a linear program would have a column for each pair of
them. Otherwise the bound comes from two linear relaxations. The one over single formats is small and mostly integral.
The one over sets of formats is larger; it is integral after one or two decisions in many cases where the first is not.
Its dual solution, rounded to integers, gives an exact bound. Reduced-cost fixing then drops states, so that elimination
often finishes.
"""

from __future__ import annotations

from relayout.solve.deadline import Deadline, ExpiredError
from relayout.solve.dual_ascent import ascend
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN
from relayout.solve.or_tools import Outcome, relax, solve_kernel
from relayout.solve.primal_heuristics import complete_greedily, dive, narrow, recombine, round_values
from relayout.solve.problem import Problem
from relayout.solve.residual import Residual, States

# Larger tables tighten the relaxation but cost more than they save.
SMALL_CELLS = 32
LARGEST_TABLE = 1 << 24
ALL_SUMS = 1 << 29
"""The entries of the largest table that is left and the sums up to which elimination finishes: 128 MiB, seconds."""

SETS = 16
ROUNDS = 4
LARGE_TABLES = 1 << 11
"""The mean entries of a table from which dual ascent comes first: 45 formats on both sides, or more."""

WORTH = 0.1
"""The relaxation is solved precisely if that may narrow the gap by this share."""

ASCENTS = 3
PROGRESS = 0.03
"""The dual ascent goes on while it narrows the gap by this share."""

NARROW = (8, 12)


def minimise(
    problem: Problem, kernel: Residual, deadline: Deadline, known: int | None = None, rounds: int | None = None
) -> Outcome:
    """Minimise a problem, exactly if time allows. The states are those of `network_of`'s variables, choices first.

    `kernel` is what elimination left of the problem's network; it is consumed. `known` is the cost of a solution that
    the caller has. The outcome has no states if none is cheaper. With `rounds` the search gives up after so many rounds
    of dual ascent, or after the smaller relaxation."""
    search = _Search(deadline, FORBIDDEN if known is None else known)
    try:
        cells = kernel.cells()
        if sum(cells) >= LARGE_TABLES * max(len(cells), 1):
            if not search.ascends(kernel, rounds) and rounds is None:
                search.closes(kernel, exact=True, dives=False)
            return search.outcome()
        for sets in (0, SETS) if rounds is None else (0,):
            network = network_of(problem, set_states=sets, deadline=deadline)
            if search.closes(Residual(network, deadline), exact=sets > 0, dives=sets > 0):
                break
    except ExpiredError:
        pass
    return search.outcome()


class _Search:
    """The incumbent and the lower bound. Residual networks contain only assignments better than the incumbent."""

    def __init__(self, deadline: Deadline, known: int) -> None:
        self.deadline = deadline
        self.states: States | None = None
        self.cost = known
        self.bound = 0
        self.pool: list[States] = []

    def outcome(self) -> Outcome:
        if self.cost >= FORBIDDEN:
            nothing = self.bound >= FORBIDDEN
            return Outcome("infeasible" if nothing else "unknown", None, None if nothing else self.bound)
        status = "optimal" if self.bound >= self.cost else "feasible"
        return Outcome(status, self.states, self.bound, self.cost)

    def ascends(self, residual: Residual, rounds: int | None) -> bool:
        """Bound by dual ascent, fix and eliminate, as long as that narrows the gap, and for at most so many rounds.
        Returns whether nothing remains."""
        self.offer(residual, complete_greedily(residual, self.deadline))
        found = True
        residual.drop_states(self.cost - 1 - residual.bound)
        while not self.closed(residual):
            gap = self.cost - residual.bound
            residual.reparametrize(ascend(residual.network, residual.remaining, ASCENTS, self.deadline))
            if found:
                found = self.improves(residual)
            residual.drop_states(self.cost - 1 - residual.bound)
            if self.closed(residual) or (residual.finish(LARGEST_TABLE, ALL_SUMS) and self.closed(residual)):
                return True
            rounds = None if rounds is None else rounds - 1
            if rounds == 0 or self.cost - residual.bound > (1 - PROGRESS) * gap:
                return False
        return True

    def improves(self, residual: Residual) -> bool:
        """Find assignments by narrowing, and recombine all that were found. Returns whether one is a new incumbent."""
        before = self.cost
        for few in NARROW:
            self.offer(residual, narrow(residual, few, self.deadline))
        self.offer(residual, recombine(residual, self.pool, self.deadline))
        return self.cost < before

    def closes(self, residual: Residual, *, exact: bool, dives: bool) -> bool:
        """Bound, fix and eliminate until nothing remains; CP-SAT gets the rest if the answer must be exact."""
        # First at low precision, which mostly leaves a smaller network for the precise solve.
        precise = False
        for number in range(ROUNDS):
            residual.eliminate(SMALL_CELLS)
            if self.closed(residual):
                return True
            if self.cost >= FORBIDDEN:
                self.offer(residual, complete_greedily(residual, self.deadline))
            before = residual.bound
            relaxation = relax(residual.network, residual.remaining, self.deadline, precise=precise)
            if relaxation is None and exact and number == 0:
                precise = True
                continue
            if relaxation is None:
                break
            residual.reparametrize(relaxation)
            self.offer(residual, round_values(residual, relaxation.values, self.deadline))
            if dives and not self.closed(residual):
                self.offer(residual, dive(residual, relaxation.values, self.deadline))
            if self.closed(residual):
                return True
            fewer = residual.drop_states(self.cost - 1 - residual.bound)
            if self.closed(residual) or (residual.finish(LARGEST_TABLE, ALL_SUMS) and self.closed(residual)):
                return True
            # By so much, about, a precise solve raises the bound.
            left = before + relaxation.objective - residual.bound
            precise = exact and not precise and left > WORTH * (self.cost - residual.bound)
            if not fewer and not precise:
                break
        return exact and self.by_cpsat(residual)

    def closed(self, residual: Residual) -> bool:
        """Whether the residual contains nothing better than the incumbent; raises the lower bound."""
        if not residual.remaining:
            self.offer(residual, {})
        self.bound = max(self.bound, min(residual.bound, self.cost))
        self.deadline.found(None, self.bound)
        return self.bound >= self.cost

    def offer(self, residual: Residual, states: States | None) -> None:
        """Take the states as the incumbent if they are cheaper."""
        cost = FORBIDDEN if states is None else residual.price(states)
        if states is None or cost >= FORBIDDEN:
            return
        whole = residual.back_substituted(states)
        self.pool.append(whole)
        if cost < self.cost:
            self.cost, self.states = cost, whole
            self.deadline.found(cost, self.bound)

    def by_cpsat(self, residual: Residual) -> bool:
        residual.eliminate(SMALL_CELLS)
        if self.closed(residual):
            return True
        hint = None if self.states is None else residual.renumbered(self.states)
        outcome = solve_kernel(residual.network, residual.remaining, hint, self.deadline, residual.bound)
        self.offer(residual, outcome.states)
        residual.raise_bound(FORBIDDEN if outcome.status == "infeasible" else max(outcome.bound or 0, 0))
        return self.closed(residual)
