"""What a rule says of a node: which memory formats its operands may take together, and how the node is written then.

    Free      operands share a space of axes; any order of that space that the rule allows (free and contract kinds,
              and the fixed kind where one order serves all operands)
    Fixed     each operand's axes have letters; layouts come from the operator or from the backend
    Listed    a short list of orders, one tuple of operand orders each
    Relabel   the result is a view of the first input; the node disappears
    None      pinned: every operand as in the source

Each rule is built from one node; what depends on attributes or constant inputs is read then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from relayout.layout.memory_format import Extent, MemoryFormat

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "NO_EDIT",
    "Axes",
    "Edit",
    "Fixed",
    "Free",
    "Listed",
    "Relabel",
    "Rule",
    "Shared",
    "SpaceWriting",
    "Traffic",
    "Written",
    "outer_position",
    "position",
]

Axes = tuple[int, ...]
"""Axes of one operand or space, outermost first."""

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Edit:
    """How a node's text changes when its operands are in another order.

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


class SpaceWriting(Protocol):
    """What a rule's own `write` is given: its node, and its operands by the order that was chosen for the space.

    A dimension is given as the places in that order that make it up, outermost first; without any it has extent 1.
    """

    @property
    def node(self) -> ir.Node: ...

    @property
    def opset(self) -> int: ...

    @property
    def axes(self) -> Axes:
        """The axis in each place of the order that was chosen."""

    def read(self, index: int, dims: Sequence[Axes]) -> ir.Value:
        """Input `index` with these dimensions; what it lacks is left out of them. A constant is re-laid."""

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
        """Where each index of a mixed axis of the source lies along its dimension: source index -> place."""


@dataclass(frozen=True, slots=True)
class Written:
    """A node written in other operators by `write`, in the orders of the space that `takes` says; `extra` tells what
    that moves beyond the operator itself: (places in the order that a tensor has, how often it is read or written)."""

    write: Callable[[SpaceWriting], None]
    takes: Callable[[Axes], bool] = _always
    extra: Callable[[Axes], Traffic] = _nothing


@dataclass(frozen=True, slots=True)
class Free:
    """Operands that share a space of axes 0..len(extents)-1.

    `inputs[i][j]` is the space axis of axis j of input i; None: that input is read as in the source. An order of the
    space orders every operand. `allows` and `edit` take a full order of the space's axes. `letters` names the space's
    axes where the operator names them; only then can a backend ask for an order that ONNX has no word for, and the node
    is written as `relayout::`. `broadcasts`: the axes that an input may lack and is then read as if it had them with
    extent 1.

    `splits`: the axes whose factors may stand apart, each in a dimension of its own, for the operator does not care
    which elements are neighbours along them; `allows` and `edit` then meet such an axis several times. `steps`: those
    that the operator works on in multiples of a number. They may be cut by divisors of it: the operator then works on
    the outer piece, wherever that lies, by `edit_steps`, which also takes how many indices one place in each dimension
    stands for, 0 in one of the inner pieces, which stay whole. `mixes`: the axes whose factors may change places within
    their one dimension, if they do so in every operand. `zeros`: those that may be padded, for zeros there give zeros.
    `beside`: two axes that stand side by side, the lower number first, where nothing says where one of them is to
    stand; `insert`, which is compared by value, says at which place among those that stand already a further axis goes,
    or None where it has no say.

    `left_out`: the node computes nothing, its first result is this view of its first input, so it may be left out, as a
    Relabel is; as the operator that it is, it moves its data.

    `proposed`: orders that are worth a thought though nobody asks for them, each as the places of an order that the
    node runs in, arranged anew.

    `written`: how the node may be written where `allows` refuses an order, cheapest first. Backends have wishes of the
    operators that they are asked for then, so the first that is as they wish counts.
    """

    extents: tuple[Extent, ...]
    inputs: tuple[Axes | None, ...]
    outputs: tuple[Axes | None, ...]
    allows: Callable[[Axes], bool] = _always
    edit: Callable[[Axes], Edit] = _unchanged
    letters: str = ""
    broadcasts: Axes = ()
    splits: Axes = ()
    mixes: Axes = ()
    scrambles: Axes = ()
    steps: Mapping[int, int] = field(default_factory=dict)
    edit_steps: Callable[[Axes, Axes], Edit] | None = None
    zeros: Axes = ()
    beside: Mapping[int, int] = field(default_factory=dict)
    insert: Callable[[Axes, int], int | None] | None = None
    left_out: Relabel | None = None
    proposed: Callable[[Axes], Iterable[Axes]] = _nothing
    written: tuple[Written, ...] = ()


Shared = tuple[tuple[bool, int, int], ...]
"""One axis of several operands: (whether it is a result, its index, the axis as it stands in the source)."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Operands whose axes have letters: `inputs[i]` names the axes of input i as they stand in the source (None: read
    as in the source, without wishes), `native_inputs[i]` the order in which ONNX's own operator reads them.

    `kernel` is the index of the input that `kernel_layout` orders. `mixes`: axes whose factors may change places within
    their one dimension, if they do so in all the operands that share the axis.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    native_inputs: tuple[str | None, ...]
    native_outputs: tuple[str | None, ...]
    kernel: int | None = None
    mixes: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """A short list of alternatives: the orders of the inputs and outputs (None: as in the source) and the edit.

    `mixes` as for Fixed.
    """

    alternatives: tuple[tuple[tuple[Axes | None, ...], tuple[Axes | None, ...], Edit], ...]
    mixes: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class Relabel:
    """The first result is a view of the first input: each of its axes as atoms of the input's (see `View`)."""

    axes: tuple[MemoryFormat, ...]


Rule = Free | Fixed | Listed | Relabel


def position(order: Axes, axes: Axes, axis: int) -> int:
    """Where `axis` stands among those of `axes`, when they are laid out in `order`."""
    present = set(axes)
    return [a for a in order if a in present].index(axis)


def outer_position(order: Axes, strides: Axes, axes: Axes, axis: int) -> int:
    """The same for the outer piece of an axis that is cut; `strides` as `Free.edit_steps` takes them."""
    present = [(a, stride) for a, stride in zip(order, strides, strict=True) if a in axes]
    return next(place for place, (a, stride) in enumerate(present) if a == axis and stride)
