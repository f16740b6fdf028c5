"""The shapes of a model whose dims are open, at sizes for them: those of all operators fit together there.

A declared shape with open dims says little of a Reshape whose own shape is computed, and a number in it may hold at one
size alone. So the dims of inputs get sizes, and all shapes are inferred again from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache, partial
from itertools import islice

import numpy as np
import onnx_ir as ir

from relayout.errors import InputError
from relayout.layout.metadata_keys import ATOMS_KEY
from relayout.layout.terms import is_name
from relayout.model.dims.formula import formula_size
from relayout.model.io import reader_at_sizes
from relayout.report.schema import Finding
from relayout.verification.axis_names import fed
from relayout.verification.boundary import check_inner_shapes, check_side
from relayout.verification.numeric.preparation import in_format
from relayout.verification.numeric.symbolic_sizes import Plan, open_dims, other_plans, plans, symbol_of
from relayout.verification.subgraph_values import walk

_SHAPED = frozenset({"ConstantOfShape", "Expand", "Pad", "Reshape", "Tile"})
"""The operators that legalization gives a shape, or numbers for each axis. A model without them has no shape of its
making."""

_READING = frozenset({"Shape", "Size"})
"""The operators that read extents: of a tensor in tiles, those of the tiles and their padding."""

SizedReader = Callable[[Mapping[str, int]], ir.Model | InputError]
"""The model at sizes for its open dims, or the contradiction between its shapes there."""

MOST_SIZES = 8
"""So many sets of sizes are tried where the original fits none of those before."""


def check_shapes_at_sizes(
    model: ir.Model, original: Callable[[], ir.Model], dims: Mapping[str, int] | None = None, *, is_fresh: bool = False
) -> Iterator[Finding]:
    """Yield a finding where the shapes of `model` contradict each other at sizes at which those of its original fit, or
    are others than the original's. So is a vector that is computed from extents, such as the shape of a tensor that the
    model pads. Where the original fits none of the sizes that are tried, the one finding is a note.

    `is_fresh`: the model is as legalization left it, with the shapes of its original declared. Then the original is
    read only where one of these is wrong, or where the model runs at some sizes alone. `dims` gives sizes to symbolic
    dims.
    """
    if not open_dims(model, None):
        return
    nodes = list(walk(model.graph))
    reads_tiles = any(node.op_type in _READING for node in nodes) and any(
        ATOMS_KEY in value.metadata_props for node in nodes for value in node.outputs
    )
    if not (reads_tiles or any(node.op_type in _SHAPED for node in nodes)):
        return
    at = sized_reader(model)
    source: ir.Model | None = None
    source_at: SizedReader | None = None
    fits: Plan | None = None
    formulas = _formulas(nodes)
    for plan in islice(_hopeful_first(plans(model, dims), formulas), MOST_SIZES):
        wanted = None
        if source is not None and source_at is not None:
            wanted = _fitting(source, source_at, plan)
            if wanted is None:
                continue  # sizes that the original does not fit decide nothing
        sized = at(plan.extents)
        is_declared = is_fresh and isinstance(sized, ir.Model) and is_as_declared(model, sized, plan.extents)
        if is_declared and not reads_tiles:
            return
        if source is None or source_at is None:
            source = original()
            source_at = sized_reader(source)
            wanted = _fitting(source, source_at, plan)
        if wanted is not None:
            found = _named_by(plan, _differences(sized, wanted))
            if found:
                yield from found
                return
            fits = plan
            break
    if fits is None:
        yield Finding(
            rule="not-sized",
            severity="note",
            expected="sizes of the open dims at which all shapes of the original are known and fit together",
            found="none among those tried",
            message="shapes were not compared with the original's at sizes; --dim (options.dims) sets sizes, and a run "
            "compares numbers",
        )
    if fits is None or source is None or source_at is None or is_fresh:
        return
    # A number in place of an open dim may be the size that was tried.
    for plan in islice(_hopeful_first(other_plans(source, dims, fits), formulas), MOST_SIZES):
        if (wanted := _fitting(source, source_at, plan)) is not None:
            yield from _named_by(plan, _differences(at(plan.extents), wanted))
            return


def _formulas(nodes: Iterable[ir.Node]) -> frozenset[str]:
    """The extents of tensors of two dims or more that are formulas of dims, such as those behind windows."""
    shapes = (value.shape for node in nodes for value in node.outputs if value.shape is not None)
    dims = (dim.value for shape in shapes if len(shape) > 1 for dim in shape if not isinstance(dim, int))
    return frozenset(text for text in dims if text is not None and not is_name(text))


def _hopeful_first(tried: Iterable[Plan], formulas: Set[str]) -> Iterator[Plan]:
    """The plans in order, and at the end those at whose sizes one of these extents is 0 or less: a stack of strided
    convolutions leaves nothing of a few samples."""
    left = []
    for plan in tried:
        sizes = (formula_size(text, plan.extents) for text in formulas)
        if all(size is None or size > 0 for size in sizes):
            yield plan
        else:
            left.append(plan)
    yield from left


def _fitting(source: ir.Model, at: SizedReader, plan: Plan) -> ir.Model | None:
    """The original at these sizes, where its shapes fit together. Where inference loses an extent of the original, it
    may have missed that the original does not fit either; and where an image is empty, as inference broadcasts no
    elements to any number of them."""
    wanted = at(plan.extents)
    if not isinstance(wanted, ir.Model) or any(a != b for a, b in _declared(source, wanted, plan.extents)):
        return None
    return None if _has_become_empty(source, wanted) else wanted


def _has_become_empty(model: ir.Model, sized: ir.Model) -> bool:
    """Whether a tensor of two dims or more has no elements at these sizes, where the model declares no extent of 0."""
    before = {value.name: value.shape for node in model.graph for value in node.outputs if value.shape is not None}
    return any(
        0 in value.shape and 0 not in before.get(value.name, ())
        for node in sized.graph
        for value in node.outputs
        if value.shape is not None and len(value.shape) > 1
    )


def _named_by(plan: Plan, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with the sizes at which they show."""
    sizes = ", ".join(f"{name}={size}" for name, size in plan.extents.items())
    return [each.model_copy(update={"message": f"{each.message}, at {sizes}"}) for each in findings]


