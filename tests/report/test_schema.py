"""The published JSON Schema of the report. `python tests/report/test_schema.py` writes it anew."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from graphs import Net

from relayout import explain, legalize
from relayout.report.schema import Report

PUBLISHED = Path(__file__).parents[2] / "docs" / "report.schema.json"
NOTE = "python tests/report/test_schema.py writes docs/report.schema.json anew"


def schema() -> str:
    made = Report.model_json_schema(mode="serialization")
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
    return json.dumps(whole, indent=2) + "\n"


def test_the_published_schema_is_that_of_the_report() -> None:
    assert PUBLISHED.read_text() == schema(), NOTE


@pytest.mark.parametrize("backend", ["nhwc", "x86-nchwc"])
def test_reports_are_valid_by_the_published_schema(backend: str) -> None:
    published = json.loads(PUBLISHED.read_text())
    net = Net()
    net.output(net.node("Relu", net.conv(net.input("x", ("n", 8, 6, 6)), 8, 32)))
    _, report = legalize(net.model(), backend, check=True)
    for each in (report, explain(net.model(), backend)):
        jsonschema.validate(json.loads(each.model_dump_json()), published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(report.model_dump_json()), "schema_version": 2}, published)


if __name__ == "__main__":
    PUBLISHED.write_text(schema())
