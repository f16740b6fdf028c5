"""Views are compared with NumPy arrays that are transposed and reshaped."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from memory_oracle import lay_out

from relayout.layout.memory_format import Atom, normal_form, order_of, source_order
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


def test_formats_whose_factors_do_not_nest_have_no_counterpart() -> None:
    view = View.of(((Atom(0, 4),), (Atom(0, 1, 4),)), (3, 4), (12,))
    assert view is not None
    assert view.from_base((Atom(0, 4), Atom(0, 1, 4))) == source_order(2)
    assert view.from_base((Atom(0, 6), Atom(0, 1, 6))) is None


def test_padding_of_a_factor_is_not_padding_of_the_axis() -> None:
    view = View.of(((Atom(0, 4),), (Atom(0, 1, 4),)), (3, 4), (12,))
    assert view is not None
    assert view.to_base((Atom(0), Atom(1, 1, 8))) is None


def test_a_split_of_a_symbolic_axis_needs_known_inner_factors() -> None:
    fused = (Atom(0), Atom(1))
    assert View.of((fused,), (None,), ("N", 4)) is not None
    assert View.of((fused,), (None,), (4, "N")) is None
