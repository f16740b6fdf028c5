"""Memory formats against numpy: a format is what `ravel` of the array, its atoms in that order, says it is."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.layout.conversion import cuts_nest, one_each, passes, path
from relayout.layout.memory_format import Atom, MemoryFormat, atom_extent, normal_form, order_of, source_order
from relayout.layout.view import View
from relayout.ops.node_reader import Reading
from relayout.ops.view_ops import blocks, factor


def lay_out(array: np.ndarray, order: MemoryFormat) -> np.ndarray:
    """The array's elements as they lie in memory in this format: an oracle that knows only numpy."""
    cuts = {axis: {1, extent} for axis, extent in enumerate(array.shape)}
    for atom in order:
        cuts[atom.axis] |= {atom.inner, atom.outer or array.shape[atom.axis]}
    dims: list[int] = []
    places: dict[tuple[int, int], int] = {}
    for axis in range(array.ndim):
        bounds = sorted(cuts[axis], reverse=True)
        for high, low in pairwise(bounds):
            places[axis, low] = len(dims)
            dims.append(high // low)
    perm: list[int] = []
    for atom in order:
        high = atom.outer or array.shape[atom.axis]
        perm += [places[atom.axis, low] for low in sorted(cuts[atom.axis], reverse=True) if atom.inner <= low < high]
    rest = [place for place in range(len(dims)) if place not in perm]
    assert all(dims[place] == 1 for place in rest), "an axis is missing from the format"
    return array.reshape(dims).transpose([*rest, *perm]).ravel()


@st.composite
def walks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, View]:
    """An array, another that re-reads it through a few transposes and reshapes, and the view between them."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6, 12)), min_size=1, max_size=4)))
    root = np.arange(math.prod(shape)).reshape(shape)
    view, array = View.identity(shape), root
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            perm = draw(st.permutations(range(array.ndim)))
            array = array.transpose(perm)
            axes = tuple((Atom(axis),) for axis in perm)
        else:
            target = draw(reshapes(array.size))
            found = factor(array.shape, target)
            if found is None:
                continue
            axes, array = found, array.reshape(target)
        following = view.then(axes, array.shape)
        if following is None:
            break
        view = following
    else:
        return root, array, view
    return root, root, View.identity(shape)


@st.composite
def reshapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    dims = []
    while size > 1 and len(dims) < 4:
        dims.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        size //= dims[-1]
    return (*dims, size)


@given(walks())
def test_the_source_order_of_a_view_is_its_own_memory(walk: tuple[np.ndarray, np.ndarray, View]) -> None:
    root, array, view = walk
    order = view.to_base(source_order(array.ndim))
    assert order is not None
    assert np.array_equal(lay_out(root, order), array.ravel())


@given(walks(), st.randoms())
def test_a_format_carried_to_a_view_is_the_same_memory(walk: tuple[np.ndarray, np.ndarray, View], random) -> None:  # type: ignore[no-untyped-def]
    root, array, view = walk
    axes = list(range(root.ndim))
    random.shuffle(axes)
    order = normal_form(order_of(tuple(axes)), root.shape)
    carried = view.from_base(order)
    assert carried is not None or not view.is_plain
    if carried is not None:
        assert np.array_equal(lay_out(array, carried), lay_out(root, order))
        assert view.to_base(carried) == order


@given(walks(), st.randoms())
def test_an_order_of_a_view_carried_to_the_root_is_the_same_memory(  # type: ignore[no-untyped-def]
    walk: tuple[np.ndarray, np.ndarray, View], random
) -> None:
    root, array, view = walk
    axes = list(range(array.ndim))
    random.shuffle(axes)
    carried = view.to_base(order_of(tuple(axes)))
    if carried is not None:
        assert np.array_equal(lay_out(root, carried), lay_out(array, order_of(tuple(axes))))


@given(st.lists(st.sampled_from((1, 2, 3, 5)), min_size=1, max_size=4).map(tuple))
def test_two_orders_have_one_normal_form_exactly_when_they_are_the_same_memory(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    orders = [order_of(p) for p in permutations(range(len(shape)))]
    for order in orders:
        same_form = normal_form(order, shape) == normal_form(source_order(len(shape)), shape)
        assert same_form == np.array_equal(lay_out(array, order), array.ravel())


def test_consecutive_factors_merge_and_a_factor_that_reaches_the_end_says_so() -> None:
    shape = (8, 32)
    assert normal_form((Atom(0), Atom(1, 16), Atom(1, 1, 16)), shape) == source_order(2)
    assert normal_form((Atom(1, 16, 32), Atom(0), Atom(1, 1, 16)), shape) == (Atom(1, 16), Atom(0), Atom(1, 1, 16))


def test_a_symbolic_axis_split_by_a_number_has_an_unknown_outer_extent() -> None:
    assert atom_extent(Atom(0, 16), ("N",)) is None
    assert atom_extent(Atom(0, 1, 16), ("N",)) == 16
    assert atom_extent(Atom(0), ("N",)) == "N"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((2, 3, 4), (6, 4), ((Atom(0), Atom(1)), (Atom(2),))),
        ((6, 4), (2, 3, 4), ((Atom(0, 3),), (Atom(0, 1, 3),), (Atom(1),))),
        (("N", 8, 1, 1), ("N", 8), ((Atom(0),), (Atom(1),))),
        (("N", 8, 7), (None, 56), ((Atom(0),), (Atom(1), Atom(2)))),
        ((4, 3), (6, 2), None),
        (("N", "M"), ("M", "N"), None),
        ((0, 3), (3, 0), None),
    ],
)
def test_a_reshape_is_a_view_where_the_factors_nest(
    source: tuple[int | str | None, ...],
    target: tuple[int | str | None, ...],
    expected: tuple[MemoryFormat, ...] | None,
) -> None:
    assert factor(source, target) == expected


@pytest.mark.parametrize("mode", ["DCR", "CRD", None])
@pytest.mark.parametrize("operator", ["SpaceToDepth", "DepthToSpace"])
@pytest.mark.parametrize(("channels", "block"), [(1, 2), (3, 2), (5, 3), (2, 1), (1, 4)])
@pytest.mark.parametrize("letters", ["NCHW", "NHWC"])
def test_blocks_of_space_are_a_view(letters: str, channels: int, block: int, operator: str, mode: str | None) -> None:
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
    assert view is not None
    format_ = view.to_base(source_order(4))
    assert format_ is not None
    np.testing.assert_array_equal(lay_out(laid, format_), expected.ravel())


@pytest.mark.parametrize("shape", [("N", 4, "H", 8), (1, "C", 4, 4), (1, 4, 0, 4), (1, 4, 5, 4), (1, 3, 4, 4, 4)])
def test_blocks_of_space_are_no_view_where_an_extent_is_unknown_or_they_do_not_go_into_it(
    shape: tuple[int | str, ...],
) -> None:
    value = ir.Value(name="x", shape=ir.Shape(shape))
    size = ir.convenience.convert_attribute("blocksize", 2)
    letters = "NCHW" if len(shape) == 4 else "NCDHW"
    assert blocks(Reading(ir.Node("", "SpaceToDepth", [value], [size]), 13), letters) is None


def test_a_format_cut_by_pieces_of_pieces_is_converted_by_what_they_are_part_of() -> None:
    thirds = ((Atom(0, 12), Atom(0, 3, 12), Atom(0, 1, 3)), (Atom(1),))
    halves = ((Atom(1),), (Atom(0, 18),), (Atom(0, 2, 18),), (Atom(0, 1, 2),))
    stages = path(thirds, halves, (36, 5))
    assert [stage.kind for stage in stages] == ["regroup", "transpose", "regroup"]
    assert stages[-1].dims == halves


def test_pieces_that_another_format_cuts_through_are_moved_by_two_transposes() -> None:
    thirds = (Atom(0, 1, 4), Atom(0, 4))
    halves = (Atom(0, 1, 6), Atom(0, 6))
    assert not cuts_nest(thirds, halves)
    assert cuts_nest(thirds, (Atom(0, 1, 2), Atom(0, 2)))
    assert cuts_nest(thirds, (Atom(0),))
    stages = path(one_each(thirds), one_each(halves), (12,))
    assert [stage.kind for stage in stages] == ["transpose", "regroup", "transpose"]
    assert passes(thirds, halves, (12,)) == (thirds, (Atom(0),), halves)
