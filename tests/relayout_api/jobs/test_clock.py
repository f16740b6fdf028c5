"""The clock of the job database, by both expressions of DBOS."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from relayout_api.jobs.clock import count_milliseconds


@pytest.mark.parametrize("clock", ["strftime('%s', 'now')", "unixepoch('subsec')"])
def test_rows_of_the_same_second_are_in_order(clock: str, tmp_path: Path) -> None:
    count_milliseconds()
    engine = create_engine(f"sqlite:///{tmp_path / 'jobs.sqlite'}")
    with engine.begin() as database:
        database.execute(text(f"CREATE TABLE jobs (name TEXT, created INTEGER NOT NULL DEFAULT ({clock} * 1000))"))
        begin = int(time.time() * 1000)
        for name in "cab":
            database.execute(text("INSERT INTO jobs (name) VALUES (:name)"), {"name": name})
            time.sleep(0.002)
        rows = database.execute(
            text(f"SELECT name, created, CAST({clock} * 1000 AS BIGINT) FROM jobs ORDER BY 2")
        ).all()
    engine.dispose()
    assert [name for name, _, _ in rows] == ["c", "a", "b"]
    assert len({created for _, created, _ in rows}) == 3
    assert all(begin <= created <= now <= int(time.time() * 1000) for _, created, now in rows)
