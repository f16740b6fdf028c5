"""The kernel that elimination leaves: bounded by its linear relaxation, thinned out, and only then given to CP-SAT.

The relaxation is nearly always integral here (measured: docs/mathematics.md). Its dual solution, rounded to integers,
gives an exact bound; its primal solution, completed by elimination, an incumbent; together they leave so few states
that elimination often finishes after all. CP-SAT gets the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .cpsat import Outcome, relax, solve_kernel
from .network import FORBIDDEN, Network
from .reduction import Eliminated, eliminate, guess, walk_back
from .tighten import price, restrict, shift, worthwhile

__all__ = ["Limits", "minimise"]

# Tables of up to this many cells are worth having in the relaxation and in CP-SAT; a round each.
CELLS = (32, 256, 1024)
LARGE_CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """`seconds()` is what is left of the wall-clock time, None: no limit; `deterministic` is CP-SAT's own measure."""

    seconds: Callable[[], float | None]
    deterministic: float | None = None


def minimise(network: Network, alive: set[int], limits: Limits, round_: int = 0) -> Outcome:
    """Minimise a network over the variables in `alive`, exactly if time allows; uses both up.

    The outcome holds the state of every variable of `alive`, and a bound on the cost of the whole network.
    """
    gone: list[Eliminated] = []
    constant = 0
    if round_:
        trial, left = network.copy(), set(alive)
        gone, constant = eliminate(trial, left, LARGE_CELLS)
        if not left:
            network, alive = trial, left
    if alive:
        gone, constant = eliminate(network, alive, CELLS[round_])
    if constant >= FORBIDDEN:
        return Outcome("infeasible", None, None)
    outcome = _bounded(network, alive, limits, round_) if alive else Outcome("optimal", {}, 0)
    bound = None if outcome.bound is None else outcome.bound + constant
    return Outcome(outcome.status, _complete(network, gone, outcome.states), bound)


def _complete(network: Network, gone: list[Eliminated], found: dict[int, int] | None) -> dict[int, int] | None:
    if found is None:
        return None
    states = [0] * len(network.unary)
    for x, state in found.items():
        states[x] = state
    walk_back(gone, states)
    return {**found, **{one.variable: states[one.variable] for one in gone}}


def _bounded(network: Network, alive: set[int], limits: Limits, round_: int) -> Outcome:
    """Bound a kernel, thin it out and go on with what is left of it."""
    best = guess(network.copy(), alive, CELLS[0])
    relaxation = relax(network, alive, limits.seconds()) if round_ + 1 < len(CELLS) else None
    if relaxation is None:
        return _with_cpsat(network, alive, limits, best)
    bound = shift(network, alive, relaxation.shifts)
    if bound >= FORBIDDEN:
        return Outcome("infeasible", None, None)
    best, cost = _cheaper(network, alive, best, _rounded(network, alive, relaxation.values))
    most = min(cost, FORBIDDEN - 1)
    left = worthwhile(network, alive, most)
    if not all(left.values()):
        return Outcome("infeasible", None, None)
    rest = minimise(restrict(network, left, most), set(alive), limits, round_ + 1)
    found = None if rest.states is None else {x: left[x][state] for x, state in rest.states.items()}
    best, cost = _cheaper(network, alive, found, best)
    bound += rest.bound or 0
    if rest.status in ("optimal", "infeasible"):
        return Outcome(rest.status, best, bound)
    return Outcome("unknown" if best is None else "feasible", best, bound)


def _cheaper(
    network: Network, alive: set[int], one: dict[int, int] | None, other: dict[int, int] | None
) -> tuple[dict[int, int] | None, int]:
    """The cheaper of two assignments, the first where they are equal, and its cost."""
    costs = [FORBIDDEN if states is None else price(network, alive, states) for states in (one, other)]
    if min(costs) >= FORBIDDEN:
        return None, FORBIDDEN
    return (one, costs[0]) if costs[0] <= costs[1] else (other, costs[1])


def _rounded(network: Network, alive: set[int], values: dict[int, list[float]]) -> dict[int, int] | None:
    """The relaxed solution where it is integral, and what is cheapest for the others beside it."""
    left = {x: [state for state, value in enumerate(values[x]) if value > 1e-3] for x in sorted(alive)}
    rest = restrict(network, left, FORBIDDEN - 1)
    states = guess(rest, alive, LARGE_CELLS)
    return None if states is None else {x: left[x][state] for x, state in states.items()}


def _with_cpsat(network: Network, alive: set[int], limits: Limits, best: dict[int, int] | None) -> Outcome:
    outcome = solve_kernel(network, alive, best, limits.seconds(), limits.deterministic)
    if outcome.status == "unknown" and best is not None:
        # A stop inside presolve answers nothing at all, even with a complete hint.
        return Outcome("feasible", best, outcome.bound)
    return outcome
