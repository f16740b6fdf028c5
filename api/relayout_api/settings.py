"""The settings of the service: environment variables `RELAYOUT_*`, checked once at the start."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from relayout.cli.processors import processors
from relayout.errors import UsageError


def state_folder() -> Path:
    """The folder for the state of a user's programs, by the XDG Base Directory Specification."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "relayout"


# RFC 6454, section 6.2: no path, not even a slash. A page in a sandbox or a file has the origin `null`.
_ORIGIN = re.compile(r"null|[a-zA-Z][\w+.-]*://[^/?#\s]+")
_Count = Annotated[int, Field(ge=1, lt=1 << 50)]
_Seconds = Annotated[float, Field(gt=0, lt=1 << 50, allow_inf_nan=False)]


class Settings(BaseSettings):
    """The limits of the service. A field `x` is read from the variable RELAYOUT_X."""

    model_config = SettingsConfigDict(env_prefix="RELAYOUT_", frozen=True, extra="forbid")

    workers: _Count = Field(
        default_factory=lambda: min(processors(), 4),
        description="worker processes; each does one request or job at a time",
    )
    queue: Annotated[int, Field(ge=0, lt=1 << 20)] = Field(
        1000, description="requests that wait for a worker; one caller may have half of them"
    )
    jobs: _Count = Field(1000, description="jobs that wait; one caller may have half of them")
    queue_seconds: _Seconds = Field(30.0, description="seconds that a request waits for a worker")
    time_limit: _Seconds = Field(30.0, description="seconds for one request in a worker")
    job_time_limit: _Seconds = Field(600.0, description="seconds for one job in a worker")
    # The modules of a worker and what they keep take 170 MiB.
    memory_bytes: Annotated[int, Field(ge=256 << 20, lt=1 << 50)] = Field(
        2 << 30, description="data memory of a worker, on Linux; 256 MiB or more"
    )
    max_body_bytes: _Count = Field(128 << 20, description="size of a body")
    bodies_bytes: _Count = Field(
        default_factory=lambda fields: max(512 << 20, fields.get("max_body_bytes", 0)),
        validate_default=True,
        description="size of all bodies in memory, with the answers that are being sent; by default 512 MiB, or that "
        "of one body",
    )
    body_seconds: _Seconds = Field(
        60.0,
        description="seconds for a body to arrive, and for the caller to take the answer; and a second more for each "
        "128 KiB",
    )
    body_rate: Annotated[int, Field(ge=0, lt=1 << 50)] = Field(
        1024, description="bytes a second that a body must arrive with, after its first 5 seconds; 0: any rate"
    )
    header_seconds: _Seconds = Field(10.0, description="seconds for the head of a request to arrive")
    grace: Annotated[float, Field(ge=0, lt=1 << 20)] = Field(
        10.0, description="seconds that work in progress has when the server is told to stop"
    )
    data: Path = Field(default_factory=state_folder, description="folder of the job database and of models and results")
    database_url: str | None = Field(
        None,
        description="`postgresql://…` of the job database, for several servers; without: a file in the data folder",
    )
    store_url: str | None = Field(
        None, description="`s3://…` or another fsspec URL for models and results; without: the data folder"
    )
    store_bytes: _Count = Field(
        10 << 30,
        description="size of all stored models and results; the inputs of jobs that have not ended may have three "
        "quarters of it, and those of one caller half of it",
    )
    keep_hours: Annotated[float, Field(gt=0, lt=1 << 30)] = Field(
        168.0, description="hours after which ended jobs and unused files are deleted"
    )

    auth: Literal["off", "required"] = Field(
        "off", description="`required`: requests need a key or token; so always where others than this machine may call"
    )
    oidc_issuer: str | None = Field(None, description="issuer of OpenID Connect tokens that are accepted as keys are")
    oidc_audience: str = Field("relayout", min_length=1, description="audience that a token must name")
    oidc_claim: str = Field("scope", min_length=1, description="claim of a token with its scopes")
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="origins of other pages that may call the service, with commas between them"
    )
    log_format: Literal["text", "json"] = Field("text", description="form of a log line")

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _separate(cls, value: object) -> object:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @field_validator("bodies_bytes")
    @classmethod
    def _a_body_fits(cls, value: int, info: ValidationInfo) -> int:
        most = info.data.get("max_body_bytes", 0)
        if value < most:
            # A larger body would be refused for ever, as if others were in its place.
            raise ValueError(f"RELAYOUT_MAX_BODY_BYTES, which is {most}, or more")
        return value

    @field_validator("database_url")
    @classmethod
    def _postgresql(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("a URL postgresql://...; without one the database is a file in RELAYOUT_DATA")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if value == "":
            # It would be the folder in which the server happens to start.
            raise ValueError("the name of a folder")
        return value

    @field_validator("store_url")
    @classmethod
    def _fsspec(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value:
            raise ValueError("a URL such as s3://bucket/folder; without one the store is in RELAYOUT_DATA")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://")):
            # The server starts where an issuer does not answer, as it may answer later.
            raise ValueError("a URL https://... or http://...")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(each == "*" or _ORIGIN.fullmatch(each) for each in value):
            # No browser would ever send it, so that the page was refused without a word.
            raise ValueError("origins as a browser sends them, such as https://example.org or http://localhost:3000")
        return value

    def folder(self, name: str = "") -> Path:
        """The data folder, or one in it, which is made for this user alone if it is not there. Raises UsageError."""
        folder = self.data / name
        try:
            # The mode is that of the last folder of a path; others have the usual one.
            for each in (self.data, folder):
                each.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unusable(folder, error) from error
        return folder

    def file(self, name: str) -> Path:
        """A file in the data folder, which is made for this user alone, and empty, if it is not there. Raises
        UsageError."""
        path = self.folder() / name
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise _unusable(path, error) from error
        return path

    @property
    def keys_url(self) -> str:
        """The database of the API keys, as SQLAlchemy names it: that of the jobs, or a file in the data folder.

        Raises UsageError.
        """
        if self.database_url is None:
            return f"sqlite:///{self.file('keys.sqlite')}"
        scheme, separator, rest = self.database_url.partition("://")
        return f"{'postgresql+psycopg' if scheme in ('postgres', 'postgresql') else scheme}{separator}{rest}"

    @property
    def input_bytes(self) -> int:
        """The bytes of the store that the inputs of jobs that have not ended may have. The rest is for results."""
        return self.store_bytes * 3 // 4

    @property
    def own_input_bytes(self) -> int:
        """The part of them that one caller may have."""
        return self.store_bytes // 2

    @property
    def share(self) -> int:
        """The workers that one caller may have at once: all but one."""
        return max(1, self.workers - 1)

    @classmethod
    def from_environment(cls) -> Settings:
        """The settings from the environment, with defaults for the rest. Raises UsageError, which names the
        variable."""
        try:
            return cls()
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            expected = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            raise UsageError(
                "a setting is wrong",
                where=f"RELAYOUT_{fault['loc'][0]}".upper(),
                expected=expected.partition(", unable to parse")[0],
                # The password of a URL is not shown.
                found=re.sub(r"//[^/]*@", "//***@", repr(fault["input"])),
            ) from None


def _unusable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        "the folder of jobs, models and results cannot be made",
        where="RELAYOUT_DATA",
        expected="a folder that this user may write",
        found=f"{path}: {error.strerror or error}",
    )
