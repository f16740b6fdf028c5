"""Installed backends: the entry points of the group `relayout.backends`, and instances of them.

    [project.entry-points."relayout.backends"]
    acme = "acme_layouts:Acme"

The backends that ship with relayout are registered the same way. A backend is imported only when it is asked for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence, Sized
from functools import cache
from importlib import metadata
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from relayout.backend.failures import failure_text
from relayout.backend.interface import Backend, is_backend
from relayout.backend.members import check_members
from relayout.backend.options import check_options
from relayout.errors import BackendError, RelayoutError, did_you_mean

GROUP = "relayout.backends"


class Plugin(Struct, frozen=True):
    """A backend that is installed but not yet imported: its name, its import path, and where it comes from.

    `others` are the other installed backends of this name: none of them can be loaded.
    """

    name: str
    value: str
    source: metadata.Distribution | None
    others: tuple[Plugin, ...] = ()

    # A distribution reads and parses a file to tell its name, which most runs do not need.
    @property
    def distribution(self) -> str:
        return self.source.name if self.source is not None else "(no distribution)"

    @property
    def version(self) -> str:
        return self.source.version if self.source is not None else ""

    @property
    def owner(self) -> str:
        """The distribution with its version: "relayout 0.1.0"."""
        return f"{self.distribution} {self.version}"

    def load(self) -> type[Backend] | Backend:
        """Import the backend. Raises BackendError that names the distribution, or all that have a backend of this
        name."""
        if self.others:
            raise BackendError(
                f"several backends are named {self.name!r}",
                expected="one backend a name",
                found=" and ".join(sorted(f"{each.owner} ({each.value})" for each in (self, *self.others))),
                hint="uninstall one of them",
            )
        try:
            found = metadata.EntryPoint(self.name, self.value, GROUP).load()
        except (Exception, SystemExit) as error:
            raise BackendError(
                f"the backend {self.name!r} of {self.owner} cannot be imported",
                where=self.value,
                found=failure_text(error, self.value.partition(":")[0]),
                hint=f"repair or uninstall {self.distribution}",
            ) from error
        if not is_backend(found):
            raise BackendError(
                f"the backend {self.name!r} of {self.owner} is not a subclass of Backend",
                where=self.value,
                expected="a subclass of relayout.Backend, or an instance of one",
                found=repr(found),
            )
        return found


def find_backends() -> dict[str, Plugin]:
    """The installed backends by name, sorted; none is imported."""
    return dict(sorted(_plugins(tuple(sys.path)).items()))


def instantiate(
    spec: str | Backend | type[Backend],
    options: Mapping[str, Any] | None = None,
    context: Backend | None = None,
    name: str = "",
) -> Backend:
    """The backend of an installed name, a class or an instance.

    `context` is the outermost backend where this one is part of another; `name` is the name of a class without one of
    its own. Raises BackendError.
    """
    found, given_name = (find_plugin(spec).load(), spec) if isinstance(spec, str) else (spec, name)
    if not is_backend(found):
        raise BackendError("that is no backend", expected="a name, a table, a Backend or its class", found=repr(found))
    given, kind = given_options(options or {}), found if isinstance(found, type) else type(found)
    try:
        name = given_name or found.name or kind.__name__
        check_options(name, found, given)
        if isinstance(found, Backend):
            backend = found
        else:
            takes_context = context is not None and "context" in inspect.signature(found).parameters
            backend = found(**given, **({"context": context} if takes_context else {}))
    except RelayoutError:
        raise
    except (Exception, SystemExit) as error:
        raise BackendError(
            f"the backend {given_name or kind.__name__!r} cannot be made", found=failure_text(error, kind.__module__)
        ) from error
    check_members(backend)
    if backend is not found:
        backend.name = backend.name or name
    return backend


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with a value: None, empty text and empty containers do not count; False and 0 do."""
    return {name: value for name, value in options.items() if not _is_empty(value)}


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Sized) and len(value) == 0)


@cache
def _plugins(path: tuple[str, ...]) -> dict[str, Plugin]:
    """The plugins by name. `path` is sys.path: its folders are read once. An entry that is found twice counts once."""
    claims: dict[str, list[Plugin]] = {}
    for entry in metadata.entry_points(group=GROUP):
        plugin, others = Plugin(entry.name, entry.value, entry.dist), claims.setdefault(entry.name, [])
        if all((plugin.value, plugin.owner) != (other.value, other.owner) for other in others):
            others.append(plugin)
    return {name: replace(first, others=tuple(others)) for name, (first, *others) in claims.items()}


def find_plugin(name: str, files: Sequence[str] = ()) -> Plugin:
    """The installed backend of this name. `files` are those that the caller may have meant instead.

    Raises BackendError.
    """
    plugins = _plugins(tuple(sys.path))
    if name not in plugins:
        file = "" if not name.endswith((".toml", ".json")) else "; files are not accepted here"
        raise BackendError(
            f"there is no backend {name!r}{file}",
            expected=f"one of {', '.join(sorted(plugins))}" if plugins else "an installed backend; none is installed",
            found=repr(name),
            hint=f"did you mean the file {' or '.join(files)}?" if files else did_you_mean(name, plugins, 3, 0.5),
        )
    return plugins[name]
