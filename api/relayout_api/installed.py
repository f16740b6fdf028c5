"""The installed backends as the service shows them. They do not change while it runs."""

from __future__ import annotations

import inspect
from functools import cache

from relayout.backend.options import options_of
from relayout.backend.registry import Plugin, find_backends
from relayout.errors import BackendError, InternalError
from relayout_api.schemas import BackendInfo, BackendList, OptionInfo

__all__ = ["installed_backends"]


@cache
def installed_backends() -> bytes:
    """The answer about the installed backends, in JSON. Raises InternalError."""
    try:
        plugins = find_backends().values()
    except BackendError as error:
        raise InternalError("the installed backends clash", found=str(error)) from error
    infos = [
        BackendInfo(
            name=each.name,
            distribution=each.distribution,
            version=each.version,
            summary=_summary(each),
            options=_options(each),
        )
        for each in plugins
    ]
    return BackendList(backends=infos).model_dump_json().encode()


def _summary(plugin: Plugin) -> str:
    try:
        text = inspect.getdoc(plugin.load()) or ""
    except BackendError as error:
        return error.problem
    return " ".join(text.partition("\n\n")[0].split())


def _options(plugin: Plugin) -> list[OptionInfo]:
    try:
        options = options_of(plugin.load())
    except BackendError:
        return []
    return [
        OptionInfo(
            name=each.name,
            expected=each.expected,
            json_schema=each.json_schema,
            default=each.default_text,
            about=each.about,
        )
        for each in options
    ]
