"""The shapes of a legal model against its report and its original: of inputs, outputs, and annotated values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from relayout.ops.node_reader import extents_of
from relayout.report.schema import Finding, Report
from relayout.verification.counterparts import source_name
from relayout.verification.memory_format import Extent, MemoryFormat, memory_format_of
from relayout.verification.requirements import node_label
from relayout.verification.subgraph_values import walk

__all__ = ["check_boundary", "check_freedom", "check_inner_shapes", "check_side"]


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


def check_side(kind: str, mine: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> Iterator[Finding]:
    """Yield a finding for each input, or output, by `kind`, that is not the original's in its format."""
    names, wanted = [str(value.name) for value in mine], [str(value.name) for value in theirs]
    if names != wanted:
        message = f"the graph's {kind}s are not the original's"
        yield Finding(rule="boundary", expected=", ".join(wanted), found=", ".join(names), message=message)
        return
    for value, source in zip(mine, theirs, strict=True):
        if value.dtype != source.dtype:
            yield _boundary(kind, value, str(source.dtype), str(value.dtype), "another type of element")
        elif not _same_shape(value, source):
            expected = _in_format(source, memory_format_of(value))
            yield _boundary(kind, value, _shown(expected), _shown(value.shape), "another shape, as its layout has it")


def check_freedom(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """Yield a finding for each input that a caller could choose otherwise for the original: a default that can be
    replaced, or an extent that is open."""
    mine, theirs = ({str(value.name): value for value in each.graph.inputs} for each in (model, original))
    defaults = [{name for name, value in each.items() if value.is_initializer()} for each in (mine, theirs)]
    if defaults[0] != defaults[1]:
        found, wanted = (", ".join(sorted(names)) or "none" for names in defaults)
        message = "the inputs with a default are not the original's"
        yield Finding(rule="boundary", expected=wanted, found=found, message=message)
    for name, value in mine.items():
        source, format_ = theirs.get(name), memory_format_of(value)
        expected = _in_format(source, format_) if source is not None else None
        if expected is None or value.shape is None or len(expected) != len(value.shape):
            continue
        if format_ is not None and format_.permutation is None:
            continue
        pairs = zip(value.shape, expected, strict=True)
        if any(isinstance(extent, int) and isinstance(wanted, ir.SymbolicDim) for extent, wanted in pairs):
            yield _boundary("input", value, _shown(expected), _shown(value.shape), "one size where any was allowed")


def _boundary(kind: str, value: ir.Value, expected: str, found: str, message: str) -> Finding:
    text = f"{kind} {value.name} has {message}"
    return Finding(rule="boundary", node=value.name, expected=expected, found=found, message=text)


def _same_shape(value: ir.Value, source: ir.Value) -> bool:
    """Whether `value` has the extents of `source` in its annotated format, as far as both are known."""
    expected = _in_format(source, memory_format_of(value))
    if expected is None or value.shape is None:
        return True
    if len(expected) != len(value.shape):
        return False
    return not any(
        isinstance(mine, int) and isinstance(theirs, int) and mine != theirs
        for mine, theirs in zip(value.shape, expected, strict=True)
    )


def _in_format(source: ir.Value, format_: MemoryFormat | None) -> tuple[Extent, ...] | None:
    """The source's extents in the annotated format; unchanged where the format does not fit them."""
    if source.shape is None:
        return None
    extents: tuple[Extent, ...] | None = tuple(source.shape)
    if format_ is not None and (earlier := memory_format_of(source)) is not None:
        # The original is itself a legal model, and both annotations are relative to that one's source.
        extents = earlier.source_extents(tuple(source.shape))
    if extents is None:
        return None
    return extents if format_ is None or format_.fault(extents) else format_.shape(extents)


def _shown(shape: object) -> str:
    return "unknown" if shape is None else f"[{', '.join(map(str, shape))}]"  # type: ignore[call-overload]


def check_inner_shapes(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """Yield a finding for each annotated result, in graphs inside nodes too, whose extents are not those of the source
    of its name."""
    made = [value for node in walk(original.graph) for value in node.outputs]
    # Two branches may each have a value of one name.
    counts = Counter(value.name for value in made)
    sources = {value.name: value for value in made if counts[value.name] == 1}
    outputs = set(model.graph.outputs)
    for node in walk(model.graph):
        for value in node.outputs:
            source = sources.get(source_name(value))
            format_ = memory_format_of(value)
            if source is None or format_ is None or value in outputs or _same_shape(value, source):
                continue
            yield Finding(
                rule="layout-annotation",
                node=node_label(node),
                expected=_shown(_in_format(source, format_)),
                found=_shown(value.shape),
                message=f"the annotated order does not lead from the source's shape to the value's ({value.name})",
            )
