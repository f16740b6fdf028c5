"""A solution written out with its problem, for a checker that knows neither the solver nor the graph."""

from __future__ import annotations

from typing import Any

from relayout.solve.problem import Problem, Use
from relayout.solve.solver import Solution


def certificate_of(
    problem: Problem, solution: Solution, *, most: int | None = None, unit: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    """The problem, the assignment, its cost and the bound as JSON, for `relayout.verification.cost.certificate`.

    `most` is the limit on conversions that the solver kept; `unit`, (weight, divisor), says that a cost is
    cost // weight * divisor in the objective's unit.
    """
    return {
        "version": 1,
        "unit": list(unit),
        "most": most,
        "choices": [list(choice.costs) for choice in problem.choices],
        "items": [
            {
                "producer": _use(item.producer),
                "consumers": [_use(use) for use in item.consumers],
                "conversion": [list(row) for row in item.conversion],
                "reuses_copies": item.reuses_copies,
            }
            for item in problem.items
        ],
        "assignment": list(solution.assignment or ()),
        "cost": solution.cost,
        "bound": solution.bound,
    }


def _use(use: Use) -> list[Any]:
    return [use.choice, list(use.formats)]
