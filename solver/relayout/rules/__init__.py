"""The op table: what a memory format does to each operator. One row an operator, read by `rule_of`."""

from relayout.rules import (
    axes,
    contractions,
    convolutions,
    elementwise,
    pieces,
    reductions,
    relabels,
    resizing,
    spatial,
    splitting,
)
from relayout.rules.reading import constant_array, extents_of
from relayout.rules.registry import Row, rows, rule_of
from relayout.rules.rule import (
    NO_EDIT,
    Axes,
    Edit,
    Fixed,
    Free,
    Listed,
    Relabel,
    Rule,
    Shared,
    SpaceWriting,
    Traffic,
)

__all__ = [
    "NO_EDIT",
    "Axes",
    "Edit",
    "Fixed",
    "Free",
    "Listed",
    "Relabel",
    "Row",
    "Rule",
    "Shared",
    "SpaceWriting",
    "Traffic",
    "axes",
    "constant_array",
    "contractions",
    "convolutions",
    "elementwise",
    "extents_of",
    "pieces",
    "reductions",
    "relabels",
    "resizing",
    "rows",
    "rule_of",
    "spatial",
    "splitting",
]
