"""Retired identifiers do not come back, and sentences say the thing first."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Retired name: the term that replaced it (docs/architecture.md has the glossary).
RETIRED = {
    "Arrangement": "MemoryFormat",
    "Arrival": "Transfer",
    "Arrivals": "Transfer",
    "Boxed": "BlackBoxFormat",
    "Clock": "Deadline",
    "Contract": "requirements_of and is_satisfied_by",
    "ConversionWay": "conversion writer",
    "Crossed": "PlannedTransfer",
    "Crossing": "Transfer",
    "FreeForm": "FreeLowering",
    "Geometry": "indexing maps",
    "Givers": "producers",
    "Held": "DefUse",
    "Homes": "Device",
    "Kernel": "Residual",
    "LaidForm": "FixedLowering",
    "Lifted": "DroppedRequirement",
    "Lifting": "relaxed",
    "Made": "PlannedConversion",
    "Meanings": "axis correspondence",
    "Mixing": "equivalence classes of axes",
    "NodeChoice": "NodeAlternatives",
    "NodeChoices": "NodeAlternatives",
    "NodeWay": "node writer",
    "PLACE_KEY": "DEVICE_KEY",
    "Passage": "RegionEdge",
    "PassingValue": "RegionPort",
    "Place": "Device",
    "PlaceTable": "DeviceTable",
    "Placement": "unit-axis insertion",
    "Question": "feasibility problem",
    "Rehearsal": "dry run",
    "Space": "IterationSpace",
    "SpaceWay": "node writer",
    "Spaces": "IterationSpace",
    "Spot": "RegionPort",
    "StandingApartError": "find_blocking_views",
    "Touch": "TensorUse",
    "Turn": "OperandConversion",
    "Wish": "Requirement",
    "Workshop": "Plan and emitter",
    "add_base": "base tensor",
    "arrangement_of": "memory format",
    "as_it_lies": "in-place dims",
    "blame": "guarded",
    "blaming": "guarded",
    "check_crossings": "check_transfers",
    "check_meanings": "check_axes_read",
    "crossing_cost": "transfer_cost",
    "crossings": "transfers",
    "crossings_of": "transfers_of",
    "fixed_forms": "fixed lowerings",
    "from_root": "from_base",
    "give": "set_result",
    "guess": "greedy_states",
    "has_contested": "has_conflicting",
    "hold_tensors": "def-use chains",
    "hub": "set variable",
    "in_boxes": "black boxes",
    "inner_spots": "region ports",
    "is_cut": "is tiled",
    "laid_forms": "fixed lowerings",
    "leave_out": "elided",
    "lies_in": "is in a layout",
    "named_layouts": "declared layouts",
    "needs_stand_ins": "needs_placeholders",
    "noted_boxes": "black_boxes_on",
    "nonsense": "invalid answer",
    "passage": "region edge",
    "passages_of": "region_edges",
    "pay": "raise_bound",
    "pieces_of": "factors",
    "place_after": "insert",
    "place_hubs": "add_set_variables",
    "place_nodes": "insert nodes",
    "placements": "unit-axis insertions",
    "places_of": "devices",
    "question_of": "feasibility_problem",
    "questions_of": "feasibility_problem",
    "rehearse": "dry run",
    "root_dims": "base dims",
    "settle": "reparametrize",
    "settle_places": "devices",
    "shop": "context",
    "softened": "soft_problem",
    "spot": "region port",
    "stand_in": "placeholder",
    "tied_names": "coupled names",
    "to_root": "to_base",
    "told_place": "device",
    "touch": "use",
    "touched_with": "uses",
    "touches": "uses",
    "turning": "multiplying_transposed",
    "walk_back": "back_substitute",
    "wanted_of": "requirements",
    "ways_of": "implementations",
    "write_turned": "write permuted",
}


def retired_in(path: Path) -> set[str]:
    """The retired identifiers of a Python file. Only a file that has them as words at all is read as Python."""
    text = path.read_text()
    if RETIRED.keys().isdisjoint(re.findall(r"\w+", text)):
        return set()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME} & RETIRED.keys()


@pytest.mark.parametrize("root", ["solver", "backends", "api", "tests", "benchmarks"])
def test_no_retired_identifier_is_used(root: str) -> None:
    used = {
        f"{path.relative_to(ROOT)}: {name} (use: {RETIRED[name]})"
        for path in sorted((ROOT / root).rglob("*.py"))
        for name in retired_in(path)
    }
    assert sorted(used) == []


@pytest.mark.parametrize("root", ["solver", "backends", "api", "tests", "benchmarks"])
def test_no_comment_or_docstring_begins_with_a_question_word(root: str) -> None:
    places = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / root).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r'(#|""")\s*(What|Who)\s', line)
    ]
    assert places == []
