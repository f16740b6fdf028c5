"""Pydantic's errors about JSON, in JSON's words: the place in the data, the expected and the found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from relayout.errors import did_you_mean

_LONGEST = 80
_KINDS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "list_type": "a list",
    "missing": "this field",
    "model_type": "an object",
    "string_too_short": "a longer string",
    "string_type": "a string",
}


class Fault(NamedTuple):
    """The first place in the data with a fault; `more` places have others."""

    path: str
    expected: str
    found: str
    hint: str
    more: int


def first_fault(
    faults: Sequence[Mapping[str, Any]], data: object, schema: type[BaseModel], within: str = "fields"
) -> Fault:
    """The first of pydantic's errors about `data`, which should be a `schema`. `within`: the word for its fields."""
    places: dict[str, list[Mapping[str, Any]]] = {}
    for fault in faults:
        places.setdefault(_path(fault, data), []).append(fault)
    (path, at_place), more = next(iter(places.items())), len(places) - 1
    first = at_place[0]
    if first["type"] == "extra_forbidden":
        key, models = str(first["loc"][-1]), _models_at(schema, first["loc"][:-1])
        known = ", ".join(_fields(models))
        return Fault(path, f"one of the {within} {known}" if known else f"no {within}", key, _hint(key, models), more)
    expected = dict.fromkeys(map(expectation, at_place))
    found = "nothing" if first["type"] == "missing" else _written(first["input"])
    return Fault(path, ", or ".join(expected), found, "", more)


def json_kind(value: object) -> str:
    """`a list`, `null`: the kind of a value that was read from JSON."""
    if value is None:
        return "null"
    kinds: Mapping[type, str] = {bool: "a truth value", str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")


def _written(value: object) -> str:
    if isinstance(value, dict | list):
        return f"{json_kind(value)} of {len(value)}" if value else f"an empty {json_kind(value).split()[1]}"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def expectation(fault: Mapping[str, Any]) -> str:
    """The expectation of one of pydantic's errors."""
    message: str = fault["msg"]
    return _KINDS.get(fault["type"], (message[:1].lower() + message[1:]).removeprefix("input should be "))


def _path(fault: Mapping[str, Any], data: object) -> str:
    """The location of the fault in the data, without the names of the types that pydantic tried."""
    text = ""
    for step in fault["loc"]:
        is_missing = fault["type"] == "missing" and isinstance(data, dict)
        if isinstance(data, list) and isinstance(step, int) and step < len(data):
            text, data = f"{text}[{step}]", data[step]
        elif isinstance(data, dict) and step in data:
            text, data = f"{text}.{step}", data[step]
        elif is_missing and step == fault["loc"][-1]:
            text = f"{text}.{step}"
    return text.removeprefix(".")


def _models_at(schema: type[BaseModel], path: Sequence[int | str]) -> list[type[BaseModel]]:
    """The models that the value at this path may be."""
    models = [schema]
    for step in path:
        found = [each for model in models if step in model.model_fields for each in _models_of(model, str(step))]
        models = found or models
    return models


def _models_of(model: type[BaseModel], field: str) -> list[type[BaseModel]]:
    pending, found = [model.model_fields[field].annotation], []
    while pending:
        kind = pending.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
        pending += get_args(kind)
    return found


def _fields(models: Sequence[type[BaseModel]]) -> Iterator[str]:
    return iter(sorted({name for model in models for name in model.model_fields}))


def _hint(key: str, models: Sequence[type[BaseModel]]) -> str:
    """The field that has this name one level below, or one of a similar name."""
    for model in models:
        for field in model.model_fields:
            if any(key in each.model_fields for each in _models_of(model, field)):
                return f"did you mean {field}.{key}?"
    return did_you_mean(key, _fields(models))
