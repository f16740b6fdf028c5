"""The published JSON Schema of the report. `python tests/report/test_schema.py` writes it anew."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest
from graphs import Net

from relayout import explain, legalize, render_text, verify
from relayout.report.schema import Numeric, OutputDifference, Report, Totals, Verification

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


def test_an_infinite_difference_is_valid_json_and_read_again() -> None:
    """JSON has no infinity, and null would be no number."""
    infinite = OutputDifference(
        name="y", max_abs=math.inf, max_rel=math.nan, tolerance=1e-4, sensitivity=-math.inf, passed=False
    )
    net = Net()
    net.output(net.node("Relu", net.input("x", (2, 3))))
    _, plain = legalize(net.model(), "onnx")
    numeric = Numeric(status="compared", outputs=(infinite,))
    verification = Verification(passed=False, numeric=numeric)
    report = plain.model_copy(update={"verification": verification})
    for text in (report.model_dump_json(), json.dumps(report.model_dump(mode="json"), allow_nan=False)):
        jsonschema.validate(json.loads(text), json.loads(PUBLISHED.read_text()))
        [found] = Report.model_validate_json(text).verification.numeric.outputs  # type: ignore[union-attr]
        assert (found.max_abs, found.sensitivity) == (math.inf, -math.inf)
        assert math.isnan(found.max_rel)


def test_a_report_and_its_parts_are_printed_in_few_words() -> None:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input("x", (1, 8, 6, 6)), 8, 32)))
    _, report = legalize(net.model(), "nhwc")
    assert str(report).startswith("optimal for nhwc: transposes 0 -> 2, MB moved 0.00 -> 0.0")
    assert str(report).endswith("; verification passed")
    assert "conversions that remain" in render_text(report)
    assert "   caused by    input x" in render_text(explain(net.model(), "nhwc"))
    found = str(verify(net.model(), "nhwc")).splitlines()
    assert found[0] == "failed"
    assert found[1].startswith("error: [layout-requirement] ")
    assert found[1].endswith("(expected NHWC, found NCHW)")
    plain = Report(
        status="unknown",
        backend="acme",
        before=Totals(nodes=1, transposes=0, bytes=0, reorders=2),
        after=Totals(nodes=2, transposes=0, bytes=0),
    )
    assert str(plain) == "unknown for acme: transposes 0 -> 0, reorders 2 -> 0, MB moved 0.00 -> 0.00, nodes 1 -> 2"


if __name__ == "__main__":
    PUBLISHED.write_text(schema())
