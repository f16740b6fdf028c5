"""The durable queue: DBOS Transact on a SQLite file, or on a PostgreSQL that several servers share.

A job is a DBOS workflow with one step. Its row is written before a caller gets its id, and a row whose server died runs
again. Inputs and outputs of a workflow are JSON that names contents of the store. DBOS fences: of two servers that run
the same job, only the one that owns the row records a result.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import queue
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer, EnqueueOptions, WorkflowStatus
from dbos import error as dbos_errors
from sqlalchemy.exc import SQLAlchemyError

from relayout_api.jobs.backlog import Unfinished
from relayout_api.jobs.clock import count_milliseconds
from relayout_api.jobs.liveness import liveness_of
from relayout_api.settings import Settings

_log = logging.getLogger("relayout_api")

_APPLICATION = "relayout"
_QUEUE = "jobs"
_WORKFLOW = "relayout.job"
_STREAM = "events"
# The version of the rows, not of relayout: any server that reads these rows may run them.
_ROWS = "1"
# The attribute of a row with the size of the job's input.
_BYTES = "bytes"
_POLL_SECONDS = 0.2
# DBOS says the same again and again. It is logged again after so long.
_REPEAT_SECONDS = 60.0
_UNFINISHED = ["ENQUEUED", "DELAYED", "PENDING"]
_ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]

# In what DBOS logs of a PostgreSQL that does not answer.
_AWAY = (
    "psycopg.OperationalError",
    "psycopg.errors.AdminShutdown",
    "psycopg.errors.CannotConnectNow",
    "psycopg.errors.CrashShutdown",
    "Notification listener error",
)

Events = Callable[[dict[str, Any]], None]
Start = Callable[[str, dict[str, Any], Events], "Future[dict[str, Any]]"]
"""Starts a job: its id, its input, and a function that takes its events. The future has its output."""


class DatabaseError(Exception):
    """The job database cannot be used now. `cause`: the reason in one line. `is_full`: its disk is full."""

    def __init__(self, reason: Exception | str) -> None:
        super().__init__(str(reason))
        self.cause = str(reason).partition("\n")[0]
        self.is_full = "disk is full" in str(reason) or "No space left" in str(reason)


class _Interrupted(BaseException):
    """A job ends without an outcome: the server stops, or the database takes none. Not an Exception, so that DBOS
    records none, and the job runs again."""


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise DatabaseError(error) from error


class Engine:
    """The job database and the threads that take jobs from it. Every method blocks; none may run in the event loop."""

    def __init__(self, settings: Settings, start: Start) -> None:
        self.server = uuid.uuid4().hex
        self._settings = settings
        self._start = start
        self._running: dict[str, Future[dict[str, Any]]] = {}
        self._is_stopping = False
        self._suspects: set[str] = set()
        self._liveness = liveness_of(settings)
        # The path of the SQLite file, and what tells it from a later one there.
        self._file: tuple[Path, object] | None = None

    @_reported()
    def open(self) -> None:
        """Create or migrate the database, take over the jobs of dead servers, and begin to take jobs.

        Raises DatabaseError, OSError, UsageError.
        """
        global _engine
        url = self._settings.database_url or self._sqlite()
        _quiet()
        config: DBOSConfig = {
            "name": _APPLICATION,
            "system_database_url": url,
            "application_version": _ROWS,
            "executor_id": self.server,
            "serializer": DBOSPortableJSONSerializer(),
            "enable_otlp": False,
            "log_level": "WARNING",
            # Nobody is phoned: a key would connect the process to DBOS's own console.
            "conductor_key": None,
            "notification_listener_polling_interval_sec": _POLL_SECONDS,
        }
        self._liveness.hold(self.server)
        _engine = self
        DBOS(config=config)
        DBOS.launch()
        DBOS.register_queue(
            _QUEUE,
            worker_concurrency=2 * self._settings.workers,
            partition_worker_concurrency=self._settings.share,
            polling_interval_sec=_POLL_SECONDS,
            on_conflict="always_update",
        )
        self._client = DBOSClient(
            system_database_url=url,
            serializer=DBOSPortableJSONSerializer(),
            application_name=_APPLICATION,
            retry_connection_errors=False,
        )
        with contextlib.suppress(DatabaseError):
            # It is asked again in a moment, and that is where it is told.
            self.take_over()

    @property
    def is_busy(self) -> bool:
        """Whether a job runs here."""
        return bool(self._running)

    def stop_taking(self) -> None:
        """Start no further job."""
        self._is_stopping = True

    def close(self) -> None:
        """Stop taking jobs, and put those that still run back into the queue."""
        self._is_stopping = True
        for future in list(self._running.values()):
            future.cancel()
        DBOS.destroy(workflow_completion_timeout_sec=0)
        with contextlib.suppress(DatabaseError):
            self._requeue(self._pending(self.server))
        with contextlib.suppress(OSError):
            self._liveness.close()
        self._client.destroy()

    def submit(self, job: str, caller: str, arguments: dict[str, Any], size: int) -> bool:
        """Write the row of a job whose input has this size; False: there is one with this id. Raises DatabaseError."""
        options: EnqueueOptions = {
            "workflow_name": _WORKFLOW,
            "queue_name": _QUEUE,
            "workflow_id": job,
            "workflow_id_reuse_policy": "reject",
            "queue_partition_key": caller,
            "authenticated_user": caller,
            "app_version": _ROWS,
            "attributes": {_BYTES: size},
        }
        try:
            with _reported():
                self._check_file()
                self._client.enqueue(options, arguments)
                self._check_file()
        except dbos_errors.DBOSWorkflowIDInUseError:
            return False
        return True

    @_reported()
    def find(self, job: str) -> WorkflowStatus | None:
        """The row of a job. Raises DatabaseError."""
        rows = self._client.list_workflows(workflow_ids=[job], name=_WORKFLOW)
        return rows[0] if rows else None

    @_reported()
    def newest(self, limit: int, until: str | None, owner: str | None) -> list[WorkflowStatus]:
        """Rows, newest first, that were written at or before `until` (ISO 8601). Raises DatabaseError."""
        return self._client.list_workflows(name=_WORKFLOW, end_time=until, limit=limit, sort_desc=True, user=owner)

    def unfinished(self) -> list[Unfinished]:
        """The jobs that have not ended, those that came first before the others. Raises DatabaseError."""
        return [
            Unfinished(
                str(row.authenticated_user),
                (row.attributes or {}).get(_BYTES, 0),
                row.executor_id if row.status == "PENDING" else None,
                row.created_at,
            )
            for row in self._heads(status=_UNFINISHED)
        ]

    def events(self, job: str, offset: int = 0) -> tuple[list[dict[str, Any]], bool]:
        """The events of a job from number `offset` on, and whether there will be no more. Raises DatabaseError."""
        found: list[dict[str, Any]] = []
        try:
            with _reported():
                for event in self._client.read_stream(job, _STREAM, offset=offset, timeout_seconds=0):
                    found.append(event)  # noqa: PERF402 - what came before the timeout counts
        except dbos_errors.DBOSStreamTimeoutError:
            return found, False
        return found, True

    def cancel(self, job: str, notes: dict[str, Any]) -> None:
        """Cancel a job, unless it has ended. `notes` become attributes of its row. Raises DatabaseError."""
        with _reported():
            self._client.update_workflow_attributes(job, notes)
            self._client.cancel_workflow(job)
        if (future := self._running.get(job)) is not None:
            future.cancel()

    @_reported()
    def check(self) -> None:
        """Raise DatabaseError unless the database answers and is the one at its place."""
        self._check_file()
        self._client.check_connection()

    def _check_file(self) -> None:
        """Raise DatabaseError where the SQLite file is not at its path any more: what is written to it is lost with
        this process."""
        if self._file is not None and _identity(self._file[0]) != self._file[1]:
            raise DatabaseError(f"{self._file[0]} was moved or deleted while it is in use; restart the server")

    def cancel_as_told(self) -> None:
        """Stop the jobs here that were cancelled by way of another server."""
        running = list(self._running)
        # This is looked at all the time, and mostly none runs.
        for row in self._heads(workflow_ids=running, status="CANCELLED") if running else ():
            if (future := self._running.get(row.workflow_id)) is not None:
                future.cancel()

    def take_over(self) -> None:
        """Put the running jobs of servers that died back into the queue. Raises DatabaseError."""
        try:
            self._liveness.hold(self.server)
            rows = self._heads(status="PENDING")
            suspects: set[str] = set()
            for server in sorted({row.executor_id for row in rows if row.executor_id} - {self.server}):
                with self._liveness.taken_from_the_dead(server) as is_dead:
                    # PostgreSQL drops all locks when it restarts; the living take theirs again in a second.
                    if is_dead and (server in self._suspects or self._settings.database_url is None):
                        self._requeue(self._pending(server))
                    elif is_dead:
                        suspects.add(server)
            lost = {row.workflow_id for row in rows if row.executor_id == self.server} - {*self._running}
            # A job here whose outcome could not be written, for example as the disk was full. Looked at twice, because
            # a job is marked in the database before it is started, and ends before it is marked.
            self._requeue(sorted(lost & self._suspects))
            self._suspects = suspects | (lost - self._suspects)
        except OSError as error:
            raise DatabaseError(error) from error

    def delete_ended(self, before: str) -> set[str]:
        """Delete the rows of jobs that ended before (ISO 8601). Returns the digests that the other rows name."""
        old = self._heads(status=_ENDED, completed_before=before)
        with _reported():
            self._client.delete_workflows([row.workflow_id for row in old])
            rows = self._client.list_workflows(name=_WORKFLOW, status=_UNFINISHED)
        return {row.input["args"][0]["body"] for row in rows if row.input is not None}

    def perform(self, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a job and write its events; called by DBOS, in a thread."""
        if self._is_stopping:
            raise _Interrupted
        events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        future = self._start(job, arguments, events.put)
        self._running[job] = future
        try:
            future.add_done_callback(lambda done: events.put(None))
            while (event := events.get()) is not None:
                DBOS.write_stream(_STREAM, event)
            return future.result()
        except concurrent.futures.CancelledError:
            if self._is_stopping:
                raise _Interrupted from None
            raise dbos_errors.DBOSWorkflowCancelledError(f"job {job} was cancelled") from None
        finally:
            # It still runs where the database did not take an event.
            future.cancel()
            del self._running[job]

    @_reported()
    def _heads(self, **filters: Any) -> list[WorkflowStatus]:
        """The rows of these jobs, without their inputs and outputs. Raises DatabaseError."""
        return self._client.list_workflows(name=_WORKFLOW, load_input=False, load_output=False, **filters)

    def _pending(self, server: str) -> list[str]:
        return [row.workflow_id for row in self._heads(status="PENDING", executor_id=server)]

    def _requeue(self, jobs: Sequence[str]) -> None:
        if jobs:
            _log.warning("these jobs go back into the queue: %s", ", ".join(jobs))
            with _reported():
                self._client.resume_workflows(list(jobs), queue_name=_QUEUE)

    def _sqlite(self) -> str:
        path = self._settings.file("jobs.sqlite")
        try:
            with contextlib.closing(sqlite3.connect(path)) as database:
                # Readers and the writer do not wait for each other; the mode stays with the file.
                database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:
            raise DatabaseError(f"{path}: {error}") from error
        self._file = path, _identity(path)
        count_milliseconds()
        return f"sqlite:///{path}"


