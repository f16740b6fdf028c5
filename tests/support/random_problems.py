"""Random layout problems, small enough for brute force, and their optimum by brute force."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from random import Random
from types import ModuleType

from hypothesis import strategies as st

from relayout.solve.problem import Choice, Item, Problem, Use, conversions_of, cost_of


def random_problem(draw: Random, most: int = 6, most_formats: int = 3, *, reuses: bool = False) -> Problem:
    """A problem of up to `most` choices of 1 to 3 alternatives, and up to `most` + 2 values.

    Values may have several consumers. One choice may use a value twice, even its producer, and may produce several
    values. Some conversions do not exist. The consumers of one value may all read another one, whose formats have other
    indices. With `reuses` the copies of some values are reused.
    """
    missing = draw.choice((0.0, 0.0, 0.15, 0.4))
    choices = [
        Choice(f"c{c}", tuple(draw.randint(0, 5) for _ in range(draw.randint(1, 3))))
        for c in range(draw.randint(1, most))
    ]

    def use(formats: int, choice: int | None = None) -> Use:
        choice = draw.randrange(len(choices)) if choice is None else choice
        return Use(choice, tuple(draw.randrange(formats) for _ in choices[choice].costs))

    values: list[Item] = []
    for v in range(draw.randint(0, most + 2)):
        formats = draw.randint(1, most_formats)
        consumers = [use(formats) for _ in range(draw.randint(0, 4))]
        if values and draw.random() < 0.4:
            other = draw.choice(values)
            formats = len(other.conversion)
            renamed = draw.sample(range(formats), formats)
            consumers = [Use(one.choice, tuple(renamed[f] for f in one.formats)) for one in other.consumers]
            consumers += [use(formats) for _ in range(draw.randint(0, 2))]
        conversion = tuple(
            tuple(0 if f == g else None if draw.random() < missing else draw.randint(0, 6) for g in range(formats))
            for f in range(formats)
        )
        values.append(Item(f"v{v}", use(formats), tuple(consumers), conversion, reuses and draw.random() < 0.5))
    return Problem(tuple(choices), tuple(values))


def problems(most: int = 6, most_formats: int = 3, *, reuses: bool = False) -> st.SearchStrategy[Problem]:
    """Random problems for hypothesis. A failing example shows the seed."""
    return st.integers(0, 2**32).map(lambda seed: random_problem(Random(seed), most, most_formats, reuses=reuses))


def cheapest(problem: Problem, max_conversions: int | None = None) -> int | None:
    """The optimum over all assignments with at most `max_conversions` conversions of non-zero cost, or None."""
    best: int | None = None
    for assignment in product(*[range(len(choice.costs)) for choice in problem.choices]):
        cost = cost_of(problem, assignment)
        if cost is None or (best is not None and cost >= best):
            continue
        if max_conversions is None or paid_conversions(problem, assignment) <= max_conversions:
            best = cost
    return best


def paid_conversions(problem: Problem, assignment: tuple[int, ...]) -> int:
    return sum(bool(problem.items[v].conversion[s][t]) for v, s, t in conversions_of(problem, assignment))


def synthetic() -> ModuleType:
    """The module `benchmarks/synthetic.py`."""
    path = Path(__file__).parents[2] / "benchmarks" / "synthetic.py"
    spec = spec_from_file_location("synthetic", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault("synthetic", module_from_spec(spec))
    spec.loader.exec_module(module)
    return module
