"""Jobs between the HTTP endpoints, the durable queue, the workers and the store."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import json
import logging
import math
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import anyio
from anyio import CancelScope, CapacityLimiter, create_task_group, move_on_after, sleep, to_thread

from relayout.errors import RelayoutError, UsageError
from relayout_api.bodies import Body
from relayout_api.jobs.backlog import Backlog, Unfinished, waiting
from relayout_api.jobs.schema import Job, JobLinks, JobList, State
from relayout_api.problems import SEE_LOG, AnsweredError, Problem, RefusedError, problem_of
from relayout_api.results import PARTS, Results
from relayout_api.settings import Settings
from relayout_api.telemetry.metrics import Gauges
from relayout_api.workers.messages import Task
from relayout_api.workers.pool import Pool

if TYPE_CHECKING:
    from dbos import WorkflowStatus

    from relayout_api.jobs.engine import DatabaseError, Engine

    Row = WorkflowStatus
else:
    # FastAPI looks at the types of its endpoints, and DBOS takes a second to import.
    Row = object

_log = logging.getLogger("relayout_api")

_Arguments = TypeVarTuple("_Arguments")
_T = TypeVar("_T")
_STATES: dict[str, State] = {
    "DELAYED": "queued",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "SUCCESS": "succeeded",
    "ERROR": "failed",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "failed",
    "CANCELLED": "cancelled",
}
_JOB_ID = re.compile(r"[0-9a-f-]{36}")
_NAMESPACE = uuid.UUID("5b0f1f2e-6d0a-4f43-9a55-2b1c8d7e9f10")
# So many jobs of the same time are shown in the order in which they came.
_MOST_AT_ONCE = 100
_OPEN_SECONDS, _REOPEN_SECONDS, _ANSWER_SECONDS = 30.0, 2.0, 30.0
_CANCEL_SECONDS, _TAKE_OVER_SECONDS = 0.4, 5.0
# Seconds between two cleanings of a store that is within its limit, and between two looks whether it is.
_CLEAN_SECONDS, _LOOK_SECONDS = 300.0, 5.0
# The fields that the input of a job's row did not have from the start. Rows stay when the server is upgraded.
_LATER_FIELDS: dict[str, Any] = {"name": None, "files": [], "query": None}
# The attribute of a cancelled job's row with the time of its start, in milliseconds.
_STARTED = "started"
# Seconds between two looks for events: few while they come, more while none do.
_LEAST_PAUSE, _MOST_PAUSE = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job: its number from 1, its name, and its data."""

    number: int
    name: str
    data: dict[str, Any]


