"""Strides of named extents divide each other exactly where the extents do at all sizes."""

from __future__ import annotations

import math

import pytest

from relayout.layout.strides import UNKNOWN, is_open, is_unknown, part_of, stride_of

EXTENTS = (1, 2, 3, 4, 12, "h", "w", "4*h", "12*w", "h*w", "4*h*w", "h*h", "(h - 1)//2 + 1", "4*((h - 1)//2 + 1)")


def test_a_stride_divides_another_exactly_where_the_extents_do_at_all_sizes() -> None:
    sizes = [{"h": h, "w": w} for h in range(1, 14) for w in (1, 2, 3, 5, 7, 11)]
    for one in EXTENTS:
        for other in EXTENTS:
            divides = stride_of(other) % stride_of(one) == 0
            at_all = all(_at(other, each) % _at(one, each) == 0 for each in sizes)
            assert divides == at_all, (one, other)


def _at(extent: int | str, sizes: dict[str, int]) -> int:
    return int(eval(str(extent), {}, sizes))


def test_a_stride_is_the_product_of_those_of_its_factors() -> None:
    assert stride_of("4*h*w") == 4 * stride_of("h") * stride_of("w") == 4 * stride_of("w*h")


@pytest.mark.parametrize(("extent", "is_known"), [(7, True), ("h", True), ("unk__3", False), ("2*unk__3", False)])
def test_only_names_that_the_model_gives_have_strides(extent: int | str, is_known: bool) -> None:
    assert (stride_of(extent) != UNKNOWN) == is_known
    assert is_unknown(stride_of(extent)) != is_known
    assert is_open(stride_of(extent)) == (extent != 7)


def test_the_part_of_an_axis_between_two_strides_is_a_quotient() -> None:
    def part(inner: int | str, outer: int | str = 0) -> str:
        return str(part_of("4*h*w", stride_of(inner), stride_of(outer)))

    assert [part("w"), part("w", "h*w"), part("h*w"), part(1, "w"), part("2*w"), part("w", "4*w")] == [
        "4*h",
        "h",
        "4",
        "w",
        "2*h",
        "4",
    ]
    assert part_of("4*h", stride_of("w")) != part_of("4*h", stride_of("h"))


def test_strides_of_many_names_have_no_common_factor() -> None:
    strides = [stride_of(f"dim_{number}") for number in range(50)]
    assert len({*strides}) == 50
    assert all(math.gcd(one, other) == 1 for one in strides for other in [*strides, math.factorial(40)] if one != other)


def test_a_stride_depends_on_the_name_alone() -> None:
    """Models, reports and caches must not depend on the process."""
    assert stride_of("h") == 2014850243943982321058053
