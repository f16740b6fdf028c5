"""Rules: which memory formats a node's operands may have together, and how the node is edited then.

    Free      layout-agnostic: operands share an iteration space; any order of it that the rule allows
    Fixed     layout-sensitive: each operand's axes have names; the operator or the backend determines the layouts
    Listed    enumerated: a short list of orders, one tuple of operand orders each
    Relabel   a view op: the result is a view of the first input, and the node disappears
    None      pinned: every operand as in the source

Each rule is built from one node; attributes and constant inputs are read then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from msgspec import Struct, field

from relayout.layout.memory_format import Extent, MemoryFormat

if TYPE_CHECKING:
    import onnx_ir as ir

Axes = tuple[int, ...]
"""Axes of one operand or space, outermost first."""

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | None


class Edit(Struct, frozen=True):
    """The changes of a node whose operands are in another order.

    `attributes`: new values, None to remove. `constants`: new constant inputs by index. `reordered`: vectors that are
    computed while the model runs, by index of the input, with the positions of the old entries in the new order.
    `gather`: the result is a vector with an entry per dimension, of which those of these axes must be gathered, in this
    order. The extent of an axis that is tiled or padded must be known.
    """

    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)
    reordered: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    gather: Axes | None = None


NO_EDIT = Edit()


def _always(order: Axes) -> bool:
    return True


def _unchanged(order: Axes) -> Edit:
    return NO_EDIT


Traffic = tuple[tuple[Axes, int], ...]


def _nothing(order: Axes) -> tuple[()]:
    return ()


class DecompositionWriter(Protocol):
    """The interface with which a decomposition reads its node's operands in the chosen order and emits nodes.

    A dimension is a tuple of positions in that order, outermost first; an empty one has extent 1.
    """

    @property
    def node(self) -> ir.Node: ...

    @property
    def opset(self) -> int: ...

    @property
    def axes(self) -> Axes:
        """The axis at each position of the chosen order."""

    def read(self, index: int, dims: Sequence[Axes]) -> ir.Value:
        """Input `index` with these dimensions, without the axes that it lacks. A constant is relaid."""

    def constant(self, stem: str, array: np.ndarray) -> ir.Value:
        """A new constant."""

    def emit_dims(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        dims: Sequence[Axes],
        *,
        like: ir.Value | None = None,
        order: Axes = (),
    ) -> ir.Value:
        """A new node of ONNX with one result of these dimensions, of the type of `like` (default: the first input).

        `order`: the axes of the result, and of the operands of its rank, in the order of their dimensions, by the
        numbers that layouts by numbers count; none where they count the dimensions as they lie."""

    def set_result(self, index: int, value: ir.Value, dims: Sequence[Axes]) -> None:
        """Define result `index` as `value`, which has these dimensions."""

    def count(self, axes: Collection[int]) -> int:
        """The product of the extents of these axes of the space, which are known."""

    def broadcast(self, axis: int, array: np.ndarray) -> np.ndarray:
        """A vector along an axis, to broadcast in the chosen order: zeros fill up tiles."""

    def places(self, axis: int) -> np.ndarray:
        """The position of each index of a permuted axis along its dimension: source index -> position."""


class Decomposition(Struct, frozen=True):
    """A node lowered to primitive operators by `write`, for the orders that `takes` accepts. `extra` is the traffic
    beyond the operator itself: (positions in the order that a tensor has, how often it is read or written). `tiles`: it
    takes tiled axes too, also where the operator does not. `needs_constant`: only where an input is a constant.
    `is_whole`: it is one operator that takes the node's place, so a requirement of the node holds for it as well."""

    write: Callable[[DecompositionWriter], None]
    takes: Callable[[Axes], bool] = _always
    extra: Callable[[Axes], Traffic] = _nothing
    tiles: bool = False
    needs_constant: bool = False
    is_whole: bool = False


Permutation = Literal["", "same", "asymmetric"]
"""Whether an axis's factors may be permuted within its dimension: no, alike in every operand, or also if decomposed."""


