"""The installed backends as the service shows them."""

from __future__ import annotations

import inspect
from typing import Any

from relayout.backend.options import options_of
from relayout.backend.registry import Plugin, find_backends
from relayout.errors import BackendError
from relayout_api.schemas import BackendInfo, BackendList, OptionInfo


def installed_backends() -> bytes:
    """The answer about the installed backends, in JSON. One that cannot be loaded has the reason as its summary."""
    return BackendList(backends=[_info(each) for each in find_backends().values()]).model_dump_json().encode()


def _info(plugin: Plugin) -> BackendInfo:
    known: dict[str, Any] = {"name": plugin.name, "distribution": plugin.distribution, "version": plugin.version}
    try:
        backend = plugin.load()
        options = options_of(backend)
    except BackendError as error:
        # Of a broken module, the text of its error may have a path in it. Of a clash, it names the distributions.
        return BackendInfo(**known, summary=f"{error.problem}: {error.found}" if plugin.others else error.problem)
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
