"""Concat, Split and Slice of blocked values compute the same as the standard operators, on every axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import checked, operators
from single_node_rewriter import OneNode

from relayout.backend.calls import ask
from relayout_backends.x86_nchwc import X86Nchwc
from relayout_backends.x86_nchwc.blocks import probe

pytest.importorskip("onnxruntime")

BLOCK = probe()
Array = np.ndarray[Any, Any]
LETTERS = ("NCHW", "NHWC", "CNHW")


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def shaped(letters: str, channels: int, height: int = 3) -> list[int]:
    """A shape with that many channels, where `letters` puts them."""
    return [{"N": 2, "C": channels, "H": height, "W": 5}[letter] for letter in letters]


def made(
    operator: str, feeds: Sequence[Array], shapes: Sequence[Sequence[int]], *constants: Array, **attributes: Any
) -> ir.Node:
    """A node on `feeds` and `constants` whose results have `shapes`."""
    values = [
        ir.Value(name=f"x{i}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(a.shape))
        for i, a in enumerate(feeds)
    ]
    values += [
        ir.Value(name=f"c{i}", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(a.shape), const_value=ir.tensor(a))
        for i, a in enumerate(constants)
    ]
    results = [
        ir.Value(name=f"y{i}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(s)) for i, s in enumerate(shapes)
    ]
    return ir.node(operator, values, attributes, outputs=results)


def run(node: ir.Node, letters: str, feeds: Sequence[Array], *, opset: int = 17) -> dict[int, Array]:
    (way,) = [way for way in ask(X86Nchwc(), node) if way.rewrite is not None]
    return OneNode(node, way, letters, opset).run(dict(enumerate(feeds)))


def refused(node: ir.Node) -> bool:
    return all(way.rewrite is None for way in ask(X86Nchwc(), node))


@pytest.mark.parametrize("letters", LETTERS)
@pytest.mark.parametrize("last", [BLOCK, 5, 3 * BLOCK])
def test_channels_are_concatenated(letters: str, last: int) -> None:
    axis = letters.index("C")
    feeds = [draw(*shaped(letters, channels)) for channels in (2 * BLOCK, BLOCK, last)]
    expected = np.concatenate(feeds, axis)
    node = made("Concat", feeds, [expected.shape], axis=axis - 4)
    np.testing.assert_array_equal(run(node, letters, feeds)[0], expected)


@pytest.mark.parametrize("letters", LETTERS)
def test_rows_and_images_are_concatenated(letters: str) -> None:
    for letter in "HN":
        axis = letters.index(letter)
        # The extents must be such that the axis could have been the channels.
        feeds = [
            draw(*[BLOCK if a == letter else e for a, e in zip(letters, shaped(letters, 20), strict=True)])
            for _ in range(2)
        ]
        expected = np.concatenate(feeds, axis)
        node = made("Concat", feeds, [expected.shape], axis=axis)
        np.testing.assert_array_equal(run(node, letters, feeds)[0], expected)


@pytest.mark.parametrize("letters", LETTERS)
@pytest.mark.parametrize("channels", [BLOCK, 5])
def test_a_single_operand_is_concatenated(letters: str, channels: int) -> None:
    feed = draw(*shaped(letters, channels))
    node = made("Concat", [feed], [feed.shape], axis=letters.index("C"))
    np.testing.assert_array_equal(run(node, letters, [feed])[0], feed)


def test_blocks_that_do_not_end_with_their_operand_are_not_concatenated() -> None:
    feeds = [draw(1, 5, 3, 3), draw(1, BLOCK, 3, 3)]
    assert refused(made("Concat", feeds, [(1, 5 + BLOCK, 3, 3)], axis=1))


@pytest.mark.parametrize("letters", LETTERS)
@pytest.mark.parametrize("parts", [(BLOCK, 2 * BLOCK), (2 * BLOCK, BLOCK, 7)])
@pytest.mark.parametrize("opset", [9, 17])
def test_channels_are_split(letters: str, parts: tuple[int, ...], opset: int) -> None:
    axis = letters.index("C")
    x = draw(*shaped(letters, sum(parts)))
    expected = np.split(x, np.cumsum(parts)[:-1], axis)
    node = made("Split", [x], [part.shape for part in expected], np.array(parts, np.int64), axis=axis)
    found = run(node, letters, [x], opset=opset)
    for index, part in enumerate(expected):
        np.testing.assert_array_equal(found[index], part)


def test_a_block_is_not_split() -> None:
    x = draw(1, 2 * BLOCK, 3, 3)
    parts = [(1, 5, 3, 3), (1, 2 * BLOCK - 5, 3, 3)]
    assert refused(made("Split", [x], parts, np.array([5, 2 * BLOCK - 5], np.int64), axis=1))


def sliced(x: Array, axis: int, start: int, end: int, step: int = 1) -> tuple[ir.Node, Array]:
    where = [slice(None)] * 4
    where[axis] = slice(start, end, step)
    expected = x[tuple(where)]
    constants = [np.array([n], np.int64) for n in (start, end, axis, step)]
    return made("Slice", [x], [expected.shape], *constants), expected


@pytest.mark.parametrize("letters", LETTERS)
@pytest.mark.parametrize(("start", "end"), [(0, BLOCK), (BLOCK, 2 * BLOCK), (BLOCK, 1 << 40), (-7, 1 << 40)])
def test_channels_are_sliced_from_the_beginning_of_a_block(letters: str, start: int, end: int) -> None:
    x = draw(*shaped(letters, 2 * BLOCK + 7))
    node, expected = sliced(x, letters.index("C"), start, end)
    np.testing.assert_array_equal(run(node, letters, [x])[0], expected)


@pytest.mark.parametrize("letters", LETTERS)
def test_rows_are_sliced(letters: str) -> None:
    x = draw(*shaped(letters, 20, height=3 * BLOCK))
    node, expected = sliced(x, letters.index("H"), BLOCK, 2 * BLOCK)
    np.testing.assert_array_equal(run(node, letters, [x])[0], expected)


@pytest.mark.parametrize(("start", "end", "step"), [(3, BLOCK, 1), (0, 5, 1), (0, 2 * BLOCK, 2), (0, 2 * BLOCK, 1)])
def test_a_block_is_not_sliced(start: int, end: int, step: int) -> None:
    node, _ = sliced(draw(1, 2 * BLOCK, 3, 3), 1, start, end, step)
    assert refused(node)


@pytest.mark.parametrize("computed", [False, True])
def test_a_constant_is_concatenated_where_nothing_is_in_blocks(computed: bool) -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 2 * BLOCK, 6, 6)), 2 * BLOCK, 2 * BLOCK)
    constant = net.weight(1, BLOCK, 6, 6)
    value = net.node("Concat", value, net.node("Neg", constant) if computed else constant, axis=1)
    net.output(net.conv(net.node("Relu", value), 3 * BLOCK, 2 * BLOCK))
    model = net.model()
    legal, _ = checked(model, "x86-nchwc")
    assert [node.domain for node in legal.graph.node if node.op_type == "Conv"] == ["com.microsoft.nchwc"] * 2
    assert_same_numbers(model, legal)


def test_the_verifier_follows_a_part_that_a_slice_reads() -> None:
    net = Net()
    whole = net.node("Tanh", net.conv(net.input("x", [1, 2 * BLOCK, 9, 9]), 2 * BLOCK, 2 * BLOCK))
    halves = net.node("Split", whole, results=2, axis=1)
    joined = net.node("Add", halves[1], net.node("Tanh", net.conv(halves[1], BLOCK, BLOCK)))
    net.output(net.conv(net.node("Concat", halves[0], joined, axis=1), 2 * BLOCK, 2 * BLOCK))
    legal, _ = checked(net.model(), "x86-nchwc")
    assert "Slice" in operators(legal)
