"""What a legal model owes its original, as far as it can be seen without running either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.report.schema import Finding
from relayout.verification.axis_correspondence import check_meanings
from relayout.verification.axis_names import fed
from relayout.verification.memory_format import Arrangement, Extent, arrangement_of
from relayout.verification.requirements import node_label

__all__ = ["check_against"]

def check_against(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """Yield what differs between the two at the boundary, in annotated values, and in what operators read axes for."""
    yield from _check_boundary("input", fed(model), fed(original))
    yield from _check_boundary("output", model.graph.outputs, original.graph.outputs)
    yield from _check_inner_shapes(model, original)
    yield from check_meanings(model, original)


def _check_boundary(kind: str, mine: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> Iterator[Finding]:
    names, wanted = [str(value.name) for value in mine], [str(value.name) for value in theirs]
    if names != wanted:
        message = f"the graph's {kind}s are not the original's"
        yield Finding(rule="boundary", expected=", ".join(wanted), found=", ".join(names), message=message)
        return
    for value, source in zip(mine, theirs, strict=True):
        if value.dtype != source.dtype:
            yield _boundary(kind, value, str(source.dtype), str(value.dtype), "another type of element")
        elif not _same_shape(value, source):
            expected = _arranged(source, arrangement_of(value))
            yield _boundary(kind, value, _shown(expected), _shown(value.shape), "another shape, as its layout has it")


def _boundary(kind: str, value: ir.Value, expected: str, found: str, message: str) -> Finding:
    text = f"{kind} {value.name} has {message}"
    return Finding(rule="boundary", node=value.name, expected=expected, found=found, message=text)


def _same_shape(value: ir.Value, source: ir.Value) -> bool:
    """Whether `value` has the extents of `source` as it is annotated, as far as both are known."""
    expected = _arranged(source, arrangement_of(value))
    if expected is None or value.shape is None:
        return True
    if len(expected) != len(value.shape):
        return False
    return not any(
        isinstance(mine, int) and isinstance(theirs, int) and mine != theirs
        for mine, theirs in zip(value.shape, expected, strict=True)
    )


def _arranged(source: ir.Value, arrangement: Arrangement | None) -> tuple[Extent, ...] | None:
    """The source's extents as the annotation has them; as they are where it does not fit them."""
    if source.shape is None:
        return None
    extents = tuple(source.shape)
    return extents if arrangement is None or arrangement.fault(extents) else arrangement.shape(extents)


def _shown(shape: object) -> str:
    return "unknown" if shape is None else f"[{', '.join(map(str, shape))}]"  # type: ignore[call-overload]


def _check_inner_shapes(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """An annotated value that has its source's name has its source's extents, as it is annotated."""
    sources = {value.name: value for node in original.graph for value in node.outputs}
    for node in model.graph:
        for value in node.outputs:
            source = sources.get(value.metadata_props.get(SOURCE_KEY, value.name))
            arrangement = arrangement_of(value)
            if source is None or arrangement is None or value.is_graph_output() or _same_shape(value, source):
                continue
            yield Finding(
                rule="layout-annotation",
                node=node_label(node),
                expected=_shown(_arranged(source, arrangement)),
                found=_shown(value.shape),
                message=f"value {value.name}: the annotated order does not lead from its source's shape to its own",
            )
