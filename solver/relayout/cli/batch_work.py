"""The work of `relayout batch` on one model, in this process, in another one, or on another machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayout.cli.exit_status import DONE, FINDINGS, describe, show_traceback
from relayout.cli.job import backend_of, legalize_file_of_folder, read_file, save
from relayout.cli.options import Request
from relayout.cli.terminal import leave_out_logs, results_alone
from relayout.errors import InputError

if TYPE_CHECKING:
    from relayout.report.schema import Report

JOURNAL = ".relayout-batch.jsonl"
"""The name of the journal, in the folder of the legal models."""


@dataclass(frozen=True, slots=True)
class Item:
    """One model of a batch: its file, the file of the legal model, and the request."""

    source: Path
    target: Path
    request: Request

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True, slots=True)
class Done:
    """One model that is done: its exit status, its report or the error, its key, empty if it could not be read, and the
    symbolic dims that it has, if sizes of dims are given."""

    name: str
    status: int
    report: Report | None = None
    message: str = ""
    key: str = ""
    dims: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """The entry of the batch's report, as JSON."""
        report = self.report.model_dump(mode="json") if self.report is not None else None
        return {"model": self.name, "exit_status": self.status, "report": report, "error": self.message or None}


def legalize_item(item: Item, progress: Callable[[str], None] = lambda step: None) -> Done:
    """Legalize one model and write it. Every failure is in the result."""
    leave_out_logs()  # a process of its own logs too
    key = ""
    # The work itself says that a file cannot be read.
    with suppress(OSError):
        key = key_of(item)
    return replace(_legalized(item, progress), key=key)


def key_of(item: Item) -> str:
    """A hash of what the result depends on: model, files of weights beside it, backend, options, versions."""
    import hashlib

    hashed = hashlib.sha256()
    with item.source.open("rb") as file:
        hashed.update(hashlib.file_digest(file, "sha256").digest())
    for path in sorted(item.source.parent.iterdir()):
        if path.suffix not in (".onnx", ".json") and path.name != JOURNAL and path.is_file():
            status = path.stat()
            hashed.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
    hashed.update(table_of(item.request) + _code_of(item.request))
    hashed.update(f"{item.request} {_versions()}".encode())
    return hashed.hexdigest()


def _code_of(request: Request) -> bytes:
    """The file of a backend that is named by its code: `acme.py`, `acme.py:Acme`, or `acme.layouts:Acme` here."""
    spec = request.backend or ""
    named = spec if spec.endswith(".py") else spec.rpartition(":")[0]
    for path in (Path(named), Path(*named.split(".")).with_suffix(".py") if named else Path()):
        if path.suffix == ".py" and path.is_file():
            return path.read_bytes()
    return b""


@cache
def _versions() -> list[tuple[str, str]]:
    """The versions of relayout and of the distributions of all installed backends."""
    from importlib.metadata import version

    from relayout.backend.registry import find_backends

    plugins = [one for each in find_backends().values() for one in (each, *each.others)]
    owners = {(each.distribution, each.version) for each in plugins}
    return sorted({("relayout", version("relayout")), *owners})


@results_alone()
def _legalized(item: Item, progress: Callable[[str], None]) -> Done:
    try:
        outcome, dims = legalize_file_of_folder(item.source, item.request, backend_of(item.request), progress)
        if outcome.report.ok:
            progress("write")
            save(outcome, item.source, item.target)
    except Exception as error:
        show_traceback(error)
        status, message = describe(error)
        return Done(item.name, status, message=message)
    if not outcome.report.ok:
        return Done(item.name, FINDINGS, outcome.report, _failure(outcome.report), dims=tuple(sorted(dims)))
    return Done(item.name, DONE, outcome.report, dims=tuple(sorted(dims)))


def _failure(report: Report) -> str:
    """The verdict with its first error; the report has all of them."""
    from relayout.cli.verify import finding_lines

    errors = [line.removeprefix("error: ") for line in finding_lines(report) if line.startswith("error: ")]
    more = f"\n  and {len(errors) - 1} more" if errors[1:] else ""
    return "\n  found:    ".join(["the verification failed, and it was not written", *errors[:1]]) + more


def pack(source: Path) -> bytes:
    """The model in a file as bytes that another machine can read, with its weights inside. Raises InputError."""
    if source.suffix != ".onnx":
        return source.read_bytes()
    from relayout.model.external_data import loaded_whole

    try:
        packed = bytes(loaded_whole(source).SerializeToString())
    except Exception as error:  # onnx and protobuf raise errors of several types
        # The reader says what is wrong with the file, if it is no model.
        read_file(source)
        raise InputError(
            "the model cannot be sent",
            where=f"file {source}",
            expected="a model that is one protobuf with its weights",
            found=str(error).partition("\n")[0] or type(error).__name__,
        ) from error
    if not packed:
        # To protobuf an empty file is a model; the reader says that it is none.
        read_file(source)
    return packed


def table_of(request: Request) -> bytes:
    """The contents of the file that declares the backend; empty for an installed backend."""
    path = Path(request.backend or "")
    return path.read_bytes() if path.suffix in (".toml", ".json") else b""


def legalize_sent(name: str, content: bytes, request: Request, table: bytes) -> tuple[Done, bytes]:
    """Legalize a model that `pack` made, on a machine that has none of the caller's files; the legal one as bytes."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        source, target = Path(folder, name), Path(folder, f"legal-{name}")
        source.write_bytes(content)
        if table:
            backend = Path(folder, "backend").with_suffix(Path(request.backend or "").suffix)
            backend.write_bytes(table)
            request = replace(request, backend=str(backend))
        done = _legalized(Item(source, target, request), lambda step: None)
        return done, pack(target) if target.exists() else b""