class AxisTraits(Struct, frozen=True):
    """The traits of one axis in the iteration space of a layout-agnostic operator.

    `tileable`: the factors may be separate dimensions at any position, because neighbours along the axis do not matter.
    `tile_multiple`: the operator works on multiples of this number, so the axis may be tiled by divisors of it; 0: it
    may not. `zero_preserving`: the axis may be padded, for zeros there give zeros. `companion`: the axis next to which
    this one is inserted by default, the lower number first. `broadcasts`: an input without the axis is broadcast.
    """

    tileable: bool = False
    tile_multiple: int = 0
    permutable_within: Permutation = ""
    zero_preserving: bool = False
    companion: int | None = None
    broadcasts: bool = False


class Free(Struct, frozen=True):
    """A layout-agnostic operator: its operands share an iteration space of axes 0..len(extents)-1.

    `inputs[i][j]` is the space axis of axis j of input i; None: that input is read as in the source. An order of the
    space orders every operand. `traits` has one record per axis. `axis_names` are the operator's own, if it has names:
    only then can a backend require an order that ONNX cannot express, as a `relayout::` operator. An operator that has
    an attribute for its orders has `told_names` instead.

    `allows` and `edit` take a full order of the axes, in which a tiled axis occurs several times. `edit_tiled` replaces
    `edit` where an axis is tiled by a divisor of its multiple: the operator then works on the outermost tile. Its
    second argument is the stride of each dimension in indices of its axis; 0 in an inner tile, which stays whole.

    `insertion_rule`, which is compared by value, gives the position among the present axes at which a further axis is
    inserted, or None. `suggested` gives further orders to consider for an order in which the node runs, as positions of
    that order. `decompositions` apply where `allows` refuses an order, cheapest first; the backend's requirements for
    their operators count. `elidable_as`: the node may be elided, for its first result is this view of its first input.

    `edit_operands`: each operand is in an order of its own, and only the tiles of an axis are the same in all operands.
    It gives the edit for the order of each input and of each result, in atoms of the operand's own axes, and replaces
    `allows` and `edit`.
    """

    extents: tuple[Extent, ...]
    inputs: tuple[Axes | None, ...]
    outputs: tuple[Axes | None, ...]
    traits: tuple[AxisTraits, ...]
    allows: Callable[[Axes], bool] = _always
    edit: Callable[[Axes], Edit] = _unchanged
    edit_tiled: Callable[[Axes, Axes], Edit] | None = None
    axis_names: str = ""
    insertion_rule: Callable[[Axes, int], int | None] | None = None
    suggested: Callable[[Axes], Iterable[Axes]] = _nothing
    decompositions: tuple[Decomposition, ...] = ()
    elidable_as: Relabel | None = None
    edit_operands: Callable[[Sequence[MemoryFormat], Sequence[MemoryFormat]], Edit] | None = None
    told_names: str = ""

    @property
    def tileable(self) -> Axes:
        return tuple([axis for axis, own in enumerate(self.traits) if own.tileable])

    @property
    def broadcasts(self) -> Axes:
        return tuple([axis for axis, own in enumerate(self.traits) if own.broadcasts])


def free(
    extents: tuple[Extent, ...],
    inputs: tuple[Axes | None, ...],
    outputs: tuple[Axes | None, ...],
    *,
    tileable: Axes = (),
    tile_multiple: Mapping[int, int] | None = None,
    permutable_within: Axes = (),
    asymmetrically_permutable: Axes = (),
    zero_preserving: Axes = (),
    companion: Mapping[int, int] | None = None,
    broadcasts: Axes = (),
    allows: Callable[[Axes], bool] = _always,
    edit: Callable[[Axes], Edit] = _unchanged,
    edit_tiled: Callable[[Axes, Axes], Edit] | None = None,
    axis_names: str = "",
    insertion_rule: Callable[[Axes, int], int | None] | None = None,
    suggested: Callable[[Axes], Iterable[Axes]] = _nothing,
    decompositions: tuple[Decomposition, ...] = (),
    elidable_as: Relabel | None = None,
    edit_operands: Callable[[Sequence[MemoryFormat], Sequence[MemoryFormat]], Edit] | None = None,
) -> Free:
    """A layout-agnostic rule, with each axis trait given as the set of axes that have it."""
    multiples, companions = tile_multiple or {}, companion or {}
    traits = tuple(
        [
            _traits(
                axis in tileable,
                multiples.get(axis, 0),
                "same" if axis in permutable_within else "asymmetric" if axis in asymmetrically_permutable else "",
                axis in zero_preserving,
                companions.get(axis),
                axis in broadcasts,
            )
            for axis in range(len(extents))
        ]
    )
    return Free(
        extents,
        inputs,
        outputs,
        traits,
        allows,
        edit,
        edit_tiled,
        axis_names,
        insertion_rule,
        suggested,
        decompositions,
        elidable_as,
        edit_operands,
    )


