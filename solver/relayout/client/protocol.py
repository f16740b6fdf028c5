"""The protocol of both clients: requests, answers, errors and events. Nothing here waits."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.request import getproxies, proxy_bypass
from zipfile import ZipFile

import httpx

from relayout.errors import (
    BackendError,
    InfeasibleError,
    InputError,
    OutOfTimeError,
    RelayoutError,
    UsageError,
    check_argument,
    shortened,
)
from relayout.options import check_names, options_of

if TYPE_CHECKING:
    from relayout.report.schema import Report

Model = str | os.PathLike[str] | bytes | Mapping[str, Any]
"""A model: the path of an .onnx or .json file, ONNX bytes, or graph JSON."""

Backend = str | Mapping[str, Any]
"""The name of a backend that the server has, or a declarative one."""

Inputs = Mapping[str, Any]
"""A sample of a comparison: an array for each input of the original, by name."""

_Http = TypeVar("_Http", httpx.Client, httpx.AsyncClient)
_HEADER = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")
ENDED = ("succeeded", "failed", "cancelled")
_ONNX = "application/octet-stream"
# A busy or starting server is asked again, this often at most.
TRIES = 6
_LONGEST_PAUSE = 60.0
_KEYS = "a client takes the key as `key=`, and the command from the variable RELAYOUT_KEY"

_ERRORS: dict[str, type[RelayoutError]] = {
    # "internal" is a fault of the service. Problems without a line here are requests that it cannot take, or not now.
    "internal": RelayoutError,
    "malformed-body": InputError,
    "invalid-input": InputError,
    "invalid-layout": InputError,
    "too-large": InputError,
    "invalid-backend": BackendError,
    "out-of-time": OutOfTimeError,
}


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the service. `progress` is from 0 to 1; `cost` and `bound` are those of the best solution so far.

    `name` is the one that `submit` got, and times are ISO 8601 in UTC.
    """

    id: str
    kind: str
    state: str
    stage: str | None = None
    progress: float | None = None
    cost: int | None = None
    bound: int | None = None
    problem: Mapping[str, Any] | None = None
    name: str | None = None
    created: str | None = None
    started: str | None = None
    ended: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Job:
        """The job in an answer; fields that this client does not know are left out."""
        return cls(**{name: data[name] for name in cls.__slots__ if name in data})

    def check(self) -> None:
        """Raise the error with which the job failed, or UsageError if it was cancelled."""
        if self.problem is not None:
            raise error_of(self.problem)
        if self.state == "cancelled":
            raise UsageError("the job was cancelled", where=f"job {self.id}", expected="a job that runs to its end")


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job: `stage`, `solution` or `done`. `number` counts from 1."""

    number: int
    name: str
    data: Mapping[str, Any]


Progress = Callable[[Event], None]
"""Takes each event of a job."""


@dataclass(frozen=True, slots=True)
class Result:
    """The report of a job, and the legal model as the service sent it: ONNX bytes or graph JSON, or None."""

    report: Report
    model: bytes | dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request with its media type and query; with other `files`, a form in which `content` is the model.
    Each file has its name."""

    content: bytes
    media: str
    query: list[tuple[str, str]] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)

    def request(self, kind: str, name: str | None, key: str | None) -> dict[str, Any]:
        """The arguments of an httpx request that submits this as a job. Raises UsageError for a `key` that fits no
        header."""
        if key is not None and not _HEADER.fullmatch(key):
            expected = "1 to 255 characters of ASCII, with no space at either end"
            raise UsageError("not an idempotency key", where="key", expected=expected, found=shortened(repr(key)))
        headers = {} if key is None else {"Idempotency-Key": key}
        own = [("kind", kind)] if name is None else [("kind", kind), ("name", name)]
        given = {"params": [*own, *self.query], "headers": headers}
        if self.files:
            files = [("model", self.content), *self.files]
            return {**given, "files": [(name, BytesIO(content)) for name, content in files]}
        headers["Content-Type"] = self.media
        return {**given, "content": self.content}


