"""The loader of backends from a name, a .toml, .json or .py file, an inline table, a class or an instance."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayout.backend.interface import Backend
from relayout.backend.options import check_options
from relayout.backend.plugin_files import import_backend, is_code
from relayout.backend.registry import find_plugin, given_options, instantiate
from relayout.errors import BackendError, RelayoutError

if TYPE_CHECKING:
    from relayout.backend.declarative_reader import KeyPath
    from relayout.backend.declarative_schema import BackendTable

_FILES = (".toml", ".json")


def load_backend(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Backend | type[Backend],
    *,
    options: Mapping[str, Any] | None = None,
    allow_files: bool = True,
) -> Backend:
    """The backend of `spec`: a name, a .toml or .json file, an inline table, an instance, a class, or where a class is:
    `acme.py:Acme` or `acme.layouts:Acme`.

    `options` go to the backend's constructor; None, empty text and empty containers are left out. With
    `allow_files=False` a string is only ever a name: a service loads a caller's backend this way. Raises BackendError.
    """
    is_file = isinstance(spec, str | os.PathLike) and allow_files and os.fspath(spec).endswith(_FILES)
    if isinstance(spec, Mapping) or is_file:
        source = spec if isinstance(spec, Mapping) else Path(spec)  # type: ignore[arg-type]
        return instantiate(_declared(source), options)
    named = os.fspath(spec) if isinstance(spec, os.PathLike) else spec
    files: list[str] = []
    if isinstance(named, str) and allow_files:
        if is_code(named):
            return instantiate(import_backend(named), options)
        if (suffix := Path(named).suffix) and Path(named).is_file():
            expected = f"{' or '.join(_FILES)} for a table, .py for a class"
            raise BackendError("a backend's file has another suffix", where=named, expected=expected, found=suffix)
        files = [f"{named}{suffix}" for suffix in (*_FILES, ".py") if named and Path(f"{named}{suffix}").is_file()]
    if isinstance(named, str):
        return instantiate(find_plugin(named, files).load(), options, name=named)
    return instantiate(named, options)


def _declared(source: Mapping[str, Any] | Path) -> Backend:
    from relayout.backend.declarative_reader import check_table, read_table

    table = read_table(source) if isinstance(source, Path) else check_table(source)
    if not table.device:
        return _extending(table, source, ("extends",), ("options",))(None)
    from relayout.backend.declarative import composite, table_of

    makers = [
        _extending(table_of(each), source, ("device", i, "backend"), ("device", i, "options"))
        for i, each in enumerate(table.device)
    ]
    return composite(table, makers)


def _extending(
    table: BackendTable, source: Mapping[str, Any] | Path, name: KeyPath, own: KeyPath
) -> Callable[[Backend | None], Backend]:
    """A factory of the backend of a table without devices, from its context. Raises BackendError at once where the key
    `name` of the source names no backend, or the backend does not take the options at the key `own`."""
    from relayout.backend.declarative import DeclarativeBackend

    with _located(source, name, f"it extends {table.extends!r}: "):
        found = find_plugin(table.extends).load()
    options = given_options(table.options)
    with _located(source, own):
        check_options(table.extends, found, options)

    def extended(outermost: Backend) -> Backend:
        with _located(source, own):
            return instantiate(found, options, outermost, table.extends)

    def place(number: int) -> str:
        return _place(source, (*name[:-1], "rule", number))

    return lambda context: DeclarativeBackend(table, extended, context, place)


def _place(source: Mapping[str, Any] | Path, key: KeyPath) -> str:
    """Where a key is in the source of a table."""
    from relayout.backend.declarative_reader import place_of

    if isinstance(source, Path):
        return place_of(key, str(source), source.read_text("utf-8") if source.suffix == ".toml" else "")
    return place_of(key, "inline backend", "")


@contextmanager
def _located(source: Mapping[str, Any] | Path, key: KeyPath, problem: str = "") -> Iterator[None]:
    """Add the place of a key to the errors inside, and `problem` before theirs."""
    try:
        yield
    except RelayoutError as error:
        where = _place(source, key)
        raise BackendError(
            f"{problem}{error.problem}",
            where=", ".join(filter(None, [where, error.where])),
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from error
