"""Rules: which memory formats a node's operands may have together, and how the node is edited then.

    Free      layout-agnostic: operands share an iteration space; any order of it that the rule allows
    Fixed     layout-sensitive: each operand's axes have names; layouts come from the operator or the backend
    Listed    enumerated: a short list of orders, one tuple of operand orders each
    Relabel   a view op: the result is a view of the first input, and the node disappears
    None      pinned: every operand as in the source

Each rule is built from one node; attributes and constant inputs are read then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from relayout.layout.memory_format import Extent, MemoryFormat

if TYPE_CHECKING:
    import onnx_ir as ir

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
    "Relabel",
    "Rule",
    "Shared",
    "Traffic",
    "free",
    "outer_position",
    "position",
]

Axes = tuple[int, ...]
"""Axes of one operand or space, outermost first."""

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Edit:
    """The changes of a node whose operands are in another order.

    `attributes`: new values, None to remove. `constants`: new constant inputs by index. `gather`: the result is a
    vector with an entry per axis, and is to be read in this order.
    """

    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)
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
    """What a decomposition writes with: its node, and the operands in the chosen order of the iteration space.

    A dimension is given as the positions in that order that make it up, outermost first; without any it has extent 1.
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
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], dims: Sequence[Axes]
    ) -> ir.Value:
        """A new node of ONNX's with one result of these dimensions."""

    def give(self, index: int, value: ir.Value, dims: Sequence[Axes]) -> None:
        """`value` is result `index`, with these dimensions."""

    def count(self, axes: Collection[int]) -> int:
        """How many elements these axes of the space have together; their extents are known."""

    def places(self, axis: int) -> np.ndarray:
        """The position of each index of a permuted axis along its dimension: source index -> position."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A node lowered to primitive operators by `write`, for the orders that `takes` accepts. `extra` is the traffic
    beyond the operator itself: (positions in the order that a tensor has, how often it is read or written)."""

    write: Callable[[DecompositionWriter], None]
    takes: Callable[[Axes], bool] = _always
    extra: Callable[[Axes], Traffic] = _nothing


Permutation = Literal["", "same", "asymmetric"]
"""Whether the factors of an axis may change places within its one dimension: no, the same in every operand, or also
where only a decomposition runs so."""


@dataclass(frozen=True, slots=True)
class AxisTraits:
    """How a layout-agnostic operator treats one axis of its iteration space.

    `tileable`: the factors may be dimensions of their own, wherever they stand, for neighbours along the axis do not
    matter. `tile_multiple`: the operator works on multiples of this number, so the axis may be tiled by divisors of it;
    0: it may not. `zero_preserving`: the axis may be padded, for zeros there give zeros. `companion`: the axis beside
    which this one stands, the lower number first, unless something says otherwise. `broadcasts`: an input that lacks the axis is read as
    if it had extent 1 there.
    """

    tileable: bool = False
    tile_multiple: int = 0
    permutable_within: Permutation = ""
    zero_preserving: bool = False
    companion: int | None = None
    broadcasts: bool = False


@dataclass(frozen=True, slots=True)
class Free:
    """A layout-agnostic operator: its operands share an iteration space of axes 0..len(extents)-1.

    `inputs[i][j]` is the space axis of axis j of input i; None: that input is read as in the source. An order of the
    space orders every operand. `traits` has one record an axis. `letters` names the axes where the operator names them;
    only then can a backend require an order that ONNX cannot write, and the node becomes a `relayout::` one.

    `allows` and `edit` take a full order of the axes, in which a tiled axis stands several times. `edit_tiled` replaces
    `edit` where an axis is tiled by its multiple: the operator then works on the outermost tile. It also takes how many
    indices one position in each dimension stands for; 0 in an inner tile, which stays whole.

    `insertion_rule`, which is compared by value, says at which position among the present axes a further axis goes, or
    None. `suggested` gives orders worth considering beside one in which the node runs, as positions of that order.
    `decompositions` are the ways to write the node where `allows` refuses an order, cheapest first; the backend's
    requirements of their operators count. `elidable_as`: the node computes nothing, its first result is this view of
    its first input, so it may be elided.
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
) -> Free:
    """A layout-agnostic rule with its axis traits given as the axes that have each of them."""
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
    )


_traits = lru_cache(maxsize=1024)(AxisTraits)


Shared = tuple[tuple[bool, int, int], ...]
"""One axis of several operands: (whether it is a result, its index, the axis in the source's numbering)."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A layout-sensitive operator: `inputs[i]` names the axes of input i in the source's order (None: read as in the
    source, without requirements), `native_inputs[i]` the order in which ONNX's own operator reads them.

    `kernel` is the index of the input that `kernel_layout` orders. `permutable_within`: axes whose factors may change
    places within their one dimension, if they do so in all the operands that share the axis.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    native_inputs: tuple[str | None, ...]
    native_outputs: tuple[str | None, ...]
    kernel: int | None = None
    permutable_within: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """A short list of alternatives: the orders of the inputs and outputs (None: as in the source) and the edit.

    `permutable_within` as for Fixed.
    """

    alternatives: tuple[tuple[tuple[Axes | None, ...], tuple[Axes | None, ...], Edit], ...]
    permutable_within: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class Relabel:
    """The first result is a view of the first input: each of its axes as atoms of the input's (see `View`)."""

    axes: tuple[MemoryFormat, ...]


Rule = Free | Fixed | Listed | Relabel


def position(order: Axes, axes: Axes, axis: int) -> int:
    """The position of `axis` among `axes`, when these are in `order`."""
    present = set(axes)
    return [a for a in order if a in present].index(axis)


def outer_position(order: Axes, strides: Axes, axes: Axes, axis: int) -> int:
    """The same for the outermost tile of an axis; `strides` as `Free.edit_tiled` takes them."""
    present = [(a, stride) for a, stride in zip(order, strides, strict=True) if a in axes]
    return next(place for place, (a, stride) in enumerate(present) if a == axis and stride)
