"""The verb `serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from relayout.cli.exit_status import DONE

__all__ = ["serve"]


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds that work in progress has when the server is told to stop; jobs start again later."
        ),
    ] = None,
) -> int:
    """Run the HTTP service."""
    from relayout_api import server

    server.serve(host, port, grace)
    return DONE
