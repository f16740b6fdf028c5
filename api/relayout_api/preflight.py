"""The check before the service listens: its configuration, and whether anybody could call."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from difflib import get_close_matches

from relayout.errors import UsageError
from relayout_api.access.same_origin import is_local
from relayout_api.settings import Settings

_PREFIX = "RELAYOUT_"
# In a URL: before the host, or in the query.
_PASSWORD = re.compile(r"(?<=:)(?!//)[^/]+(?=@)|(?<=password=)[^&]+")


def needs_local_callers(settings: Settings, host: str, is_open: bool) -> bool:
    """Whether callers at `host` are trusted because they are on this machine: then pages of others are kept out."""
    return settings.auth == "off" and not is_open and is_local(host)


def with_auth(settings: Settings, host: str, is_open: bool) -> Settings:
    """The settings for listening at `host`: keys are needed where others than this machine can call, unless `is_open`.

    Raises UsageError where a key is needed and there is none.
    """
    is_asked_for = settings.auth == "required"
    if not (is_asked_for or is_open or is_local(host)):
        settings = settings.model_copy(update={"auth": "required"})
    if settings.auth == "required" and settings.oidc_issuer is None:
        from relayout_api.access.keys import Keys

        with Keys(settings.keys_url) as keys:
            known = keys.all()
        if not known:
            raise UsageError(
                "nobody could call the service",
                where="RELAYOUT_AUTH" if is_asked_for else f"--host {host}",
                expected="an API key, or an issuer of tokens"
                if is_asked_for
                else "an API key, an issuer of tokens, or --open, which lets everybody in",
                found="none",
                hint="relayout serve keys add NAME makes a key",
            )
    return settings


def examine(host: str, is_open: bool) -> Iterator[tuple[str, str, UsageError | None]]:
    """Each part of the configuration: its name, what was found, and the error if it is wrong. Nothing is started."""
    try:
        settings = Settings.from_environment()
        for variable, near in misspelled().items():
            raise UsageError("no such setting", where=variable, hint=f"did you mean {near}?")
    except UsageError as error:
        yield "settings", "", error
        return
    yield "settings", f"{settings.workers} workers of {settings.memory_bytes >> 20} MiB", None
    looks: dict[str, Callable[[], str]] = {
        "access": lambda: _access(settings, host, is_open),
        "issuer of tokens": lambda: _issuer(settings),
        "job database": lambda: _database(settings),
        "store": lambda: _store(settings),
    }
    for name, look in looks.items():
        try:
            found, fault = look(), None
        except UsageError as error:
            found, fault = "", error
        yield name, found, fault


def listed() -> Iterator[tuple[str, str, str]]:
    """Each setting: its variable, its value without a password, and its meaning. Raises UsageError."""
    settings = Settings.from_environment()
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        text = ",".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
        shown = "" if value is None else _PASSWORD.sub("***", text)
        yield f"{_PREFIX}{name.upper()}", shown, field.description or ""


def misspelled() -> dict[str, str]:
    """The variables that are nearly settings, each with the nearest one. Others may be of Kubernetes, which names the
    services of a namespace, or of the command."""
    found = {}
    for variable in sorted(os.environ):
        name = variable.removeprefix(_PREFIX).lower()
        near = get_close_matches(name, Settings.model_fields, n=1, cutoff=0.8)
        if variable.startswith(_PREFIX) and near and name not in Settings.model_fields:
            found[variable] = f"{_PREFIX}{near[0].upper()}"
    return found


def _access(settings: Settings, host: str, is_open: bool) -> str:
    check_address(host)
    settings = with_auth(settings, host, is_open)
    if settings.auth == "off":
        return "everybody who can reach it" if not is_local(host) else "this machine, without a key"
    from relayout_api.access.keys import Keys

    with Keys(settings.keys_url) as keys:
        known = len(keys.all())
        return "1 key" if known == 1 else f"{known} keys"


def check_address(host: str, port: int = 0) -> None:
    """Raise UsageError unless a server can listen at this address, of which a name may have several. 0: at any port."""
    reason = ""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind, protocol) as listening:
                    # As the server does: the port of one that has just ended is free.
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listening.bind(address)
                return
            except OSError as error:
                reason = error.strerror or str(error)
    except OSError as error:
        reason = error.strerror or str(error)
    where, expected = f"--host {host}", "an address of this machine"
    if port:
        where, expected = f"{where} --port {port}", f"{expected} and a free port"
    raise UsageError("nothing can listen there", where=where, expected=expected, found=reason)


def _issuer(settings: Settings) -> str:
    if settings.oidc_issuer is None:
        return "none"
    from relayout_api.access.tokens import Tokens

    return f"its keys are at {Tokens(settings.oidc_issuer, settings.oidc_audience, settings.oidc_claim).check()}"


def _database(settings: Settings) -> str:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    if settings.database_url is None:
        return _database_file(settings)
    engine = create_engine(settings.keys_url)
    where = engine.url.render_as_string(hide_password=True)
    try:
        with engine.connect():
            return where
    except SQLAlchemyError as error:
        found = str(error).partition("\n")[0]
        expected = "a database that answers"
        raise UsageError("the job database cannot be used", where=where, expected=expected, found=found) from error
    finally:
        engine.dispose()


def _database_file(settings: Settings) -> str:
    path = settings.folder() / "jobs.sqlite"
    if path.exists():
        try:
            with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
                [(found,)] = database.execute("PRAGMA quick_check(1)")
        except sqlite3.Error as error:
            found = str(error)
        if found == "ok" and not os.access(path, os.W_OK):
            found = "a file that this user may not write"
        if found != "ok":
            raise UsageError(
                "the job database cannot be used",
                where=f"file {path}",
                expected="a SQLite file that this user may write",
                found=found,
                hint="restore it, or move it away: the server then makes a new one",
            )
    return f"a file in {settings.data}"


def _store(settings: Settings) -> str:
    from relayout_api.store import store_of

    where = settings.store_url or str(settings.data)
    try:
        store_of(settings).check()
    except OSError as error:
        expected, found = "a place that can be written", error.strerror or str(error)
        raise UsageError("the store cannot be used", where=where, expected=expected, found=found) from error
    if settings.store_url is not None:
        return where
    free = shutil.disk_usage(settings.data).free
    return f"{where}, at most {settings.store_bytes >> 20} MiB; {free >> 20} MiB are free there"
