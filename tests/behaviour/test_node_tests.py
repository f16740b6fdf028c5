"""The node tests of onnx are legalized: a sample with every operator.

`benchmarks/node_tests.py` runs all of them for every backend.
"""

from __future__ import annotations

import pytest
from node_cases import backends, cases, check, operators, sample, wrapped

EVERY, CHUNKS = 40, 4
DEFAULT = "onnx"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_node_test_s_legal_model_gives_the_outputs_that_onnx_expects(chunk: int) -> None:
    """For the default backend, and for the others in rotation."""
    others = [name for name in backends() if name != DEFAULT]
    chosen = list(enumerate(sample(EVERY)))[chunk::CHUNKS]
    faults, judged = [], 0
    for n, case in chosen:
        for backend in (DEFAULT, others[n % len(others)]):
            outcome = check(case, backend)
            faults += [f"{case.name}, {backend}: {fault}" for fault in outcome.faults]
            judged += bool(outcome.runtime)
    assert faults == []
    assert judged >= 0.9 * 2 * len(chosen)


def test_transposes_that_cancel_each_other_cost_nothing_around_any_operator() -> None:
    chosen = sample(EVERY)[::4]
    outcomes = [(case, check(wrapped(case), DEFAULT, unwrapped=case)) for case in chosen]
    assert [f"{case.name}: {fault}" for case, outcome in outcomes for fault in outcome.faults] == []
    assert len(chosen) > 50


def test_the_sample_has_every_operator_of_the_node_tests() -> None:
    chosen = sample(EVERY)
    assert len(chosen) < len(cases()) / 4
    assert set().union(*map(operators, chosen)) == set().union(*map(operators, cases()))
