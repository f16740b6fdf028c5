"""`Options` is the one list of options: the library, the command, the JSON body and the query have its fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, get_overloads, get_type_hints

import pytest
import typer

import relayout
from relayout.cli.commands import VERBS as NAMES
from relayout.cli.commands import verb_named
from relayout.cli.options import SHARED, Request, with_options
from relayout.errors import UsageError, option_text
from relayout.options import ExplainOptions, LegalizeOptions, Option, Options, given_options, in_flags, options_of
from relayout.solve.solver import ENGINES
from relayout_api import query, schemas

DECLARED = ((name, verb_named(name)) for name in NAMES)
COMMANDS: dict[str, Any] = {name: verb for name, verb in DECLARED if not isinstance(verb, typer.Typer)}
VERBS = [verb for verb in COMMANDS if options_of(verb)]
SERVED = [verb for verb in VERBS if hasattr(schemas, f"{verb.title()}Options")]
CASES = [pytest.param(verb, option, id=f"{verb}-{option.name}") for verb in VERBS for option in options_of(verb)]


def body_of(verb: str) -> Any:
    return getattr(schemas, f"{verb.title()}Options")


def query_of(verb: str) -> Any:
    return query.QUERIES[verb]


def test_every_field_belongs_to_verbs_that_the_command_has() -> None:
    options = {option.name: option for verb in VERBS for option in options_of(verb)}
    assert {*options} == {*signature(Options).parameters}
    assert {verb for option in options.values() for verb in option.verbs} == {*VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_derives_its_flags_from_the_fields_and_no_others(verb: str) -> None:
    own = {*signature(COMMANDS[verb].__wrapped__).parameters, *(each.name for each in SHARED)}
    derived = {name: each for name, each in signature(COMMANDS[verb]).parameters.items() if name not in own}
    assert [*derived] == [option.name for option in options_of(verb)]
    for option in options_of(verb):
        [declared] = derived[option.name].annotation.__metadata__
        assert declared.default.rpartition("/")[2] == option.flag
        assert declared.help.startswith(option.help)
        assert derived[option.name].default == ([] if option.is_mapping else option.default)


@pytest.mark.parametrize("verb", SERVED)
def test_the_body_and_the_query_have_the_fields_and_no_others(verb: str) -> None:
    body, asked = body_of(verb).model_fields, query_of(verb).model_fields
    assert [*body] == [option.name for option in options_of(verb)]
    assert [*asked] == ["backend", *(option.single for option in options_of(verb))]
    for option in options_of(verb):
        assert body[option.name].description == option.help
        assert body[option.name].default == ({} if option.is_mapping else option.default)


# Files, arrays and callbacks are no options: they have no meaning over HTTP.
ARGUMENTS = {
    relayout.legalize: ("model", "backend", "progress", "certificate", "inputs"),
    relayout.explain: ("model", "backend", "progress"),
}


@pytest.mark.parametrize("function", ARGUMENTS)
def test_the_library_has_the_fields_and_no_others(function: Callable[..., Any]) -> None:
    own, others = ARGUMENTS[function], list(signature(function).parameters.values())
    assert tuple(each.name for each in others[: len(own)]) == own
    others = others[len(own) :]
    assert [(each.name, each.default) for each in others] == [
        (option.name, option.default) for option in options_of(function.__name__)
    ]


def sample(option: Option) -> tuple[str, Any]:
    """A value that is not the default, as text and in Python."""
    if option.is_mapping:
        text = option.example.split()[0]
        name, _, value = text.partition("=")
        return text, {name: value if option.type is str else int(value)}
    value = option.choices[-1] if option.choices else not option.default if option.type is bool else option.type(3)
    return str(value), value


@pytest.mark.parametrize(("verb", "option"), CASES)
def test_a_value_is_the_same_from_every_interface(verb: str, option: Option) -> None:
    text, value = sample(option)
    expected = given_options(verb, {option.name: value})
    assert getattr(expected, option.name) == value != option.default
    requests: list[Request] = []

    @with_options(verb)
    def command(request: Request) -> int:
        requests.append(request)
        return 0

    defaults = {name: each.default for name, each in signature(command).parameters.items()}
    command(**{**defaults, option.name: [text] if option.is_mapping else value})
    assert getattr(requests[0].options, option.name) == value
    if verb in SERVED:
        asked = query_of(verb).model_validate({option.single: [text] if option.is_mapping else text})
        for options in (asked.parameters().options, body_of(verb).model_validate({option.name: value})):
            assert getattr(Options(**options.model_dump()), option.name) == value


@pytest.mark.parametrize(("verb", "option"), [case for case in CASES if case.values[1].type not in (bool, Any)])
def test_a_value_that_is_no_choice_or_out_of_range_is_refused(verb: str, option: Option) -> None:
    wrong: Any = "?" if option.choices or option.type is str else -1
    if option.is_mapping:
        wrong = {"x": wrong}
    with pytest.raises((UsageError, relayout.LayoutSyntaxError)) as caught:
        given_options(verb, {option.name: wrong})
    entry = ("[x]", " x") if option.is_mapping else ("", "")
    assert caught.value.where.startswith(f"options.{option.name}{entry[0]}")
    assert in_flags(caught.value.where).startswith(f"{option.flag}{entry[1]}")


@pytest.mark.parametrize(("verb", "option"), [case for case in CASES if case.values[1].type is not Any])
def test_a_value_of_another_type_is_refused_with_the_option(verb: str, option: Option) -> None:
    wrong: Any = 2.5 if option.type in (bool, int) else b"?"
    for given in (["x"], {7: sample(option)[1]}, {"x": wrong}) if option.is_mapping else (wrong, ["x"]):
        with pytest.raises(UsageError, match="a value of another type") as caught:
            given_options(verb, {option.name: given})
        assert caught.value.where.startswith(f"options.{option.name}")


def test_the_command_names_flags_where_errors_name_options() -> None:
    for text, words in (
        (option_text("max_transposes", value=3), "--max-transposes 3"),
        (
            f"it were NHWC ({option_text('input_layouts', 'a[0].b', 'NHWC')})",
            "it were NHWC (--input-layout a[0].b=NHWC)",
        ),
        (f"{option_text('output_layouts', 'y')}, layout, column 3", "--output-layout y, layout, column 3"),
        (f"raise {option_text('time_limit')}", "raise --time-limit"),
        ("relayout.options.time_limit and body.options.dims.N", "relayout.options.time_limit and body.options.dims.N"),
    ):
        assert in_flags(text) == words


def test_options_are_given_by_name_and_only_to_verbs_that_have_them() -> None:
    with pytest.raises(TypeError):
        Options("bytes")  # type: ignore[misc]
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'check'"):
        relayout.explain({}, check=True)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'skip'"):
        relayout.legalize({}, skip=["conv"])


def test_the_choices_of_engine_are_those_of_the_solver() -> None:
    [engine] = [option for option in options_of("legalize") if option.name == "engine"]
    assert engine.choices == ENGINES


@pytest.mark.parametrize("verb", SERVED)
def test_the_manual_has_each_option_in_its_table_of_the_service(verb: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "http.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)\S*` \| (.*) \|$", page, re.MULTILINE)
    listed = [(name, single) for name, single, verbs in rows if f"`{verb}`" in verbs]
    assert listed == [(option.name, option.single) for option in options_of(verb)]


@pytest.mark.parametrize(("verb", "typed"), [("legalize", LegalizeOptions), ("explain", ExplainOptions)])
def test_editors_know_the_options_of_the_library_with_their_types(verb: str, typed: type) -> None:
    assert get_type_hints(typed) == {option.name: option.hint for option in options_of(verb)}


def test_each_kind_of_model_has_the_same_arguments_for_editors() -> None:
    """The types of `legalize` are written once for each kind of result."""
    names = [[*signature(each).parameters] for each in get_overloads(relayout.legalize)]
    assert names == [[*ARGUMENTS[relayout.legalize], "options"]] * 2


@pytest.mark.parametrize("verb", ["legalize", "explain"])
def test_the_manual_has_each_option_in_its_table_of_the_library(verb: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| `(\S+)` \| (`.*`) \| .* \|$", page, re.MULTILINE)
    listed = {
        name: default
        for names, default, verbs in rows
        if f"`{verb}`" in verbs
        for name in re.findall(r"`(\w+)`", names)
    }
    expected = {option.name: repr(option.default).replace("'", '"') for option in options_of(verb)}
    assert listed == expected


def test_the_manual_names_each_flag_of_the_command() -> None:
    page = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    assert [each.flag for verb in VERBS for each in options_of(verb) if f"{each.flag}" not in page] == []
