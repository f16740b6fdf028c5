"""The verb `serve`."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from relayout.cli.exit_status import DONE
from relayout.errors import UsageError

__all__ = ["serve"]


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
) -> int:
    """Run the HTTP service."""
    import uvicorn

    gc.enable()

    try:
        uvicorn.run("relayout_api.app:create_app", factory=True, host=host, port=port)
    except SystemExit as ended:
        if ended.code:
            # uvicorn has logged the reason.
            raise UsageError(
                "the server did not start", where=f"--host {host} --port {port}", expected="an address that is free"
            ) from ended
    return DONE
