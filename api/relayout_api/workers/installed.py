"""The installed backends as the service shows them."""

from __future__ import annotations

import inspect
from typing import Any

from relayout.backend.options import options_of
from relayout.backend.registry import Plugin, find_backends
from relayout.errors import BackendError, InternalError
from relayout_api.schemas import BackendInfo, BackendList, OptionInfo


def installed_backends() -> bytes:
    """The answer about the installed backends, in JSON. Raises InternalError."""
    try:
        plugins = find_backends().values()
    except BackendError as error:
        raise InternalError("the installed backends clash", found=str(error)) from error
    return BackendList(backends=[_info(each) for each in plugins]).model_dump_json().encode()


def _info(plugin: Plugin) -> BackendInfo:
    known: dict[str, Any] = {"name": plugin.name, "distribution": plugin.distribution, "version": plugin.version}
    try:
        backend = plugin.load()
        options = options_of(backend)
    except BackendError as error:
        return BackendInfo(**known, summary=error.problem)
    text = inspect.getdoc(backend) or ""
    infos = [
        OptionInfo(
            name=each.name,
            expected=each.expected,
            json_schema=each.json_schema,
            default=each.default_text,
            about=each.about,
        )
        for each in options
    ]
    return BackendInfo(**known, summary=" ".join(text.partition("\n\n")[0].split()), options=infos)
