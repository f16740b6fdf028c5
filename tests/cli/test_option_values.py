"""Options that hold several words."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

import relayout
from relayout.cli.option_values import dim_sizes, layouts_by_operator, named_layouts
from relayout.errors import UsageError


def test_a_layouts_brackets_may_hold_what_parts_the_options() -> None:
    assert named_layouts("--input-layout", ["x=N[a=32]HWC"]) == {"x": "N[a=32]HWC"}
    assert layouts_by_operator(["Conv=N[m:a,b]HWC,OHWI"]) == {"Conv": ["N[m:a,b]HWC", "OHWI"]}


@given(st.lists(st.text(max_size=8), max_size=3))
def test_no_text_is_more_than_a_wrong_option(pairs: Sequence[str]) -> None:
    for read in (dim_sizes, layouts_by_operator, lambda pairs: named_layouts("--input-layout", pairs)):
        try:
            read(pairs)
        except UsageError as error:
            assert error.where  # noqa: PT017
        except relayout.LayoutSyntaxError as error:
            assert error.where.startswith("--input-layout")  # noqa: PT017