class Jobs:
    """The jobs of this server and of those that share its database. `tried`: the first attempt to open it has ended."""

    def __init__(self, settings: Settings, pool: Pool, results: Results) -> None:
        self._settings = settings
        self._pool = pool
        self._results = results
        self._engine: Engine | None = None
        self.tried = anyio.Event()
        self._fault: str | None = None
        self._is_away = False
        self._progress: dict[str, dict[str, Any]] = {}
        self._next_clean = -math.inf
        self._backlog = Backlog(settings, self._unfinished)
        # Digests of inputs that no row names yet.
        self._arriving: Counter[str] = Counter()
        # Database calls have threads of their own, so that slow ones delay nothing else.
        self._threads = CapacityLimiter(16)

    @asynccontextmanager
    async def open(self, over: anyio.Event) -> AsyncIterator[None]:
        """Open the job database in the background; at the end, wait for the jobs that run, until it is `over`."""
        self._loop = asyncio.get_running_loop()
        async with create_task_group() as tasks:
            tasks.start_soon(self._open)
            yield
            tasks.cancel_scope.cancel()
        if (engine := self._engine) is not None:
            with CancelScope(shield=True):
                while engine.is_busy and not over.is_set():
                    await sleep(0.05)
                await to_thread.run_sync(engine.close)

    def stop_taking(self) -> None:
        """Start no further job."""
        if self._engine is not None:
            self._engine.stop_taking()

    async def submit(self, arguments: dict[str, Any], content: Body, caller: str, key: str | None) -> Job:
        """Accept a job: its row and its body are on disk when this returns. Raises RefusedError."""
        name = str(uuid.uuid4() if key is None else uuid.uuid5(_NAMESPACE, f"{caller}\n{key}"))
        engine = await self._opened()
        arguments["body"] = await content.digest()
        # A job that is there takes no place in the queue.
        row = None if key is None else await self._call(engine.find, name)
        is_new = row is None and await self._accept(engine, name, arguments, content, caller)
        row = row or await self.find(name)
        if is_new:
            # The log has the id of the request here, and that of the job in every line about it.
            _log_job(name, "queued", arguments)
        if not is_new and not _is_same(_input(row), arguments):
            raise RefusedError(
                "key-reused",
                "the Idempotency-Key belongs to another job",
                where="header Idempotency-Key",
                expected="the body and query of the first request, or another key",
                found=f"job {name}",
            )
        return await self.shown(row)

    async def _accept(self, engine: Engine, name: str, arguments: dict[str, Any], content: Body, caller: str) -> bool:
        """Store the body and write the row of a job; False: another request wrote the row. Raises RefusedError."""
        job, is_written = Unfinished(caller, len(content)), False
        await self._call(self._backlog.enter, job)
        self._arriving[arguments["body"]] += 1
        try:
            await self._results.keep(content)
            is_written = await self._call(engine.submit, name, caller, arguments, job.size)
        finally:
            self._arriving -= Counter([arguments["body"]])
            self._backlog.leave(job, is_written=is_written)
        return is_written

    async def find(self, job: str) -> Row:
        """The row of a job. Raises RefusedError where there is none."""
        # PostgreSQL is not asked for a text that it does not take, such as one with NUL.
        row = await self._call((await self._opened()).find, job) if _JOB_ID.fullmatch(job) else None
        if row is None:
            raise self.absent(job)
        return row

    def absent(self, job: str) -> RefusedError:
        """The error for an id that no job has, or none that the caller may see."""
        hours = f"{self._settings.keep_hours:g}"
        return RefusedError(
            "not-found",
            "there is no such job",
            expected="the id of a job",
            found=job,
            hint=f"jobs are deleted {hours} hours after their end (RELAYOUT_KEEP_HOURS of the server)",
        )

    async def shown(self, row: Row) -> Job:
        """The job of a row, as callers see it. Raises RefusedError."""
        arguments, output = _input(row), row.output or {}
        state = _STATES[row.status]
        if state == "succeeded" and "problem" in output:
            state = "failed"
        seen: dict[str, Any] = {}
        if state != "queued":
            if row.workflow_id in self._progress:
                seen = self._progress[row.workflow_id]
            else:
                events, _ = await self._call((await self._opened()).events, row.workflow_id)
                for event in events:
                    seen.update(event)
        problem = Problem(**output["problem"]) if "problem" in output else None
        if state == "failed" and problem is None:
            problem = problem_of(RefusedError("internal", "the job failed"))
        created, started = row.created_at or 0, None
        dequeued = (row.attributes or {}).get(_STARTED) if state == "cancelled" else row.dequeued_at
        if state != "queued" and dequeued is not None:
            started = max(dequeued, created)
        path = f"/v1/jobs/{row.workflow_id}"
        # A JSON body has its own.
        parameters = arguments["parameters"] or {}
        has_results = state not in ("failed", "cancelled")
        links = JobLinks(
            self=path,
            events=f"{path}/events",
            report=f"{path}/report" if has_results else None,
            model=f"{path}/model" if has_results and arguments["kind"] == "legalize" else None,
            source=f"{path}/source",
        )
        return Job(
            id=row.workflow_id,
            kind=arguments["kind"],
            name=arguments["name"],
            backend=parameters.get("backend"),
            options=parameters.get("options"),
            state=state,
            stage=seen.get("stage"),
            progress=1.0 if state == "succeeded" else seen.get("progress"),
            cost=output.get("cost", seen.get("cost")),
            bound=output.get("bound", seen.get("bound")),
            created=_iso(created),
            started=None if started is None else _iso(started),
            ended=None if row.completed_at is None else _iso(max(row.completed_at, started or created)),
            problem=problem,
            links=links,
        )

    def gauges(self) -> Gauges:
        """The jobs that have not ended, by state, and the seconds that the oldest has waited. None of them where the
        database does not answer."""
        from relayout_api.jobs.engine import DatabaseError

        if self._engine is None:
            return {}
        try:
            jobs = self._engine.unfinished()
        except DatabaseError as error:
            # The other metrics are wanted all the more.
            self._log_away(error)
            return {}
        waits = waiting(jobs, self._settings.share)
        oldest = min(filter(None, (job.created for job in waits)), default=None)
        return {
            "jobs": {"queued": len(waits), "running": len(jobs) - len(waits)},
            "queue_depth": {"jobs": len(waits)},
            "queue_oldest_seconds": {"jobs": max(0.0, time.time() - oldest / 1000) if oldest else 0.0},
        }

    async def page(self, limit: int, cursor: str | None, owner: str | None = None) -> JobList:
        """One page of jobs, newest first, of one caller or of all. Raises UsageError for a wrong cursor."""
        until, given = _parse_cursor(cursor)
        # Several jobs may be of the same millisecond: the cursor names those given. SQLite has parts of it, which come
        # before the next one.
        most = limit + 1 + len(given) + _MOST_AT_ONCE
        end = None if until is None else _iso(until + 1)
        rows = await self._call((await self._opened()).newest, most, end, owner)
        left = [row for row in rows if row.workflow_id not in given and (until is None or _millisecond(row) <= until)]
        left.sort(key=_millisecond, reverse=True)
        shown = left[:limit]
        more = None
        if len(left) > limit:
            last = _millisecond(shown[-1])
            same = [row.workflow_id for row in shown if _millisecond(row) == last]
            more = _cursor(last, [*given, *same] if until == last else same)
        return JobList(jobs=[await self.shown(row) for row in shown], next=more)

    async def cancel(self, row: Row) -> Job:
        """Cancel a job, unless it has ended. Raises RefusedError."""
        # DBOS would cancel it again, and move its end.
        if _STATES[row.status] == "cancelled":
            return await self.shown(row)
        # Its start, too, is no longer in the row.
        await self._call((await self._opened()).cancel, row.workflow_id, {_STARTED: row.dequeued_at})
        return await self.shown(await self.find(row.workflow_id))

    async def result(self, row: Row, part: str) -> tuple[memoryview, str, str]:
        """The `report` or `model` of a job: its content, its media type and its digest.

        Raises AnsweredError with the job's own problem, RefusedError where it has no such result.
        """
        output = await self._output(row, part)
        content = await self._stored(row, output[part], f"the {part}")
        return content, output["media"] if part == "model" else "application/json", output[part]

    async def source(self, row: Row) -> tuple[memoryview, str, str]:
        """The model that a job is about, or its JSON body: the content, its media type and the digest of the body.

        Raises RefusedError where it was deleted.
        """
        arguments = _input(row)
        content = await self._stored(row, arguments["body"], "the source")
        # Of a form, the model comes first.
        length = arguments["files"][0][1] if arguments["files"] else None
        return content[:length], arguments["media"], arguments["body"]

    async def drawn(self, row: Row) -> tuple[Task, str, list[memoryview]]:
        """The task that draws a job that legalized a graph, its key, and what it is about: the body, then PARTS.

        Raises as `result` does.
        """
        arguments, output = _input(row), await self._output(row, "model")
        digests = [arguments["body"], *map(output.get, PARTS)]
        parts = [await self._stored(row, digest, "a part of the job") for digest in digests]
        limits = self._settings.time_limit, self._settings.memory_bytes
        task = Task("draw", arguments["parameters"], *limits, files=arguments["files"], digest=arguments["body"])
        return task, self._results.key(task, *digests), parts

    async def _output(self, row: Row, part: str) -> dict[str, Any]:
        """The output of a job that has this part. Raises as `result` does."""
        shown, output = await self.shown(row), row.output or {}
        if shown.problem is not None:
            raise AnsweredError(shown.problem)
        if output.get(part) is not None and shown.state == "succeeded":
            return output
        expected, found = "a job that succeeded", f"it is {shown.state}"
        if shown.state == "succeeded":
            expected, found = "a job of the kind legalize", f"a job of the kind {shown.kind}"
        raise RefusedError("no-result", f"the job has no {part}", expected=expected, found=found)

    async def _stored(self, row: Row, digest: str | None, what: str) -> memoryview:
        """A content of a job. Raises RefusedError where it was deleted, or an earlier version kept none."""
        content = None if digest is None else await self._results.content(digest)
        if content is None:
            raise RefusedError("no-result", f"{what} was deleted", expected="a newer job", found=row.workflow_id)
        return content

    async def events(self, job: str, after: int, is_stopping: Callable[[], bool]) -> AsyncIterator[Event]:
        """The events of a job with a number above `after`, and `done` when it ends.

        Ends early where the server is being stopped; the caller goes on elsewhere from the last number.
        """
        number, has_ended, pause = after, False, _LEAST_PAUSE
        while not has_ended:
            if is_stopping():
                return
            events, has_ended = await self._call((await self._opened()).events, job, number)
            for event in events:
                number += 1
                yield Event(number, "stage" if "stage" in event else "solution", event)
            pause = _LEAST_PAUSE if events else min(1.5 * pause, _MOST_PAUSE)
            if not has_ended:
                await sleep(pause)
        shown = await self.shown(await self.find(job))
        yield Event(number + 1, "done", shown.model_dump())

    async def has_told(self, job: str, number: int) -> bool:
        """Whether a job has ended and the caller, who has its events up to this number, knows that."""
        if not number:
            return False
        events, has_ended = await self._call((await self._opened()).events, job)
        # `done` comes after them.
        return has_ended and number > len(events)

    async def check(self) -> None:
        """Raise RefusedError unless jobs can be accepted."""
        if self._engine is None:
            raise self._not_open()
        await self._call(self._engine.check)

    async def _open(self) -> None:
        while True:
            try:
                self._engine = await to_thread.run_sync(self._opened_engine, limiter=self._threads)
                self.tried.set()
                break
            except Exception as error:
                # Without its database the service still answers what is no job.
                self._log_fault(error)
                self.tried.set()
                await sleep(_REOPEN_SECONDS)
        async with create_task_group() as tasks:
            tasks.start_soon(self._repeat, _CANCEL_SECONDS, self._engine.cancel_as_told)
            tasks.start_soon(self._watch, self._engine)
            tasks.start_soon(self._repeat, _LOOK_SECONDS, self._clean_if_due)

    def _log_fault(self, error: Exception) -> None:
        """Log why the database cannot be opened, once and not each time that it is tried."""
        from relayout_api.jobs.engine import DatabaseError

        is_told = isinstance(error, DatabaseError | OSError | UsageError)
        fault = " ".join((error.cause if isinstance(error, DatabaseError) else str(error)).split())
        if fault != self._fault:
            said = "the job database cannot be opened, and is tried again every %g s: %s"
            _log.error(said, _REOPEN_SECONDS, fault, exc_info=None if is_told else error)
        self._fault = fault

    def _opened_engine(self) -> Engine:
        # Imported late: DBOS and SQLAlchemy take a second, in which the service already answers.
        from relayout_api.jobs.engine import Engine

        engine = Engine(self._settings, self._start)
        engine.open()
        return engine

    async def _watch(self, engine: Engine) -> None:
        """Take over the jobs of dead servers from time to time, and log when the database can be used again."""
        while True:
            await sleep(_TAKE_OVER_SECONDS)
            with contextlib.suppress(RefusedError):
                await self._call(engine.check)
                await self._call(engine.take_over)
                if self._is_away:
                    _log.info("the job database can be used again")
                self._is_away = False

    def _log_away(self, error: DatabaseError) -> None:
        """Log that the database cannot be used, once and not for each that asks it."""
        if not self._is_away:
            _log.error("the job database cannot be used, and is asked again: %s", error.cause)
        self._is_away = True

    async def _repeat(self, seconds: float, what: Callable[[], None]) -> None:
        while True:
            await sleep(seconds)
            try:
                await self._run(what)
            except RefusedError:
                # It is logged, and the database will not be back in a moment.
                await sleep(_TAKE_OVER_SECONDS)
            except Exception as error:
                _log.warning("%s: %s", getattr(what, "__name__", what), error)

    def _unfinished(self) -> list[Unfinished]:
        assert self._engine is not None
        return self._engine.unfinished()

    def _clean_if_due(self) -> None:
        if monotonic() < self._next_clean and not self._results.is_too_large:
            return
        self._next_clean = monotonic() + _CLEAN_SECONDS
        # Inputs that were stored before are in a row, or arriving. Another server's may be a moment from its row.
        since, arriving = time.time() - _LOOK_SECONDS, set(self._arriving)
        oldest = datetime.now(UTC) - timedelta(hours=self._settings.keep_hours)
        assert self._engine is not None
        needed = self._engine.delete_ended(oldest.isoformat())
        self._results.clean(needed | arriving, since)

    def _start(self, job: str, arguments: dict[str, Any], events: Callable[[dict[str, Any]], None]) -> Future[Any]:
        """Run a job in the event loop; called by the engine's threads."""
        return asyncio.run_coroutine_threadsafe(self._perform(job, _completed(arguments), events), self._loop)

    async def _perform(
        self, job: str, arguments: dict[str, Any], events: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        """The output of a job, whose end is logged."""
        started, end = monotonic(), "cancelled"
        problem: dict[str, Any] = {}
        try:
            output = await self._output_of(job, arguments, events)
            problem = output.get("problem", {})
            end = "failed" if problem else "succeeded"
            return output
        except Exception:
            end = "failed"
            raise
        finally:
            told = {"problem": problem["type"]} if problem else {}
            _log_job(job, end, arguments, seconds=round(monotonic() - started, 4), **told)

    async def _output_of(
        self, job: str, arguments: dict[str, Any], events: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        """The output of a job: the digests of its results, or its problem."""
        progress: dict[str, Any] = {}
        self._progress[job] = progress

        def take(event: dict[str, Any]) -> None:
            progress.update(event)
            events(event)

        try:
            settings = self._settings
            task = Task(
                arguments["kind"],
                arguments["parameters"],
                settings.job_time_limit,
                settings.memory_bytes,
                "parts",
                arguments["files"],
                arguments["body"],
                of_job=True,
            )
            body = await self._results.input(arguments["body"])
            if body is None:
                # The store keeps the bodies of jobs that wait.
                shares = settings.database_url is not None and settings.store_url is None
                hint = "servers that share a database need one store, too (RELAYOUT_STORE_URL)" if shares else ""
                raise RefusedError("no-result", "the body of the job is not in the server's store", hint=hint)
            found = await self._results.answer(task, body, arguments["caller"], pool=self._pool, take=take)
            return {**found, "media": arguments["media"]}
        except AnsweredError as error:
            return {"problem": error.problem.model_dump()}
        except RelayoutError as error:
            return {"problem": problem_of(error).model_dump()}
        except OSError as error:
            _log.error("job %s: its result cannot be stored: %s", job, error)
            kind = "no-space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "starting"
            refused = RefusedError(kind, "the result cannot be stored", found=error.strerror or "")
            return {"problem": problem_of(refused).model_dump()}
        except Exception:
            _log.exception("job %s", job)
            raise
        finally:
            del self._progress[job]

    async def _opened(self) -> Engine:
        """The engine, when it has been opened. Raises RefusedError where that failed, or takes long."""
        if self._engine is None:
            with move_on_after(_OPEN_SECONDS):
                await self.tried.wait()
        if self._engine is None:
            raise self._not_open()
        return self._engine

    def _not_open(self) -> RefusedError:
        if self._fault is None:
            return RefusedError("starting", "the job database is not open yet", hint="retry later", retry_after=2)
        return RefusedError("starting", "the job database cannot be opened", hint=SEE_LOG, retry_after=5)

    async def _call(self, function: Callable[[*_Arguments], _T], *args: *_Arguments) -> _T:
        """Call a blocking function of the engine. Raises RefusedError where the database cannot be used, or does not
        answer in time: its client would wait for a quarter of an hour for a machine that is gone."""
        from relayout_api.jobs.engine import DatabaseError

        with move_on_after(_ANSWER_SECONDS):
            return await self._run(function, *args)
        self._log_away(DatabaseError(f"no answer within {_ANSWER_SECONDS:g} s"))
        raise RefusedError("starting", "the job database does not answer", hint="retry later", retry_after=5)

    async def _run(self, function: Callable[[*_Arguments], _T], *args: *_Arguments) -> _T:
        """Call a function that may take long. Raises RefusedError where the database cannot be used."""
        from relayout_api.jobs.engine import DatabaseError

        try:
            return await to_thread.run_sync(function, *args, limiter=self._threads, abandon_on_cancel=True)
        except DatabaseError as error:
            if error.is_full:
                _log.error("the job database: %s", error.cause)
                raise RefusedError(
                    "no-space", "the server's disk is full", hint="retry later", retry_after=60
                ) from error
            self._log_away(error)
            problem = "the job database cannot be used"
            raise RefusedError("starting", problem, hint=SEE_LOG, retry_after=5) from error


def _log_job(job: str, state: str, arguments: dict[str, Any], **facts: object) -> None:
    facts = {"job": job, "kind": arguments["kind"], "caller": arguments["caller"], **facts}
    _log.info("job %s %s", job, state, extra=facts)


def _input(row: Row) -> dict[str, Any]:
    assert row.input is not None
    return _completed(row.input["args"][0])


def _is_same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether the inputs of two jobs are of the same body and query."""
    # Parameters are made of the query, and have the defaults of the version that made them.
    left_out = "query" if first["query"] is None else "parameters"
    return all(first[name] == second[name] for name in second.keys() - {left_out})


def _completed(arguments: dict[str, Any]) -> dict[str, Any]:
    """The input of a job with all fields, also where an earlier version of the server wrote it."""
    return {**_LATER_FIELDS, **arguments}


def _millisecond(row: Row) -> int:
    """When a job was accepted."""
    return int(row.created_at or 0)


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cursor(when: int, given: list[str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([when, given]).encode()).decode()


def _parse_cursor(cursor: str | None) -> tuple[int | None, list[str]]:
    if cursor is None:
        return None, []
    try:
        when, given = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        # A number may be a time of no calendar, or the last of all.
        _iso(int(when) + 1)
        return int(when), [str(each) for each in given]
    except (ValueError, TypeError, OverflowError, OSError, RecursionError):
        raise UsageError(
            "a wrong cursor", where="query.cursor", expected="`next` of a page", found=cursor[:80]
        ) from None
