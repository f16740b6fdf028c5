"""The sizes that a caller gives to symbolic dims, against the dims that a model has."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from relayout.errors import UsageError, check_known, option_text
from relayout.ops import all_nodes, extents_of

__all__ = ["check_dims", "sizes_in"]


def check_dims(dims: Mapping[str, int] | None, *models: ir.Model) -> None:
    """Raise UsageError if a size is given for a symbolic dim that none of the models has, or is no size."""
    for name, size in (dims or {}).items():
        if not isinstance(size, int) or size < 1:
            raise UsageError("not a size", where=option_text("dims", name), expected="1 or more", found=repr(size))
    if dims:
        check_known(option_text("dims", "{}"), dims, set[str]().union(*map(_dim_names, models)), "symbolic dim")


def sizes_in(dims: Mapping[str, int] | None, *models: ir.Model) -> dict[str, int]:
    """The sizes that are given for dims of the models."""
    known = set[str]().union(*map(_dim_names, models)) if dims else set[str]()
    return {name: size for name, size in (dims or {}).items() if name in known}


def _dim_names(model: ir.Model) -> set[str]:
    """The symbolic dims of the graph's inputs and of all values computed from them."""
    values = [*model.graph.inputs, *(value for node in all_nodes(model.graph) for value in node.outputs)]
    return {extent for value in values for extent in extents_of(value) or () if isinstance(extent, str)}
