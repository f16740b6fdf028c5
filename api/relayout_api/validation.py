"""Convert pydantic's errors to a UsageError with location, expected and found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from relayout.errors import UsageError
from relayout_api.problems import MalformedBodyError

__all__ = ["load_body", "usage_error", "validated"]

_Model = TypeVar("_Model", bound=BaseModel)


def load_body(body: bytes | memoryview, where: str = "body") -> dict[str, Any]:
    """The JSON object in a body. Raises MalformedBodyError, UsageError."""
    try:
        loaded = json.loads(bytes(body), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedBodyError("a JSON object", str(error)[:200]) from None
    if not isinstance(loaded, dict):
        raise UsageError("not a JSON object", where=where, expected="an object", found=type(loaded).__name__)
    return loaded


def validated(schema: type[_Model], data: object, where: str = "body") -> _Model:
    """`data` as a `schema`. Raises UsageError for its first fault."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise usage_error(error.errors(include_url=False, include_context=False), where) from None


def usage_error(faults: Sequence[Mapping[str, Any]], where: str = "") -> UsageError:
    """The first of pydantic's errors as a UsageError."""
    fault = faults[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
    kinds = {"missing": "this field", "extra_forbidden": "no such field"}
    found = json.dumps(fault.get("input"), default=str)
    return UsageError(
        "invalid request" + (f" ({len(faults)} faults, this is the first)" if faults[1:] else ""),
        where=f"{where}{path}".removeprefix("."),
        expected=kinds.get(fault["type"], fault["msg"][:1].lower() + fault["msg"][1:]),
        found="nothing" if fault["type"] == "missing" else found if len(found) <= 80 else f"{found[:77]}...",
    )


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
