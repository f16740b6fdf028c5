"""Results as JUnit XML, the format that Jenkins, GitLab and others read."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

from relayout.report.causes import Cause
from relayout.report.results import ModelResult, Results


def render_junit(results: Results) -> str:
    """A suite a model, with its time. A failed case for each cause of errors, an `<error>` where there is no answer,
    and one passed case where nothing failed.

    Warnings and notes are the output of the suite, so that a CI shows them without failing.
    """
    root = ElementTree.Element("testsuites", {"name": "relayout"})
    suites = [_suite(root, each) for each in results.models]
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.attrib[count]) for suite in suites)))
    root.set("time", f"{sum(each.seconds for each in results.models):.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, result: ModelResult) -> ElementTree.Element:
    suite = ElementTree.SubElement(root, "testsuite", {"name": _printable(result.model)})
    causes = result.causes()
    failed = [cause for cause in causes if cause.severity == "error"] if not result.error else []
    names: Counter[str] = Counter()
    for cause in failed:
        case = _case(suite, result, _name(cause), names)
        failure = ElementTree.SubElement(case, "failure", {"type": cause.rule, "message": _printable(cause.message)})
        failure.text = _printable("\n".join(f"{one.place}: {one.message}{one.sides}" for one in cause.findings))
    if result.error:
        case = _case(suite, result, "verify", names)
        message = result.error.partition("\n")[0]
        error = ElementTree.SubElement(case, "error", {"type": "error", "message": _printable(message)})
        error.text = _printable(result.error)
    if not (failed or result.error):
        _case(suite, result, "verify", names)
    suite.set("tests", str(names.total()))
    suite.set("failures", str(len(failed)))
    suite.set("errors", str(int(bool(result.error))))
    suite.set("time", f"{result.seconds:.3f}")
    remarks = [f"{cause.severity}: [{cause.rule}] {cause.message}" for cause in causes if cause.severity != "error"]
    if remarks:
        ElementTree.SubElement(suite, "system-out").text = _printable("\n".join(remarks))
    return suite


def _case(suite: ElementTree.Element, result: ModelResult, name: str, names: Counter[str]) -> ElementTree.Element:
    """A case with a name of its own in the suite. The first has the model's time, since it is measured once."""
    names[name] += 1
    unique = name if names[name] == 1 else f"{name} ({names[name]})"
    seconds = result.seconds if names.total() == 1 else 0.0
    facts = {"classname": _printable(result.model), "name": _printable(unique), "file": _printable(result.model)}
    return ElementTree.SubElement(suite, "testcase", {**facts, "time": f"{seconds:.3f}"})


def _name(cause: Cause) -> str:
    return f"{cause.rule}: {cause.places[0] if len(cause.places) == 1 else cause.text}"


def _printable(text: str) -> str:
    """Write the codes of characters that XML 1.0 does not allow: names come from files and may contain any."""
    return "".join(c if _is_allowed(c) else ascii(c)[1:-1] for c in text)


def _is_allowed(c: str) -> bool:
    return c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff")
