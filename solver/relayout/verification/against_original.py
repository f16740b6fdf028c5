"""The checks of a legal model against its original that need no run of the whole."""

from __future__ import annotations

from collections.abc import Iterator

from relayout.backend.calls import conversion_operators_of, opaque_values_of
from relayout.backend.interface import Backend
from relayout.layout.metadata_keys import SOURCE_HASH_KEY
from relayout.report.schema import Finding
from relayout.verification.axis_names import fed
from relayout.verification.boundary import check_declared, check_inner_shapes, check_side
from relayout.verification.constant_data import check_constants, note_numbers
from relayout.verification.cost.stated_prices import extended
from relayout.verification.counterparts import Counterparts
from relayout.verification.dataflow import check_dataflow
from relayout.verification.devices import check_shardings, check_written
from relayout.verification.operators_kept import check_operators
from relayout.verification.order.check import check_element_order, note_unseen
from relayout.verification.order.elements import ReadElements


def check_against(pairs: Counterparts, backend: Backend, *, run: bool) -> Iterator[Finding]:
    """Yield the differences at the boundary, in the shapes of annotated values, in operators, in the order of
    elements along the axes that they read, in constants, in shardings, and in devices. Without `run`, an operator
    that computes must be one of the original's."""
    model, source = pairs.model.model, pairs.original.model
    recorded, known = model.metadata_props.get(SOURCE_HASH_KEY), source.meta.get(SOURCE_HASH_KEY)
    if recorded and known and recorded not in (known, source.metadata_props.get(SOURCE_HASH_KEY)):
        message = "the model records that it was made from another file"
        yield Finding(rule="source", severity="warning", expected=str(known), found=recorded, message=message)
    yield from check_side("input", fed(model), fed(source))
    yield from check_side("output", model.graph.outputs, source.graph.outputs)
    yield from check_declared(model, source)
    yield from check_inner_shapes(model, source, pairs.constants)
    operators, fuses = conversion_operators_of(backend), _may_fuse(backend)
    yield from check_dataflow(pairs, fuses=fuses)
    elements = _elements(pairs, backend)
    yield from check_element_order(elements)
    yield from _unseen(elements) if not run else ()
    yield from check_operators(pairs, operators, fuses=fuses, run=run)
    yield from check_constants(pairs)
    yield from check_shardings(pairs)
    yield from check_written(pairs, backend)


def check_unrun(pairs: Counterparts, backend: Backend) -> Iterator[Finding]:
    """The findings of `check_against` on operators and elements that no run has compared."""
    yield from check_operators(pairs, conversion_operators_of(backend), fuses=_may_fuse(backend), run=False)
    yield from _unseen(_elements(pairs, backend))


def _unseen(elements: ReadElements) -> Iterator[Finding]:
    """The notes on elements and numbers that only a run compares."""
    yield from note_unseen(elements)
    yield from note_numbers(elements.pairs)


def _elements(pairs: Counterparts, backend: Backend) -> ReadElements:
    models = (pairs.model.model, pairs.original.model)
    return ReadElements(pairs, frozenset().union(*[opaque_values_of(backend, each) for each in models]))


def _may_fuse(backend: Backend) -> bool:
    """Whether a post-pass may replace operators by some that the backend does not name."""
    kinds = {type(extended(backend.at(device))) for device in backend.devices() or ("",)}
    return any(
        each.finish is not Backend.finish and each.operator_layouts is Backend.operator_layouts for each in kinds
    )
