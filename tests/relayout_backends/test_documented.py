"""The manual documents every backend that ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relayout.backend import Backend
from relayout.backend.declarative_schema import AssignTable, BackendTable, Condition, DeviceTable, Range, Rule
from relayout.backend.registry import find_backends

MANUAL = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
# The text in code marks in the first column of a table.
ROWS = {
    name
    for cell in re.findall(r"^\| ([^|]+) \|", MANUAL, re.MULTILINE)
    for name in re.findall(r"`([\w-]+)(?:\([^)]*\))?`", cell)
}


@pytest.mark.parametrize(
    "name", [name for name, plugin in find_backends().items() if plugin.distribution == "relayout"]
)
def test_every_backend_that_ships_has_a_row_in_the_manual(name: str) -> None:
    assert name in ROWS


@pytest.mark.parametrize("member", [name for name in vars(Backend) if not name.startswith("_")])
def test_every_member_of_the_interface_has_a_row_in_the_manual(member: str) -> None:
    assert member in ROWS


TABLES = (BackendTable, Rule, Condition, DeviceTable, AssignTable)


@pytest.mark.parametrize("key", sorted({key for table in TABLES for key in table.model_fields}))
def test_every_key_of_a_table_has_a_row_in_the_manual(key: str) -> None:
    assert key in ROWS


@pytest.mark.parametrize("key", Range.model_fields)
def test_every_bound_is_in_the_manual(key: str) -> None:
    assert f"`{key}`" in MANUAL
