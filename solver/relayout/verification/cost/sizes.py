"""The sizes that a report states for dims whose extents are not known before the run.

The totals and prices of a report are those at these sizes, so the verifier counts with them too: the caller may have
given some, and a model that is read anew may show others. A size that the names in it contradict is an error. One that
the model does not run with is allowed, as it is an assumption, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from relayout.model.dims.formula import formula_size
from relayout.report.schema import Finding, Report, Severity
from relayout.verification.counting import determined_sizes

__all__ = ["check_sizes", "sizes_of"]


def sizes_of(report: Report, dims: Mapping[str, int] | None) -> dict[str, int]:
    """The sizes with which a report is checked: those that it states, and `dims` for names that it does not have."""
    return {**(dims or {}), **report.sizes}


def check_sizes(report: Report, model: ir.Model) -> Iterator[Finding]:
    """Yield a finding for each size of `report` that is none, that another size contradicts, or that is not the only
    one with which the model runs."""
    known = determined_sizes(model.graph.inputs, list(model.graph.all_nodes()))
    for name, size in report.sizes.items():
        if size < 0:
            yield _finding("error", name, "at least 0", size)
        elif (result := formula_size(name, report.sizes)) is not None and result >= 0 and result != size:
            yield _finding("error", name, f"{result}, by the sizes of its names", size)
        elif known.get(name, size) != size:
            yield _finding("warning", name, f"{known[name]}, the only size with which the model runs", size)


def _finding(severity: Severity, name: str, expected: str, size: int) -> Finding:
    message = f"the report counts with another size of {name}"
    return Finding(rule="cost-accounting", severity=severity, expected=expected, found=str(size), message=message)
