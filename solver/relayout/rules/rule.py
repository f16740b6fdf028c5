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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from relayout.memory_format import Extent, Order

__all__ = ["NO_EDIT", "Axes", "Edit", "Fixed", "Free", "Listed", "Relabel", "Rule", "position"]

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


@dataclass(frozen=True, slots=True)
class Free:
    """Operands that share a space of axes 0..len(extents)-1.

    `inputs[i][j]` is the space axis of axis j of input i; None: that input is read as in the source. An order of the
    space orders every operand. `allows` and `edit` take a full order of the space's axes. `letters` names the space's
    axes where the operator names them; only then can a backend ask for an order that ONNX has no word for, and the node
    is written as `relayout::`. `splits`: the operator works on each element by itself, so factors of axes may be
    apart. `broadcasts`: the axes that an input may lack and is then read as if it had them with extent 1.
    """

    extents: tuple[Extent, ...]
    inputs: tuple[Axes | None, ...]
    outputs: tuple[Axes | None, ...]
    allows: Callable[[Axes], bool] = _always
    edit: Callable[[Axes], Edit] = _unchanged
    letters: str = ""
    splits: bool = False
    broadcasts: Axes = ()


@dataclass(frozen=True, slots=True)
class Fixed:
    """Operands whose axes have letters: `inputs[i]` names the axes of input i as they stand in the source (None: read
    as in the source, without wishes), `native_inputs[i]` the order in which ONNX's own operator reads them.

    `data` are the letters that `data_layout` orders, `kernel` the index of the input that `kernel_layout` orders.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    native_inputs: tuple[str | None, ...]
    native_outputs: tuple[str | None, ...]
    kernel: int | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A short list of alternatives: the orders of the inputs and outputs (None: as in the source) and the edit."""

    alternatives: tuple[tuple[tuple[Axes | None, ...], tuple[Axes | None, ...], Edit], ...]


@dataclass(frozen=True, slots=True)
class Relabel:
    """The first result is a view of the first input: each of its axes as atoms of the input's (see `View`)."""

    axes: tuple[Order, ...]


Rule = Free | Fixed | Listed | Relabel


def position(order: Axes, axes: Axes, axis: int) -> int:
    """Where `axis` stands among those of `axes`, when they are laid out in `order`."""
    present = set(axes)
    return [a for a in order if a in present].index(axis)
