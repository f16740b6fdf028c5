"""The layouts of inputs and outputs that a report lists, against those of the model and its original.

A caller feeds the model by them, and a run does not: it takes the steps from the annotations of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from relayout.layout.metadata_keys import LAYOUT_KEY
from relayout.ops.node_reader import extents_of
from relayout.report.schema import BoundaryValue, Finding, Report
from relayout.verification.axis_names import Derivation
from relayout.verification.memory_format import Extent, MemoryFormat, memory_format_of
from relayout.verification.operator_facts import parsed_layout
from relayout.verification.relaid_data import Array, after_steps

_MOST = 1 << 24
"""The most elements of an input or output whose steps are tried."""
_OPEN = 4
"""The extent of an axis, in blocks, where it is not known."""


def check_listed_layouts(
    report: Report, model: ir.Model, original: ir.Model | None, derivation: Derivation
) -> Iterator[Finding]:
    """Yield a finding for each input and output that does not lie as the report lists it: by the steps from the
    original's value, and by the layout that the model states. A note says where steps could not be tried."""
    if report.status not in ("optimal", "feasible"):
        return
    for side in ("input", "output"):
        values, sources = _by_name(model, side), _by_name(original, side)
        for each in report.boundary:
            value = values.get(each.name) if each.side == side else None
            if value is None:
                continue  # another finding
            yield from _check_names(each, value, derivation)
            if each.name in sources:
                yield from _check_steps(each, value, sources[each.name])


def _by_name(model: ir.Model | None, side: str) -> Mapping[str, ir.Value]:
    values = () if model is None else model.graph.inputs if side == "input" else model.graph.outputs
    return {str(value.name): value for value in values}


def _check_names(listed: BoundaryValue, value: ir.Value, derivation: Derivation) -> Iterator[Finding]:
    """Yield a finding where the layout is not the annotated one, and a note where it has the names of its axes in
    another order than operators have."""
    if listed.layout is None:
        return
    text = value.metadata_props.get(LAYOUT_KEY)
    layout, annotated = parsed_layout(listed.layout), parsed_layout(text) if text is not None else None
    rank = None if value.shape is None else len(value.shape)
    if layout is None or rank not in (layout.rank, None):
        yield _finding(listed, f"a layout of {rank} axes", listed.layout, "has another layout than the report says")
        return
    if annotated is not None:
        if annotated != layout:
            yield _finding(listed, str(annotated), listed.layout, "has another layout than the report says")
        return
    names = tuple(layout.names)
    namings = [each for each in derivation.candidates(value) if None not in each and len({*each}) == len(each)]
    if names not in namings and (others := [each for each in namings if {*each} == {*names}]):
        # Operators may name the axes of one value in several ways.
        found = _finding(listed, "".join(map(str, others[0])), listed.layout, "has other names of axes in the report")
        yield found.model_copy(update={"severity": "note"})


def _check_steps(listed: BoundaryValue, value: ir.Value, source: ir.Value) -> Iterator[Finding]:
    """Yield a finding where the steps do not lead from the original's elements to the model's, and back."""
    arrays = _arrays(memory_format_of(value), memory_format_of(source), extents_of(source))
    if arrays is None or any(_is_open(step) for step in (*listed.transform, *listed.back)):
        message = f"no check compares the steps to the layout of the {listed.side} {listed.name}"
        yield Finding(rule="boundary", severity="note", node=listed.name, message=message)
        return
    made, given = arrays
    order = range(given.ndim) if listed.order is None else listed.order
    is_order = sorted(order) == [*range(given.ndim)] and not (listed.order is not None and listed.transform)
    laid = after_steps(given.transpose(order), listed.transform) if is_order else None
    if not _are_same(laid, made):
        expected = f"axes {memory_format_of(value) or 'as in the original'}"
        found = "other steps" if listed.transform else f"order {[*order]}"
        yield _finding(listed, expected, found, "lies in another order than the report says")
    elif listed.back and not _are_same(after_steps(made, listed.back), given):
        expected = "the steps to the original's order"
        yield _finding(listed, expected, "other steps", "leads back to another order than the original's")


def _arrays(
    format_: MemoryFormat | None, earlier: MemoryFormat | None, extents: Sequence[Extent] | None
) -> tuple[Array, Array] | None:
    """The elements of the model's value and of the original's, counted in the source of both; None where an extent is
    not known that they need, or where there are too many."""
    if extents is not None and earlier is not None:
        extents = earlier.source_extents(extents)
    if extents is None:
        return None
    formats = [each for each in (format_, earlier) if each is not None]
    sizes = [extent if isinstance(extent, int) else _size(axis, formats) for axis, extent in enumerate(extents)]
    if all(each.permutation is not None for each in formats):
        sizes = [min(size, 2) for size in sizes]  # the order of axes is the same at all sizes
    if math.prod(sizes) > _MOST:
        return None
    counted = np.arange(1, math.prod(sizes) + 1).reshape(sizes)
    made, given = (counted if each is None else each.of(counted) for each in (format_, earlier))
    return None if made is None or given is None else (made, given)


def _size(axis: int, formats: Sequence[MemoryFormat]) -> int:
    blocks = [atom.outer or atom.inner for each in formats for dim in each.dims for atom in dim if atom.axis == axis]
    return _OPEN * math.lcm(1, *blocks)


def _is_open(step: Mapping[str, object]) -> bool:
    """Whether a step has several extents that are known only at run time."""
    return any(isinstance(field, list | tuple) and [*field].count(-1) > 1 for field in step.values())


def _are_same(one: Array | None, other: Array) -> bool:
    return one is not None and np.array_equal(one, other)


def _finding(listed: BoundaryValue, expected: str, found: str, what: str) -> Finding:
    message = f"the {listed.side} {listed.name} {what}"
    return Finding(rule="boundary", node=listed.name, expected=expected, found=found, message=message)
