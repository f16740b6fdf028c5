"""The limits on jobs that have not ended: how many wait, and how many bytes of the store their inputs take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from relayout_api.problems import RefusedError
from relayout_api.settings import Settings

# The count from the database is used for so long. Jobs that are accepted meanwhile are added to it.
_COUNTED_SECONDS = 1.0
# Jobs leave the queue one by one, and inputs leave the store when they do.
_RETRY_SECONDS, _RETRY_BYTES_SECONDS = 5, 60


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A job that has not ended: its caller, the bytes of its input, the server that took it from the queue, and when it
    was written to the database, in milliseconds."""

    caller: str
    size: int
    server: str | None = None
    created: int | None = None


def waiting(jobs: Iterable[Unfinished], share: int) -> list[Unfinished]:
    """The jobs that wait: in the queue, or at a server for a worker, as one caller has a `share` of the workers there.

    The queue counts the jobs of a caller that run here by threads that have begun. On a busy machine these begin late,
    and it hands out more than the share.
    """
    run: Counter[tuple[str, str]] = Counter()
    found = []
    for job in jobs:
        if job.server is None or run[job.server, job.caller] == share:
            found.append(job)
        else:
            run[job.server, job.caller] += 1
    return found


class Backlog:
    """Accepts jobs up to the limits. Its methods may be called in threads, and `enter` blocks.

    `count` asks the database for the jobs that have not ended, of all servers that share it.
    """

    def __init__(self, settings: Settings, count: Callable[[], Iterable[Unfinished]]) -> None:
        self._jobs, self._bytes = settings.jobs, settings.input_bytes
        self._own_jobs, self._own_bytes = max(1, settings.jobs // 2), settings.own_input_bytes
        self._share = settings.share
        self._count = count
        self._lock = Lock()
        self._known: list[Unfinished] = []
        # Accepted, and not in the database yet.
        self._arriving: Counter[Unfinished] = Counter()
        self._counted = -_COUNTED_SECONDS

    def enter(self, job: Unfinished) -> None:
        """Accept a job, which is then to `leave`. Raises RefusedError where it exceeds a limit, and as `count` does."""
        if job.size > self._own_bytes:
            problem = "the input is larger than the part of the store that one caller may have"
            expected = f"at most {self._own_bytes} bytes"
            raise RefusedError("too-large", problem, expected=expected, found=f"{job.size} bytes")
        with self._lock:
            if monotonic() >= self._counted + _COUNTED_SECONDS:
                self._known = list(self._count())
                self._counted = monotonic()
            self._check(job)
            self._arriving[job] += 1

    def leave(self, job: Unfinished, *, is_written: bool) -> None:
        """Note that a job that entered is in the database now, or never will be."""
        with self._lock:
            self._arriving -= Counter([job])
            if is_written:
                self._known.append(job)

    def _check(self, job: Unfinished) -> None:
        every = [*self._known, *self._arriving.elements()]
        own = [each for each in every if each.caller == job.caller]
        all_waiting, own_waiting = (len(waiting(jobs, self._share)) for jobs in (every, own))
        size, own_size = (sum(each.size for each in jobs) + job.size for jobs in (every, own))
        if own_waiting >= self._own_jobs:
            raise _refused(
                "too-many-requests", "too many jobs of this caller wait", f"{self._own_jobs} jobs", own_waiting
            )
        if all_waiting >= self._jobs:
            raise _refused("busy", "too many jobs wait", f"{self._jobs} jobs", all_waiting)
        if own_size > self._own_bytes:
            problem = "the inputs of this caller's jobs take too much of the store"
            raise _refused("too-many-requests", problem, f"{self._own_bytes} bytes", own_size, _RETRY_BYTES_SECONDS)
        if size > self._bytes:
            problem = "the store is full of the inputs of jobs that have not ended"
            raise _refused("no-space", problem, f"{self._bytes} bytes", size, _RETRY_BYTES_SECONDS)


def _refused(kind: str, problem: str, most: str, found: int, retry_after: int = _RETRY_SECONDS) -> RefusedError:
    hint = "retry when jobs have ended"
    return RefusedError(kind, problem, expected=f"at most {most}", found=str(found), hint=hint, retry_after=retry_after)
