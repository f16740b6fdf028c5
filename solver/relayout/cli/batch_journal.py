"""The journal of a batch: the models that are done, so that an interrupted run can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from relayout.cli.batch_work import Done, Item, table_of
from relayout.cli.exit_status import DONE

__all__ = ["Journal"]

_NAME = ".relayout-batch.jsonl"


class Journal:
    """A line for each model that is done, in the folder of the legal models; removed when all succeeded."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._keys: dict[str, str] = {}
        self._file: IO[str] | None = None

    def open(self, items: Sequence[Item], resume: bool) -> list[Done]:
        """Begin to write; with `resume`, return the unchanged models that an earlier run legalized."""
        found = {line["model"]: line for line in self._lines()} if resume else {}
        finished = []
        for item in items:
            self._keys[item.name] = key = _key(item)
            line = found.get(item.name)
            if line is not None and line["key"] == key and line["exit_status"] == DONE and item.target.exists():
                from relayout.report.schema import Report

                finished.append(Done(item.name, DONE, Report.model_validate(line["report"])))
        self._file = self._path.open("w")
        for done in finished:
            self.add(done)
        return finished

    def add(self, done: Done) -> None:
        """Note that a model is done."""
        assert self._file is not None, "the journal is open"
        self._file.write(json.dumps({**done.record(), "key": self._keys[done.name]}) + "\n")
        self._file.flush()

    def close(self, *, finished: bool) -> None:
        """End; `finished` says that no model is left to do."""
        if self._file is not None:
            self._file.close()
        if finished:
            self._path.unlink(missing_ok=True)

    def _lines(self) -> list[dict[str, Any]]:
        """The lines of an earlier run; the last may have been cut off."""
        lines = []
        for text in self._path.read_text().splitlines() if self._path.exists() else []:
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
        return lines


def _key(item: Item) -> str:
    """A hash of all that the result depends on: model, files of weights beside it, backend, options, version."""
    hashed = hashlib.sha256()
    with item.source.open("rb") as file:
        hashed.update(hashlib.file_digest(file, "sha256").digest())
    for path in sorted(item.source.parent.iterdir()):
        if path.suffix not in (".onnx", ".json") and path.name != _NAME and path.is_file():
            status = path.stat()
            hashed.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
    hashed.update(table_of(item.request))
    hashed.update(f"{item.request} {version('relayout')}".encode())
    return hashed.hexdigest()
