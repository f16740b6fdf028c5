"""The options of a run. The command's options and the fields and query of HTTP are derived from this list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import Parameter, signature
from types import NoneType
from typing import Any, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct

from relayout.errors import LayoutSyntaxError, UsageError, option_text
from relayout.formulate.objective import OBJECTIVES

_MENTIONED = re.compile(
    r"(?<![\w.])options\.(?P<name>\w+)(?:\[(?P<entry>.+?)\](?=$|[=),:; ]))?(?:=(?P<value>\w+))?", re.DOTALL
)

Progress = Callable[[str], None]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_WRITING = ("legalize", "batch")
_SOLVING = (*_WRITING, "explain")
_ALL = (*_SOLVING, "verify")
_GATED = (*_WRITING, "verify")


def _option(value: Any, text: str, verbs: tuple[str, ...], **more: Any) -> Any:
    """A field with this default and help text. In `more`, `default` is the verbs' own default."""
    return field(default=value, metadata={"help": text, "verbs": verbs, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run besides the backend. Raises UsageError for a value out of range."""

    objective: str = _option("bytes", "The cost to minimize.", _SOLVING, choices=tuple(OBJECTIVES))
    input_layouts: Mapping[str, str] | None = _option(
        None,
        "The layout of a graph input of the legal model; `any` lets the solver choose. Several names with commas "
        "between them, outputs among them, get the same order of axes.",
        ("legalize", "explain"),
        metavar="NAME[,NAME]=LAYOUT",
        example="x=NHWC or x=any",
        is_layout=True,
    )
    output_layouts: Mapping[str, str] | None = _option(
        None,
        "The layout of a graph output, likewise.",
        ("legalize", "explain"),
        metavar="NAME[,NAME]=LAYOUT",
        example="y=NHWC or y=any",
        is_layout=True,
    )
    dims: Mapping[str, int] | None = _option(
        None, "The size of a symbolic dim, for costs and comparisons.", _ALL, metavar="NAME=N", example="batch=8",
        least=1, most=1 << 48,
    )  # fmt: skip
    time_limit: float | None = _option(
        None,
        "The limit of wall-clock time, in seconds, of the whole run; in a batch, and in a service, of the solver.",
        _SOLVING,
        metavar="SECONDS",
        above=0,
        most=1e6,
    )
    engine: str = _option(
        "auto", "cp-sat solves without the reduction, as a cross-check.", _SOLVING, choices=("auto", "cp-sat")
    )
    backend_options: Mapping[str, Any] | None = _option(
        None,
        "An option of the backend; a value is JSON where it parses as JSON, else text.",
        _ALL,
        metavar="NAME=VALUE",
        example="max_batch=16",
    )
    verify: bool = _option(True, "Verify the legal model without running it.", _WRITING)
    check: bool = _option(False, "Verify the legal model, and compare it numerically with the source.", _WRITING)
    static: bool = _option(
        False, "Accept a model that cannot be run: the checks without a run are enough.", (*_WRITING, "verify")
    )
    certify: bool = _option(
        False, "Derive the cost and the bound again from the written-out problem, apart from the solver.", _WRITING
    )
    inline: bool = _option(False, "Replace the calls of functions by their bodies in standard ONNX.", _WRITING)
    max_transposes: int | None = _option(
        None, "Allow no more than K transposes.", _GATED, metavar="K", least=0, most=1 << 31
    )
    max_conversions: int | None = _option(
        None, "Allow no more than K conversions: transposes, the backend's reorders, and pads.", _GATED, metavar="K",
        least=0, most=1 << 31,
    )  # fmt: skip
    max_bytes: int | None = _option(
        None, "Allow conversions to read and write no more than N bytes.", _GATED, metavar="N", least=0, most=1 << 60
    )
    samples: int = _option(
        2, "The number of random inputs of a comparison.", (*_WRITING, "verify"), metavar="N", least=1, most=16
    )
    limit: int | None = _option(
        None, "Solve the problem at most N times without some requirement.", ("explain",), metavar="N", default=1000,
        least=0, most=100_000,
    )  # fmt: skip
    """None: no conversion is explained."""

    def __post_init__(self) -> None:
        for option in _all_options():
            value = getattr(self, option.name)
            if value is None and option.is_optional:
                continue
            if not option.is_mapping:
                option.check(value, option_text(option.name))
                continue
            _check_type(value, Mapping, option_text(option.name))
            for name, each in value.items():
                _check_type(name, str, option_text(option.name))
                option.check(each, option_text(option.name, name))


class _SolvingOptions(TypedDict, total=False):
    objective: str
    input_layouts: Mapping[str, str] | None
    output_layouts: Mapping[str, str] | None
    dims: Mapping[str, int] | None
    time_limit: float | None
    engine: str
    backend_options: Mapping[str, Any] | None


class ExplainOptions(_SolvingOptions, total=False):
    """The options of `explain`, for editors and type checkers."""

    limit: int | None


class LegalizeOptions(_SolvingOptions, total=False):
    """The options of `legalize`, likewise."""

    verify: bool
    check: bool
    static: bool
    certify: bool
    inline: bool
    max_transposes: int | None
    max_conversions: int | None
    max_bytes: int | None
    samples: int


class Option(Struct, frozen=True):
    """A field of `Options`. `type` is the type of its value or, for a mapping, of the mapping's values.

    `verbs` are the verbs with the option, and `default` is their default. A number is at least `least` or above
    `above`; `most` is the service's bound.
    """

    name: str
    type: Any
    hint: Any
    is_mapping: bool
    is_optional: bool
    default: Any
    help: str
    verbs: tuple[str, ...]
    metavar: str = ""
    example: str = ""
    choices: tuple[str, ...] = ()
    is_layout: bool = False
    least: int | None = None
    above: int | None = None
    most: float | None = None

    @property
    def single(self) -> str:
        """The name for one entry at a time, in the query and on the command line: `dims` is `dim`."""
        return self.name.removesuffix("s") if self.is_mapping else self.name

    @property
    def flag(self) -> str:
        """The flag that asks for something other than the default."""
        name = self.single.replace("_", "-")
        return f"--no-{name}" if self.type is bool and self.default else f"--{name}"

    def check(self, value: Any, where: str) -> None:
        """Raise UsageError for a value of another type, a wrong choice or a value out of range, LayoutSyntaxError for
        an invalid layout."""
        _check_type(value, self.type, where)
        if self.choices and value not in self.choices:
            raise UsageError(f"unknown {self.name}", where=where, expected=" or ".join(self.choices), found=str(value))
        if self.above is not None and not value > self.above:
            raise UsageError("out of range", where=where, expected=f"more than {self.above}", found=str(value))
        if self.least is not None and not value >= self.least:
            raise UsageError("out of range", where=where, expected=f"{self.least} or more", found=str(value))
        if self.is_layout and value != "any":
            from relayout.layout.layout import Layout

            try:
                Layout.parse(value)
            except LayoutSyntaxError as error:
                error.where = f"{where}, {error.where}"
                if "," in value and "{" not in value:
                    error.hint = error.hint or "one layout for each time that the option is given"
                raise

    def parse(self, texts: list[str], where: str) -> dict[str, Any]:
        """The mapping of these NAME=VALUE texts. Raises UsageError."""
        from relayout.backend.options import option_value

        found: dict[str, Any] = {}
        for text in texts:
            # A layout may contain an equals sign, and so may the name of a dim.
            name, separator, value = text.rpartition("=") if self.type is int else text.partition("=")
            if not (name and separator and value):
                expected = f"{self.metavar}, such as {self.example}"
                raise UsageError("not a name and a value", where=f"{where} {text}", expected=expected, found=text)
            if name in found:
                raise UsageError("the option is given twice", where=f"{where} {name}", expected="once", found=text)
            if self.type is int and not (value.isascii() and value.isdigit() and len(value) < 19):
                expected = f"{self.least} or more, in at most 18 digits"
                raise UsageError("not a size", where=f"{where} {text}", expected=expected, found=value)
            found[name] = int(value) if self.type is int else value if self.type is str else option_value(value)
        return found


def _check_type(value: Any, kind: Any, where: str) -> None:
    from relayout.backend.options import fits, in_words

    if not fits(value, kind):
        raise UsageError("a value of another type", where=where, expected=in_words(kind), found=repr(value))


@cache
def _all_options() -> tuple[Option, ...]:
    hints = get_type_hints(Options)
    found = []
    for each in fields(Options):
        kinds = [kind for kind in get_args(hints[each.name]) if kind is not NoneType] or [hints[each.name]]
        is_mapping = get_origin(kinds[0]) is Mapping
        kind = get_args(kinds[0])[1] if is_mapping else kinds[0]
        facts = {"default": each.default, **each.metadata}
        found.append(Option(each.name, kind, hints[each.name], is_mapping, kinds != [hints[each.name]], **facts))
    return tuple(found)


def options_of(verb: str) -> tuple[Option, ...]:
    """The options that `verb` has, in the order of the fields."""
    return tuple(option for option in _all_options() if verb in option.verbs)


def in_flags(text: str) -> str:
    """A text with options as `errors.option_text` writes them, in the words of the command.

    >>> in_flags("raise options.time_limit; options.dims[N]=8"), in_flags("options.no_such")
    ('raise --time-limit; --dim N=8', 'options.no_such')
    """
    flags = {option.name: option.flag for option in _all_options()}

    def flag_of(found: re.Match[str]) -> str:
        if found["name"] not in flags:
            return found[0]
        return " ".join(filter(None, [flags[found["name"]], "=".join(filter(None, found.group("entry", "value")))]))

    return _MENTIONED.sub(flag_of, text)


def given_options(verb: str, given: Mapping[str, Any]) -> Options:
    """The options of one run of `verb`; options not given have their defaults.

    Raises TypeError for an option that the verb does not have, and UsageError.
    """
    check_names(verb, given)
    return Options(**{**{option.name: option.default for option in options_of(verb)}, **given})


def check_names(verb: str, given: Iterable[str]) -> None:
    """Raise TypeError for a name that is no option of `verb`, as Python does for an argument that a function lacks."""
    known = {option.name for option in options_of(verb)}
    if unknown := [name for name in given if name not in known]:
        raise TypeError(f"{verb}() got an unexpected keyword argument {unknown[0]!r}")


def takes_options(verb: str) -> Callable[[_Function], _Function]:
    """A decorator that puts the options of `verb` into the signature of a function with `**options`."""

    def named(function: _Function) -> _Function:
        own = [each for each in signature(function).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        more = [
            Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.hint)
            for option in options_of(verb)
        ]
        setattr(function, "__signature__", signature(function).replace(parameters=[*own, *more]))  # noqa: B010
        return function

    return named
