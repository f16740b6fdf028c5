"""A Reshape whose factors do not nest with those of its operand takes axes that it does not cut in any order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers, run

from relayout import legalize


def shuffled(channels: int | str) -> onnx.ModelProto:
    """Channels first, and 12 rows that are shuffled as 3 x 4 and then read as 6 x 2, with the channels last."""
    net = Net()
    rows = net.transpose(net.node("Relu", net.input("x", (channels, 12))), 1, 0)
    rows = net.transpose(net.node("Reshape", rows, net.constant([3, 4, -1])), 1, 0, 2)
    rows = net.node("Reshape", net.node("Reshape", rows, net.constant([12, -1])), net.constant([6, 2, -1]))
    net.output(net.node("Relu", net.transpose(rows, 2, 0, 1)))
    return net.model()


@pytest.mark.parametrize("channels", [5, "C"])
def test_only_the_shuffle_is_transposed(channels: int | str) -> None:
    model = shuffled(channels)
    legal, report = legalize(model, check=True)
    assert (report.before.transposes, report.after.transposes, report.status) == (3, 1, "optimal")
    feeds = {"x": np.arange(60, dtype=np.float32).reshape(5, 12)}
    for found, expected in zip(run(legal, feeds), run(model, feeds), strict=True):
        assert np.array_equal(found, expected)
    again, second = legalize(legal)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


@pytest.mark.parametrize("backend", ["nhwc", "nchw", "x86-nchwc"])
def test_a_grid_behind_windows_costs_the_same_in_a_second_run(backend: str) -> None:
    # As in MaxViT: rows of 6 in windows of 3 are then cut into a grid of 3.
    net = Net()
    image = net.node("Conv", net.input("x", (1, 8, 6, 6)), net.weight(8, 8, 1, 1))
    for outer, inner, order in ((2, 3, (0, 2, 4, 3, 5, 1)), (3, 2, (0, 3, 5, 2, 4, 1))):
        parts = net.node("Reshape", image, net.constant([1, 8, outer, inner, outer, inner]))
        parts = net.transpose(parts, *order)
        extents = [(1, 8, outer, inner, outer, inner)[axis] for axis in order]
        tokens = net.node("Reshape", parts, net.constant([extents[1] * extents[2], -1, 8]))
        tokens = net.node("MatMul", tokens, net.weight(8, 8))
        parts = net.transpose(net.node("Reshape", tokens, net.constant(extents)), *np.argsort(order).tolist())
        image = net.node("Reshape", parts, net.constant([1, 8, 6, 6]))
    net.output(net.node("Conv", image, net.weight(8, 8, 1, 1)))
    model = net.model()
    legal, report = legalize(model, backend, check=True)
    assert report.status == "optimal"
    assert_same_numbers(model, legal)
    assert legalize(legal, backend)[1].cost == report.cost
