"""Convert pydantic's errors to a UsageError with location, expected and found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from relayout.errors import UsageError
from relayout.model.graph_json.faults import expectation, first_fault, json_kind
from relayout.model.graph_json.json_text import parse_json
from relayout_api.problems import MalformedBodyError

_Model = TypeVar("_Model", bound=BaseModel)
AS_ONNX = "an ONNX model is sent with Content-Type: application/octet-stream"
"""The hint for a body that may be an ONNX model and says that it is JSON."""


def load_body(body: bytes | memoryview, where: str = "body") -> dict[str, Any]:
    """The JSON object in a body, or in another place. Raises MalformedBodyError, UsageError."""
    try:
        loaded = parse_json(bytes(body))
    except ValueError as error:
        found, hint = str(error)[:200], ""
        if where != "body":
            raise UsageError("not JSON", where=where, expected="a JSON object", found=found) from None
        if not body:
            found = "0 bytes"
        elif isinstance(error, UnicodeDecodeError):
            found, hint = f"{len(body)} bytes that are no text", AS_ONNX
        raise MalformedBodyError("a JSON object", found, hint) from None
    if not isinstance(loaded, dict):
        raise UsageError("not a JSON object", where=where, expected="an object", found=json_kind(loaded))
    return loaded


def validated(schema: type[_Model], data: object, where: str = "body") -> _Model:
    """`data` as a `schema`. Raises UsageError for its first fault."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        fault = first_fault(faults, data, schema, within="parameters" if where == "query" else "fields")
        raise UsageError(
            "invalid request" + (f" (in {fault.more + 1} places, this is the first)" if fault.more else ""),
            where=f"{where}.{fault.path}" if fault.path else where,
            expected=fault.expected,
            found=fault.found,
            hint=fault.hint,
        ) from None


def header_error(faults: Sequence[Mapping[str, Any]]) -> UsageError:
    """The first of pydantic's errors about the headers of a request as a UsageError. No header is required."""
    fault = faults[0]
    found = json.dumps(fault["input"])
    return UsageError(
        "invalid request",
        where=f"header {fault['loc'][-1].title()}",
        expected=expectation(fault),
        found=found if len(found) <= 80 else f"{found[:77]}...",
    )
