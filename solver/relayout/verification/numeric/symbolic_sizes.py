"""Sizes for symbolic dims: those that suit most models, and those that the model mentions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.model.dims.forced_dims import asked_sizes, fitting_sizes, forced_sizes
from relayout.model.tensor_sizes import DimSizes
from relayout.verification.axis_names import fed
from relayout.verification.numeric.deadline import Budget
from relayout.verification.subgraph_values import region_edges

MOST_MENTIONED = 12
"""So many of the extents that a model mentions are tried, the most frequent first."""

_SECONDS = 120.0

_LARGEST_MENTIONED = 4096

_MOST_GROWTH = 8
"""How many times as many elements a second set of sizes may have; attention takes the square of it in memory."""

_MODERATE = 1 << 16
"""Inputs of so few elements are tried whatever the first had."""

_MOST_OF_A_VALUE = 1 << 24
"""Elements of one value: above that, other sizes are tried first. Attention over an image takes the fourth power of the
image's side in memory, several times at once."""

_MOST_ELEMENTS = 1 << 20
"""Of an input whose open dims all have a size that the model mentions: several large ones at once fill the memory."""


@dataclass(frozen=True)
class Plan:
    """Extents for the dims that are not known before run time, and the largest integer that is drawn."""

    extents: Mapping[str, int]
    highest: int


@dataclass(frozen=True)
class Sampling:
    """The inputs on which two models are run: those `given` alone, else so many random samples, by a seed, with sizes
    for some symbolic dims. `budget` is the time for the first runs of the original, and of its parts, in onnx's
    reference; all others take as long."""

    samples: int
    seed: int
    dims: Mapping[str, int] | None
    given: tuple[Mapping[str, np.ndarray[Any, Any]], ...] = ()
    budget: Budget = field(default_factory=lambda: Budget(_SECONDS))


def plans(model: ir.Model, dims: Mapping[str, int] | None) -> Iterator[Plan]:
    """Yield plans to try in turn: unequal sizes first, then sizes that small or strict models accept, then sizes that
    the model itself mentions: a dim may be symbolic in a graph that runs with one size alone. Those that make a value
    large come last, the largest at the end.

    The first dim of an input is a batch. A dim that a Reshape to known extents determines has that size alone. The
    sizes that fit its product of dims, and operands, come first.
    """
    dims = {**forced_sizes(model), **(dims or {})}
    heavy: list[tuple[int, Plan]] = []
    largest = _Largest(model)
    fitting = [fitting_sizes(model, dims, are_apart=are_apart) for are_apart in (True, False)]
    for plan in (plan for sizes in (*filter(None, fitting), {}) for plan in _plans(model, {**sizes, **dims})):
        elements = largest.at(plan.extents)
        if elements <= _MOST_OF_A_VALUE:
            yield plan
        else:
            heavy.append((elements, plan))
    yield from (plan for _, plan in sorted(heavy, key=itemgetter(0)))


def light_plan(model: ir.Model, tried: Sequence[Plan]) -> Plan:
    """The first of these plans whose inputs do not fill the memory; the first of all where all do."""
    inputs = fed(model)
    return next((plan for plan in tried if _elements(inputs, plan.extents) <= _MOST_ELEMENTS), tried[0])


def _plans(model: ir.Model, dims: Mapping[str, int]) -> Iterator[Plan]:
    inputs = fed(model)
    batches, others = _unknown(inputs)
    given = {**_declared_in_bodies(model), **dims}
    common = (
        (2, (32, 64, 96), 4),
        (1, (32, 64, 96), 2),
        (1, (64,), 2),
        (2, (6, 8, 10), 2),
        (8, (6, 8, 10), 2),
        (1, (8,), 1),
        (1, (1,), 1),
    )
    large = tuple(
        (1, (size,), 2)
        for size in _LARGE
        if others and _elements(inputs, _sized(model, 1, (size,))[0]) <= _MOST_ELEMENTS
    )
    mentioned = [each for each in _mentioned(model) if (batches or others) and _is_small(inputs, each)]
    for batch, sizes, highest in (
        *common,
        *large,
        *((extent, (extent,), 2) for extent in mentioned),
        *((1, (extent,), 2) for extent in (mentioned if batches and others else ())),
    ):
        extents, *summed = _sized(model, batch, sizes)
        most = max(_MOST_ELEMENTS, 2 * _elements(inputs, extents))
        for sized in (extents, *(each for each in summed if _elements(inputs, each) <= most)):
            yield Plan({**sized, **{name: size for name, size in given.items() if name in sized}}, highest)


