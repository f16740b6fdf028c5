"""Backends that are not installed: a class by `module:Class` or `file.py:Class`.

The code is imported, so a service never takes such a name from a caller.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from relayout.backend.failures import failure_text
from relayout.backend.interface import Backend, is_backend
from relayout.errors import BackendError


def is_code(spec: str) -> bool:
    """Whether a backend's name says where its class is: `acme.py`, `acme.py:Acme`, `acme.layouts:Acme`.

    >>> is_code("acme.py"), is_code("acme.layouts:Acme"), is_code("nhwc"), is_code("C:/acme.toml")
    (True, True, False, False)
    """
    module, colon, name = spec.rpartition(":")
    return spec.endswith(".py") or bool(colon and module and name.isidentifier())


def import_backend(spec: str) -> type[Backend] | Backend:
    """The class or instance that `spec` names; without a name, the only subclass of Backend that its file defines.

    A module is looked for in the current folder first, as Python does for a script. Raises BackendError.
    """
    origin, _, name = (spec, "", "") if spec.endswith(".py") else spec.rpartition(":")
    module = _imported(origin)
    if name:
        if not hasattr(module, name):
            known = [each.__name__ for each in _backends(module)]
            raise BackendError(
                "the module has no such name", where=origin, expected=" or ".join(known) or "a backend's class",
                found=name,
            )  # fmt: skip
        found: Any = getattr(module, name)
        if not is_backend(found):
            expected = "a subclass of relayout.Backend, or an instance of one"
            raise BackendError("that is no backend", where=spec, expected=expected, found=repr(found))
        return found
    defined = _backends(module)
    if len(defined) != 1:
        raise BackendError(
            "the file does not define exactly one backend", where=origin, expected="one subclass of relayout.Backend",
            found=", ".join(each.__name__ for each in defined) or "none",
            hint=f"name one, as in {origin}:{defined[0].__name__}" if defined else "",
        )  # fmt: skip
    return defined[0]


def _imported(origin: str) -> ModuleType:
    name = Path(origin).stem
    if origin.endswith(".py") and not Path(origin).is_file():
        found = "a folder" if Path(origin).is_dir() else "no such file"
        expected = "a file with a subclass of relayout.Backend"
        raise BackendError("the backend cannot be imported", where=origin, expected=expected, found=found)
    try:
        with _current_folder_first():
            if not origin.endswith(".py"):
                return import_module(origin)
            spec = spec_from_file_location(name, origin)
            assert spec is not None
            assert spec.loader is not None
            module = module_from_spec(spec)
            sys.modules.setdefault(name, module)  # dataclasses look their module up
            spec.loader.exec_module(module)
            return module
    except (Exception, SystemExit) as error:
        found_text = failure_text(error, name if origin.endswith(".py") else origin)
        raise BackendError("the backend cannot be imported", where=origin, found=found_text) from error


@contextmanager
def _current_folder_first() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _backends(module: ModuleType) -> list[type[Backend]]:
    """The subclasses of Backend that the module itself defines."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Backend) and each.__module__ == module.__name__
    ]
