"""The server process: listens, and stops when it is told to, with the time that work in progress needs."""

from __future__ import annotations

import contextlib
import logging
import signal
from types import FrameType

from relayout.errors import UsageError
from relayout_api.workers.processes import Template

_log = logging.getLogger("relayout_api")

# After the grace: the time to answer those whose work was stopped.
_LAST_WORDS_SECONDS = 3


def serve(host: str, port: int, grace: float | None = None, *, is_open: bool = False) -> None:
    """Run the service, with the settings of the environment, until a signal ends it.

    `grace`: in place of the setting. Unless `is_open`, callers need a key where others than this machine may call.
    Raises UsageError where it cannot listen, where nobody could call, or for a wrong setting.
    """
    # Before the imports below: the template imports what the workers need in a process of its own, at the same time.
    template = Template()
    try:
        import uvicorn

        from relayout_api.app import create_app
        from relayout_api.http_protocol import Protocol, with_files
        from relayout_api.preflight import check_address, misspelled, needs_local_callers, with_auth
        from relayout_api.settings import Settings
        from relayout_api.telemetry.logs import configure

        settings = with_auth(Settings.from_environment(), host, is_open)
        if grace is not None:
            settings = settings.model_copy(update={"grace": grace})
        configure(settings.log_format)
        for variable, near in misspelled().items():
            _log.warning("%s: no such setting; did you mean %s?", variable, near)
        check_address(host, port)
        app = create_app(settings, template, only_local=needs_local_callers(settings, host, is_open))
        service = app.state.service

        class Server(uvicorn.Server):
            """Tells the service of a signal at once, and not only after the last request. A second Ctrl-C ends the
            grace alone: uvicorn would leave the work that runs without an end."""

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                if not self.should_exit:
                    service.stop_soon()
                    super().handle_exit(sig, frame)
                elif sig == signal.SIGINT:
                    service.stop_now()

        config = uvicorn.Config(
            with_files(app),
            host=host,
            port=port,
            http=Protocol,
            # uvicorn would take uvloop where it is installed, which cannot send files.
            loop="asyncio",
            ws="none",
            server_header=False,
            # Logs are configured above, and an answer is logged by our own middleware.
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=int(settings.grace) + _LAST_WORDS_SECONDS,
        )
        Protocol.head_seconds = settings.header_seconds
        # uvicorn raises the signal again when all is done; for Ctrl-C that is no error.
        with contextlib.suppress(KeyboardInterrupt):
            Server(config).run()
    except SystemExit as ended:
        if ended.code:
            # uvicorn has logged the reason.
            raise UsageError(
                "the server did not start", where=f"--host {host} --port {port}", expected="an address that is free"
            ) from ended
    finally:
        template.close()
