"""Retired identifiers do not come back."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Retired name: the term that replaced it (docs/architecture.md has the glossary).
RETIRED = {
    "Clock": "Deadline",
    "Crossed": "PlannedTransfer",
    "Crossing": "Transfer",
    "FreeForm": "FreeLowering",
    "Held": "DefUse",
    "LaidForm": "FixedLowering",
    "Made": "PlannedConversion",
    "NodeChoice": "NodeAlternatives",
    "PLACE_KEY": "DEVICE_KEY",
    "Passage": "RegionEdge",
    "Place": "Device",
    "Rehearsal": "dry run",
    "Spot": "RegionPort",
    "StandingApartError": "find_blocking_views",
    "Touch": "TensorUse",
    "Workshop": "Plan and emitter",
    "hub": "set variable",
    "passage": "region edge",
    "shop": "context",
    "touch": "use",
    "walk_back": "back_substitute",
}


def names_in(path: Path) -> set[str]:
    """The identifiers of a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.mark.parametrize("root", ["solver", "backends", "api", "tests", "benchmarks"])
def test_no_retired_identifier_is_used(root: str) -> None:
    used = {
        f"{path.relative_to(ROOT)}: {name} (use: {RETIRED[name]})"
        for path in sorted((ROOT / root).rglob("*.py"))
        for name in names_in(path) & set(RETIRED)
    }
    assert sorted(used) == []
