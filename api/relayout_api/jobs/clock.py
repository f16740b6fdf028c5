"""A clock of milliseconds for jobs in SQLite.

DBOS orders the jobs of a queue by the time at which SQLite wrote their rows. On Python 3.11 it asks SQLite for
`strftime('%s', 'now')`, which counts seconds: jobs of the same second would start in any order. On later versions it
asks for `unixepoch('subsec')`, which SQLite below 3.42 does not know: no row could be written. On our connections both
are functions of Python.
"""

from __future__ import annotations

import sqlite3
import time

from sqlalchemy import Engine, event


def count_milliseconds() -> None:
    """Give every connection of SQLAlchemy to a SQLite file the clock, from now on."""
    if not event.contains(Engine, "connect", _give_clock):
        event.listen(Engine, "connect", _give_clock)


def _give_clock(connection: object, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.create_function("strftime", 2, _strftime)
        connection.create_function("unixepoch", 1, _unixepoch)


def _strftime(form: str, when: str) -> float:
    if (form, when) != ("%s", "now"):
        raise ValueError(f"strftime({form!r}, {when!r}) is not a clock")
    return time.time()


def _unixepoch(modifier: str) -> float:
    if modifier != "subsec":
        raise ValueError(f"unixepoch({modifier!r}) is not a clock")
    return time.time()
