"""The query of a request. That of an ONNX model has the options of the JSON body, named as the command names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from fastapi import Request
from fastapi.params import Query as QueryParameter
from fastapi.routing import APIRoute
from pydantic import ConfigDict, Field, create_model

from relayout.errors import UsageError
from relayout.options import options_of
from relayout_api.access.callers import needed_scope
from relayout_api.bodies import JSON, MULTIPART, ONNX, media_type
from relayout_api.jobs.schema import Verb
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
from relayout_api.validation import AS_ONNX, load_body, validated

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


class _Texts(Strict):
    """A query: all values are text."""

    model_config = ConfigDict(strict=False)


class _Query(_Texts):
    """The query of an ONNX model. `verb` has the options, `body` is the JSON body without the graph."""

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
class _LegalizeQuery(_Query):
    """The query of an ONNX model to legalize."""


@with_fields(_query_fields("legalize"))
class _GraphQuery(_Query):
    """The query of an ONNX model to draw."""

    body: ClassVar = GraphParameters
    backend: str | None = Field(None, max_length=32_000, description=f"{_BACKEND}; none: no legal graph")


@with_fields(_query_fields("explain"))
class _ExplainQuery(_Query):
    """The query of an ONNX model to explain."""

    verb: ClassVar = "explain"
    body: ClassVar = ExplainParameters


@with_fields(_query_fields("verify"))
class _VerifyQuery(_Query):
    """The query of an ONNX model to verify."""

    verb: ClassVar = "verify"
    body: ClassVar = VerifyParameters
    backend: str | None = Field(
        None, max_length=32_000, description=f"{_BACKEND}; by default the backend that the model records"
    )


QUERIES: dict[str, type[_Query]] = {
    "legalize": _LegalizeQuery,
    "explain": _ExplainQuery,
    "verify": _VerifyQuery,
    "graph": _GraphQuery,
}
"""The query of each verb. `check_query` looks at it, and not FastAPI, which would take each key out of it by itself, in
a tenth of the server's time for a request."""


async def check_query(request: Request) -> None:
    """Raise UsageError for a key that the endpoint does not have, a second value of a key, or a wrong value.

    All endpoints depend on it: FastAPI ignores keys that an endpoint does not declare, and all values but the last. It
    is asynchronous because FastAPI calls others in a thread.
    Probes, the page and the meanings of problems take any query, as links to them may have one.
    """
    if needed_scope(request.method, request.scope["path"]) is None:
        return
    given = request.query_params
    route: APIRoute = request.scope["route"]
    # The query of a job has the keys of its kind, too.
    kind = given.get("kind", "legalize")
    schema = _schema(route.endpoint, route.path.removeprefix("/v1/"), kind if kind in get_args(Verb) else "legalize")
    for name, times in Counter(name for name, _ in given.multi_items()).items():
        if times > 1 and name in schema.model_fields and not _is_repeated(schema, name):
            raise UsageError("a key twice in the query", where=f"query.{name}", expected="one", found=f"{times}")
    validated(schema, _values(schema, request), "query")


@cache
def _schema(endpoint: Callable[..., Any], verb: str, kind: str) -> type[Strict]:
    defaults = signature(endpoint).parameters
    own: dict[str, Any] = {
        name: (hint, defaults[name].default)
        for name, hint in get_type_hints(endpoint, include_extras=True).items()
        if any(isinstance(each, QueryParameter) for each in getattr(hint, "__metadata__", ()))
    }
    base = QUERIES[kind] if "kind" in own else QUERIES.get(verb, _Texts)
    return create_model("Query", __base__=base, **own)


def _values(schema: type[Strict], request: Request) -> dict[str, Any]:
    given = request.query_params
    return {name: given.getlist(name) if _is_repeated(schema, name) else given[name] for name in given}


def _is_repeated(schema: type[Strict], name: str) -> bool:
    """Whether the key names one entry of a mapping."""
    return name in schema.model_fields and schema.model_fields[name].default == []


def given_parameters(request: Request, verb: str, *own: str) -> tuple[dict[str, Any] | None, str]:
    """The parameters of the query where the body is an ONNX model, else None, and the body's media type.

    `own`: keys of the query that are the endpoint's. Raises UsageError if there are others beside a JSON body, which
    has its own options, and for wrong ones.
    """
    kind, schema = media_type(request, JSON, ONNX, MULTIPART), QUERIES[verb]
    if kind != JSON:
        values = {name: value for name, value in _values(schema, request).items() if name not in own}
        return validated(schema, values, "query").parameters().model_dump(mode="json"), ONNX
    if others := [name for name in request.query_params if name not in own]:
        raise UsageError(
            "options in the query go with an ONNX model",
            where="query",
            expected="options in the JSON body",
            found=", ".join(others),
            hint=AS_ONNX,
        )
    return None, kind
