"""What a backend says of itself, asked of no node: checked once, when it is loaded, so that nobody checks it again."""

from __future__ import annotations

from typing import NoReturn

from relayout.answers import shown
from relayout.backend import Backend
from relayout.errors import BackendError, RelayoutError

__all__ = ["check_members"]

_METHODS = tuple(name for name, member in vars(Backend).items() if not name.startswith("_") and callable(member))
_KINDS: dict[str, type] = {"name": str, "is_enabled": bool, "flows_down": bool, "context": Backend}
_WORDS = {"name": "a text", "is_enabled": "True or False", "flows_down": "True or False", "context": "a backend"}


def check_members(backend: Backend) -> None:
    """Raise BackendError where a method is none, or where name, switches, places or host make no sense."""
    where = f"backend {type(backend).__name__}"
    for name in ("name", "is_enabled", "flows_down", "context", *_METHODS):
        try:
            member = getattr(backend, name)
            is_sound = callable(member) if name in _METHODS else isinstance(member, _KINDS[name])
        except Exception as error:
            _blame(error, where, name)
        if not is_sound:
            hint = "a constructor of one's own calls super().__init__(context)" if name == "context" else ""
            expected = "a method" if name in _METHODS else _WORDS[name]
            raise _wrong(where, name, expected, member, hint)
    _check_places(backend, f"backend {backend.name or type(backend).__name__}")


def _check_places(backend: Backend, where: str) -> None:
    asked = "places"
    try:
        places = backend.places()
        if not isinstance(places, tuple) or not all(isinstance(place, str) and place for place in places):
            raise _wrong(where, asked, "a tuple of names", places)
        asked = "host"
        host = backend.host()
        if host is not None and host not in places:
            raise _wrong(where, asked, " or ".join(["None", *places]), host)
        asked = "at"
        for place in places or ("",):
            device = backend.at(place)
            if not isinstance(device, Backend):
                raise _wrong(where, f"at({place!r})", "a backend", device)
    except Exception as error:
        _blame(error, where, asked)


def _wrong(where: str, name: str, expected: str, found: object, hint: str = "") -> BackendError:
    problem = f"the backend's {name} makes no sense"
    return BackendError(problem, where=where, expected=expected, found=shown(found), hint=hint)


def _blame(error: Exception, where: str, asked: str) -> NoReturn:
    if isinstance(error, RelayoutError):
        raise error
    raise BackendError(
        f"the backend failed in {asked}",
        where=where,
        found=f"{type(error).__name__}: {error}",
        hint="this is a fault of the backend, not of the model",
    ) from error
