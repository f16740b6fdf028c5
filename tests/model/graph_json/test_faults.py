"""Errors about JSON are in JSON's words, at the place that has the fault."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from relayout.model.graph_json.faults import Fault, first_fault, json_kind


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    seconds: float = 1.0
    dims: dict[str, int] = {}


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str | dict[str, int] = ""
    options: Inner = Inner()
    parts: list[Inner] = []


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"name": None}, ("name", "a string, or an object", "null", "")),
        ({"options": []}, ("options", "an object", "an empty list", "")),
        ({"options": {"seconds": "x"}}, ("options.seconds", "a number", '"x"', "")),
        ({"parts": [{}, {"dims": [1]}]}, ("parts[1].dims", "an object", "a list of 1", "")),
        ({"dims": {}}, ("dims", "one of the fields name, options, parts", "dims", "did you mean options.dims?")),
        ({"nam": 1}, ("nam", "one of the fields name, options, parts", "nam", "did you mean name?")),
        ({"parts": [{"x": 1}]}, ("parts[0].x", "one of the fields dims, seconds", "x", "")),
    ],
    ids=str,
)
def test_a_fault_has_its_place_and_words_of_json(data: dict[str, Any], fault: tuple[str, str, str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(data)
    assert first_fault(caught.value.errors(), data, Outer) == Fault(*fault, more=0)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "null"), (True, "a truth value"), (1, "a number"), (0.5, "a number"), ("", "a string"), ([], "a list")],
)
def test_a_value_has_a_kind(value: object, kind: str) -> None:
    assert json_kind(value) == kind
