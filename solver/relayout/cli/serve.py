"""`relayout serve`."""

from __future__ import annotations

from relayout.cli.exit_status import DONE
from relayout.errors import UsageError

__all__ = ["run_server"]


def run_server(host: str, port: int) -> int:
    """Serve HTTP until interrupted. Raises UsageError where the address is taken or is none."""
    import uvicorn

    try:
        uvicorn.run("relayout_api.app:create_app", factory=True, host=host, port=port)
    except SystemExit as ended:
        if ended.code:
            # uvicorn has logged the reason.
            raise UsageError(
                "the server did not start", where=f"--host {host} --port {port}", expected="an address that is free"
            ) from ended
    return DONE
