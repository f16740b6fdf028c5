"""Reshape, SpaceToDepth and DepthToSpace are views if their factors nest."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from hypothesis import example, given
from hypothesis import strategies as st
from memory_oracle import lay_out

from relayout.layout.memory_format import Atom, MemoryFormat, source_order
from relayout.layout.terms import extent_term
from relayout.layout.view import View
from relayout.legalization import legalize
from relayout.ops.node_reader import Reading
from relayout.ops.view_ops import blocks, factor


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((2, 3, 4), (6, 4), ((Atom(0), Atom(1)), (Atom(2),))),
        ((6, 4), (2, 3, 4), ((Atom(0, 3),), (Atom(0, 1, 3),), (Atom(1),))),
        (("N", 8, 1, 1), ("N", 8), ((Atom(0),), (Atom(1),))),
        (("N", 8, 7), (None, 56), ((Atom(0),), (Atom(1), Atom(2)))),
        (("N", "C", "H", "W"), ("N", "C", "H*W"), ((Atom(0),), (Atom(1),), (Atom(2), Atom(3)))),
        (("N", "C", "H", "W"), ("N", "C", None), ((Atom(0),), (Atom(1),), (Atom(2), Atom(3)))),
        (("N", "4*H"), ("N", "H", 4), ((Atom(0),), (Atom(1, 4),), (Atom(1, 1, 4),))),
        (("W*H", 3), ("H*W", 3), ((Atom(0),), (Atom(1),))),
        ((4, 3), (6, 2), None),
        ((4, 3), (7,), None),
        ((4, 3), (5, 3), None),
        (("N", 3), (7,), None),
        (("N", "M"), ("M", "N"), None),
        (("N", "H*W"), ("N", "W", None, "V"), None),
        (("C", "H*W", 5), ("C", None, "U", "W", 5), None),
        (("N", "H", "W", 4), ("N", "S", 2), ((Atom(0),), (Atom(1), Atom(2), Atom(3, 2)), (Atom(3, 1, 2),))),
        ((0, 3), (3, 0), None),
        (("N", 64, "H", "W"), ("N", 64, 196), ((Atom(0),), (Atom(1),), (Atom(2), Atom(3)))),
        (("H", "W", 64), (196, 64), ((Atom(0), Atom(1)), (Atom(2),))),
        ((64, "H", "W"), (8, 8, 196), ((Atom(0, 8),), (Atom(0, 1, 8),), (Atom(1), Atom(2)))),
        (("H", 4, "W"), (6,), None),
        ((64, "H", "W"), (64, 14, 14), None),
        (("H", 64, "W"), (64, 196), None),
    ],
)
def test_a_reshape_is_a_view_where_the_factors_nest(
    source: tuple[int | str | None, ...],
    target: tuple[int | str | None, ...],
    expected: tuple[MemoryFormat, ...] | None,
) -> None:
    found = factor(source, target)
    assert (found and found.axes) == expected
    assert not found or not found.factors


@pytest.mark.parametrize(
    ("source", "target", "factors", "axes"),
    [
        (("N", "H*W", 3), ("N", "H", "W", 3), ((0, "N"), (1, "H"), (1, "W"), (2, 3)), (0, 1, 2, 3)),
        (("N", None, 3), ("N", "H", "W", 3), ((0, "N"), (1, "H"), (1, "W"), (2, 3)), (0, 1, 2, 3)),
        (("N", 2, "4*H*W"), ("N", 8, "H", "W"), ((0, "N"), (1, 2), (2, 4), (2, "H"), (2, "W")), (0, (1, 2), 3, 4)),
        (("4*W", 1), (4, "W"), ((0, 4), (0, "W"), (1, 1)), (0, 1)),
        ((1, 2, None), (1, 8, "H", "W"), ((0, 1), (1, 2), (2, 4), (2, "H"), (2, "W")), ((), (1, 2), 3, 4)),
        ((8, "S"), (16, "T", 3), ((0, 8), (1, 2), (1, "T"), (1, 3)), ((0, 1), 2, 3)),
        (("N", "H*W"), ("N", "W", None, "H"), ((0, "N"), (1, "W"), (1, "H")), (0, 1, (), 2)),
        ((64, 196), (64, "H", "W"), ((0, 64), (1, "H"), (1, "W")), (0, 1, 2)),
    ],
)
def test_an_axis_that_is_split_at_an_unknown_extent_is_several(
    source: tuple[int | str | None, ...],
    target: tuple[int | str | None, ...],
    factors: tuple[tuple[int, int | str], ...],
    axes: tuple[int | tuple[int, ...], ...],
) -> None:
    found = factor(source, target)
    assert found is not None
    assert found.factors == factors
    assert found.axes == tuple(tuple(map(Atom, (each,) if isinstance(each, int) else each)) for each in axes)


SIZES = {"a": 2, "b": 3, "c": 5, "d": 7}


def grouped(draw: st.DrawFn, factors: list[int | str]) -> tuple[tuple[int | str | None, ...], tuple[int, ...]]:
    """Adjacent factors as axes: the extents as a model has them, one perhaps without a name, and their sizes."""
    ends = sorted(draw(st.sets(st.integers(1, len(factors) - 1)))) if len(factors) > 1 else []
    groups = [factors[low:high] for low, high in pairwise([0, *ends, len(factors)])]
    extents: list[int | str | None] = []
    for group in groups:
        numbers = [each for each in group if isinstance(each, int)]
        names = sorted(each for each in group if isinstance(each, str))
        whole = [str(math.prod(numbers)), *names] if numbers and math.prod(numbers) > 1 else names
        extents.append("*".join(whole) if names else math.prod(numbers))
    unnamed = draw(st.sampled_from([None, *range(len(groups))]))
    if unnamed is not None and isinstance(extents[unnamed], str):
        extents[unnamed] = None
    sizes = [math.prod(each if isinstance(each, int) else SIZES[each] for each in group) for group in groups]
    return tuple(extents), tuple(sizes)


def size_of(extent: int | str | None) -> int:
    term = extent_term(extent)
    assert term is not None
    return int(term.factor) * math.prod(SIZES[name] for name in term.names)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[tuple[int | str | None, ...]], list[tuple[int, ...]]]:
    factors = draw(st.lists(st.sampled_from([2, 3, 4, *SIZES]), min_size=1, max_size=5, unique=True))
    (one, sizes), (other, others) = grouped(draw, factors), grouped(draw, factors)
    if draw(st.booleans()):
        # One side has a number for each name.
        return draw(st.sampled_from([[one, others], [sizes, other]])), [sizes, others]
    return [one, other], [sizes, others]


@example(([(None, "24*b"), ("2*a", "12*b")], [(2, 72), (4, 36)]))
@given(reshapes())
def test_a_view_by_names_is_the_view_at_every_size(
    reshape: tuple[list[tuple[int | str | None, ...]], list[tuple[int, ...]]],
) -> None:
    """The view that is found for extents with names reads what the Reshape gives at the sizes of these names."""
    (source, target), (sizes, others) = reshape
    found = factor(source, target)
    if None not in (*source, *target) and any(isinstance(each, str) for each in source) == any(
        isinstance(each, str) for each in target
    ):
        assert found is not None
    if found is None:
        return
    root = np.arange(math.prod(sizes))
    factors = sizes
    if found.factors:
        axes = [axis for axis, _ in found.factors]
        # An axis that is not split needs no name.
        factors = tuple(sizes[axis] if axes.count(axis) == 1 else size_of(each) for axis, each in found.factors)
        for axis, size in enumerate(sizes):
            assert math.prod(each for own, each in zip(axes, factors, strict=True) if own == axis) == size
    view = View.of(found.axes, others, factors)
    format_ = view.to_base(source_order(len(others)))
    assert format_ is not None
    np.testing.assert_array_equal(lay_out(root.reshape(factors), format_), root)


@pytest.mark.parametrize("mode", ["DCR", "CRD", None])
@pytest.mark.parametrize("operator", ["SpaceToDepth", "DepthToSpace"])
@pytest.mark.parametrize(("channels", "block"), [(1, 2), (3, 2), (5, 3), (2, 1), (1, 4)])
@pytest.mark.parametrize("letters", ["NCHW", "NHWC"])
def test_space_to_depth_is_a_view(letters: str, channels: int, block: int, operator: str, mode: str | None) -> None:
    attributes = {"blocksize": block} if mode is None else {"blocksize": block, "mode": mode}
    depth = channels if operator == "SpaceToDepth" else channels * block**2
    shape = (2, depth, 4 * block, block)
    source = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    node = onnx.helper.make_node(operator, ["x"], ["y"], **attributes)
    (expected,) = onnx.reference.ReferenceEvaluator(node).run(None, {"x": source})
    order = ["NCHW".index(letter) for letter in letters]
    laid, expected = source.transpose(order), expected.transpose(order)
    value = ir.Value(name="x", shape=ir.Shape(laid.shape))
    attribute_list = [ir.convenience.convert_attribute(name, setting) for name, setting in attributes.items()]
    relabel = blocks(Reading(ir.Node("", operator, [value], attribute_list), 28), letters)
    assert relabel is not None
    view = View.of(relabel.axes, expected.shape, laid.shape)
    format_ = view.to_base(source_order(4))
    assert format_ is not None
    np.testing.assert_array_equal(lay_out(laid, format_), expected.ravel())


@pytest.mark.parametrize("shape", [("N", 4, "H", 8), (1, "C", 4, 4), (1, 4, 0, 4), (1, 4, 5, 4), (1, 3, 4, 4, 4)])
def test_space_to_depth_with_unknown_or_indivisible_extents_is_no_view(
    shape: tuple[int | str, ...],
) -> None:
    value = ir.Value(name="x", shape=ir.Shape(shape))
    size = ir.convenience.convert_attribute("blocksize", 2)
    letters = "NCHW" if len(shape) == 4 else "NCDHW"
    assert blocks(Reading(ir.Node("", "SpaceToDepth", [value], [size]), 13), letters) is None


def test_a_reshape_to_another_rank_than_its_result_declares_stays_as_it_is() -> None:
    """A text recognizer that people install declares a matrix, and computes three dimensions."""
    net = Net(opset=11)
    target = net.input("target", (3,), onnx.TensorProto.INT64)
    rows = net.transpose(net.node("Relu", net.input("x", ("n", 6))), 0, 1)
    reshaped = net.node("Reshape", rows, target)
    net.output(reshaped)
    model = net.model()
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(reshaped, onnx.TensorProto.FLOAT, [1, "size"]))
    legal, _ = legalize(model)
    assert_same_numbers(model, legal, {"x": np.ones((4, 6), np.float32), "target": np.array([4, 2, 3])})
