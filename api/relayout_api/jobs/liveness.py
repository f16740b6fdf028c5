"""Which servers are alive: each holds a lock that the system releases when it dies, however it dies.

On one machine the lock is on a file in the data folder; with PostgreSQL it is a session's advisory lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from relayout_api.settings import Settings

# The first half of the key of our advisory locks: "rlyt".
_NAMESPACE = 0x726C7974


class Liveness(Protocol):
    """The locks of servers, by the servers' names."""

    def hold(self, server: str) -> None:
        """Take the lock of this server, or take it again if it was lost. Raises OSError."""

    def taken_from_the_dead(self, server: str) -> contextlib.AbstractContextManager[bool]:
        """Whether this server is dead; while the block runs, no other can find so too. Raises OSError."""

    def close(self) -> None:
        """Release the lock of this server."""


def liveness_of(settings: Settings) -> Liveness:
    """The locks that all servers of one job database share."""
    if settings.database_url is None:
        return _FileLocks(settings.folder("servers"))
    return _SessionLocks(settings.database_url)


class _FileLocks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: tuple[str, int] | None = None

    def hold(self, server: str) -> None:
        if self._own is None:
            file = os.open(self._folder / server, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._own = server, file

    @contextlib.contextmanager
    def taken_from_the_dead(self, server: str) -> Iterator[bool]:
        path = self._folder / server
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
            path.unlink(missing_ok=True)
        finally:
            os.close(file)

    def close(self) -> None:
        if self._own is not None:
            server, file = self._own
            (self._folder / server).unlink(missing_ok=True)
            os.close(file)
            self._own = None


class _SessionLocks:
    def __init__(self, url: str) -> None:
        import psycopg

        self._psycopg = psycopg
        self._url = url
        self._session: psycopg.Connection | None = None

    def hold(self, server: str) -> None:
        try:
            if self._session is not None:
                self._session.execute("SELECT 1")
                return
        except self._psycopg.Error:
            self.close()
        try:
            session = self._psycopg.connect(self._url, autocommit=True, connect_timeout=5)
            session.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (_NAMESPACE, server))
        except self._psycopg.Error as error:
            raise OSError(str(error)) from error
        self._session = session

    @contextlib.contextmanager
    def taken_from_the_dead(self, server: str) -> Iterator[bool]:
        session = self._session
        if session is None:
            raise OSError("no session with the database")
        key = _NAMESPACE, server
        try:
            row = session.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", key).fetchone()
            is_taken = row is not None and bool(row[0])
            try:
                yield is_taken
            finally:
                if is_taken:
                    session.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", key)
        except self._psycopg.Error as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
