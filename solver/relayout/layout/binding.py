"""Binding of a layout to a memory format by the names of an operand's axes, and the inverse.

    >>> bind(Layout.parse("NCHWc[tile:16]"), "NCHW", (1, 64, 7, 7), 4)
    (Atom(axis=0, inner=1, outer=0), Atom(axis=1, inner=16, outer=0), Atom(axis=2, inner=1, outer=0), \
Atom(axis=3, inner=1, outer=0), Atom(axis=1, inner=1, outer=16))

A tile must divide its axis, unless padding with zeros is allowed. An alignment is met by padding the next inner
dimension until the stride is a multiple.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd

from relayout.layout.layout import Layout
from relayout.layout.memory_format import (
    Atom,
    Extent,
    MemoryFormat,
    atom_extent,
    boxes_of,
    has_open_stride,
    padded_extent,
)


def names_for(layout: Layout, letters: str | None, numbers: str) -> str | None:
    """The axis names by which `layout` is bound: `numbers` if the layout has numbers for names, else `letters`."""
    return numbers if layout.is_numbered and layout.rank == len(numbers) else letters


def is_tiled(layout: Layout) -> bool:
    """Whether some dimension is the inner part of another."""
    return any(layout.outer(i) is not None for i in range(layout.rank))


def fill(wanted: str, native: str) -> str | None:
    """The names `wanted` with each `*` replaced by the next unused name of `native`; None if the names differ.

    >>> fill("N**C", "NCHW")
    'NHWC'
    """
    if len(wanted) != len(native):
        return None
    rest = iter([letter for letter in native if letter not in wanted])
    filled = "".join(next(rest, "?") if letter == "*" else letter for letter in wanted)
    return filled if sorted(filled) == sorted(native) else None


@lru_cache(maxsize=4096)
def bind(
    layout: Layout,
    letters: str,
    extents: tuple[Extent, ...] | None,
    element_size: int,
    *,
    native: str = "",
    pads: bool = False,
) -> MemoryFormat | None:
    """The memory format of an operand in a layout; None if the layout has other names or the format is impossible.

    `letters` has the names of the operand's axes in the source's order, `native` the same names in the order in which
    they replace `*`. `element_size` is in bytes. `pads` allows tiles that do not divide their axis, unless its extent
    is 1. The format has all axes, unit axes too. Without `extents` every tile is assumed to divide and every alignment
    to be met.
    """
    if not is_tiled(layout):
        names = layout.names if "*" not in layout.names else fill(layout.names, native or letters)
        if names is None or sorted(names) != sorted(letters):
            return None
        whole = [Atom(letters.index(name)) for name in names]
        return tuple(whole) if extents is None else _aligned(whole, layout, extents, element_size)
    tiles: dict[str, int] = {}
    for i in range(layout.rank):
        tile, outer = layout.tile(i), layout.outer(i)
        if outer is not None:
            if tile is None or layout.names[outer] in tiles:
                return None
            tiles[layout.names[outer]] = tile
    if sorted(n for i, n in enumerate(layout.names) if layout.outer(i) is None) != sorted(letters):
        return None
    atoms: list[Atom] = []
    for i, name in enumerate(layout.names):
        outer = layout.outer(i)
        letter = name if outer is None else layout.names[outer]
        axis, tile = letters.index(letter), tiles.get(letter)
        if tile is None:
            atoms.append(Atom(axis))
            continue
        if extents is None:
            atoms.append(Atom(axis, tile) if outer is None else Atom(axis, 1, tile))
            continue
        extent = extents[axis]
        if not isinstance(extent, int) or extent == 0 or (extent % tile and (not pads or extent == 1)):
            return None
        padded = -(-extent // tile) * tile
        atoms.append(Atom(axis, tile, padded if padded != extent else 0) if outer is None else Atom(axis, 1, tile))
    return tuple(atoms) if extents is None else _aligned(atoms, layout, extents, element_size)


def unbound(
    layout: Layout, letters: str, extents: tuple[Extent, ...], element_size: int, *, pads: bool = False
) -> str | None:
    """Why `bind` finds no memory format, in words; None where it finds one. The arguments are those of `bind`.

    >>> unbound(Layout.parse("NCHWc[tile:16]"), "NCHW", (1, 20, 7, 7), 4)
    '20 channels are no multiple of 16; `pads = true` would allow it'
    >>> unbound(Layout.parse("NCHWc[tile:16]"), "NCHW", (1, 1, 7, 7), 4, pads=True)
    '1 channel is no multiple of 16, and an axis of extent 1 is not padded'
    >>> unbound(Layout.parse("NXHW"), "NCHW", (1, 20, 7, 7), 4)
    'the axes are N, C, H, W: none is X'
    """
    if bind(layout, letters, extents, element_size, pads=pads) is not None:
        return None
    outer = [name for i, name in enumerate(layout.names) if layout.outer(i) is None]
    unknown = [name for name in outer if name not in letters and name != "*"]
    if unknown:
        return f"the axes are {', '.join(letters)}: none is {' or '.join(unknown)}"
    if len(outer) != len(letters):
        return f"the layout has {len(outer)} axes, the tensor {len(letters)}"
    for i in range(layout.rank):
        tile, place = layout.tile(i), layout.outer(i)
        if tile is None or place is None or layout.names[place] not in letters:
            continue
        letter = layout.names[place]
        extent = extents[letters.index(letter)]
        if not isinstance(extent, int):
            return f"the number of {_PLURALS.get(letter, letter)} is not known, so no tile of {tile} divides it"
        if extent % tile and extent == 1:
            return f"{_counted(extent, letter)} no multiple of {tile}, and an axis of extent 1 is not padded"
        if extent % tile and not pads:
            return f"{_counted(extent, letter)} no multiple of {tile}; `pads = true` would allow it"
    if any(layout.alignment(i) > 1 for i in range(layout.rank)):
        return f"no padding gives the strides the alignments of {layout}, with elements of {element_size} bytes"
    return None


_PLURALS = {"C": "channels", "N": "images", "O": "output channels", "I": "input channels", "H": "rows", "W": "columns"}


def _counted(extent: int, letter: str) -> str:
    """`20 channels are`, `1 channel is`."""
    plural = _PLURALS.get(letter)
    if plural is None:
        return f"the extent {extent} of {letter} is"
    return f"{extent} {plural} are" if extent != 1 else f"1 {plural.removesuffix('s')} is"


def _aligned(atoms: list[Atom], layout: Layout, extents: Sequence[Extent], element_size: int) -> MemoryFormat | None:
    """The atoms with each axis padded until the stride of the dimension before it is aligned; None if impossible."""
    stride: int | None = element_size
    for i in reversed(range(len(atoms))):
        alignment = layout.alignment(i)
        if stride is None:
            if alignment > 1:
                return None
        elif stride % alignment:
            if i + 1 >= len(atoms):
                return None  # the stride of the innermost dimension is the size of an element
            inner = stride // (_extent(atoms[i + 1], extents) or 1)
            step = alignment // gcd(alignment, inner)
            padded = _padded(atoms[i + 1], extents, step)
            if padded is None:
                return None
            atoms[i + 1] = padded
            stride = inner * (_extent(padded, extents) or 1)
        own = _extent(atoms[i], extents)
        stride = stride * own if stride is not None and own is not None else None
    return tuple(atoms)


def _padded(atom: Atom, extents: Sequence[Extent], step: int) -> Atom | None:
    """The outermost atom of an axis with its extent rounded up to a multiple of `step`; None if impossible."""
    extent = extents[atom.axis]
    own = _extent(atom, extents)
    if not isinstance(extent, int) or own is None or extent == 1 or (atom.outer and atom.outer < extent):
        return None
    return Atom(atom.axis, atom.inner, atom.inner * (-(-own // step) * step))


def _extent(atom: Atom, extents: Sequence[Extent]) -> int | None:
    extent = atom_extent(atom, extents)
    return extent if isinstance(extent, int) else None


@lru_cache(maxsize=4096)
def layout_of(order: MemoryFormat, letters: str, extents: tuple[Extent, ...] | None = None) -> Layout | None:
    """The layout of a memory format of all axes, inner factors in lower case; None if no layout expresses it.

    With `extents` a padded axis has the number of its zeros as an extension, `[pad:8]`. A tile of one element is a
    dimension of extent 1, `Atom(axis, 1, 1)`.

    >>> str(layout_of((Atom(0), Atom(1, 16), Atom(2), Atom(1, 1, 16)), "NCW"))
    'NCWc[tile:16]'
    """
    if letters.isdecimal():
        return Layout.from_names("".join(letters[a.axis] for a in order)) if all(a.is_whole for a in order) else None
    if any(map(has_open_stride, order)):
        return None
    names: list[str] = []
    for atom in order:
        letter = letters[atom.axis]
        whole = atom.inner == 1 and atom.outer != 1 and _outer_stride(order, atom) < max(atom.outer, 2)
        if whole or (atom.inner > 1 and not letter.islower()):
            names.append(letter + _pad_box(order, atom.axis, extents))
        elif not letter.islower():
            names.append(f"{letter.lower()}[tile:{atom.outer or _outer_stride(order, atom)}]")
        else:
            return None
    plain = [name[0] for name in names]
    if len(set(plain)) != len(plain) or len(plain) > 8:
        return None
    return Layout.parse("".join(names))


def carrying(layout: Layout, order: MemoryFormat) -> Layout:
    """The layout of a memory format, with the black boxes of the format's dimensions added."""
    for axis, inner, namespace, data in boxes_of(order):
        index = next((i for i, atom in enumerate(order) if (atom.axis, atom.inner) == (axis, inner)), None)
        if index is not None:
            layout = layout.with_boxes(index, [(namespace, data)])
    return layout


def _pad_box(order: MemoryFormat, axis: int, extents: Sequence[Extent] | None) -> str:
    if extents is None:
        return ""
    extent, padded = extents[axis], padded_extent(order, axis, extents)
    return f"[pad:{padded - extent}]" if isinstance(extent, int) and isinstance(padded, int) and padded > extent else ""


def _outer_stride(order: MemoryFormat, atom: Atom) -> int:
    """The inner stride of the outer atom of the same axis; 0 if there is none.

    A tile that is as large as its axis has `outer` 0, so only its outer atom has its size.
    """
    return max((other.inner for other in order if other.axis == atom.axis), default=0) if atom.inner == 1 else 0
