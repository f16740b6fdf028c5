"""The query that goes with an ONNX model: the options of the JSON body, named as the command names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from fastapi import Request
from pydantic import ConfigDict, Field

from relayout.errors import UsageError
from relayout.options import options_of
from relayout_api.bodies import JSON, MULTIPART, ONNX, media_type
from relayout_api.schemas import (
    ExplainParameters,
    GraphParameters,
    LegalizeParameters,
    Parameters,
    Strict,
    VerifyParameters,
    value_type,
    with_fields,
)
from relayout_api.validation import load_body, validated

__all__ = [
    "ExplainQuery",
    "GraphQuery",
    "LegalizeQuery",
    "VerifyQuery",
    "check_query",
    "given_parameters",
    "query_of",
]

# A server takes no more than 64 KiB of headers; each of these fits.
_Pairs = Annotated[list[Annotated[str, Field(max_length=400)]], Field(max_length=128)]


def _query_fields(verb: str) -> dict[str, Any]:
    """The query keys of the options of `verb`; of a mapping, one key for each entry."""
    fields: dict[str, Any] = {}
    for option in options_of(verb):
        if option.is_mapping:
            fields[option.single] = _Pairs, Field([], description=f"{option.metavar}: {option.help}")
        else:
            value = value_type(option)
            kind = value if option.default is not None else value | None
            fields[option.single] = kind, Field(option.default, description=option.help)
    return fields


_BACKEND = "an installed backend's name, or a table in JSON"


class _Query(Strict):
    """The query of an ONNX model. `verb` has the options, `schema` is the JSON body without the graph."""

    # All values in a query are text.
    model_config = ConfigDict(strict=False)
    verb: ClassVar = "legalize"
    body: ClassVar[type[Parameters]] = LegalizeParameters

    backend: str | None = Field("onnx", max_length=32_000, description=f"{_BACKEND}; onnx by default")

    def parameters(self) -> Parameters:
        """The same as in JSON. Raises UsageError."""
        backend = self.backend
        is_table = backend is not None and backend.startswith("{")
        options = {}
        for option in options_of(self.verb):
            value = getattr(self, option.single)
            options[option.name] = option.parse(value, f"query.{option.single}") if option.is_mapping else value
        whole = {
            "backend": load_body(backend.encode(), "query.backend") if backend is not None and is_table else backend,
            "options": options,
        }
        return validated(self.body, whole, "query")


@with_fields(_query_fields("legalize"))
class LegalizeQuery(_Query):
    """The query of an ONNX model to legalize."""


@with_fields(_query_fields("legalize"))
class GraphQuery(_Query):
    """The query of an ONNX model to draw."""

    body: ClassVar = GraphParameters
    backend: str | None = Field(None, max_length=32_000, description=f"{_BACKEND}; none: no legal graph")


@with_fields(_query_fields("explain"))
class ExplainQuery(_Query):
    """The query of an ONNX model to explain."""

    verb: ClassVar = "explain"
    body: ClassVar = ExplainParameters


@with_fields(_query_fields("verify"))
class VerifyQuery(_Query):
    """The query of an ONNX model to verify."""

    verb: ClassVar = "verify"
    body: ClassVar = VerifyParameters
    backend: str | None = Field(
        None, max_length=32_000, description=f"{_BACKEND}; by default the backend that the model records"
    )


_QUERIES: dict[str, type[_Query]] = {
    "legalize": LegalizeQuery,
    "explain": ExplainQuery,
    "verify": VerifyQuery,
    "graph": GraphQuery,
}
# The keys that name an entry of a mapping.
_REPEATED = {
    option.single for verb in ("legalize", "explain", "verify") for option in options_of(verb) if option.is_mapping
}


def check_query(request: Request) -> None:
    """Raise UsageError for a wrong key or value in the query of an ONNX model, in the words of a wrong JSON body."""
    verb = request.url.path.removeprefix("/v1/")
    if verb in _QUERIES:
        query_of(verb, request)


def query_of(kind: str, request: Request) -> Parameters:
    """The parameters of an ONNX model in a query that also has a `kind`. Raises UsageError."""
    schema, given = _QUERIES[kind], request.query_params
    values: dict[str, Any] = {}
    for name in given:
        field = schema.model_fields.get(name)
        if name != "kind":
            values[name] = given.getlist(name) if field is not None and field.default == [] else given[name]
    return validated(schema, values, "query").parameters()


def given_parameters(
    request: Request, parameters: Callable[[], Parameters], *own: str
) -> tuple[dict[str, Any] | None, str]:
    """The parameters of the query where the body is an ONNX model, else None, and the body's media type.

    `own`: keys of the query that are the endpoint's. Raises UsageError if there are others beside a JSON body, which
    has its own options, and for a key with two values.
    """
    kind = media_type(request, JSON, ONNX, MULTIPART)
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if times > 1 and name not in _REPEATED:
            raise UsageError("a key twice in the query", where=f"query.{name}", expected="one", found=f"{times}")
    if kind != JSON:
        return parameters().model_dump(mode="json"), ONNX
    if others := [name for name in request.query_params if name not in own]:
        raise UsageError(
            "options in the query go with an ONNX model",
            where="query",
            expected="options in the JSON body",
            found=", ".join(others),
        )
    return None, kind
