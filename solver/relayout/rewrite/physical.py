"""Tensors as the legal model holds them: groups of atoms as dimensions, and the nodes between two such.

A dimension is a group of atoms of the root's axes, outermost first; a unit dimension is the empty group, for a unit
axis has no place. A Reshape regroups without moving anything; a Transpose moves whole groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import onnx_ir as ir

from relayout.memory_format import Atom, Extent, Order, atom_extent, normal_form

__all__ = ["Dims", "Emitter", "Physical", "same_but_leading_units"]

Dims = tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class Physical:
    """A value of the legal model and what its dimensions are."""

    value: ir.Value
    dims: Dims


def same_but_leading_units(dims: Dims, other: Dims) -> bool:
    """Whether the two differ in unit dimensions at the front only, which broadcasting from the right adds by itself."""
    short, long = sorted((dims, other), key=len)
    lead = len(long) - len(short)
    return all(group == () for group in long[:lead]) and long[lead:] == short


class Emitter:
    """Makes the nodes that turn one physical tensor into another; they collect in `emitted` until they are placed."""

    def __init__(self, names: set[str], opset: int) -> None:
        self.emitted: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._names = names
        self._opset = opset

    def fresh(self, stem: str) -> str:
        """A value or node name that the model does not have yet."""
        name, count = stem, 1
        while name in self._names:
            name, count = f"{stem}_{count}", count + 1
        self._names.add(name)
        return name

    def integers(self, stem: str, values: Sequence[int]) -> ir.Value:
        """A new constant vector of int64."""
        return self.constant(stem, np.array(values, np.int64))

    def constant(self, stem: str, array: np.ndarray) -> ir.Value:
        name = self.fresh(stem)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def node(
        self,
        operator: str,
        inputs: Sequence[ir.Value],
        attributes: dict[str, int | list[int]],
        like: ir.Value,
        shape: Sequence[Extent],
        stem: str,
    ) -> ir.Value:
        """A new node with one result of `shape`, of the type of `like`."""
        result = ir.Value(name=self.fresh(stem), shape=ir.Shape(shape), type=like.type)
        made = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        node = ir.Node("", operator, inputs, made, outputs=[result], name=self.fresh(f"{stem}_{operator}"))
        self.emitted.append(node)
        return result

    def transpose(self, source: Physical, target: Dims, extents: tuple[Extent, ...], stem: str) -> Physical:
        """`source` with its atoms in the order of `target`, which has the same atoms: one Transpose, and Reshapes where
        dimensions split or merge."""
        groups = [g for g in source.dims if g]
        if sorted(groups) != sorted(g for g in target if g):
            fine_source, fine_target = _common_groups(source.dims, target, extents)
            source = self.regroup(source, fine_source, extents, stem)
            return self.regroup(self.transpose(source, fine_target, extents, stem), target, extents, stem)
        units = [place for place, group in enumerate(source.dims) if not group]
        perm: list[int] = []
        reached: list[Order] = []
        for group in target:
            if group:
                perm.append(source.dims.index(group))
                reached.append(group)
            elif units:
                perm.append(units.pop(0))
                reached.append(())
        perm, reached = units + perm, [()] * len(units) + reached
        shape = dims_shape(tuple(reached), extents)
        value = self.node("Transpose", [source.value], {"perm": perm}, source.value, shape, stem)
        return self.regroup(Physical(value, tuple(reached)), target, extents, stem)

    def regroup(self, source: Physical, target: Dims, extents: tuple[Extent, ...], stem: str) -> Physical:
        """The same memory with other dimensions: Squeeze or Unsqueeze where that is all, else Reshape."""
        if source.dims == target:
            return source
        if [g for g in source.dims if g] == [g for g in target if g]:
            return self._units(source, target, extents, stem)
        shape = reshape_target(source.dims, target, extents)
        if shape is None:
            raise ValueError(f"no static Reshape from {source.dims} to {target}")
        return self._reshape(source, target, shape, extents, stem)

    def _reshape(
        self, source: Physical, target: Dims, shape: Sequence[int], extents: tuple[Extent, ...], stem: str
    ) -> Physical:
        given = self.integers(f"{stem}_shape", shape)
        value = self.node("Reshape", [source.value, given], {}, source.value, dims_shape(target, extents), stem)
        return Physical(value, target)

    def _units(self, source: Physical, target: Dims, extents: tuple[Extent, ...], stem: str) -> Physical:
        """Unit dimensions leave or come. With both at once a Reshape is one node less, where its shape can be said."""
        gone, come = _unit_changes(source.dims, target)
        if gone and come:
            shape = reshape_target(source.dims, target, extents)
            if shape is not None:
                return self._reshape(source, target, shape, extents, stem)
            bare = tuple(g for i, g in enumerate(source.dims) if i not in set(gone))
            return self._units(self._units(source, bare, extents, stem), target, extents, stem)
        operator, axes = ("Squeeze", gone) if gone else ("Unsqueeze", come)
        shape_after = dims_shape(target, extents)
        if self._opset < 13:
            value = self.node(operator, [source.value], {"axes": axes}, source.value, shape_after, stem)
        else:
            given = self.integers(f"{stem}_axes", axes)
            value = self.node(operator, [source.value, given], {}, source.value, shape_after, stem)
        return Physical(value, target)


def dims_shape(dims: Dims, extents: tuple[Extent, ...]) -> list[Extent]:
    """The extent of each group: an int, the axis's own symbol, or None."""
    shape: list[Extent] = []
    for group in dims:
        parts = [atom_extent(atom, extents) for atom in group]
        if all(isinstance(p, int) for p in parts):
            product = 1
            for p in parts:
                product *= p if isinstance(p, int) else 1
            shape.append(product)
        else:
            shape.append(parts[0] if len(parts) == 1 else None)
    return shape


