"""The operator table: what a memory format does to each ONNX operator. An operator without a row is pinned.

The names are imported, and the rows registered, when one of them is first used: a backend that needs only
`relayout.ops.operand_roles` loads neither ONNX nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayout.ops.node_reader import constant_array, extents_of, is_read
    from relayout.ops.operator_classes import OperatorClass, OperatorClasses
    from relayout.ops.registry import Row, rows, rule_of
    from relayout.ops.rule import (
        NO_EDIT,
        Axes,
        AxisTraits,
        Decomposition,
        DecompositionWriter,
        Edit,
        Fixed,
        Free,
        Listed,
        Relabel,
        Replacement,
        Rule,
        Shared,
        Traffic,
        free,
        regrouped,
    )
    from relayout.ops.subgraph_values import (
        RegionEdge,
        RegionPort,
        all_nodes,
        given_at,
        graphs_of,
        nested_graphs,
        read_at,
        region_edges_of,
    )

# All of them are imported at once: those without exported names register rows.
_EXPORTS = (
    *("node_reader", "operator_classes", "registry", "rule", "subgraph_values"),
    *("axis_ops", "contractions", "contributed", "convolutions", "elementwise", "pooling", "reductions", "resize"),
    *("attention", "slicing", "split", "view_ops"),
)

__all__ = [
    "NO_EDIT",
    "Axes",
    "AxisTraits",
    "Decomposition",
    "DecompositionWriter",
    "Edit",
    "Fixed",
    "Free",
    "Listed",
    "OperatorClass",
    "OperatorClasses",
    "RegionEdge",
    "RegionPort",
    "Relabel",
    "Replacement",
    "Row",
    "Rule",
    "Shared",
    "Traffic",
    "all_nodes",
    "constant_array",
    "extents_of",
    "free",
    "given_at",
    "graphs_of",
    "is_read",
    "nested_graphs",
    "read_at",
    "region_edges_of",
    "regrouped",
    "rows",
    "rule_of",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in _EXPORTS:
        names = vars(import_module(f"relayout.ops.{module}"))
        globals().update({each: names[each] for each in __all__ if each in names})
    return globals()[name]
