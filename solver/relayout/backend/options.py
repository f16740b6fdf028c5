"""The options of a backend: the parameters of its constructor but for `context`, with their types and descriptions.

An option is described in the docstring of `__init__` by the text after its name and a colon:

    def __init__(self, context: Backend | None = None, *, many: int = 32) -> None:
        '''`many`: as many channels as make NHWC worth it.'''
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from relayout.errors import BackendError, UnknownOptionError, did_you_mean
from relayout.model.graph_json.json_text import parse_json

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


class BackendOption(Struct, frozen=True):
    """One option: its name, its annotated type (None: anything), its default, and its description."""

    name: str
    type: Any
    default: Any
    about: str

    @property
    def expected(self) -> str:
        """The type, for messages.

        >>> BackendOption("block", int | str | None, None, "").expected
        'a whole number, text or null'
        """
        return in_words(self.type)

    @property
    def json_schema(self) -> dict[str, Any]:
        """The type as a JSON schema; empty where anything is allowed.

        >>> BackendOption("block", int | str | None, None, "").json_schema
        {'type': ['integer', 'string', 'null']}
        """
        kinds = _json_types(self.type)
        return {"type": kinds[0] if len(kinds) == 1 else kinds} if kinds else {}

    @property
    def default_text(self) -> str:
        """The default as on the command line: in JSON where possible."""
        try:
            return json.dumps(self.default)
        except TypeError:
            return repr(self.default)


def options_of(found: Any) -> tuple[BackendOption, ...]:
    """The options of a backend's class, in the order of its constructor; an instance has none."""
    if not isinstance(found, type):
        return ()
    parameters = [
        each
        for each in inspect.signature(found).parameters.values()
        if each.name != "context" and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    hints, about = _hints(found), _about(found, [each.name for each in parameters])
    return tuple(
        BackendOption(
            each.name,
            hints.get(each.name, type(each.default) if isinstance(each.default, bool | int | float | str) else None),
            None if each.default is each.empty else each.default,
            about.get(each.name, ""),
        )
        for each in parameters
    )


def check_options(name: str, found: Any, given: Mapping[str, Any]) -> None:
    """Raise BackendError for an option that the backend `name` lacks, or one of another type."""
    # Reading the options of a class takes longer than all other checks of a backend.
    known = {option.name: option for option in options_of(found)} if given else {}
    unknown = sorted(set(given) - set(known))
    if unknown and not _takes_any(found):
        error = UnknownOptionError(
            f"the backend {name!r} does not take these options",
            expected=f"of {', '.join(sorted(known))}" if known else "no options",
            found=", ".join(unknown),
            hint=did_you_mean(unknown[0].replace("-", "_"), known, 2),
        )
        error.names = tuple(unknown)
        raise error
    for key, value in given.items():
        option = known.get(key)
        if option is not None and not fits(value, option.type):
            raise BackendError(
                f"the backend {name!r} does not take this value", where=key, expected=option.expected, found=repr(value)
            )


def _takes_any(found: Any) -> bool:
    """Whether the constructor takes options that it does not name."""
    parameters = inspect.signature(found).parameters.values() if isinstance(found, type) else ()
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


def option_value(text: str) -> Any:
    """A value from a command line or a query: JSON where it is JSON, else the text itself.

    >>> option_value("false"), option_value("16"), option_value("cpu"), option_value('["a"]')
    (False, 16, 'cpu', ['a'])
    """
    try:
        return parse_json(text)
    except ValueError:
        return text


def _hints(found: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(found.__init__)
    except (NameError, TypeError, AttributeError):
        # Names that are imported for type checkers alone are undefined here: the defaults give the types then.
        return {}


def _about(found: type[Any], names: Iterable[str]) -> dict[str, str]:
    """The description of each option in the docstring of the constructor, in one line."""
    says = inspect.getdoc(found.__init__) or ""
    marks = [mark for mark in re.finditer(r"`(\w+)`: ", says) if mark[1] in {*names}]
    ends = [*[mark.start() for mark in marks], len(says)][1:]
    return {mark[1]: " ".join(says[mark.end() : end].split()) for mark, end in zip(marks, ends, strict=True)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, without a look inside: the backend checks the elements of a list or a table."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, each) for each in get_args(hint))
    kind = get_origin(hint) or hint
    if hint is None or kind is Any or not isinstance(kind, type):
        return True
    if isinstance(value, bool):
        return issubclass(bool, kind) and kind is not int
    if isinstance(value, int) and kind is float:
        return True
    # Text is a sequence too, but never meant as a list.
    return isinstance(value, kind) and (not isinstance(value, str) or kind in (str, object))


def _json_types(hint: Any) -> list[str]:
    """The JSON types of the values that fit; empty: any."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_json_types(each) for each in get_args(hint)]
        return list(dict.fromkeys(kind for part in parts for kind in part)) if all(parts) else []
    kind = get_origin(hint) or hint
    if kind is Any or not isinstance(kind, type):
        return []
    if kind in _JSON_TYPES:
        return [_JSON_TYPES[kind]]
    return ["object"] if issubclass(kind, Mapping) else ["array"] if issubclass(kind, Iterable) else []


def in_words(hint: Any) -> str:
    """A type, for messages.

    >>> in_words(float), in_words(list[int] | None)
    ('a number', 'a list or null')
    """
    if get_origin(hint) in (Union, types.UnionType):
        *others, last = [in_words(each) for each in get_args(hint)]
        return f"{', '.join(others)} or {last}"
    kind = get_origin(hint) or hint
    if kind is Any or not isinstance(kind, type):
        return "anything"
    if kind in _WORDS:
        return _WORDS[kind]
    return "a table" if issubclass(kind, Mapping) else "a list" if issubclass(kind, Iterable) else kind.__name__
