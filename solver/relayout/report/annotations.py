"""Results for GitHub: workflow commands, which annotate a pull request, and Markdown for the summary of the job."""

from __future__ import annotations

from relayout.report.results import ModelResult, Results
from relayout.report.text_table import how_many

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def render_github(results: Results) -> str:
    """One workflow command for each cause, and for each model without an answer; then a line of counts."""
    lines = [
        _command(_COMMANDS[cause.severity], result, cause.rule, cause.message)
        for result, cause in results.with_causes()
    ]
    lines += [_command("error", result, "no answer", result.error) for result in results.errors()]
    return "\n".join([*lines, _counts(results)]) + "\n"


def render_markdown(results: Results) -> str:
    """A table of the models, then the findings of each."""
    head, *rows = (f"| {' | '.join(map(_cell, row))} |" for row in results.table())
    blocks = ["\n".join(["### relayout", "", _counts(results), "", head, "|---|---|--:|--:|--:|", *rows])]
    for each in results.models:
        lines = [f"- {cause.severity}, {cause.rule}: {_cell(cause.message)}" for cause in each.causes()]
        lines += [f"- error: {_cell(each.error)}"] if each.error else []
        if lines:
            blocks.append("\n".join([f"#### {_cell(each.model)}", "", *lines]))
    return "\n\n".join(blocks) + "\n"


def _command(command: str, result: ModelResult, title: str, text: str) -> str:
    facts = {"file": result.model, "line": "1", "title": f"relayout: {title}"}
    properties = ",".join(f"{n}={_data(value).replace(':', '%3A').replace(',', '%2C')}" for n, value in facts.items())
    return f"::{command} {properties}::{_data(text)}"


def _counts(results: Results) -> str:
    verdicts = [each.verdict for each in results.models]
    counts = [f"{verdicts.count(verdict)} {word}" for verdict, word in _WORDS.items() if verdict in verdicts]
    return f"{how_many(len(verdicts), 'model')}: {', '.join(counts)}"


_WORDS = {"passed": "passed", "failed": "failed", "error": "without an answer"}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _cell(text: str) -> str:
    """Text from a file as plain Markdown in one line: no markup, no cell border, codes for what is not printable."""
    coded = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#~" else c for c in coded)
