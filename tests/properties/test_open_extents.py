"""At no size of an open extent does a legal model move more bytes than the source."""

from __future__ import annotations

import pytest
from graphs import Net
from onnx import TensorProto
from random_open_extents import worse_sizes

from relayout.legalization import legalize

FOUND = (34, 94, 105, 115, 211, 731005, 731370)
"""Graphs for which the cheapest solution at the assumed sizes is dearer at others."""


@pytest.mark.parametrize("first", [0, 10])
def test_no_size_makes_the_legal_model_dearer(first: int) -> None:
    """`benchmarks/fuzz.py --backends open` draws more."""
    assert {seed: worse_sizes(seed) for seed in range(first, first + 10)} == {
        seed: [] for seed in range(first, first + 10)
    }


@pytest.mark.parametrize("seed", FOUND)
def test_a_graph_that_was_dearer_at_some_sizes_is_no_more(seed: int) -> None:
    assert worse_sizes(seed) == []


def parts(size: int | None = None) -> Net:
    """Two parts of an image, of sizes that the caller gives, transposed alike."""
    net = Net()
    image = net.node("Relu", net.input("x", (1, 8, 16, 16)))
    for name in ("one", "other"):
        end = net.constant([size]) if size else net.input(name, (1,), TensorProto.INT64)
        part = net.node("Slice", image, net.constant([0]), end, net.constant([3]))
        net.output(net.node("Relu", net.transpose(net.node("Exp", part), 0, 2, 3, 1)))
    return net


def test_parts_of_unknown_size_are_transposed_where_the_source_transposes_them() -> None:
    """One Transpose of the whole image would be cheaper if both parts were as long as the image."""
    legal, report = legalize(parts().model())
    assert [node.op_type for node in legal.graph.node].count("Transpose") == 2
    assert "of unknown extents" in report.warnings[0]
    assert report.status == "optimal"
    assert report.before == report.after


def test_parts_of_known_size_are_transposed_together_where_that_is_cheaper() -> None:
    _, report = legalize(parts(16).model())
    assert (report.before.transposes, report.after.transposes) == (2, 1)
    _, report = legalize(parts(4).model())
    assert (report.before.transposes, report.after.transposes) == (2, 2)
    assert not report.warnings


def test_the_sizes_that_an_input_states_for_a_resize_are_unknown() -> None:
    """Moving a large image once may cost more than moving two small parts of it."""
    net = Net()
    sizes = net.input("sizes", (4,), TensorProto.INT64)
    image = net.node("Resize", net.input("x", (2, 3, 9, 9)), "", "", sizes, mode="nearest")
    for name in ("one", "other"):
        end = net.input(name, (1,), TensorProto.INT64)
        part = net.node("Slice", image, net.constant([0]), end, net.constant([0]))
        net.output(net.transpose(part, 0, 2, 3, 1))
    _, report = legalize(net.model())
    assert (report.before.transposes, report.after.transposes) == (2, 2)
    assert "of unknown extents" in report.warnings[0]
