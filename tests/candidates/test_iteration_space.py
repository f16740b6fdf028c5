"""Orders of an iteration space that two operands' formats determine."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest
from graphs import Net
from legalization_checks import checked

from relayout import Backend, Implementation, Layout
from relayout.backend import Writing, rank_of
from relayout.candidates.iteration_space import IndexingMaps
from relayout.layout.memory_format import Atom, MemoryFormat
from relayout.layout.view import View
from relayout.ops import AxisTraits


def scaled_channels(channels: int) -> IndexingMaps:
    """The product of [2, C, 8, 5] and [2, C, 1, 1]."""
    extents = (2, channels, 8, 5)
    traits = tuple([AxisTraits(tileable=True, zero_preserving=True) for _ in extents])
    axes = tuple([(Atom(n),) for n in range(4)])
    views = [View.of(axes, own, own) for own in (extents, (2, channels, 1, 1), extents)]
    return IndexingMaps(extents, traits, False, None, tuple([(view, (0, 1, 2, 3)) for view in views]))


def blocks(outer: int) -> MemoryFormat:
    """NCHWhc with tiles of 2 rows and of 8 channels; `outer` is the end of the channels, 0 without padding."""
    return Atom(0), Atom(1, 8, outer), Atom(2, 2), Atom(3), Atom(2, 1, 2), Atom(1, 1, 8)


@pytest.mark.parametrize("channels", [10, 15, 31])
def test_a_padded_format_guides_no_format_without_the_padding(channels: int) -> None:
    maps, padded = scaled_channels(channels), -(-channels // 8) * 8
    whole = (Atom(0), Atom(1))
    assert maps.guided_order(1, whole, 0, blocks(padded)) is None
    filled = maps.guided_order(1, (Atom(0), Atom(1, 8, padded), Atom(1, 1, 8)), 0, blocks(padded))
    assert filled == blocks(padded)


def test_a_format_without_padding_guides_whole_channels() -> None:
    assert scaled_channels(32).guided_order(1, (Atom(0), Atom(1)), 0, blocks(0)) == blocks(0)


def joined() -> IndexingMaps:
    """The concatenation of two tensors [2, 5, 16] to [2, 5, 32]."""
    extents = (2, 5, 32)
    traits = (*[AxisTraits(tileable=True)] * 2, AxisTraits(tile_multiple=16))
    axes = tuple([(Atom(n),) for n in range(3)])
    views = [View.of(axes, own, own) for own in ((2, 5, 16), (2, 5, 16), extents)]
    return IndexingMaps(extents, traits, False, None, tuple([(view, (0, 1, 2)) for view in views]))


def test_the_place_of_the_parts_of_a_concatenation_guides_formats_of_a_part() -> None:
    """The parts are interleaved: a part's own tiles stay where they are, and the parts lie behind them."""
    maps = joined()
    blocked = (Atom(0), Atom(2, 8), Atom(1), Atom(2, 1, 8))
    interleaved = (Atom(0), Atom(1), Atom(2, 1, 16), Atom(2, 16))
    assert maps.is_guide(2, interleaved, 0)
    assert not maps.is_guide(2, blocked, 0)
    found = (Atom(0), Atom(2, 8, 16), Atom(1), Atom(2, 1, 8), Atom(2, 16))
    assert maps.guided_order(0, blocked, 2, interleaved) == found
    assert maps.formats(found) == (blocked, blocked, found)


class Blocks(Backend):
    """Relu runs in tiles of 2 rows and of 8 channels, filled up with zeros."""

    name = "blocks"

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if node.op_type != "Relu" or rank_of(node.inputs[0]) != 4:
            return super().implementations(node)
        tiled = Layout.parse("NCHWh[tile:2]c[tile:8]")
        return [Implementation((tiled,), (tiled,), rewrite=_relu, pads=True)]


def _relu(writing: Writing) -> None:
    writing.set_result(0, writing.emit("Relu", [writing.read(0)], shape=writing.shape_of(0, is_result=True)))


@pytest.mark.parametrize("channels", [10, 15, 31])
def test_no_format_lacks_the_last_channels(channels: int) -> None:
    """A layout of the output that is free must hold all of it."""
    net = Net()
    scale = net.node("Exp", net.input("s", (2, channels, 1, 1)))
    net.output(net.node("Mul", net.node("Relu", net.input("x", (2, channels, 8, 5))), scale))
    legal, _ = checked(net.model(), Blocks, output_layouts={"mul_2": "any"})
    shape = [dim.dim_value for dim in legal.graph.output[0].type.tensor_type.shape.dim]
    assert shape == [2, channels, 8, 5]
