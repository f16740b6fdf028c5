"""The inputs and outputs of a legal model against those that its report lists."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from relayout.ops.node_reader import extents_of
from relayout.report.schema import Finding, Report

__all__ = ["check_boundary"]


def check_boundary(report: Report, model: ir.Model) -> Iterator[Finding]:
    """Yield a finding for each side of the model whose values are not those that the report lists, in order, each with
    its rank and its known extents."""
    if report.status not in ("optimal", "feasible"):
        return
    for side, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        listed = [each for each in report.boundary if each.side == side]
        wanted, names = [each.name for each in listed], [value.name or "" for value in values]
        if names != wanted:
            message = f"the {side}s of the model are not those of the report"
            yield Finding(
                rule="boundary", expected=", ".join(wanted) or "none", found=", ".join(names) or "none", message=message
            )
            continue
        for each, value in zip(listed, values, strict=True):
            if each.shape is None or value.shape is None:
                continue
            pairs = [(a, b) for a, b in zip(each.shape, value.shape.dims, strict=False) if isinstance(a, int)]
            if len(each.shape) != len(value.shape) or any(isinstance(b, int) and a != b for a, b in pairs):
                expected, found = (str(list(shape)) for shape in (each.shape, extents_of(value) or ()))
                message = f"the {side} has another shape than the report says"
                yield Finding(rule="boundary", node=value.name, expected=expected, found=found, message=message)
