"""Axes that have names: batch, channels and spatial axes.

A source node of domain `relayout` names its axes by `data_layout` and `kernel_layout`; a standard one has ONNX's names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relayout.ops.node_reader import NoRuleError, Reading
from relayout.ops.operand_roles import spatial_letters
from relayout.ops.rule import Axes, Decomposition, DecompositionWriter, Fixed, Free, free


def operand_by_operand(rule: Free) -> Fixed:
    """The same operator as a rule with axis names for each operand, whose tiles need no common order of the space."""
    native = native_letters(len(rule.axis_names))

    def axis_names(operands: Sequence[Axes | None]) -> tuple[str | None, ...]:
        whole = (axes if axes is not None and len(axes) == len(native) else None for axes in operands)
        return tuple("".join(rule.axis_names[a] for a in axes) if axes is not None else None for axes in whole)

    inputs, outputs = axis_names(rule.inputs), axis_names(rule.outputs)
    return Fixed(
        inputs,
        outputs,
        tuple(native if names is not None else None for names in inputs),
        tuple(native if names is not None else None for names in outputs),
    )


def native_letters(rank: int) -> str:
    """ONNX's names for the axes of a data tensor: NC, NCW, NCHW, NCDHW."""
    spatial = "" if rank == 2 else spatial_letters(rank)
    if spatial is None:
        raise NoRuleError
    return "NC" + spatial


def letters_of(node: Reading, rank: int, attribute: str = "data_layout", native: str = "") -> str:
    native = native or native_letters(rank)
    given = node.string(attribute) if node.node.domain == "relayout" else ""
    if given and sorted(given) != sorted(native):
        raise NoRuleError
    return given or native


def named(
    node: Reading,
    alike: tuple[int, ...],
    allows_native: str,
    *,
    results: int = 1,
    written: Sequence[tuple[Callable[[DecompositionWriter, int, Axes], None], int]] = (),
    tiles: Axes = (),
    reduces_spatial: bool = False,
    splits_spatial: bool = False,
    keeps_apart: bool = False,
) -> Free:
    """Data operands with one layout; `allows_native` says which orders ONNX's own operator takes.

    "exact": its own order. "channel": channels second, the others in any order. "leading": batch and channels
    outermost, the spatial axes in any order. `written`: a function that decomposes the operator in any order, given the
    channel axis and the spatial axes, and how many more times than the operator it reads and writes the data. `tiles`
    are the axes of ONNX's order that these functions take in tiles. `reduces_spatial`: the operator reads the spatial
    axes in sums over all of each, for which their elements may be in any order. `splits_spatial`: `written` also takes
    factors of the spatial axes as dimensions of their own. `keeps_apart`: the operator computes each channel alone, so
    that the channels may be in any order.
    """
    extents, axes = node.space()
    rank = len(axes)
    axis_names = letters_of(node, rank)
    native = tuple(axis_names.index(letter) for letter in native_letters(rank))
    channel = axis_names.index("C")
    spatial = tuple(a for a in axes if axis_names[a] not in "NC")

    def allows(order: Axes) -> bool:
        if allows_native == "channel":
            return len(order) == rank and order[1] == channel
        if allows_native == "leading":
            return len(order) == rank and {*order[:2]} == {*native[:2]}
        return order == native

    def operand(index: int) -> Axes | None:
        return axes if index in alike and node.has(index) else None

    return free(
        extents,
        tuple(operand(i) for i in range(len(node.node.inputs))),
        tuple(axes if i < results else None for i in range(len(node.node.outputs))),
        allows=allows,
        axis_names=axis_names,
        tileable=spatial if splits_spatial else (),
        permutable_within=(*(spatial if reduces_spatial else ()), *((channel,) if keeps_apart else ())),
        decompositions=tuple(
            _written(write, channel, spatial, passes, tuple(native[axis] for axis in tiles))
            for write, passes in written
        ),
    )


def _written(
    write: Callable[[DecompositionWriter, int, Axes], None], channel: int, spatial: Axes, passes: int, tiles: Axes
) -> Decomposition:
    """The decomposition of the operator; it takes any order, of whole axes but for `tiles`."""
    return Decomposition(
        lambda writing: write(writing, channel, spatial),
        lambda order: all(axis in tiles or order.count(axis) == 1 for axis in order),
        lambda order: ((tuple(range(len(order))), passes),) if passes else (),
        tiles=bool(tiles),
    )