def _identity(path: Path) -> object:
    """The device and number of the file at a path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


_engine: Engine | None = None


@DBOS.workflow(name=_WORKFLOW)
def _run(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return _perform(arguments)
    except SQLAlchemyError as error:
        cause = DatabaseError(error).cause
        _log.error("job %s runs again: the database does not take its outcome: %s", DBOS.workflow_id, cause)
        raise _Interrupted from None


@DBOS.step(name="relayout.work")
def _perform(arguments: dict[str, Any]) -> dict[str, Any]:
    # A step, because a step that runs again writes its events again.
    assert _engine is not None
    assert DBOS.workflow_id is not None
    return _engine.perform(DBOS.workflow_id, arguments)


def _quiet() -> None:
    """Let DBOS log through our handlers, in one line, without its hints and without what is told elsewhere."""
    log = logging.getLogger("dbos")
    if not log.handlers:
        # It adds a console handler where there is none.
        log.addHandler(_Relay())
        log.propagate = False


class _Relay(logging.Handler):
    """Logs the records of DBOS as ours, apart from cancelled jobs, a database that is away, and what was said before.

    Its threads say several times a second that a database is away or that its disk is full.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = _news(record)
        if text is None:
            return
        now = monotonic()
        self._said = {each: when for each, when in self._said.items() if now - when < _REPEAT_SECONDS}
        if text not in self._said:
            self._said[text] = now
            _log.log(record.levelno, "the job queue: %s", text)


def _news(record: logging.LogRecord) -> str | None:
    """A record of DBOS in one line; None where it is about a cancelled job, or a database that is away. Its tracebacks,
    of which some are in the text, become the line of the error."""
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage() if error is None else f"{record.getMessage()} {error}"
    if isinstance(error, dbos_errors.DBOSAwaitedWorkflowCancelledError) or "was cancelled during execution" in text:
        return None
    if any(each in text for each in _AWAY):
        return None
    said, _, trace = text.partition("Traceback (most recent call last):")
    errors = [line for line in trace.splitlines() if line and not line.startswith(" ")]
    return (said + errors[-1] if errors else said).partition("\n")[0]