_traits = lru_cache(maxsize=1024)(AxisTraits)


Shared = tuple[tuple[bool, int, int], ...]
"""One axis of several operands: (whether it is a result, its index, the axis in the source's numbering)."""


class Fixed(Struct, frozen=True):
    """A layout-sensitive operator: `inputs[i]` names the axes of input i in the source's order (None: read as in the
    source, without requirements), `native_inputs[i]` the order in which ONNX's own operator reads them.

    `kernel` is the index of the input that `kernel_layout` describes. `permutable_within`: axes whose factors may be
    permuted within their dimension, if they are permuted alike in all operands that share the axis.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    native_inputs: tuple[str | None, ...]
    native_outputs: tuple[str | None, ...]
    kernel: int | None = None
    permutable_within: tuple[Shared, ...] = ()


class Replacement(Struct, frozen=True):
    """A node of the same operator in the node's place.

    `inputs`: for each of its inputs the index of the source's, and its dimensions; `result`: those of its only result.
    A dimension is a tuple of positions in the alternative's order, outermost first, whose extents are known if there
    are several; an empty one has extent 1. None: the dimensions of that order. `attributes`: new values.
    """

    inputs: tuple[tuple[int, tuple[Axes, ...] | None], ...]
    attributes: Mapping[str, AttributeValue]
    result: tuple[Axes, ...] | None = None


def regrouped(shape: tuple[Extent, ...], dims: tuple[Axes, ...] | None) -> tuple[Extent, ...]:
    """A shape in the dimensions of a `Replacement`."""
    if dims is None:
        return shape
    return tuple([shape[group[0]] if len(group) == 1 else prod(shape[place] for place in group) for group in dims])  # type: ignore[misc]


ListedAlternative = tuple[tuple[Axes | None, ...], tuple[Axes | None, ...], Edit | Replacement]
"""The orders of the inputs and outputs (None: as in the source), and the edit of the node or the node in its place."""


class Listed(Struct, frozen=True):
    """A short list of alternatives. `permutable_within` as for Fixed."""

    alternatives: tuple[ListedAlternative, ...]
    permutable_within: tuple[Shared, ...] = ()


class Relabel(Struct, frozen=True):
    """The first result is a view of the first input: each of its axes as atoms of the input's (see `View`).

    `factors`: the axes of the input, each as (axis, extent), where the view splits one of them at an extent that is no
    number. That axis is there several times, outermost factor first, and `axes` are in atoms of the factors. Empty
    where the view splits none.
    """

    axes: tuple[MemoryFormat, ...]
    factors: tuple[tuple[int, Extent], ...] = ()

    @property
    def kept(self) -> tuple[int | None, ...]:
        """For each axis of the result, the axis of the input that it is as a whole; None where it is none."""
        read = [axis for axis, _ in self.factors]
        whole = [group[0].axis if len(group) == 1 and group[0].is_whole else None for group in self.axes]
        if not read:
            return tuple(whole)
        return tuple([read[place] if place is not None and read.count(read[place]) == 1 else None for place in whole])


Rule = Free | Fixed | Listed | Relabel


def position(order: Axes, axes: Axes, axis: int) -> int:
    """The position of `axis` among `axes`, when these are in `order`."""
    present = set(axes)
    return [a for a in order if a in present].index(axis)


def outer_position(order: Axes, strides: Axes, axes: Axes, axis: int) -> int:
    """The same for the outermost tile of an axis; `strides` as `Free.edit_tiled` takes them."""
    present = [(a, stride) for a, stride in zip(order, strides, strict=True) if a in axes]
    return next(place for place, (a, stride) in enumerate(present) if a == axis and stride)
