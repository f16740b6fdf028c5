"""Answers that are computed once: from the store where the same task was answered before, else from a worker."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from functools import cache
from importlib import metadata
from typing import Any, TypeVar, TypeVarTuple

from anyio import sleep, to_thread

from relayout_api.bodies import Body
from relayout_api.settings import Settings
from relayout_api.store import AwayError, Store
from relayout_api.workers.messages import Answer, Content, Task
from relayout_api.workers.pool import Pool

_log = logging.getLogger("relayout_api")

PARTS = ("model", "report", "choices")
"""The parts of a job's result, each a content of its own, or none."""

# To write and hash an answer of this size takes longer than most models of that size take to legalize.
_LARGE = 8 << 20
_MOST_REMEMBERED = 10_000
# The pause before a job asks a store again that was away.
_BACK_SECONDS = 5.0

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")


class Results:
    """The store of models and results."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._seen: dict[str, None] = {}

    async def keep(self, content: Body) -> str:
        """Keep a content and return its digest. Raises OSError."""
        digest = await content.digest()
        await to_thread.run_sync(self._store.put_as, digest, content.view())
        return digest

    async def content(self, digest: str) -> memoryview | None:
        """The content of a digest, or None. Raises OSError."""
        return await to_thread.run_sync(self._store.get, digest)

    async def input(self, digest: str) -> memoryview | None:
        """The content of a digest for a job, which waits for a store that is away, or None. Raises OSError."""
        return await _until_back(self._store.get, digest)

    async def answer(
        self,
        task: Task,
        body: memoryview,
        caller: str,
        *,
        pool: Pool,
        take: Callable[[dict[str, Any]], None],
    ) -> dict[str, Any]:
        """The digests of a job's `report`, `model` and `choices`, with `cost` and `bound`.

        Waits for a store that is away: a job has no caller who would send it again. Raises as `Pool.run`, and OSError.
        """
        key = self.key(task)
        found = await _until_back(self._store.recorded, key)
        if found is not None and await _until_back(self._has, found[0]):
            return found[0]
        answer = await pool.run(task, Content(body), caller, take=take)
        return await _until_back(self._keep_parts, key, answer)

    async def known(self, key: str) -> Answer | None:
        """The answer to the request of this key, where it was computed before."""
        if self._store.lacks(key):
            return None
        try:
            found = await to_thread.run_sync(self._store.recorded, key)
        except AwayError as error:
            # It is computed again.
            _log.warning("no answer can be looked up: %s", error)
            return None
        return None if found is None else Answer(found[1], found[0]["report"].encode(), repeats=True)

    async def learn(self, key: str, answer: Answer) -> None:
        """Keep the answer to the request of this key; a large one when it was computed for the second time."""
        if len(answer.view) > _LARGE and not self._was_seen(key):
            return
        try:
            facts = {"report": bytes(answer.report).decode()}
            await to_thread.run_sync(self._store.record_first, key, facts, answer.view)
        except OSError as error:
            # The caller has the answer; only the next one is slower.
            _log.warning("an answer cannot be stored: %s", error)

    def key(self, task: Task, *others: str | None) -> str:
        """The digest of a task and of other contents that it is about.

        It is made of the work, its form, the body, the parameters, and the versions of what answers.
        The results of a job are recorded in another form than the answer to a request, so its key is another.
        """
        facts = [task.verb, task.form, task.parameters, task.files, task.of_job, task.digest, others, _versions()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def is_too_large(self) -> bool:
        """Whether the store has grown beyond its limit."""
        return self._store.size > self._settings.store_bytes

    def clean(self, needed: Iterable[str], since: float) -> None:
        """Delete what is too old or too much, but not what jobs still need, or what was used at that time or later."""
        self._store.clean(self._settings.store_bytes, self._settings.keep_hours, needed, since)

    def check(self) -> None:
        """Raise OSError unless the store can be written."""
        self._store.check()

    def _was_seen(self, key: str) -> bool:
        """Whether this was asked about the key before; of many keys, only the latest are remembered."""
        if key in self._seen:
            return True
        if len(self._seen) >= _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return False

    def _has(self, found: dict[str, Any]) -> bool:
        digests = filter(None, map(found.get, PARTS))
        return all(self._store.get(digest) is not None for digest in digests)

    def _keep_parts(self, key: str, answer: Answer) -> dict[str, Any]:
        parts = zip(PARTS, (answer.view, answer.report, answer.choices), strict=True)
        found = {
            **{part: self._store.put(content) if len(content) else None for part, content in parts},
            "cost": answer.cost,
            "bound": answer.bound,
        }
        if answer.repeats:
            self._store.record(key, found)
        return found


async def _until_back(call: Callable[[*_Arguments], _T], *arguments: *_Arguments) -> _T:
    """The result of a call to the store, which is made again while the store is away. Raises OSError for other
    reasons."""
    is_told = False
    while True:
        try:
            return await to_thread.run_sync(call, *arguments)
        except AwayError as error:
            if not is_told:
                _log.error("a job waits for the store, which cannot be used: %s", error)
            is_told = True
            await sleep(_BACK_SECONDS)


@cache
def _versions() -> list[str]:
    """The versions of all that has a say in an answer: relayout, the backends' distributions, and the runtimes."""
    owners = {entry.dist.name for entry in metadata.entry_points(group="relayout.backends") if entry.dist is not None}
    names = sorted({"relayout", "onnx", "onnx-ir", "onnxruntime", "ortools", "numpy", *owners})
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} none")
    return found
