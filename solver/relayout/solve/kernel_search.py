"""The kernel that elimination leaves: bounded by a linear relaxation, thinned out, and only then given to CP-SAT.

Two relaxations are tried. That of single formats is small and mostly integral; that of sets of formats is larger, and
mostly integral after one or two decisions where the first is not. The dual solution, rounded to integers, gives an
exact bound; the primal one, completed by elimination, an assignment; only states that could be part of a better one
are left, so that elimination often finishes after all.
"""

from __future__ import annotations

from relayout.solve.deadline import Clock, ExpiredError
from relayout.solve.eliminate import guess
from relayout.solve.encode import network_of
from relayout.solve.network import FORBIDDEN, Network
from relayout.solve.or_tools import Outcome, relax, solve_kernel
from relayout.solve.problem import Problem
from relayout.solve.reparametrize import restrict
from relayout.solve.residual import Kernel, States

__all__ = ["minimise"]

# Larger tables make a relaxation tighter, but dearer than that is worth.
SMALL_CELLS = 32
LARGE_CELLS = 1 << 16
SETS = 16
ROUNDS = 4
DECISIONS = 12
INTEGRAL = 0.999
CLEAR = 0.9
SHARE = 10


def minimise(problem: Problem, clock: Clock, known: int | None = None) -> Outcome:
    """Minimise a problem, exactly if time allows; states are those of `network_of`'s variables, choices first.

    `known` is what a solution costs that the caller has; where there are no states with a cost, none is cheaper.
    """
    search = _Search(clock, FORBIDDEN if known is None else known)
    try:
        for sets in (0, SETS):
            if search.closes(Kernel(network_of(problem, hub_states=sets, clock=clock), clock), exact=sets > 0):
                break
    except ExpiredError:
        pass
    return search.outcome()


class _Search:
    """The best solution so far, and the bound. Kernels hold only what would be better."""

    def __init__(self, clock: Clock, known: int) -> None:
        self.clock = clock
        self.states: States | None = None
        self.cost = known
        self.bound = 0

    def outcome(self) -> Outcome:
        if self.cost >= FORBIDDEN:
            nothing = self.bound >= FORBIDDEN
            return Outcome("infeasible" if nothing else "unknown", None, None if nothing else self.bound)
        status = "optimal" if self.bound >= self.cost else "feasible"
        return Outcome(status, self.states, self.bound, self.cost)

    def closes(self, kernel: Kernel, *, exact: bool) -> bool:
        """Bound, thin out and eliminate until nothing is left; CP-SAT gets what stays, if the answer must be exact."""
        # Roughly first: what that leaves is mostly less, and the next solution starts no earlier.
        precise = False
        for _ in range(ROUNDS):
            kernel.eliminate(SMALL_CELLS)
            if self.closed(kernel):
                return True
            if self.cost >= FORBIDDEN:
                self.offer(kernel, guess(kernel.network.copy(), kernel.alive, SMALL_CELLS, clock=self.clock))
            relaxation = relax(kernel.network, kernel.alive, self.clock, precise=precise)
            if relaxation is None and exact and not precise:
                precise = True
                continue
            if relaxation is None:
                break
            kernel.settle(relaxation)
            self.offer(kernel, _rounded(kernel, relaxation.values, self.clock))
            if exact and not self.closed(kernel):
                self.offer(kernel, _dived(kernel, relaxation.values, self.clock))
            if self.closed(kernel):
                return True
            fewer = kernel.thin(self.cost - 1 - kernel.paid)
            if self.closed(kernel) or (kernel.finish(LARGE_CELLS) and self.closed(kernel)):
                return True
            if not fewer and (precise or not exact):
                break
            precise = exact
        return exact and self.by_cpsat(kernel)

    def closed(self, kernel: Kernel) -> bool:
        """Whether nothing better than what is known can come of the kernel any more."""
        if not kernel.alive:
            self.offer(kernel, {})
        self.bound = max(self.bound, min(kernel.paid, self.cost))
        return self.bound >= self.cost

    def offer(self, kernel: Kernel, states: States | None) -> None:
        """States of what is left: taken where they make the best solution so far."""
        if states is None:
            return
        cost = kernel.price(states)
        if cost < self.cost:
            self.cost, self.states = cost, kernel.restored(states)

    def by_cpsat(self, kernel: Kernel) -> bool:
        kernel.eliminate(SMALL_CELLS)
        if self.closed(kernel):
            return True
        hint = None if self.states is None else kernel.numbered(self.states)
        outcome = solve_kernel(kernel.network, kernel.alive, hint, self.clock)
        self.offer(kernel, outcome.states)
        kernel.pay(FORBIDDEN if outcome.status == "infeasible" else max(outcome.bound or 0, 0))
        return self.closed(kernel)


def _rounded(kernel: Kernel, values: dict[int, list[float]], clock: Clock) -> States | None:
    """The relaxed solution where it is integral, and what looks cheapest for the rest beside it."""
    left = {x: [state for state, value in enumerate(values[x]) if value > 1 - INTEGRAL] for x in sorted(kernel.alive)}
    return _guessed(kernel, left, clock)


def _dived(kernel: Kernel, values: dict[int, list[float]], clock: Clock) -> States | None:
    """Decide what is clear, relax the rest again, until the solution is integral; None where it is already."""
    values = dict(values)
    left = {x: list(range(len(values[x]))) for x in sorted(kernel.alive)}
    fractional = [x for x in left if max(values[x]) < INTEGRAL]
    if not fractional:
        return None
    for _ in range(DECISIONS):
        clearest = sorted(fractional, key=lambda x: _clarity(kernel.network, x, values[x]), reverse=True)
        decided = set(clearest[: 1 + len(clearest) // SHARE])
        for x in left:
            if x in decided or max(values[x]) > CLEAR:
                left[x] = [left[x][values[x].index(max(values[x]))]]
                values[x] = [1.0]
        rest = {x for x in left if len(left[x]) > 1}
        again = relax(restrict(kernel.network, left, FORBIDDEN - 1), rest, clock, precise=False) if rest else None
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
    return _guessed(kernel, left, clock)


def _guessed(kernel: Kernel, left: dict[int, list[int]], clock: Clock) -> States | None:
    states = guess(restrict(kernel.network, left, FORBIDDEN - 1), kernel.alive, LARGE_CELLS, clock=clock)
    return None if states is None else {x: left[x][state] for x, state in states.items()}


def _clarity(network: Network, x: int, values: list[float]) -> tuple[bool, float, int, int]:
    # Choices before hubs: with all choices made, hubs follow. Rounded, so that noise does not decide.
    return x < len(network.alternatives), round(max(values), 3), len(network.neighbours[x]), -x
