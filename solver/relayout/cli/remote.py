"""The work of the command on a server: the same result, report and errors as on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayout.backend.plugin_files import is_code
from relayout.cli.batch_work import pack
from relayout.cli.job import STDIN, naming
from relayout.cli.options import Request
from relayout.errors import RelayoutError, UsageError

if TYPE_CHECKING:
    from relayout.cli.progress import Bar
    from relayout.legalization import Outcome
    from relayout.model.io import Source

KEY = "RELAYOUT_KEY"
"""The variable with the API key or bearer token for the server."""


def legalize_remotely(
    server: str, path: Path, source: Source, request: Request, bar: Bar, inputs: Sequence[Mapping[str, Any]] = ()
) -> Outcome:
    """The legal model of `source`, read from `path`, and its report, from the service at `server`.

    `inputs` are those of the comparison. A table that declares a backend is sent along; other backends are the
    server's. The job is cancelled where the command ends before it. Raises the errors of `relayout.legalize`, and
    UsageError where the server does not answer.
    """
    from relayout.client import Client, Event, Job
    from relayout.legalization import Outcome
    from relayout.model.io import read_model
    from relayout.options import options_of

    def show(event: Event) -> None:
        if event.name == "stage":
            bar(str(event.data["stage"]))

    submitted: list[Job] = []

    def stop() -> None:
        # The command tells why it ended. A RuntimeError: the client was closed while a busy server is asked again.
        with contextlib.suppress(RelayoutError, RuntimeError):
            for job in submitted:
                client.cancel(job.id)

    # Before the model is read: a backend that cannot be sent is an error at once.
    backend = _backend(request.backend)
    content: Any = pack(path) if isinstance(source, Path) and path.suffix == ".onnx" else source
    options = {option.name: getattr(request.options, option.name) for option in options_of("legalize")}
    with Client(server, key=os.environ.get(KEY)) as client, naming(path), bar.elsewhere(stop):
        # A name on disk may be no Unicode.
        name = None if path == STDIN else path.name.encode(errors="replace").decode()
        submitted.append(client.submit("legalize", content, backend, inputs=inputs, name=name, **options))
        client.wait(submitted[0].id, show)
        result = client.result(submitted[0].id)
    assert result.model is not None
    return Outcome(read_model(result.model), result.report, changed=True)


def _backend(name: str | None) -> str | Mapping[str, Any]:
    """The name of a backend of the server, or the table in a file. Raises UsageError for code."""
    name = name or "onnx"
    if is_code(name):
        raise UsageError(
            "the code of a backend is not sent",
            where=f"--backend {name}",
            expected="a backend of the server, or a table (.toml, .json)",
            found="Python code",
            hint="install it on the server, or leave out --server",
        )
    if not name.endswith((".toml", ".json")):
        return name
    from relayout.backend.declarative_reader import read_table

    return read_table(Path(name)).model_dump(mode="json", exclude_unset=True, by_alias=True)