def reshape_target(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> list[int] | None:
    """The shape input of a Reshape: numbers, 0 where a dimension stays in its place, one -1; None if that won't do."""
    shape: list[int] = []
    open_places = 0
    if 0 in extents:
        return None  # 0 would mean "as it was", and -1 nothing at all
    for place, extent in enumerate(dims_shape(target, extents)):
        if isinstance(extent, int):
            shape.append(extent)
        elif place < len(source) and source[place] == target[place]:
            shape.append(0)
        else:
            shape.append(-1)
            open_places += 1
    return shape if open_places <= 1 else None


def _unit_changes(source: Dims, target: Dims) -> tuple[list[int], list[int]]:
    """Which unit dimensions of the source leave and which of the target come, keeping those that stand alike."""
    gone: list[int] = []
    come: list[int] = []
    i = j = 0
    while i < len(source) or j < len(target):
        a = source[i] if i < len(source) else None
        b = target[j] if j < len(target) else None
        if a is not None and a == b:
            i, j = i + 1, j + 1
        elif a == ():
            gone.append(i)
            i += 1
        else:
            come.append(j)
            j += 1
    return gone, come


def _common_groups(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> tuple[Dims, Dims]:
    """Both as groups that move as wholes: atoms cut where either side cuts, joined where both have them together."""
    left, right = list(chain.from_iterable(source)), list(chain.from_iterable(target))
    cuts: dict[int, set[int]] = {}
    for atom in (*left, *right):
        cuts.setdefault(atom.axis, set()).update((atom.inner, atom.outer))

    def cut(atoms: list[Atom]) -> list[Atom]:
        pieces: list[Atom] = []
        for atom in atoms:
            inside = sorted(
                (c for c in cuts[atom.axis] if c > atom.inner and (not atom.outer or c < atom.outer)), reverse=True
            )
            bounds = [atom.outer, *inside, atom.inner]
            pieces += [
                Atom(atom.axis, low, high) for high, low in pairwise(bounds)
            ]
        return pieces

    fine_left, fine_right = cut(left), cut(right)
    follows = set(pairwise(fine_right))
    groups: list[list[Atom]] = []
    for place, atom in enumerate(fine_left):
        if place and (fine_left[place - 1], atom) in follows:
            groups[-1].append(atom)
        else:
            groups.append([atom])
    joined = {group[0]: normal_form(tuple(group), extents) for group in groups}
    return tuple(joined[g[0]] for g in groups), tuple(joined[a] for a in fine_right if a in joined)
