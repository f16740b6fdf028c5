"""Results as SARIF 2.1.0, as GitHub's code scanning reads it: one result a cause, with a region and a fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from relayout.report.causes import fingerprint_of
from relayout.report.results import ModelResult, Results

NO_ANSWER = "no-answer"
"""The rule of a model that cannot be read or verified."""

# GitHub takes at most ten locations of a result.
_MOST_LOCATIONS = 10
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_sarif(results: Results) -> str:
    """One run with all results. A binary model has no lines: every region is its first line."""
    from importlib.metadata import version

    uris = [_uri(each.model) for each in results.models]
    found = [result for uri, each in zip(uris, results.models, strict=True) for result in _results(each, uri)]
    rules = sorted({result["ruleId"] for result in found})
    for result in found:
        result["ruleIndex"] = rules.index(result["ruleId"])
    driver = {"name": "relayout", "version": version("relayout"), "rules": [_rule(rule) for rule in rules]}
    errors = [{"level": "error", "message": {"text": f"{each.model}: {each.error}"}} for each in results.errors()]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not errors, "toolExecutionNotifications": errors}],
        "artifacts": [{"location": {"uri": uri}} for uri in uris],
        "columnKind": "unicodeCodePoints",
        "results": found,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: str) -> dict[str, Any]:
    words = rule.replace("-", " ")
    return {
        "id": rule,
        "name": "".join(word.capitalize() for word in rule.split("-")),
        "shortDescription": {"text": words},
        "fullDescription": {"text": f"relayout verify: {words}"},
        "help": {
            "text": "`relayout verify MODEL` prints every finding; the manual's page on the command explains them."
        },
    }


def _results(result: ModelResult, uri: str) -> list[dict[str, Any]]:
    if result.error:
        return [_result(NO_ANSWER, "error", result.error, uri, ["model"], fingerprint_of(result.model, NO_ANSWER))]
    return [
        _result(cause.rule, cause.severity, cause.message, uri, cause.places, cause.fingerprint(result.model))
        for cause in result.causes()
    ]


def _result(
    rule: str, level: str, text: str, uri: str, places: list[str] | tuple[str, ...], fingerprint: str
) -> dict[str, Any]:
    physical = {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}
    locations = [{"fullyQualifiedName": place, "kind": "element"} for place in dict.fromkeys(places)]
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": physical, "logicalLocations": locations[:_MOST_LOCATIONS]}],
        "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint}:1"},
    }


def _uri(model: str) -> str:
    """The model relative to the working directory, as GitHub wants it; outside of it as an absolute file URI."""
    path = Path(model)
    if path.is_absolute():
        if not path.is_relative_to(Path.cwd()):
            return path.as_uri()
        path = path.relative_to(Path.cwd())
    return quote(path.as_posix(), errors="surrogateescape")
