"""Options with several values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.cli.options import layouts_by_operator
from relayout.errors import LayoutSyntaxError, UsageError
from relayout.options import given_options, in_flags, options_of

MAPPINGS = {option.name: option for option in options_of("explain") if option.is_mapping}


def test_a_layouts_brackets_may_hold_what_separates_the_options() -> None:
    assert MAPPINGS["input_layouts"].parse(["x=N[a=32]HWC"], "") == {"x": "N[a=32]HWC"}
    assert layouts_by_operator(["Conv=N[m:a,b]HWC,OHWI"]) == {"Conv": ["N[m:a,b]HWC", "OHWI"]}


def test_the_name_of_a_dim_may_hold_an_equals_sign() -> None:
    assert MAPPINGS["dims"].parse(["a=b=3"], "") == {"a=b": 3}


@pytest.mark.parametrize("name", MAPPINGS)
@given(texts=st.lists(st.text(max_size=8), max_size=3))
def test_any_text_is_an_option_or_a_usage_error(name: str, texts: list[str]) -> None:
    option = MAPPINGS[name]
    try:
        given_options("explain", {name: option.parse(texts, option.flag)})
    except (UsageError, LayoutSyntaxError) as error:
        assert in_flags(error.where).startswith(option.flag)  # noqa: PT017


@given(st.lists(st.text(max_size=8), max_size=3))
def test_any_text_is_a_desired_layout_or_a_usage_error(texts: Sequence[str]) -> None:
    try:
        layouts_by_operator(texts)
    except UsageError as error:
        assert error.where.startswith("--desired-layout")  # noqa: PT017
