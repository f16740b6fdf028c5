"""The backend of several places that a table describes.

    name = "board"
    host = "cpu"

    [[place]]
    name = "npu"
    backend = "nhwc"
    op = ["Conv", "MaxPool"]
    crossing = 2.0

    [[place]]
    name = "cpu"

    [[assign]]
    nodes = "head/*"
    places = "cpu"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from relayout.backend import Backend
from relayout.composite import Assignment, Composite, Nodes, Place
from relayout.declarative import holds
from relayout.declarative_table import AssignTable, BackendTable, Condition, PlaceTable

__all__ = ["composite", "table_of"]


def composite(
    table: BackendTable, backends: Sequence[Callable[[Backend | None], Backend]], context: Backend | None
) -> Composite:
    """The backend that `table` describes; `backends` make those of its places, given their context."""
    places = [
        Place(each.name, make, _nodes(each), each.crossing, each.crossing_fixed)
        for each, make in zip(table.place, backends, strict=True)
    ]
    assignments = [Assignment(each.places, _nodes(each)) for each in table.assign]
    return Composite(places, assignments, host=table.host, name=table.name, context=context)


def table_of(place: PlaceTable) -> BackendTable:
    """The table of one place's own backend, which goes by the name of what it extends where it adds nothing."""
    name = place.name if place.rule else place.backend
    return BackendTable.model_construct(name=name, extends=place.backend, options=place.options, rule=place.rule)


def _nodes(selection: PlaceTable | AssignTable) -> Nodes:
    when = None if selection.when == Condition() else partial(holds, selection.when)
    return Nodes(tuple(selection.op), tuple(selection.nodes), when)
