"""The options that several verbs have. Those of a run are derived from the fields of `relayout.options.Options`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from relayout.cli.terminal import results_alone
from relayout.errors import UsageError
from relayout.options import Option, Options, given_options, options_of

_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])(?![^{]*})")

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The model: .onnx or .json; - is stdin.", show_default=False)
]
ReportFiles = Annotated[
    list[Path],
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the report; - is stdout. The suffix gives the format: .json, .txt, .xml (JUnit), .sarif or .md. "
        "May be repeated.",
        show_default=False,
    ),
]
InputsFiles = Annotated[
    list[Path],
    typer.Option(
        "--inputs",
        metavar="FILE",
        help="An .npz file with an array for each input of the original, by name: both models run on these in place of "
        "random numbers. For legalize it implies --check. May be repeated.",
        show_default=False,
    ),
]
ReportFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="json|text|junit|sarif|github|markdown",
        help="The format of the reports; without --report on stdout. [default: by the suffix, else json]",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables.")]


@dataclass(frozen=True, slots=True)
class Request:
    """The backend, by name or file (None: the recorded one), and the options of one command line. `skipped` are the
    nodes after --skip. `short` has the options of the backend that were given by a flag of their own, with the flag."""

    backend: str | None
    options: Options
    skipped: tuple[str, ...] = ()
    short: Mapping[str, str] = field(default_factory=dict)
    convert_opset: bool = True


def with_options(verb: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A decorator that replaces a command's parameter `request` by the options of `verb`."""

    def with_them(command: Callable[..., int]) -> Callable[..., int]:
        own = signature(command, eval_str=True).parameters.values()
        shared = [_RECORDED, *SHARED[1:]] if verb == "verify" else SHARED
        derived = [*shared, *map(_parameter, options_of(verb))]
        taken = [each for one in own for each in (derived if one.name == "request" else [one])]

        @wraps(command)
        def run(**given: Any) -> int:
            request = _request(verb, {each.name: given.pop(each.name) for each in derived})
            with results_alone():
                return command(request=request, **given)

        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in taken]
        setattr(run, "__signature__", signature(command).replace(parameters=parameters))  # noqa: B010
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return with_them


def _parameter(option: Option) -> Parameter:
    """The option as a parameter of a typer command."""
    if option.is_mapping:
        kind, default, help_ = list[str], [], f"{option.help} May be repeated."
    else:
        kind, default, help_ = option.hint, option.default, option.help
    metavar = option.metavar or "|".join(option.choices) or None
    shown = not option.is_mapping and default is not None and option.type is not bool
    least = None if option.is_mapping else option.least
    names = [f"--{option.name}/{option.flag}" if option.flag.startswith("--no-") else option.flag]
    declared = typer.Option(*names, metavar=metavar, help=help_, show_default=shown, min=least)
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared])


def _backend_names(incomplete: str) -> list[str]:
    """The installed backends whose names begin with this text, for completion in shells."""
    from relayout.backend.registry import find_backends

    return [name for name in find_backends() if name.startswith(incomplete)]


def _shared(
    name: str, default: Any, kind: Any, *names: str, metavar: str | None, text: str, completed: Any = None
) -> Parameter:
    shown = isinstance(default, str)
    declared = typer.Option(*names, metavar=metavar, help=text, show_default=shown, autocompletion=completed)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared])


_BACKEND = "NAME|FILE|MODULE:CLASS"


def _backend(default: str | None, kind: Any, note: str = "") -> Parameter:
    text = (
        "An installed backend (see `relayout backends`), a table in a .toml or .json file, a .py file with a class, "
        f"or a class such as acme.layouts:Acme.{note}"
    )
    names = ("--backend", "-b")
    return _shared("backend", default, kind, *names, metavar=_BACKEND, text=text, completed=_backend_names)


SHARED = (
    _backend("onnx", str),
    _shared(
        "desired_layout", [], list[str], "--desired-layout", metavar="OP=LAYOUT[,KERNEL]",
        text="Short for the option desired_layouts of the backend convert-layout. May be repeated.",
    ),
    _shared(
        "skip", [], list[str], "--skip", metavar="NODE",
        text="Short for the option skip of convert-layout: a node, by name or TVM's count. May be repeated.",
    ),
    _shared(
        "convert_opset", True, bool, "--convert-opset/--no-convert-opset", metavar=None,
        text="Lift a model of opset 1 to 6 to opset 7 by onnx's version converter, with a note.",
    ),
)  # fmt: skip

_RECORDED = _backend(None, str | None, " [default: the one that the model records]")


def _request(verb: str, given: Mapping[str, Any]) -> Request:
    """The request of a command line. Raises UsageError."""
    values = {}
    for option in options_of(verb):
        value = given[option.name]
        values[option.name] = option.parse(value, option.flag) if option.is_mapping else value
    skipped = tuple(given["skip"])
    short = {}
    desired = layouts_by_operator(given["desired_layout"])
    for name, flag, value in (("desired_layouts", "--desired-layout", desired), ("skip", "--skip", skipped)):
        if value and name in values["backend_options"]:
            where = f"--backend-option {name}"
            raise UsageError("the option is given twice", where=where, expected="once", found=str(value))
        if value:
            values["backend_options"][name] = value
            short[name] = flag
    return Request(given["backend"], _options(verb, values), skipped, short, given["convert_opset"])


def layouts_by_operator(texts: Sequence[str]) -> dict[str, list[str]]:
    """`OP=LAYOUT[,KERNEL]` by operator. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        operator, _, layouts = text.partition("=")
        where = f"--desired-layout {text}"
        if not (operator and layouts):
            expected = "OP=LAYOUT[,KERNEL], such as Conv=NHWC,OHWI"
            raise UsageError("not an operator and its layouts", where=where, expected=expected, found=text)
        if operator in found:
            raise UsageError("the option is given twice", where=where, expected="once an operator", found=text)
        found[operator] = _COMMA_OUTSIDE_BRACKETS.split(layouts)
    return found


def _options(verb: str, values: Mapping[str, Any]) -> Options:
    """The options by their names. An error names the flag. Raises UsageError."""
    try:
        return given_options(verb, values)
    except UsageError as error:
        flags = {option.name: option.flag for option in options_of(verb)}
        error.where = flags.get(error.where, error.where)
        raise
