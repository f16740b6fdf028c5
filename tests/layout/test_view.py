"""Views are compared with NumPy arrays that are transposed and reshaped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_oracle import lay_out

from relayout.layout.memory_format import Atom, atom_extent, normal_form, order_of, source_order
from relayout.layout.strides import stride_of
from relayout.layout.view import View
from relayout.ops.view_ops import factor


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
            axes, array = found.axes, array.reshape(target)
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


def test_formats_whose_factors_do_not_nest_have_no_counterpart() -> None:
    view = View.of(((Atom(0, 4),), (Atom(0, 1, 4),)), (3, 4), (12,))
    assert view.from_base((Atom(0, 4), Atom(0, 1, 4))) == source_order(2)
    assert view.from_base((Atom(0, 6), Atom(0, 1, 6))) is None


def test_padding_of_a_factor_is_not_padding_of_the_axis() -> None:
    view = View.of(((Atom(0, 4),), (Atom(0, 1, 4),)), (3, 4), (12,))
    assert view.to_base((Atom(0), Atom(1, 1, 8))) is None


def test_an_axis_of_unknown_extents_is_whole_where_they_are_adjacent() -> None:
    """N, C, H, W with rows and columns that are one axis: C, H, W is two axes of the view. In H, C, W and in C, W, H it
    has two atoms, of which W has the stride 1, and H the stride W."""
    view = View.of(((Atom(0),), (Atom(1),), (Atom(2), Atom(3))), ("N", 8, "H*W"), ("N", 8, "H", "W"))
    assert view.to_base(order_of((0, 2, 1))) == order_of((0, 2, 3, 1))
    assert view.from_base(order_of((0, 2, 3, 1))) == order_of((0, 2, 1))
    rows, columns = Atom(2, stride_of("W")), Atom(2, 1, stride_of("W"))
    for base, own in (
        (order_of((0, 2, 1, 3)), (Atom(0), rows, Atom(1), columns)),
        (order_of((0, 1, 3, 2)), (Atom(0), Atom(1), columns, rows)),
    ):
        assert view.from_base(base) == own
        assert view.to_base(own) == base
    assert [atom_extent(each, view.extents) for each in (rows, columns)] == ["H", "W"]
    channels = (Atom(0), Atom(1, 4), Atom(2), Atom(3), Atom(1, 1, 4))
    assert view.from_base(channels) == (Atom(0), Atom(1, 4), Atom(2), Atom(1, 1, 4))


def test_the_pixels_of_a_group_are_one_atom_behind_its_channels() -> None:
    view = View.of(
        ((Atom(0),), (Atom(1, 4),), (Atom(1, 1, 4), Atom(2), Atom(3))), ("N", 8, "4*H*W"), ("N", 32, "H", "W")
    )
    pixels, channels = Atom(2, 1, stride_of("H*W")), Atom(2, stride_of("H*W"))
    base, own = order_of((0, 2, 3, 1)), (Atom(0), pixels, Atom(1), channels)
    assert view.from_base(base) == own
    assert view.to_base(own) == base
    assert [atom_extent(each, view.extents) for each in (pixels, channels)] == ["H*W", 4]


@pytest.mark.parametrize("extent", [196, None, "S", "unk__0", "2*H*W"])
def test_an_axis_that_is_no_product_of_its_atoms_has_no_open_strides(extent: int | str | None) -> None:
    view = View.of(((Atom(0), Atom(1)),), (extent,), ("H", "W"))
    assert view.from_base(order_of((0, 1))) == order_of((0,))
    assert view.from_base(order_of((1, 0))) is None


def test_atoms_without_a_name_have_no_strides() -> None:
    for extents in ((None, "W"), ("H", None), ("H", "unk__0")):
        view = View.of(((Atom(0), Atom(1)),), (None,), extents)
        assert view.from_base(order_of((1, 0))) is None


def test_no_base_is_cut_at_an_open_stride() -> None:
    """Of two tensors whose rows and columns are one axis, only the first has them apart."""
    extents = ("H", "W")
    view, whole = View.of(((Atom(0), Atom(1)),), ("H*W",), extents), View.identity(("H*W",))
    turned = view.from_base(order_of((1, 0)))
    assert turned is not None
    assert view.to_base(turned) == order_of((1, 0))
    assert whole.to_base(turned) is None
    assert whole.to_base((Atom(0, stride_of("W")), Atom(0, 1, stride_of("W")))) is None


def test_an_axis_of_unknown_extents_has_the_tiles_of_its_known_inner_factor() -> None:
    view = View.of(((Atom(0), Atom(1), Atom(2)),), ("4*H*W",), ("H", "W", 4))
    assert view.to_base((Atom(0, 4), Atom(0, 1, 4))) == source_order(3)
    assert view.from_base((Atom(2), Atom(0), Atom(1))) == (Atom(0, 1, 4), Atom(0, 4))
    for tile in (2, 3, 8, 12):
        tiles = (Atom(0, 1, tile), Atom(0, tile))
        assert (view.to_base(tiles) is None) == (tile != 2)


def test_a_view_stays_the_same_when_an_axis_of_its_base_is_split() -> None:
    view = View.of(((Atom(1),), (Atom(0), Atom(2))), ("S", "4*N"), ("N", "S", 4))
    split = view.with_base_split({1: ("H", "W")})
    assert split == View.of(((Atom(1), Atom(2)), (Atom(0), Atom(3))), ("S", "4*N"), ("N", "H", "W", 4))
    assert split.factors_of(0, ["H", "W"]) == [(Atom(1),), (Atom(2),)]
    assert split.factors_of(1, ["4*N"]) == [(Atom(0), Atom(3))]
    assert split.factors_of(0, ["W", "H"]) is None
    assert split.factors_of(1, [2, "2*N"]) is None


@given(walks(), st.randoms(), st.data())
def test_a_view_of_unknown_extents_gives_the_formats_of_every_size(  # type: ignore[no-untyped-def]
    walk: tuple[np.ndarray, np.ndarray, View], random, data: st.DataObject
) -> None:
    """A view with unknown extents maps a format as the same view with numbers does, or not at all."""
    root, _, view = walk
    hidden = data.draw(st.sets(st.integers(0, root.ndim - 1)))
    extents = tuple(f"d{axis}" if axis in hidden else size for axis, size in enumerate(root.shape))
    split = {a.axis for group in view.axes for a in group if not a.is_whole}
    if split & hidden:
        return
    own = [
        None if any(a.axis in hidden for a in group) else size
        for group, size in zip(view.axes, view.extents, strict=True)
    ]
    open_view = View.of(view.axes, tuple(own), extents)
    axes = list(range(root.ndim))
    random.shuffle(axes)
    carried = open_view.from_base(order_of(tuple(axes)))
    if carried is not None:
        assert view.from_base(order_of(tuple(axes))) == normal_form(carried, view.extents)
