"""The formats of a report: each is one function from the results of a run to text, and one entry in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relayout.report.annotations import render_github, render_markdown
from relayout.report.junit import render_junit
from relayout.report.render import render_text
from relayout.report.results import Results, render_json
from relayout.report.sarif import render_sarif


def _text(results: Results) -> str:
    blocks = []
    for each in results.models:
        text = f"error: {each.error}\n" if each.report is None else render_text(each.report)
        blocks.append(f"{each.model}\n{text}" if results.is_list else text)
    return "\n".join(blocks)


FORMATS: Mapping[str, Callable[[Results], str]] = {
    "json": render_json,
    "text": _text,
    "junit": render_junit,
    "sarif": render_sarif,
    "github": render_github,
    "markdown": render_markdown,
}
