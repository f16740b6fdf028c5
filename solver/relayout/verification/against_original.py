"""The checks of a legal model against its original that need no run of either."""

from __future__ import annotations

from collections.abc import Iterator, Set

from relayout.report.schema import Finding
from relayout.verification.axis_correspondence import check_axes_read
from relayout.verification.axis_names import fed
from relayout.verification.boundary import check_declared, check_inner_shapes, check_side
from relayout.verification.counterparts import OriginalIndex
from relayout.verification.dataflow import check_dataflow
from relayout.verification.model_index import ModelIndex
from relayout.verification.operators_kept import check_operators

__all__ = ["check_against"]


def check_against(
    model: ModelIndex, original: OriginalIndex, own: Set[tuple[str, str]], *, fuses: bool, run: bool
) -> Iterator[Finding]:
    """Yield the differences at the boundary, in the shapes of annotated values, in operators, and in the axes that they
    read.

    `own` are the backend's conversion operators, by domain and name. `fuses`: it has a post-pass, which may replace
    operators by some that it does not name. `run`: both models are run and compared too.
    """
    yield from check_side("input", fed(model.model), fed(original.model))
    yield from check_side("output", model.model.graph.outputs, original.model.graph.outputs)
    yield from check_declared(model.model, original.model)
    yield from check_inner_shapes(model.model, original.model)
    yield from check_axes_read(model, original)
    yield from check_dataflow(model, original, fuses=fuses)
    yield from check_operators(model, original, own, fuses=fuses, run=run)
