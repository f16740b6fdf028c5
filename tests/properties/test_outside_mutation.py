"""Mutation from outside: the verifier refuses every wrong model that an engine apart from relayout makes.

A mutant is wrong if onnxruntime gives other outputs for some inputs, or if it breaks the contract by construction.
"""

from __future__ import annotations

from collections import Counter

import pytest
from outside_models import CASES, model_of
from outside_mutation import KINDS, differs, mutants

import relayout
from relayout.verification import Original, verify

MOST = 2
"""Mutants of each kind, model and backend. `benchmarks/mutation.py` makes more, and a table of them."""

UNSEEN = ("axes exchanged at run time", "consumer rewired", "node bypassed", "perm of a Transpose")
"""The kinds of which some mutants differ from a legal model in nothing but results."""


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


@pytest.mark.parametrize(("name", "backend"), [(name, each) for name, case in CASES.items() for each in case[1]])
def test_every_wrong_model_from_outside_is_refused_in_pieces(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relayout.verification.numeric.compare.largest_model", lambda: -1)
    original = model_of(CASES[name][0])
    legal, _ = relayout.legalize(original, backend)
    shared = Original(original)
    sound = verify(legal, backend, against=shared)
    assert [finding for finding in sound.findings if finding.severity == "error"] == []
    assert sound.numeric is not None
    assert sound.numeric.pieces
    kinds = {kind: KINDS[kind] for kind in UNSEEN}
    monkeypatch.setattr("outside_mutation.KINDS", kinds)
    for mutant in mutants(legal, most=2):
        if verify(mutant.model, backend, against=shared).passed:
            assert not differs(mutant.model, original), f"{mutant.kind}: {mutant.name}"
