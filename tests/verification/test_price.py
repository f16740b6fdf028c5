"""The price of the answer, computed again from the legal model."""

from __future__ import annotations

import pytest
from graphs import Net

import relayout
from relayout.backend.loading import load_backend
from relayout.model.io import read_model
from relayout.verification.price import check_price


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
def test_conversions_priced_at_nothing_are_found(objective: str) -> None:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input("x", (1, 4, 6, 6)), 4, 4)))
    legal, report = relayout.legalize(net.model(), "nhwc", objective=objective)
    model, backend = read_model(legal), load_backend("nhwc")
    assert list(check_price(report, model, backend, None)) == []
    free = report.model_copy(update={"cost": 0, "bound": 0})
    (finding,) = check_price(free, model, backend, None)
    assert finding.rule == "price"
