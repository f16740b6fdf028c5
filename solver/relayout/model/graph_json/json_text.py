"""Parse JSON from callers and files: what Python's own parser lets pass without a word is a fault here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn


def parse_json(text: str | bytes) -> Any:
    """The value that a text in JSON has. Raises ValueError, in one line that says what was found and where.

    Python's parser keeps the last of two equal keys, which silently drops what the first one asked for, and takes NaN
    and Infinity, which JSON lacks.

    >>> parse_json('{"nodes": [{"op": "Relu", "op": "Neg"}]}')
    Traceback (most recent call last):
    ...
    ValueError: the key "op" twice in nodes[0]
    """
    # Inner objects end before the outer ones, so the place of one is found when all are there.
    faulty: dict[int, tuple[dict[str, Any], str]] = {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            faulty[id(found)] = found, _first_repeated(key for key, _ in pairs)
        return found

    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("too many levels of nesting") from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            # Python's words are for the programmer.
            raise ValueError(f"a number of more than {sys.get_int_max_str_digits()} digits") from None
        raise
    if faulty:
        raise ValueError(_repeated(value, faulty))
    return value


def _first_repeated(keys: Iterable[str]) -> str:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is repeated")


def _repeated(value: object, faulty: dict[int, tuple[dict[str, Any], str]]) -> str:
    """The first object in document order with a repeated key."""
    # Each step leads back to the one before it, so that a long key is not copied for each value behind it.
    pending: list[tuple[_Step | None, object]] = [(None, value)]
    while pending:
        step, inner = pending.pop()
        if id(inner) in faulty:
            key = json.dumps(faulty[id(inner)][1])
            return f"the key {key} twice" + (f" in {_path(step)}" if step else "")
        if isinstance(inner, dict):
            pending += [(_Step(step, key), each) for key, each in reversed(inner.items())]
        elif isinstance(inner, list):
            pending += [(_Step(step, place), each) for place, each in reversed([*enumerate(inner)])]
    raise AssertionError("the object that an outer repeated key dropped is inside one that is there")


class _Step(NamedTuple):
    """A key or a place in a list, in the value that the step before leads to."""

    before: _Step | None
    key: str | int


def _path(step: _Step | None) -> str:
    parts: list[str] = []
    while step is not None:
        parts.append(f"[{step.key}]" if isinstance(step.key, int) else f".{step.key}" if step.before else step.key)
        step = step.before
    return "".join(reversed(parts))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number; graph JSON has it as a string, in a typed attribute")
