"""The page at /: its files in `static`. It loads nothing from other servers and runs only its own scripts."""

from __future__ import annotations

from importlib.resources import files
from os import PathLike, stat_result

from fastapi import Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src 'self'; script-src 'self'; "
    "style-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    # A browser asks whether its copy is still the same, so that all files are of one version.
    "Cache-Control": "no-cache",
}


class _Files(StaticFiles):
    """The files of the page, with the page's headers: a worker has the policy of its own file."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


STATIC = _Files(directory=str(files("relayout_api").joinpath("static")))
