"""API keys in a database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relayout.errors import UsageError
from relayout_api.access.callers import Caller
from relayout_api.access.keys import PREFIX, Keys


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Keys]:
    with Keys(f"sqlite:///{tmp_path}/keys.sqlite") as keys:
        yield keys


def test_a_key_is_found_by_its_text_with_its_limits(keys: Keys) -> None:
    text = keys.add("ci", "legalize", rate=60, concurrency=2)
    assert keys.find(text) == Caller("key:ci", "legalize", 60, 2)
    assert keys.find(text[:-1]) is None
    assert keys.find("") is None


def test_the_database_has_no_key(keys: Keys, tmp_path: Path) -> None:
    text = keys.add("ci", "read")
    with contextlib.closing(sqlite3.connect(tmp_path / "keys.sqlite")) as database:
        rows = database.execute("select * from relayout_keys").fetchall()
    assert len(rows) == 1
    assert text.startswith(PREFIX)
    assert text.removeprefix(PREFIX).encode() not in (tmp_path / "keys.sqlite").read_bytes()


def test_a_revoked_key_is_gone_and_another_stays(keys: Keys) -> None:
    gone, stays = keys.add("gone", "read"), keys.add("stays", "read")
    keys.revoke("gone")
    assert keys.find(gone) is None
    assert keys.find(stays) is not None
    assert [key.name for key in keys.all()] == ["stays"]


def test_an_expired_key_is_not_found_but_listed(keys: Keys) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert keys.find(keys.add("old", "read", expires=past)) is None
    assert keys.find(keys.add("new", "read", expires=past + timedelta(days=1))) is not None
    assert [key.name for key in keys.all()] == ["new", "old"]


@pytest.mark.parametrize(
    ("name", "scope", "problem"),
    [("ci", "read", "of this name"), ("a\nb", "read", "not a name"), ("", "read", "not a name"), ("x", "all", "scope")],
)
def test_a_wrong_key_is_refused(keys: Keys, name: str, scope: str, problem: str) -> None:
    keys.add("ci", "read")
    with pytest.raises(UsageError, match=problem):
        keys.add(name, scope)


def test_revoking_an_unknown_key_names_the_known_ones(keys: Keys) -> None:
    keys.add("ci", "read")
    with pytest.raises(UsageError) as error:
        keys.revoke("ic")
    assert error.value.expected == "ci"


def test_a_database_that_does_not_answer_is_an_error_without_its_password() -> None:
    url = "postgresql+psycopg://relayout:secret@127.0.0.1:1/none"
    with Keys(url) as keys, pytest.raises(UsageError, match="cannot be used") as error:
        keys.all()
    assert "secret" not in str(error.value)
