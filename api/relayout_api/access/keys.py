"""API keys in a database. Only a hash of a key is stored; the key itself is shown once, when it is made."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from sqlalchemy import Column, DateTime, Engine, Float, Integer, MetaData, String, Table, create_engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from relayout.errors import UsageError
from relayout_api.access.callers import PREFIX, SCOPES, Caller

_TABLE = Table(
    "relayout_keys",
    MetaData(),
    Column("name", String(64), primary_key=True),
    # 256 random bits need no slow hash: nobody can try them all.
    Column("sha256", String(64), nullable=False, unique=True),
    Column("scope", String(16), nullable=False),
    Column("rate", Float),
    Column("concurrency", Integer),
    Column("made", DateTime(timezone=True), nullable=False),
    Column("expires", DateTime(timezone=True)),
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is stored, without its secret. `rate` is in requests a minute."""

    name: str
    scope: str
    rate: float | None
    concurrency: int | None
    made: datetime
    expires: datetime | None

    def is_valid(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires


class Keys:
    """The keys in the database at `url` (SQLAlchemy's form), a context that closes its connections. The methods raise
    UsageError if it cannot be used."""

    def __init__(self, url: str) -> None:
        # A server of a database that started again has closed the connections of before.
        self._engine: Engine = create_engine(url, pool_pre_ping=True)
        self._has_table = False

    def add(
        self,
        name: str,
        scope: str,
        *,
        rate: float | None = None,
        concurrency: int | None = None,
        expires: datetime | None = None,
    ) -> str:
        """Make a key and return it: the only time that it is seen. Raises UsageError if the name is taken."""
        if scope not in SCOPES:
            raise UsageError("no such scope", where="--scope", expected=" or ".join(SCOPES), found=scope)
        if not name or len(name) > 64 or not name.isprintable():
            raise UsageError(
                "not a name of a key", where="name", expected="1 to 64 printable characters", found=repr(name)
            )
        key = PREFIX + secrets.token_urlsafe(32)
        row = {"name": name, "sha256": _hash(key), "scope": scope, "rate": rate, "concurrency": concurrency}
        try:
            with self._asking(), self._engine.begin() as connection:
                connection.execute(_TABLE.insert().values(**row, made=datetime.now(UTC), expires=expires))
        except IntegrityError:
            raise UsageError(
                "there is a key of this name", where="name", expected="a new name", found=name, hint="revoke it first"
            ) from None
        return key

    def find(self, key: str) -> Caller | None:
        """The caller whose key has this text, if there is one and it has not expired."""
        with self._asking(), self._engine.connect() as connection:
            row = connection.execute(_TABLE.select().where(_TABLE.c.sha256 == _hash(key))).mappings().one_or_none()
        found = None if row is None else _key(dict(row))
        if found is None or not found.is_valid(datetime.now(UTC)):
            return None
        return Caller(f"key:{found.name}", found.scope, found.rate, found.concurrency)

    def all(self) -> list[Key]:
        """Every key, by name."""
        with self._asking(), self._engine.connect() as connection:
            rows = connection.execute(_TABLE.select().order_by(_TABLE.c.name)).mappings().all()
        return [_key(dict(row)) for row in rows]

    def revoke(self, name: str) -> None:
        """Delete a key. A running server forgets it within seconds. Raises UsageError if there is none."""
        with self._asking(), self._engine.begin() as connection:
            gone = connection.execute(_TABLE.delete().where(_TABLE.c.name == name)).rowcount
        if not gone:
            known = ", ".join(key.name for key in self.all()) or "no key"
            raise UsageError("no such key", where="name", expected=known, found=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            if not self._has_table:
                _TABLE.metadata.create_all(self._engine)
                self._has_table = True
            yield
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            where = self._engine.url.render_as_string(hide_password=True)
            raise UsageError(
                "the database of keys cannot be used",
                where=where,
                expected="a database that answers",
                found=str(error).partition("\n")[0],
            ) from error


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _key(row: dict[str, object]) -> Key:
    row.pop("sha256")
    # SQLite stores no time zone.
    for field in ("made", "expires"):
        value = row[field]
        if isinstance(value, datetime) and value.tzinfo is None:
            row[field] = value.replace(tzinfo=UTC)
    return Key(**row)  # type: ignore[arg-type]
