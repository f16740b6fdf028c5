"""Settings come from the environment, and an error names the variable of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relayout.errors import UsageError
from relayout_api.problems import KINDS
from relayout_api.settings import Settings
from relayout_api.store import store_of


def test_every_field_has_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"RELAYOUT_WORKERS": "3", "RELAYOUT_TIME_LIMIT": "1.5", "RELAYOUT_QUEUE": "0"}.items():
        monkeypatch.setenv(name, text)
    assert Settings.from_environment() == Settings(workers=3, time_limit=1.5, queue=0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RELAYOUT_WORKERS", "two"),
        ("RELAYOUT_WORKERS", "0"),
        ("RELAYOUT_WORKERS", "1.5"),
        ("RELAYOUT_QUEUE", "-1"),
        ("RELAYOUT_TIME_LIMIT", "nan"),
        ("RELAYOUT_TIME_LIMIT", "inf"),
        ("RELAYOUT_MAX_BODY_BYTES", "-5"),
        ("RELAYOUT_BODIES_BYTES", str((128 << 20) - 1)),
        ("RELAYOUT_MEMORY_BYTES", "9" * 30),
        ("RELAYOUT_MEMORY_BYTES", "1000000"),
        ("RELAYOUT_BODY_SECONDS", ""),
        ("RELAYOUT_DATA", ""),
        ("RELAYOUT_DATABASE_URL", ""),
        ("RELAYOUT_STORE_URL", ""),
        ("RELAYOUT_STORE_URL", "bucket/folder"),
        ("RELAYOUT_OIDC_ISSUER", ""),
        ("RELAYOUT_OIDC_ISSUER", "issuer.example.org"),
        ("RELAYOUT_OIDC_AUDIENCE", ""),
        ("RELAYOUT_OIDC_CLAIM", ""),
        ("RELAYOUT_CORS_ORIGINS", "example.org"),
        ("RELAYOUT_CORS_ORIGINS", "https://example.org, https://example.org/page"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError) as raised:
        Settings.from_environment()
    assert raised.value.where == name
    assert "unable to parse" not in str(raised.value)


def test_the_memory_of_bodies_has_a_place_for_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.from_environment().bodies_bytes == 512 << 20
    monkeypatch.setenv("RELAYOUT_MAX_BODY_BYTES", str(1 << 30))
    assert Settings.from_environment().bodies_bytes == 1 << 30
    monkeypatch.setenv("RELAYOUT_BODIES_BYTES", str(1 << 29))
    with pytest.raises(UsageError, match="RELAYOUT_MAX_BODY_BYTES, which is 1073741824, or more"):
        Settings.from_environment()


def test_origins_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYOUT_CORS_ORIGINS", "https://example.org, http://[::1]:3000,null,*")
    expected = ("https://example.org", "http://[::1]:3000", "null", "*")
    assert Settings.from_environment().cors_origins == expected


def test_a_data_folder_that_cannot_be_made_is_an_error_of_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(data=tmp_path / "file" / "data")
    for use in (lambda: store_of(settings), lambda: settings.keys_url):
        with pytest.raises(UsageError) as raised:
            use()
        assert raised.value.where == "RELAYOUT_DATA"
        assert str(tmp_path / "file") in raised.value.found


def test_the_manual_has_every_variable_and_every_kind_of_problem() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    variables = {f"RELAYOUT_{name.upper()}" for name in Settings.model_fields}
    # RELAYOUT_KEY is the client's.
    assert set(re.findall(r"`(RELAYOUT_\w+)`", manual)) - {"RELAYOUT_KEY"} == variables
    errors = manual.partition("## Errors")[2].partition("\n## ")[0]
    assert {kind for kind in KINDS if f"`{kind}`" not in errors} == set()