_LARGE = (128, 224, 256, 512, 4096)
"""Usual sizes of images, and a length that sound needs: a stack of strided convolutions leaves no sample of a few."""

# Batches and other sizes, to try after a first plan: unequal to those that `plans` begins with, and seldom to extents
# that models have. The first ones are no multiples of anything: a model may pad an image to a multiple.
_OTHERS = (
    (3, (49, 82, 115)),
    (3, (48, 80, 112)),
    (3, (64, 96, 32)),
    (3, (96, 160, 32)),
    (3, (160, 96, 224)),
    (3, (12, 14, 9)),
    (5, (7, 5, 11)),
    (3, (3, 5, 7)),
    (4, (16, 4, 2)),
    (2, (2, 3, 4)),
    (3, (320, 256, 384)),
    (3, (5120, 6144, 7168)),
)


def open_dims(model: ir.Model, dims: Mapping[str, int] | None) -> list[str]:
    """The dims that are not known before run time and that the caller gave no size."""
    batches, others = _unknown(fed(model))
    return [name for name in (*batches, *others) if name not in (dims or {})]


def other_plans(model: ir.Model, dims: Mapping[str, int] | None, first: Plan) -> Iterator[Plan]:
    """Yield plans to try after `first`, so that each open dim has a second size: first those that change all of them,
    then those that change only batches or only the others. A size that a body declares stays."""
    inputs = fed(model)
    batches, others = _unknown(inputs)
    if not first.extents.keys() >= {*batches, *others}:
        return  # it is for a model that names a dim otherwise: one without a name may get another when it is read again
    largest = _Largest(model)
    most = max(_MOST_OF_A_VALUE, largest.at(first.extents))
    kept = {**_declared_in_bodies(model), **(dims or {})}
    more = [(1, (1, 1, 1)), *((extent, (extent,) * 3) for extent in _mentioned(model) if _is_small(inputs, extent))]
    # A model may take one batch alone, or one size of an image.
    for changed in ({*batches, *others}, {*others}, {*batches}):
        for batch, sizes in (*_OTHERS, *more):
            for sized in _sized(model, batch, sizes):
                new = {name: size for name, size in sized.items() if name in changed and name not in kept}
                whole = {**first.extents, **new}
                if not new or any(size == first.extents[name] for name, size in new.items()):
                    continue
                growth = max(_MODERATE, _MOST_GROWTH * _elements(inputs, first.extents))
                if _elements(inputs, whole) <= growth and largest.at(whole) <= most:
                    yield Plan(whole, first.highest)


class _Largest:
    """The elements of the largest value of a model, by the sizes of the open dims of its inputs."""

    def __init__(self, model: ir.Model) -> None:
        shapes = {id(value.shape): value.shape for node in model.graph for value in node.outputs}
        self._shapes = [shape for shape in shapes.values() if shape is not None and not shape.is_static()]
        self._model = model
        self._asked = asked_sizes(model) if self._shapes else None

    def at(self, extents: Mapping[str, int]) -> int:
        """Of dims that these sizes do not determine, each is as long as the longest."""
        if not self._shapes:
            return 0
        sizes = DimSizes(self._model, extents, self._asked)
        found = max(map(sizes, self._shapes))
        if sizes.assumed:
            longest = dict.fromkeys(sizes.assumed.keys() - {"?"}, max(extents.values(), default=1))
            found = max(map(DimSizes(self._model, {**longest, **extents}, self._asked), self._shapes))
        return found


def _sized(model: ir.Model, batch: int, sizes: Sequence[int]) -> list[dict[str, int]]:
    """The open dims with the size `batch` for batches and these sizes in turn for the others, and then with sums."""
    batches, others = _unknown(fed(model))
    extents = dict.fromkeys(batches, batch) | {name: sizes[i % len(sizes)] for i, name in enumerate(others)}
    return [extents, *(_with_sums(model, extents, others) if others else ())]