def body_of(
    kind: str,
    model: Model,
    backend: Backend | None,
    options: Mapping[str, Any],
    against: Model | None = None,
    *,
    inputs: Sequence[Inputs] = (),
    weights: bool = True,
) -> Body:
    """The body for a model; `options` are those of the verb `kind`. Without a backend the service has its default.

    `against` is the original to verify against, and `inputs` are those of the comparison; without `weights` a legal
    graph comes back without them. Raises TypeError for an unknown option, UsageError, InputError.
    """
    check_names(kind, options)
    if not weights and kind != "legalize":
        check_names(kind, ["weights"])
    if against is not None and kind != "verify":
        check_names(kind, ["against"])
    if inputs and kind not in ("legalize", "verify"):
        check_names(kind, ["inputs"])
    check_argument("backend", backend, (str, Mapping), "the name of a backend of the server, or a table")
    if not isinstance(inputs, Sequence) or not all(isinstance(sample, Mapping) for sample in inputs):
        expected = "a list with a mapping of names to arrays for each sample"
        raise UsageError("no list of samples", where="inputs", expected=expected, found=type(inputs).__name__)
    content, original = _content(model), None if against is None else _content(against)
    if original is not None and isinstance(content, bytes) != isinstance(original, bytes):
        expected, found = "two ONNX models, or graph JSON twice", "one of each"
        raise UsageError("the models are of different kinds", where="against", expected=expected, found=found)
    if isinstance(content, bytes):
        assert original is None or isinstance(original, bytes)
        if not weights:
            raise UsageError("ONNX has its weights", where="weights", expected="graph JSON", found="an ONNX model")
        files = [] if original is None else [("against", original)]
        files += [("inputs", _packed(sample)) for sample in inputs]
        return Body(content, _ONNX, _query(kind, backend, options), files)
    given = {name: value for name, value in options.items() if value is not None}
    others: dict[str, Any] = {"backend": backend, "against": original, "weights": None if weights else False}
    if inputs:
        others["inputs"] = [{name: _listed(data) for name, data in sample.items()} for sample in inputs]
    whole = {"graph": content, **{name: each for name, each in others.items() if each is not None}, "options": given}
    try:
        text = json.dumps(whole, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        expected = "graph JSON, a backend and options of what JSON has"
        raise UsageError("the request is no JSON", expected=expected, found=str(error)) from error
    return Body(text.encode(), "application/json")


def headers_of(key: str | None) -> dict[str, str]:
    """The headers of every request; `key` is an API key or a bearer token. Raises UsageError for one that fits no
    header, without showing it."""
    if not key:
        return {}
    if not re.fullmatch(r"[!-~]+", key):
        expected, found = "ASCII letters, digits and signs", f"a space, line break or other character among {len(key)}"
        raise UsageError("not a key", where="key", expected=expected, found=found, hint=_KEYS)
    return {"Authorization": f"Bearer {key}"}


def checked(response: httpx.Response) -> httpx.Response:
    """The response. Raises the error that it tells."""
    if response.is_success:
        return response
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "detail" not in problem:
        hint = "it is not the service's answer: a proxy in front of it may have limits of its own"
        problem = {
            "detail": "the server answers without a reason",
            "found": f"status {response.status_code}",
            "hint": hint,
        }
    raise error_of(problem, str(response.url))


def data_of(response: httpx.Response, **kinds: type) -> dict[str, Any]:
    """The JSON object in an answer. Raises UsageError where it lacks a field of these types."""
    try:
        data = response.json()
    except ValueError:
        data = None
    if isinstance(data, dict) and all(isinstance(data.get(name), kind) for name, kind in kinds.items()):
        return data
    raise UsageError(
        "not the answer of a relayout service",
        where=str(response.url.copy_with(query=None)),
        expected=f"JSON with {', '.join(kinds)}",
        found=shortened(response.text) or "nothing",
    )


def job_of(response: httpx.Response) -> Job:
    """The job in an answer. Raises UsageError as `data_of`."""
    return Job.of(data_of(response, id=str, kind=str, state=str))


def pause(tries: int, asked: float | None = None) -> float | None:
    """The seconds to wait before the next try, of those that the server asked for, or else twice as long each time, for
    one or two minutes in all: a server that is restarted ends its work first. None after the last one."""
    seconds = 2.0**tries if asked is None else asked
    # Clients that were refused together come back one by one.
    return None if tries >= TRIES else min(seconds, _LONGEST_PAUSE) * random.uniform(1.0, 1.5)


def pause_after(response: httpx.Response, tries: int) -> float | None:
    """The seconds to wait before the same request again, or None if that would not help."""
    if response.status_code not in (429, 503) and not _is_without_server(response):
        return None
    asked = response.headers.get("retry-after", "")
    return pause(tries, float(asked) if asked.isdecimal() else None)


def _is_without_server(response: httpx.Response) -> bool:
    """Whether a proxy answers that it does not reach the server, to a request that may be sent again."""
    is_problem = response.headers.get("content-type", "").startswith("application/problem+json")
    if response.status_code not in (502, 504) or is_problem:
        return False
    request = response.request
    return request.method in ("GET", "DELETE") or "idempotency-key" in request.headers


def result_of(report: bytes, model: httpx.Response | None) -> Result:
    """The result in the answers of a job that succeeded."""
    from relayout.report.schema import Report

    return Result(Report.model_validate_json(report), None if model is None else content_of(model))


def content_of(response: httpx.Response) -> bytes | dict[str, Any]:
    """The ONNX model in an answer, or the JSON object. Raises UsageError as `data_of`."""
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return data_of(response) if is_json else response.content


def error_of(problem: Mapping[str, Any], where: str = "") -> RelayoutError:
    """The error of a problem document (RFC 9457), as the library would have raised it."""
    kind = str(problem.get("type", "")).rpartition("/")[2]
    # The problem of a job has all fields, with null in those that do not apply.
    texts = {name: str(problem.get(name) or "") for name in ("where", "expected", "found", "hint")}
    if kind == "unauthorized":
        # The service says how a request has its key, and not how a caller of this client gives it.
        texts |= {"expected": "a valid key", "hint": _KEYS}
    detail, hint = str(problem["detail"]), texts["hint"]
    if kind == "infeasible":
        conflict, relaxation = problem.get("conflict") or (), problem.get("relaxation") or ()
        return InfeasibleError(detail, conflict=conflict, relaxation=relaxation, hint=hint)
    return _ERRORS.get(kind, UsageError)(detail, **{**texts, "where": texts["where"] or where})


def unreachable(error: httpx.HTTPError, address: str) -> RelayoutError:
    """The error of a server that does not answer."""
    url = url_of(address)
    has_proxy = not getproxies().keys().isdisjoint([url.scheme, "all"]) and not proxy_bypass(url.host)
    return UsageError(
        "the server does not answer",
        where=address,
        expected="a running relayout service",
        found=f"{type(error).__name__}: {error}",
        # It may be the proxy that does not.
        hint="it is asked by way of the environment's proxy; NO_PROXY names the hosts that need none"
        if has_proxy
        else "",
    )


def http_of(kind: type[_Http], address: str, key: str | None, timeout: float) -> _Http:
    """An httpx client of this kind for a server. Raises UsageError for an address, a key, or a variable of the
    environment that cannot be used."""
    url, headers = url_of(address), headers_of(key)
    try:
        return kind(base_url=url, headers=headers, timeout=timeout)
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        raise UsageError(
            "the environment's proxy or certificates cannot be used",
            where="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE or SSL_CERT_DIR",
            expected="a proxy such as http://127.0.0.1:3128, and a file or folder of certificates",
            found=str(error),
            hint="NO_PROXY names the hosts that need no proxy",
        ) from error


def url_of(address: str) -> httpx.URL:
    """The address of a server, parsed. Raises UsageError."""
    try:
        url = httpx.URL(address)
        if url.scheme not in ("http", "https") or not url.host:
            raise httpx.InvalidURL("no http://HOST or https://HOST")
        if url.port is not None and url.port > 65535:
            raise httpx.InvalidURL(f"Invalid port: '{url.port}'")
        return url
    except (httpx.InvalidURL, TypeError) as error:
        expected = "a URL such as http://127.0.0.1:8000"
        raise UsageError("not the address of a server", where=address, expected=expected, found=str(error)) from error


def _content(model: Model) -> bytes | Mapping[str, Any]:
    """The ONNX bytes or graph JSON to send. Raises UsageError for no model, InputError for an unreadable file."""
    if isinstance(model, bytes | Mapping):
        return model
    if not isinstance(model, str | os.PathLike):
        raise UsageError(
            "not a model",
            expected="a path, ONNX bytes or a graph-JSON dict",
            found=type(model).__name__,
            hint="the bytes of a ModelProto are model.SerializeToString()"
            if hasattr(model, "SerializeToString")
            else "",
        )
    path = Path(model)
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = "the file cannot be read"
        raise InputError(
            problem, where=f"file {path}", expected="a model", found=error.strerror or str(error)
        ) from error
    if path.suffix != ".json":
        return content
    # Its schema is slow to import, and most models are ONNX files.
    from relayout.model.graph_json.schema import load_json

    return load_json(content, f"file {path}")


def _packed(sample: Inputs) -> bytes:
    """The arrays of a sample as an .npz file."""
    import numpy as np

    packed = BytesIO()
    # `numpy.savez` takes no array with the name of one of its own arguments.
    with ZipFile(packed, "w") as archive:
        for name, data in sample.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(data), allow_pickle=False)
    return packed.getvalue()


def _listed(data: object) -> Any:
    """An array, or a sequence of numbers, as JSON; those that JSON lacks as "nan", "inf" and "-inf"."""
    import numpy as np

    array = np.asarray(data)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        named = array.astype(object)
        for place in zip(*np.nonzero(~np.isfinite(array)), strict=True):
            named[place] = str(array[place].item())
        return named.tolist()
    return array.tolist()


def _query(kind: str, backend: Backend | None, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The backend and the options as the query that goes with ONNX bytes."""
    query = [] if backend is None else [("backend", backend if isinstance(backend, str) else json.dumps(backend))]
    for option in options_of(kind):
        value = options.get(option.name)
        if value is None or value == option.default:
            continue
        if option.is_mapping:
            query += [(option.single, f"{name}={_text(each)}") for name, each in value.items()]
        else:
            query.append((option.single, _text(value)))
    return query


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