def sized_reader(model: ir.Model) -> SizedReader:
    """A function that gives the model at the sizes that it is given, or the contradiction between its shapes there."""
    reader = cache(partial(reader_at_sizes, model))

    def at(extents: Mapping[str, int]) -> ir.Model | InputError:
        shapes: dict[str, list[int]] = {}
        for value in fed(model):
            found = [
                extent if isinstance(extent, int) else extents.get(symbol_of(value, axis))
                for axis, extent in enumerate(value.shape or ())
            ]
            known = [extent for extent in found if extent is not None]
            if value.shape is not None and len(known) == len(found):
                shapes[str(value.name)] = known
        try:
            return reader()(shapes)
        except InputError as error:
            return error

    return at


def is_as_declared(model: ir.Model, sized: ir.Model, extents: Mapping[str, int]) -> bool:
    """Whether no extent that is inferred at these sizes contradicts the one that the model declares."""
    return all(found in (None, wanted) for wanted, found in _declared(model, sized, extents))


def _declared(model: ir.Model, sized: ir.Model, extents: Mapping[str, int]) -> Iterator[tuple[int, int | None]]:
    """Each extent that the model declares, as a number or a name that has a size, and the one at these sizes; None
    where it could not be inferred."""
    before = {value.name: value.shape for node in model.graph for value in node.outputs if value.shape is not None}
    for node in sized.graph:
        for value in node.outputs:
            dims, after = before.get(value.name, ()), value.shape
            is_of_rank = after is not None and len(after) == len(dims)
            for place, dim in enumerate(dims):
                wanted = dim if isinstance(dim, int) else extents.get(str(dim.value))
                if wanted is not None:
                    found = after[place] if after is not None and is_of_rank else None
                    yield wanted, found if isinstance(found, int) else None


def _differences(model: ir.Model | InputError, original: ir.Model) -> Iterator[Finding]:
    """The findings on a model at sizes at which its original can be read."""
    if isinstance(model, ir.Model):
        yield from check_side("output", model.graph.outputs, original.graph.outputs)
        yield from check_inner_shapes(model, original)
        yield from _other_extents(model, original)
        return
    text = f"{model.where}: {model.problem}" if model.where else model.problem
    message = f"{text}, where those of the original do not"
    yield Finding(rule="shape", expected=model.expected, found=model.found, message=message)


def _other_extents(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """A finding for each extent, or vector of extents, that is another one in the original. A Shape's own result may be
    in another order, and only the operators behind it bring the extents in that of the original."""
    wanted = {value.name: value for node in original.graph for value in node.outputs}
    for node in model.graph:
        for value in node.outputs if node.op_type != "Shape" or node.domain != "" else ():
            source = wanted.get(value.name)
            if source is None or source.const_value is None or value.const_value is None:
                continue
            theirs = source.const_value
            if not theirs.dtype.is_integer() or len(theirs.shape) > 1:
                continue
            numbers, expected = value.const_value.numpy(), in_format(theirs.numpy(), value, source)
            if not np.array_equal(numbers, expected):
                yield Finding(
                    rule="shape",
                    node=value.name,
                    expected=str(expected.tolist()),
                    found=str(numbers.tolist()),
                    message=f"extents that are computed are not the original's ({value.name})",
                )