def _with_sums(model: ir.Model, extents: Mapping[str, int], others: Sequence[str]) -> Iterator[dict[str, int]]:
    """The extents with the first sum that the model declares for a value in place of each dim that is in no sum: a mask
    is as long as the keys of earlier tokens and the new ones together."""
    shapes = (value.shape or () for node in model.graph for value in node.outputs)
    terms = [str(dim).split(" + ") for dim in dict.fromkeys(chain.from_iterable(shapes)) if not isinstance(dim, int)]
    sums = [each for each in terms if len(each) > 1 and all(name in extents or name.isdecimal() for name in each)]
    summed = {*chain.from_iterable(sums)}
    if sums and not summed.issuperset(others):
        total = sum(extents[name] if name in extents else int(name) for name in sums[0])
        yield {name: total if name in others and name not in summed else size for name, size in extents.items()}
    elif not sums and len(others) == len({extents[name] for name in others}) == 3:
        whole = sum(extents[name] for name in others)
        yield from ({**extents, name: whole - extents[name]} for name in others)


def _elements(inputs: Sequence[ir.Value], extents: Mapping[str, int]) -> int:
    """The number of elements of all inputs under these sizes."""
    return sum(
        prod(
            extent if isinstance(extent, int) else extents[symbol_of(value, axis)]
            for axis, extent in enumerate(value.shape or ())
        )
        for value in inputs
    )


def _is_small(inputs: Sequence[ir.Value], size: int) -> bool:
    """Whether each input has few elements when its symbolic dims have this size."""
    shapes = [[extent if isinstance(extent, int) else size for extent in value.shape or ()] for value in inputs]
    return all(prod(shape) <= _MOST_ELEMENTS for shape in shapes)


def symbol_of(value: ir.Value, axis: int) -> str:
    """The name of a symbolic dim; one without a name is named after its value."""
    extent = value.shape[axis] if value.shape is not None else None
    named = isinstance(extent, ir.SymbolicDim) and extent.value is not None
    return str(extent) if named else f"{value.name}:{axis}"


def contradiction(value: ir.Value, shape: Sequence[int]) -> str | None:
    """The text of a contradiction between a result's shape and the declared one; None without one.

    A run that contradicts the declared shapes proves nothing about the model.
    """
    if value.shape is None:
        return None
    fits = len(value.shape) == len(shape) and all(
        not isinstance(extent, int) or extent == found for extent, found in zip(value.shape, shape, strict=True)
    )
    return None if fits else f"{value.name} is declared as {value.shape} and comes out as {list(shape)}"


def _unknown(inputs: Sequence[ir.Value]) -> tuple[list[str], list[str]]:
    batches: dict[str, None] = {}
    others: dict[str, None] = {}
    for value in inputs:
        for axis, extent in enumerate(value.shape or ()):
            if not isinstance(extent, int):
                (batches if axis == 0 else others)[symbol_of(value, axis)] = None
    return list(batches), [name for name in others if name not in batches]


def _declared_in_bodies(model: ir.Model) -> dict[str, int]:
    """The dims whose size a Loop or a Scan declares for the loop-carried inputs of its body."""
    found: dict[str, int] = {}
    for node in model.graph.all_nodes():
        for outer, inner, _ in region_edges(node):
            before, inside = outer.shape or (), inner.shape or ()
            if outer not in node.inputs or len(before) != len(inside):
                continue
            for axis, (extent, declared) in enumerate(zip(before, inside, strict=True)):
                if isinstance(declared, int) and not isinstance(extent, int):
                    found.setdefault(symbol_of(outer, axis), declared)
    return found


def _mentioned(model: ir.Model) -> list[int]:
    counted: Counter[int] = Counter()
    for node in model.graph.all_nodes():
        for value in node.outputs:
            counted.update(extent for extent in value.shape or () if isinstance(extent, int))
    usual = [extent for extent, _ in counted.most_common() if 1 < extent <= _LARGEST_MENTIONED]
    return usual[:MOST_MENTIONED]
