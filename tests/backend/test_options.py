"""The options of a backend are the parameters of its constructor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import pytest
from graphs import Net

import relayout
from relayout import Backend, load_backend
from relayout.backend.options import check_options, option_value, options_of
from relayout.errors import BackendError


class Tunable(Backend):
    """Takes one option of each kind."""

    name = "tunable"

    def __init__(
        self,
        context: Backend | None = None,
        *,
        fast: bool = True,
        many: int = 32,
        share: float = 0.5,
        device: str | None = None,
        tables: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`fast`: whether it is fast.

        `many`: as many as are
        enough. `device`: where."""
        super().__init__(context)
        self.given = {"fast": fast, "many": many, "share": share, "device": device, "tables": tables}


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    backend = load_backend(Tunable, options=options)
    assert isinstance(backend, Tunable)
    return backend.given


def test_no_and_zero_are_answers() -> None:
    assert given({"fast": False, "many": 0, "share": 0.0}) == {**given({}), "fast": False, "many": 0, "share": 0.0}


@pytest.mark.parametrize("nothing", [None, "", (), [], {}])
def test_what_is_empty_is_not_given(nothing: object) -> None:
    assert given({"fast": nothing, "many": nothing, "tables": nothing}) == given({})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"fast": 1}, "true or false"),
        ({"fast": "no"}, "true or false"),
        ({"many": True}, "a whole number"),
        ({"many": 2.5}, "a whole number"),
        ({"share": "half"}, "a number"),
        ({"device": 3}, "text or null"),
        ({"tables": ["Conv"]}, "a table or null"),
    ],
)
def test_an_option_of_another_type_is_refused_by_name(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BackendError, match="'tunable' does not take this value") as caught:
        given(options)
    assert caught.value.where in options
    assert caught.value.expected == expected


def test_an_option_of_any_type_takes_each_value() -> None:
    class Free(Backend):
        def __init__(self, context: Backend | None = None, *, data: Any = None) -> None:
            super().__init__(context)
            self.data = data

    [option] = options_of(Free)
    assert (option.expected, option.json_schema) == ("anything", {})
    for value in (3, "text", [1], {"a": 1}):
        backend = load_backend(Free, options={"data": value})
        assert isinstance(backend, Free)
        assert backend.data == value


def test_an_unknown_option_comes_with_those_that_there_are() -> None:
    with pytest.raises(BackendError) as caught:
        load_backend("tpu", options={"max-batch": 4})
    assert caught.value.expected == "of max_batch, max_channels, space_to_depth"
    assert caught.value.found == "max-batch"
    assert caught.value.hint == "did you mean max_batch?"


class Open(Backend):
    """Takes any option, and one by its name."""

    name = "open"

    def __init__(self, context: Backend | None = None, *, many: int = 32, **others: Any) -> None:
        super().__init__(context)


def test_a_known_option_is_checked_beside_unknown_ones() -> None:
    check_options("open", Open, {"many": 1, "other": "x"})
    with pytest.raises(BackendError, match="'open' does not take this value"):
        check_options("open", Open, {"many": "x", "other": "x"})


def test_a_backend_without_a_constructor_of_its_own_has_no_options() -> None:
    assert options_of(Backend) == ()
    with pytest.raises(BackendError, match="no options"):
        load_backend("onnx", options={"many": 0})


def test_an_option_is_known_by_what_the_constructor_says_of_it() -> None:
    told = {option.name: (option.expected, option.default_text, option.about) for option in options_of(Tunable)}
    assert told == {
        "fast": ("true or false", "true", "whether it is fast."),
        "many": ("a whole number", "32", "as many as are enough."),
        "share": ("a number", "0.5", ""),
        "device": ("text or null", "null", "where."),
        "tables": ("a table or null", "null", ""),
    }


@pytest.mark.parametrize("name", ["auto-nhwc", "convert-layout", "tpu", "x86-nchwc", "xla-cpu"])
def test_every_option_that_ships_is_described(name: str) -> None:
    options = options_of(type(load_backend(name)))
    assert options
    assert all(option.about for option in options)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("false", False),
        ("16", 16),
        ("cpu", "cpu"),
        ("False", "False"),
        ("NaN", "NaN"),
        ('"16"', "16"),
        ('{"Conv": ["NHWC"]}', {"Conv": ["NHWC"]}),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_is_json_where_it_is_json(text: str, value: object) -> None:
    assert option_value(text) == value


def strided() -> onnx.ModelProto:
    """A first convolution that `tpu` runs over blocks of its image."""
    net = Net()
    net.output(net.conv(net.input("image", (1, 3, 64, 64)), 3, 64, 7, strides=[2, 2]))
    return net.model()


def test_options_reach_the_backend_from_the_library() -> None:
    usual, _ = relayout.legalize(strided(), "tpu")
    plain, report = relayout.legalize(strided(), "tpu", backend_options={"space_to_depth": False}, check=True)
    nhwc, _ = relayout.legalize(strided(), "nhwc")
    assert [node.op_type for node in plain.graph.node] == [node.op_type for node in nhwc.graph.node]
    assert [node.op_type for node in usual.graph.node] != [node.op_type for node in plain.graph.node]
    assert report.verification is not None
    assert report.verification.passed
    assert relayout.explain(strided(), "tpu", backend_options={"max_batch": 0}).cost == report.cost
    layouts = {"desired_layouts": {"Conv": ["NHWC", "OHWI"]}}
    converted, _ = relayout.legalize(strided(), "convert-layout", backend_options=layouts)
    assert relayout.verify(converted, "convert-layout", backend_options=layouts).passed
    assert not relayout.verify(strided(), "convert-layout", backend_options=layouts).passed
