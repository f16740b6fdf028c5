"""Primal heuristics: assignments of a kernel, found from reduced costs or from the solution of its relaxation.

Each returns states of the residual's remaining variables, or None if it finds no feasible ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.solve.deadline import Deadline
from relayout.solve.dual_ascent import ascend
from relayout.solve.eliminate import greedy_states
from relayout.solve.network import FORBIDDEN, Network
from relayout.solve.or_tools import relax
from relayout.solve.reparametrize import restrict
from relayout.solve.residual import Residual, States

SMALL_CELLS = 32
LARGE_CELLS = 1 << 16
FEW_CELLS = 1 << 18
FEW_STATES = 4
DECISIONS = 12
INTEGRAL = 0.999
CLEAR = 0.9
SHARE = 10


def narrow(residual: Residual, few: int, deadline: Deadline) -> States | None:
    """Keep a quarter of each variable's states, those of least reduced cost; ascend; repeat; eliminate the last few."""
    beam = Residual(residual.network.copy(), deadline)
    beam.remaining = set(residual.remaining)
    while beam.bound < FORBIDDEN:
        most = max([len(beam.network.unary[x]) for x in beam.remaining])
        beam.keep({x: _least(beam.network, x, max(few, len(beam.network.unary[x]) // 4)) for x in beam.remaining})
        if most <= 4 * few:
            break
        beam.drop_states(FORBIDDEN - 1)
        if beam.bound < FORBIDDEN:
            beam.reparametrize(ascend(beam.network, beam.remaining, 1, deadline))
    states = greedy_states(beam.network, beam.remaining, FEW_CELLS, deadline=deadline)
    return None if states is None else beam.back_substituted(states)


def recombine(residual: Residual, pool: Sequence[States], deadline: Deadline) -> States | None:
    """The best assignment of the states in any of the pool, and of the few with least reduced costs."""
    known = [residual.renumbered(states) for states in pool]
    left = {
        x: sorted({*_least(residual.network, x, FEW_STATES), *[states[x] for states in known if x in states]})
        for x in sorted(residual.remaining)
    }
    return _complete(residual, left, FEW_CELLS, deadline)


def _least(network: Network, x: int, number: int) -> list[int]:
    """The states with least reduced costs, ascending."""
    return sorted(network.least(x).argsort(kind="stable")[:number].tolist())


def complete_greedily(residual: Residual, deadline: Deadline) -> States | None:
    """Rule RN of PBQP."""
    return greedy_states(residual.network.copy(), residual.remaining, SMALL_CELLS, deadline=deadline)


def round_values(residual: Residual, values: dict[int, list[float]], deadline: Deadline) -> States | None:
    """LP rounding: integral variables keep their state, rule RN completes the rest."""
    left = {
        x: [state for state, value in enumerate(values[x]) if value > 1 - INTEGRAL] for x in sorted(residual.remaining)
    }
    return _complete(residual, left, LARGE_CELLS, deadline)


def dive(residual: Residual, values: dict[int, list[float]], deadline: Deadline) -> States | None:
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
    return _complete(residual, left, LARGE_CELLS, deadline)


def _complete(residual: Residual, left: dict[int, list[int]], cells: int, deadline: Deadline) -> States | None:
    network = restrict(residual.network, left, FORBIDDEN - 1)
    states = greedy_states(network, residual.remaining, cells, deadline=deadline)
    return None if states is None else {x: left[x][state] for x, state in states.items()}


def _clarity(network: Network, x: int, values: list[float]) -> tuple[bool, float, int, int]:
    # Choices before set variables, which they determine. Rounded, so that numerical noise does not decide.
    return x < len(network.alternatives), round(max(values), 3), len(network.neighbours[x]), -x
