"""The kernel that elimination leaves: bounded by a linear relaxation, thinned out, and only then given to CP-SAT.

Two relaxations are tried. That of single formats is small and mostly integral; that of sets of formats is larger, and
mostly integral after one or two decisions where the first is not. The dual solution, rounded to integers, gives an
exact bound; the primal one, completed by elimination, an assignment; between them few states are left, so that
elimination often finishes after all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .cpsat import Outcome, relax, solve_kernel
from .encoding import network_of
from .network import FORBIDDEN, Network
from .problem import Problem
from .reduction import eliminate, guess, walk_back
from .tighten import Relaxation, price_of, restrict, shift, worthwhile

__all__ = ["Limits", "minimise"]

States = dict[int, int]

# Larger tables make a relaxation tighter, but dearer than that is worth.
SMALL_CELLS = 32
LARGE_CELLS = 1 << 16
SETS = 16
ROUNDS = 3
DECISIONS = 12
INTEGRAL = 0.999


@dataclass(frozen=True, slots=True)
class Limits:
    """`seconds()` is what is left of the wall-clock time, None: no limit; `deterministic` is CP-SAT's own measure."""

    seconds: Callable[[], float | None]
    deterministic: float | None = None

    def over(self) -> bool:
        left = self.seconds()
        return left is not None and left <= 0


def minimise(problem: Problem, limits: Limits) -> Outcome:
    """Minimise a problem, exactly if time allows; states are those of `network_of`'s variables, choices first."""
    first = _descend(_Kernel(network_of(problem, hub_states=0)), FORBIDDEN, limits, exact=False)
    if first.status in ("optimal", "infeasible") or limits.over():
        return first
    known = FORBIDDEN if first.cost is None else first.cost
    second = _descend(_Kernel(network_of(problem, hub_states=SETS)), known, limits, exact=True)
    if second.status in ("optimal", "infeasible"):
        return second
    best = first if second.cost is None or second.cost > known else second
    return Outcome(best.status, best.states, max(first.bound or 0, second.bound or 0), best.cost)


def _descend(kernel: _Kernel, known: int, limits: Limits, *, exact: bool) -> Outcome:
    """Bound, thin out and eliminate until nothing is left; CP-SAT gets what stays, if the answer must be exact.

    There is a solution of cost `known` elsewhere, FORBIDDEN: perhaps not. Only better ones need to be found here.
    """
    best = Outcome("unknown", None, 0)
    for _ in range(ROUNDS if exact else 1):
        kernel.eliminate(SMALL_CELLS)
        if not kernel.alive or kernel.paid >= FORBIDDEN:
            return kernel.finished()
        relaxation = relax(kernel.network, kernel.alive, limits.seconds())
        if relaxation is None:
            break
        kernel.settle(relaxation)
        if kernel.paid >= FORBIDDEN:
            return kernel.finished()
        states = _dived(kernel, relaxation, limits) if exact else _rounded(kernel, relaxation.values)
        best = _better(best, kernel.outcome("feasible", states))
        if best.cost is not None and best.cost <= kernel.paid:
            return Outcome("optimal", best.states, best.cost, best.cost)
        fewer = kernel.thin(min(known, FORBIDDEN if best.cost is None else best.cost))
        if kernel.paid >= FORBIDDEN or kernel.finish(LARGE_CELLS):
            return kernel.finished()
        if not fewer:
            break
    kernel.eliminate(SMALL_CELLS)
    if not kernel.alive or kernel.paid >= FORBIDDEN:
        return kernel.finished()
    if best.states is None:
        best = kernel.outcome("feasible", guess(kernel.network.copy(), kernel.alive, SMALL_CELLS))
    if exact and not limits.over():
        hint = None if best.states is None else kernel.numbered(best.states)
        outcome = solve_kernel(kernel.network, kernel.alive, hint, limits.seconds(), limits.deterministic)
        if outcome.status in ("optimal", "infeasible"):
            return kernel.outcome(outcome.status, outcome.states)
        best = _better(best, kernel.outcome("feasible", outcome.states))
        kernel.paid += max(outcome.bound or 0, 0)
    return Outcome(best.status, best.states, kernel.paid, best.cost)


def _better(one: Outcome, other: Outcome) -> Outcome:
    if other.cost is None:
        return one
    return other if one.cost is None or other.cost < one.cost else one


