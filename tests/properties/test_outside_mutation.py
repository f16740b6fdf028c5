"""Mutation from outside: the verifier refuses every wrong model that an engine apart from relayout makes.

A mutant is wrong if onnxruntime gives other outputs for some inputs, or if it breaks the contract by construction.
"""

from __future__ import annotations

from collections import Counter

import pytest
from outside_models import CASES, model_of
from outside_mutation import differs, mutants

import relayout
from relayout.verification import Original, verify

MOST = 3
"""Mutants of each kind, model and backend. `benchmarks/mutation.py` makes more, and a table of them."""


@pytest.mark.parametrize(("name", "backend"), [(name, each) for name, case in CASES.items() for each in case[1]])
def test_every_wrong_model_from_outside_is_refused(name: str, backend: str) -> None:
    original = model_of(CASES[name][0])
    legal, _ = relayout.legalize(original, backend)
    sound = verify(legal, backend, against=original)
    assert [finding for finding in sound.findings if finding.severity == "error"] == []
    found, escaped, shared = Counter[str](), [], Original(original)
    for mutant in mutants(legal, most=MOST):
        if not verify(mutant.model, backend, against=shared).passed:
            found[mutant.kind] += 1
        elif mutant.breaks_contract or differs(mutant.model, original):
            escaped.append(f"{mutant.kind}: {mutant.name}")
    assert escaped == []
    assert found.total() >= 5
