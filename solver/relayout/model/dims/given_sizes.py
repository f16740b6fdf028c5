"""The sizes that a caller gives to symbolic dims, against the dims that a model has."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import onnx_ir as ir

from relayout.errors import UsageError, check_known, option_text
from relayout.layout.terms import is_name, term_of
from relayout.model.dims.forced_dims import sizes_of_all_runs
from relayout.model.dims.formula import formula_names, formula_size
from relayout.model.dims.output_dims import formulas_of_names
from relayout.ops import all_nodes, extents_of


def check_dims(dims: Mapping[str, int] | None, *models: ir.Model) -> None:
    """Raise UsageError if a size is given for a symbolic dim that none of the models has, or is no size, and where
    sizes of several dims have another product than a Reshape asks for, or one that does not divide it: no run has
    them, and a tensor would have two sizes."""
    for name, size in (dims or {}).items():
        if not isinstance(size, int) or size < 1:
            raise UsageError("not a size", where=option_text("dims", name), expected="1 or more", found=repr(size))
    if dims:
        declared = {name: text for model in models for name, text in formulas_of_names(model).items()}
        known = dim_names(*models)
        check_known(option_text("dims", "{}"), dims, known | declared.keys(), "symbolic dim")
        for name in sorted(dims.keys() & declared.keys() - known):
            _check_formula(name, declared[name], dims)
        for formula, size in (each for model in models for each in sizes_of_all_runs(model).items()):
            _check_product(formula, size, dims)


def _check_product(formula: str, size: int, dims: Mapping[str, int]) -> None:
    """Raise UsageError where the dims of a product that a Reshape asks for have given sizes that do not fit it."""
    factors = term_of(formula).names
    given = [(name, each) for name in factors if (each := formula_size(name, dims)) is not None]
    found = prod(each for _, each in given)
    are_all = len(given) == len(factors)
    if is_name(formula) or not given or (found == size if are_all else found and size % found == 0):
        return
    named = f"{formula} = {found}" if are_all else ", ".join(f"{name} = {each}" for name, each in dict(given).items())
    raise UsageError(
        "the sizes fit no run",
        where=option_text("dims"),
        expected=f"{formula} = {size}, with which alone the model runs",
        found=named,
    )


def _check_formula(name: str, formula: str, dims: Mapping[str, int]) -> None:
    """Raise UsageError unless the sizes of the inputs' dims give an output's dim of this name the size it is given."""
    size = formula_size(formula, dims)
    if size == dims[name]:
        return
    needed = ", ".join(sorted(formula_names(formula) or ()))
    raise UsageError(
        "not the size of an output's dim" if size is not None else "a size for a dim that is computed from others",
        where=option_text("dims", name),
        expected=f"{formula} = {size}" if size is not None else f"sizes of {needed}, as {name} is {formula}",
        found=str(dims[name]),
    )


def sizes_in(dims: Mapping[str, int] | None, *models: ir.Model) -> dict[str, int]:
    """The sizes that are given for dims of the models."""
    known = dim_names(*models) if dims else frozenset()
    return {name: size for name, size in (dims or {}).items() if name in known}


def dim_names(*models: ir.Model) -> frozenset[str]:
    """The symbolic dims of the models' graph inputs and of all values computed from them."""
    graphs = [model.graph for model in models]
    inputs = (value for graph in graphs for value in graph.inputs)
    outputs = (value for graph in graphs for node in all_nodes(graph) for value in node.outputs)
    return frozenset(
        extent for value in (*inputs, *outputs) for extent in extents_of(value) or () if isinstance(extent, str)
    )
