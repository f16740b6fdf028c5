"""The journal of a batch: the models that are done, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from relayout.cli.batch_work import JOURNAL, Done, Item, key_of
from relayout.cli.exit_status import DONE


def _key_now(item: Item) -> str | None:
    """The key of a model, or None where it cannot be read, as the work itself says."""
    try:
        return key_of(item)
    except OSError:
        return None


class Journal:
    """A line for each model that is done, in the folder of the legal models; removed when all succeeded."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self._file: FileIO | None = None

    def open(self, items: Sequence[Item], resume: bool) -> list[Done]:
        """Begin to write, and remove what an earlier run left unfinished; with `resume`, return the unchanged models
        that it legalized."""
        found = {line["model"]: line for line in self._lines()} if resume else {}
        finished = []
        for item in items:
            line = found.get(item.name)
            if line is None or line["exit_status"] != DONE or not item.target.exists():
                continue
            # A journal of an earlier version has no dims.
            if "dims" in line and line["key"] == _key_now(item):
                from relayout.report.schema import Report

                finished.append(
                    Done(
                        item.name,
                        DONE,
                        Report.model_validate(line["report"]),
                        key=line["key"],
                        dims=tuple(line["dims"]),
                    )
                )
        if self._path.exists():
            from relayout.model.onnx_file import remove_unfinished

            for item in items:
                remove_unfinished(item.target)
        self._file = self._path.open("wb", buffering=0)
        for done in finished:
            self.add(done)
        return finished

    def add(self, done: Done) -> None:
        """Note that a model is done."""
        assert self._file is not None, "the journal is open"
        line = json.dumps({**done.record(), "key": done.key, "dims": done.dims}) + "\n"
        try:
            self._file.write(line.encode())
        except OSError as error:
            error.filename = str(self._path)
            raise

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
