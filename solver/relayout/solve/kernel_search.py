"""Search on the kernel that elimination leaves: dual ascent, LP, rounding, diving, reduced-cost fixing, then CP-SAT.

Dual ascent closes most kernels of networks of few cycles. For the others two relaxations are tried. The one over single
formats is small and mostly integral. The one over sets of formats is larger; it is integral after one or two decisions
in many cases where the first is not. The dual solution, rounded to integers, gives an exact lower bound, and the primal
solution, completed by elimination, gives an assignment. Reduced-cost fixing then drops states, so that elimination
often finishes.
"""

from __future__ import annotations

from relayout.solve.deadline import Deadline, ExpiredError
from relayout.solve.dual_ascent import ascend
from relayout.solve.eliminate import greedy_states
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN, Network
from relayout.solve.or_tools import Outcome, relax, solve_kernel
from relayout.solve.problem import Problem
from relayout.solve.reparametrize import restrict
from relayout.solve.residual import Residual, States

__all__ = ["minimise"]

# Larger tables tighten the relaxation but cost more than they save.
SMALL_CELLS = 32
LARGE_CELLS = 1 << 16
SETS = 16
ROUNDS = 4
PASSES = 20
DECISIONS = 12
INTEGRAL = 0.999
CLEAR = 0.9
SHARE = 10


def minimise(problem: Problem, kernel: Residual, deadline: Deadline, known: int | None = None) -> Outcome:
    """Minimise a problem, exactly if time allows. The states are those of `network_of`'s variables, choices first.

    `kernel` is what elimination left of the problem's network; it is consumed. `known` is the cost of a solution that
    the caller has. The outcome has no states if none is cheaper."""
    search = _Search(deadline, FORBIDDEN if known is None else known)
    try:
        if search.ascends(kernel):
            return search.outcome()
        for sets in (0, SETS):
            if search.closes(
                Residual(network_of(problem, set_states=sets, deadline=deadline), deadline), exact=sets > 0
            ):
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

    def outcome(self) -> Outcome:
        if self.cost >= FORBIDDEN:
            nothing = self.bound >= FORBIDDEN
            return Outcome("infeasible" if nothing else "unknown", None, None if nothing else self.bound)
        status = "optimal" if self.bound >= self.cost else "feasible"
        return Outcome(status, self.states, self.bound, self.cost)

    def ascends(self, residual: Residual) -> bool:
        """Bound by dual ascent, fix and eliminate, as long as that narrows the gap. Returns whether nothing remains."""
        for _ in range(ROUNDS):
            self.offer(residual, _greedy(residual, self.deadline))
            residual.drop_states(self.cost - 1 - residual.bound)
            if self.closed(residual):
                return True
            gap = self.cost - residual.bound
            residual.reparametrize(ascend(residual.network, residual.remaining, PASSES, self.deadline))
            self.offer(residual, _greedy(residual, self.deadline))
            residual.drop_states(self.cost - 1 - residual.bound)
            if self.closed(residual) or (residual.finish(LARGE_CELLS) and self.closed(residual)):
                return True
            if self.cost - residual.bound > gap // 2:
                break
        return False

    def closes(self, residual: Residual, *, exact: bool) -> bool:
        """Bound, fix and eliminate until nothing remains; CP-SAT gets the rest if the answer must be exact."""
        # First at low precision, which mostly leaves a smaller network for the precise solve.
        precise = False
        for _ in range(ROUNDS):
            residual.eliminate(SMALL_CELLS)
            if self.closed(residual):
                return True
            if self.cost >= FORBIDDEN:
                self.offer(residual, _greedy(residual, self.deadline))
            relaxation = relax(residual.network, residual.remaining, self.deadline, precise=precise)
            if relaxation is None and exact and not precise:
                precise = True
                continue
            if relaxation is None:
                break
            residual.reparametrize(relaxation)
            self.offer(residual, _round(residual, relaxation.values, self.deadline))
            if exact and not self.closed(residual):
                self.offer(residual, _dive(residual, relaxation.values, self.deadline))
            if self.closed(residual):
                return True
            fewer = residual.drop_states(self.cost - 1 - residual.bound)
            if self.closed(residual) or (residual.finish(LARGE_CELLS) and self.closed(residual)):
                return True
            if not fewer and (precise or not exact):
                break
            precise = exact
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
        if states is None:
            return
        cost = residual.price(states)
        if cost < self.cost:
            self.cost, self.states = cost, residual.back_substituted(states)
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


def _greedy(residual: Residual, deadline: Deadline) -> States | None:
    return greedy_states(residual.network.copy(), residual.remaining, SMALL_CELLS, deadline=deadline)


def _round(residual: Residual, values: dict[int, list[float]], deadline: Deadline) -> States | None:
    """LP rounding: integral variables keep their state, rule RN completes the rest."""
    left = {
        x: [state for state, value in enumerate(values[x]) if value > 1 - INTEGRAL] for x in sorted(residual.remaining)
    }
    return _complete(residual, left, deadline)


def _dive(residual: Residual, values: dict[int, list[float]], deadline: Deadline) -> States | None:
    """Diving: fix the clearest variables, solve the relaxation again, until it is integral; None: it already is."""
    values = dict(values)
    left = {x: list(range(len(values[x]))) for x in sorted(residual.remaining)}
    fractional = [x for x in left if max(values[x]) < INTEGRAL]
    if not fractional:
        return None
    for _ in range(DECISIONS):
        clearest = sorted(fractional, key=lambda x: _clarity(residual.network, x, values[x]), reverse=True)
        decided = set(clearest[: 1 + len(clearest) // SHARE])
        for x in left:
            if x in decided or max(values[x]) > CLEAR:
                left[x] = [left[x][values[x].index(max(values[x]))]]
                values[x] = [1.0]
        rest = {x for x in left if len(left[x]) > 1}
        again = relax(restrict(residual.network, left, FORBIDDEN - 1), rest, deadline, precise=False) if rest else None
        if again is None:
            break
        values.update(again.values)
        fractional = [x for x in rest if max(values[x]) < INTEGRAL]
        if not fractional:
            break
    left = {
        x: [state for state, value in zip(some, values[x], strict=True) if value > 1 - INTEGRAL]
        for x, some in left.items()
    }
    return _complete(residual, left, deadline)


def _complete(residual: Residual, left: dict[int, list[int]], deadline: Deadline) -> States | None:
    states = greedy_states(
        restrict(residual.network, left, FORBIDDEN - 1), residual.remaining, LARGE_CELLS, deadline=deadline
    )
    return None if states is None else {x: left[x][state] for x, state in states.items()}


def _clarity(network: Network, x: int, values: list[float]) -> tuple[bool, float, int, int]:
    # Choices before set variables, which they determine. Rounded, so that numerical noise does not decide.
    return x < len(network.alternatives), round(max(values), 3), len(network.neighbours[x]), -x
