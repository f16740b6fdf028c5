"""A tensor with more dimensions than layouts have is legalized too."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked

from relayout.backend.registry import find_backends

NINE = (2, 3, 2, 2, 1, 2, 2, 2, 2)
LAST = (0, 2, 3, 4, 5, 6, 7, 8, 1)


def normalised(net: Net, value: str) -> str:
    return str(net.node("LayerNormalization", value, net.weight(3), net.weight(3)))


def of_channels(net: Net, value: str) -> str:
    return str(net.node("InstanceNormalization", value, net.weight(2), net.weight(2)))


def soft(net: Net, value: str) -> str:
    return str(net.node("Softmax", value, axis=8))


@pytest.mark.parametrize("backend", find_backends())
@pytest.mark.parametrize("operator", [normalised, of_channels, soft])
def test_nine_dimensions_are_no_error(operator: object, backend: str) -> None:
    net = Net(opset=12 if operator is soft else 17)
    value = net.transpose(net.input("x", NINE), *LAST)
    net.output(net.transpose(operator(net, value), *np.argsort(LAST)))  # type: ignore[operator]
    legal, _ = checked(net.model(), backend)
    assert_same_numbers(net.model(), legal)


@pytest.mark.parametrize("backend", ["onnx", "x86-nchwc"])
def test_a_tensor_with_nine_factors_is_priced_by_its_bytes(backend: str) -> None:
    net = Net()
    x = net.input("x", (8, 8, 8))
    cut = net.node("Reshape", x, net.constant([2] * 9))
    net.output(net.transpose(cut, 8, 6, 4, 2, 0, 7, 5, 3, 1))
    _, report = checked(net.model(), backend)
    assert report.cost == 2 * 4 * 8**3
