"""The durable queue on SQLite, in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import pytest
import sqlalchemy
from http_server import wait_for
from sqlalchemy.exc import OperationalError

from relayout_api.jobs.engine import DatabaseError, Engine, Events
from relayout_api.jobs.jobs import Jobs
from relayout_api.problems import RefusedError
from relayout_api.results import Results
from relayout_api.settings import Settings
from relayout_api.store import store_of
from relayout_api.telemetry.metrics import Metrics
from relayout_api.workers.pool import Pool


class Work:
    """The jobs that were started, and their results to be."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.futures: dict[str, Future[dict[str, Any]]] = {}

    def start(self, job: str, arguments: dict[str, Any], events: Events) -> Future[dict[str, Any]]:
        self.futures[job] = future = Future[dict[str, Any]]()
        self.started.append(job)
        return future


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def engine(tmp_path: Path, work: Work) -> Iterator[Engine]:
    engine = Engine(Settings(data=tmp_path, workers=1), work.start)
    engine.open()
    yield engine
    engine.close()


def test_jobs_of_one_second_run_in_their_order_and_ended_ones_are_deleted(engine: Engine, work: Work) -> None:
    # Ids in another order than the jobs, and all of them in the queue before the second may run.
    jobs = ["e", "b", "d", "a", "c"]
    for job in jobs:
        assert engine.submit(job, "caller", {"body": f"body of {job}"}, 1)
    assert not engine.submit("a", "caller", {"body": "other"}, 1)
    for count, job in enumerate(jobs[:-1], 1):
        wait_for(lambda count=count: len(work.started) == count)  # type: ignore[misc]
        work.futures[job].set_result({})
    wait_for(lambda: work.started == jobs)
    wait_for(lambda: [job.server for job in engine.unfinished()] == [engine.server])
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert engine.delete_ended((soon - timedelta(hours=2)).isoformat()) == {"body of c"}
    assert engine.find("a") is not None
    assert engine.delete_ended(soon.isoformat()) == {"body of c"}
    assert [engine.find(job) is None for job in jobs] == [True] * 4 + [False]
    work.futures["c"].set_result({})
    wait_for(lambda: not engine.is_busy)


def test_a_job_whose_outcome_the_database_refuses_once_runs_again(engine: Engine, work: Work) -> None:
    refused = []

    def refuse(connection: object, cursor: object, statement: str, *others: object) -> None:
        if not refused and statement.startswith("INSERT") and "operation_outputs" in statement:
            refused.append(statement)
            raise OperationalError(statement, None, Exception("database or disk is full"))

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", refuse)
    try:
        assert engine.submit("a", "caller", {"body": "body of a"}, 1)
        wait_for(lambda: work.started == ["a"])
        work.futures["a"].set_result({"cost": 1})
        wait_for(lambda: refused and not engine.is_busy)
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", refuse)
    for _ in range(2):
        engine.take_over()
    wait_for(lambda: work.started == ["a", "a"])
    work.futures["a"].set_result({"cost": 2})
    wait_for(lambda: (row := engine.find("a")) is not None and row.status == "SUCCESS")
    row = engine.find("a")
    assert row is not None
    assert row.output == {"cost": 2}


def test_a_file_that_is_no_database_is_named(tmp_path: Path, work: Work) -> None:
    (tmp_path / "jobs.sqlite").write_text("garbage" * 100)
    with pytest.raises(DatabaseError) as error:
        Engine(Settings(data=tmp_path, workers=1), work.start).open()
    assert error.value.cause == f"{tmp_path / 'jobs.sqlite'}: file is not a database"


def test_a_fault_that_the_queue_repeats_is_logged_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    queue = logging.getLogger("dbos")
    for _ in range(5):
        queue.warning("cannot take jobs: (sqlite3.OperationalError) database or disk is full\n[SQL: UPDATE ...]")
        queue.warning("(psycopg.OperationalError) connection refused")
    queue.error("another fault")
    assert not queue.propagate
    ours = [record for record in caplog.records if record.name == "relayout_api"]
    assert [(record.levelname, record.getMessage()) for record in ours] == [
        ("WARNING", "the job queue: cannot take jobs: (sqlite3.OperationalError) database or disk is full"),
        ("ERROR", "the job queue: another fault"),
    ]
    # The queue's own fields, such as a version that is always 1, say nothing to an operator.
    assert not hasattr(ours[0], "executorID")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_no_job_is_accepted_when_the_file_is_not_at_its_place(
    engine: Engine, tmp_path: Path, is_replaced: bool
) -> None:
    engine.check()
    (tmp_path / "jobs.sqlite").rename(tmp_path / "moved.sqlite")
    if is_replaced:
        (tmp_path / "jobs.sqlite").write_bytes(b"")
    for use in (engine.check, lambda: engine.submit("a", "caller", {"body": "body of a"}, 1)):
        with pytest.raises(DatabaseError, match="was moved or deleted"):
            use()
    (tmp_path / "moved.sqlite").rename(tmp_path / "jobs.sqlite")
    engine.check()


def test_a_database_that_never_answers_holds_nobody(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, is_back = Settings(data=tmp_path), Event()
    jobs = Jobs(settings, Pool(settings, Metrics()), Results(settings, store_of(settings)))
    monkeypatch.setattr("relayout_api.jobs.jobs._ANSWER_SECONDS", 0.02)
    monkeypatch.setattr(engine, "check", is_back.wait)
    monkeypatch.setattr(jobs, "_engine", engine)

    async def main() -> None:
        # Its threads are used up by then.
        for _ in range(20):
            with pytest.raises(RefusedError, match="does not answer") as refused:
                await jobs.check()
            assert (refused.value.kind, refused.value.retry_after) == ("starting", 5)
        is_back.set()
        monkeypatch.setattr("relayout_api.jobs.jobs._ANSWER_SECONDS", 30.0)
        await jobs.check()

    anyio.run(main)
    assert [record.getMessage() for record in caplog.records] == [
        "the job database cannot be used, and is asked again: no answer within 0.02 s"
    ]
