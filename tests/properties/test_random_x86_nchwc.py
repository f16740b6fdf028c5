"""Random convolutional networks for `x86-nchwc` compute the same numbers and pass the verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
import pytest
from random_convolutions import draw_network

import relayout
from relayout.backend import Implementation
from relayout_backends.x86_nchwc import X86Nchwc

pytest.importorskip("onnxruntime")


class Blocked(X86Nchwc):
    """Everything that can be blocked is."""

    name = "blocked"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        ways = super().implementations(node)
        return [way if way.rewrite is not None else replace(way, cost=way.cost + 10**8) for way in ways]


@pytest.mark.parametrize("seed", range(40))
def test_a_random_network_keeps_its_numbers(seed: int) -> None:
    source = draw_network(seed)
    backend = Blocked() if seed % 2 else X86Nchwc()
    legal, _ = relayout.legalize(source, backend)
    verification = relayout.verify(legal, X86Nchwc(), against=source)
    assert [finding for finding in verification.findings if finding.severity == "error"] == []
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


@pytest.mark.parametrize("seed", range(40, 60))
def test_a_random_network_is_legal_already_when_it_is_legalized_again(seed: int) -> None:
    legal, _ = relayout.legalize(draw_network(seed), X86Nchwc())
    again, _ = relayout.legalize(legal, X86Nchwc())
    assert list(again.graph.node) == list(legal.graph.node)