class _Kernel:
    """A network on its way down: what has left it, and how to get from its states to those of the network at first."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.alive = set(range(len(network.unary)))
        self.paid = 0
        self.way_back: list[Callable[[States], States]] = []
        self.numbers = {x: list(range(len(unary))) for x, unary in enumerate(network.unary)}

    def pay(self, amount: int) -> None:
        # Rounded duals may add up to less than 0, and FORBIDDEN must not become a little less than itself.
        self.paid = FORBIDDEN if max(amount, self.paid) >= FORBIDDEN else self.paid + amount

    def eliminate(self, cells: int) -> None:
        size = len(self.network.unary)
        gone, constant = eliminate(self.network, self.alive, cells)
        self.pay(constant)

        def back(states: States) -> States:
            every = [0] * size
            for x, state in states.items():
                every[x] = state
            walk_back(gone, every)
            return {**states, **{one.variable: every[one.variable] for one in gone}}

        self.way_back.append(back)

    def finish(self, cells: int) -> bool:
        """Eliminate everything, or nothing."""
        network, alive, paid = self.network.copy(), set(self.alive), self.paid
        self.eliminate(cells)
        if not self.alive:
            return True
        self.network, self.alive, self.paid = network, alive, paid
        self.way_back.pop()
        return False

    def settle(self, relaxation: Relaxation) -> None:
        self.pay(shift(self.network, self.alive, relaxation.shifts))

    def thin(self, most: int) -> bool:
        """Drop the states that no solution of cost `most` or less has; answers whether those were many."""
        spare = min(most, FORBIDDEN - 1) - (self.paid if most < FORBIDDEN else 0)
        left = worthwhile(self.network, self.alive, spare)
        if not all(left.values()):
            self.paid = FORBIDDEN
            return True
        before = sum(len(self.network.unary[x]) for x in self.alive)
        self.network = restrict(self.network, left, spare)
        self.numbers.update({x: [self.numbers[x][state] for state in some] for x, some in left.items()})
        self.way_back.append(lambda states: {x: left[x][state] if x in left else state for x, state in states.items()})
        return sum(map(len, left.values())) < 0.9 * before

    def outcome(self, status: str, states: States | None) -> Outcome:
        """An outcome for the network at first, from the states of what is alive."""
        price = FORBIDDEN if states is None else price_of(self.network, self.alive, states)
        if states is None or price >= FORBIDDEN:
            return Outcome("infeasible" if status == "infeasible" else "unknown", None, None)
        cost = self.paid + price
        for back in reversed(self.way_back):
            states = back(states)
        return Outcome(status, states, cost if status == "optimal" else None, cost)

    def numbered(self, states: States) -> States:
        """States of the network at first, by their numbers now, where they are left."""
        return {x: self.numbers[x].index(states[x]) for x in sorted(self.alive) if states[x] in self.numbers[x]}

    def finished(self) -> Outcome:
        if self.paid >= FORBIDDEN:
            return Outcome("infeasible", None, None)
        return self.outcome("optimal", {})


def _rounded(kernel: _Kernel, values: dict[int, list[float]]) -> States | None:
    """The relaxed solution where it is integral, and what looks cheapest for the rest beside it."""
    left = {x: [state for state, value in enumerate(values[x]) if value > 1 - INTEGRAL] for x in sorted(kernel.alive)}
    states = guess(restrict(kernel.network, left, FORBIDDEN - 1), kernel.alive, LARGE_CELLS)
    return None if states is None else {x: left[x][state] for x, state in states.items()}


def _dived(kernel: _Kernel, relaxation: Relaxation, limits: Limits) -> States | None:
    """Decide the clearest fractional choice, relax again, and so on until the solution is integral."""
    values = relaxation.values
    left = {x: list(range(len(values[x]))) for x in sorted(kernel.alive)}
    for _ in range(DECISIONS):
        fractional = [x for x in left if max(values[x]) < INTEGRAL]
        if not fractional or limits.over():
            break
        x = max(fractional, key=lambda x: _clarity(kernel.network, x, values[x]))
        left[x] = [values[x].index(max(values[x]))]
        network = restrict(kernel.network, left, FORBIDDEN - 1)
        again = relax(network, {x for x in left if len(left[x]) > 1}, limits.seconds())
        if again is None:
            break
        for y, some in again.values.items():
            values[y] = [0.0] * len(values[y])
            for state, value in zip(left[y], some, strict=True):
                values[y][state] = value
        values[x] = [float(state == left[x][0]) for state in range(len(values[x]))]
    return _rounded(kernel, values)


def _clarity(network: Network, x: int, values: list[float]) -> tuple[bool, float, int, int]:
    # Choices before hubs: with all choices made, hubs follow. Rounded, so that noise does not decide.
    return x < len(network.alternatives), round(max(values), 3), len(network.neighbours[x]), -x
