"""Random graphs under random backends: tables of rules, and several devices in one graph."""

from __future__ import annotations

import contextlib
from functools import cache

import pytest
from fuzzing import check, runs
from random_graphs import RandomGraph, Rejected
from random_patterns import draw_graph
from random_tables import KINDS, draw_specified

GRAPHS, CHUNK = 40, 10
"""`benchmarks/fuzz.py --backends table` or `devices` draws thousands."""

FOUND = (720049, 720104)
"""Devices between which a second run moved an operator or a conversion."""


@cache
def graph_of(seed: int) -> RandomGraph | None:
    """The graph of a seed, drawn once for all kinds of backends; None where there is none that runs."""
    with contextlib.suppress(Rejected):
        graph = draw_graph(seed)
        return graph if runs(graph) else None
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_random_legal_graphs_compute_the_same(first: int, kind: str) -> None:
    drawn = 0
    for seed in range(first, first + CHUNK):
        if (graph := graph_of(seed)) is not None:
            drawn += 1
            assert check(graph, draw_specified(graph, kind), deep=seed % CHUNK == 0) == [], f"seed {seed}"
    assert drawn >= CHUNK - 2


@pytest.mark.parametrize("seed", FOUND)
def test_a_second_run_that_changed_the_model_changes_it_no_more(seed: int) -> None:
    graph = draw_graph(seed)
    assert check(graph, draw_specified(graph, "devices")) == []
