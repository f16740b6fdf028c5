"""Tensors of the legal model, and the nodes that convert between two of them (see `relayout.layout.conversion`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from relayout.layout.conversion import Dims, Stage, dims_shape, flat, path
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, atom_extent, normal_form
from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.layout.terms import dividend_of, term_of
from relayout.model.proto_graphs import unused_name
from relayout.ops import Edit, extents_of

# Before this opset a Constant can only be a float.
_CONSTANTS_OF_ANY_TYPE = 9
# Before this opset a 0 in the shape of a Reshape always copies a dimension; since then `allowzero` can say otherwise.
_ZERO_IS_AN_EXTENT = 14


class Physical(Struct, frozen=True):
    """A value of the legal model, and the atoms of its dimensions.

    `shape` is the value's own shape if it differs from `dims` over the same memory: a blocked tensor that an operator
    declares with fewer dimensions.
    """

    value: ir.Value
    dims: Dims
    shape: tuple[Extent, ...] | None = None


def attribute_of(name: str, value: Any) -> ir.Attr:
    """The attribute of this value, with the type that onnx_ir infers from it. An attribute of a node is itself."""
    if isinstance(value, ir.Attr):
        return value
    # onnx_ir asks whether a list is a graph, a tensor or a type before it looks at its items.
    if isinstance(value, list | tuple) and value and all(isinstance(item, int) for item in value):
        return ir.AttrInt64s(name, value)
    return ir.convenience.convert_attribute(name, value)


def same_but_leading_units(dims: Dims, other: Dims) -> bool:
    """Whether the two differ only in leading unit dimensions, which broadcasting adds."""
    short, long = sorted((dims, other), key=len)
    lead = len(long) - len(short)
    return all(group == () for group in long[:lead]) and long[lead:] == short


class _Extents:
    """The values of one region at one device whose extents have names, and the extents that were read off them."""

    __slots__ = ("dims", "read", "shaped", "shapes")

    def __init__(self) -> None:
        # By name, the first value that has a dim of it, and the place of the dim.
        self.dims: dict[str, tuple[ir.Value, int]] = {}
        # By its shape of numbers and names, the first value that has it.
        self.shaped: dict[tuple[Extent, ...], ir.Value] = {}
        self.read: dict[str, ir.Value] = {}
        self.shapes: dict[ir.Value, ir.Value] = {}


class Emitter:
    """Makes the nodes that convert one physical tensor to another, and collects them in `emitted`."""

    def __init__(self, names: set[str], opset: int, *, in_function: bool = False) -> None:
        """In a function's body constants are nodes."""
        self.emitted: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self.opset = opset
        self._names = names
        self._in_function = in_function
        self._device = ""
        self._known: dict[str, _Extents] = {}
        self._here = self._known.setdefault("", _Extents())
        # The names of all devices and of the enclosing regions.
        self._anywhere: dict[str, tuple[ir.Value, int]] = {}

    def at(self, device: str) -> None:
        """Emit nodes for this device from here on. They read extents off its values, as far as these tell."""
        self._device = device
        self._here = self._known.setdefault(device, _Extents())

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A context for the nodes of a region, at whose end the extents read in it are forgotten.

        A name that a value of the region has is read off that value: the state of a loop may grow under its name.
        """
        outer = self._known, self._anywhere
        self._known, self._anywhere = {}, {**self._anywhere}
        self.at(self._device)
        yield
        self._known, self._anywhere = outer
        self.at(self._device)

    def know(self, value: ir.Value) -> None:
        """Let later nodes read the extents of this value that have names."""
        shape = extents_of(value)
        if shape is None:
            return
        for place, extent in enumerate(shape):
            if isinstance(extent, str):
                self._here.dims.setdefault(extent, (value, place))
                self._anywhere.setdefault(extent, (value, place))
        if None not in shape:
            self._here.shaped.setdefault(shape, value)

    def fresh(self, stem: str) -> str:
        """A value or node name that the model does not have yet: the stem itself, or with a number."""
        return unused_name(stem, self._names)

    def integers(self, stem: str, values: Sequence[int]) -> ir.Value:
        """A new constant vector of int64."""
        return self.constant(stem, np.array(values, np.int64))

    def constant(self, stem: str, array: np.ndarray[Any, Any]) -> ir.Value:
        name = self.fresh(stem)
        if self._in_function and self.opset < _CONSTANTS_OF_ANY_TYPE and array.dtype.kind == "i":
            given = self.constant(f"{name}_given", array.astype(np.float32))
            made = ir.Node("", "Cast", [given], [ir.AttrInt64("to", 7)], outputs=[ir.Value(name=name)])
            self.emitted.append(made)
            return made.outputs[0]
        tensor = ir.Tensor(array, name=name)
        if self._in_function:
            made = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[ir.Value(name=name)])
            self.emitted.append(made)
            return made.outputs[0]
        value = ir.val(name, const_value=tensor)
        self.constants.append(value)
        return value

    def node(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        like: ir.Value | None,
        shape: Sequence[Extent],
        stem: str,
        *,
        domain: str = "",
        overload: str = "",
    ) -> ir.Value:
        """A new node with one result of `shape`, of the type of `like`; int64 if that is None."""
        kind = like.type if like is not None else ir.TensorType(ir.DataType.INT64)
        # A function's body serves many shapes and types, so its values have none.
        known = None if self._in_function else ir.Shape(shape)
        result = ir.Value(name=self.fresh(stem), shape=known, type=None if self._in_function else kind)
        made = [attribute_of(name, value) for name, value in attributes.items()]
        name = self.fresh(f"{stem}_{operator}")
        node = ir.Node(domain, operator, inputs, made, outputs=[result], name=name, overload=overload)
        self.emitted.append(node)
        return result

    def edit(self, node: ir.Node, edit: Edit, stem: str) -> None:
        """Give a node new attributes, and new inputs, whose names begin with `stem`."""
        for name, setting in edit.attributes.items():
            if setting is None:
                node.attributes.pop(name, None)
            else:
                node.attributes[name] = attribute_of(name, setting)
        for index, array in edit.constants.items():
            if index >= len(node.inputs):
                node.resize_inputs(index + 1)
            node.replace_input_with(index, self.constant(f"{stem}_{index}", array))
        for index, places in edit.reordered.items():
            vector = node.inputs[index]
            assert vector is not None  # its length is known
            if places != tuple(range(len(places))):
                order = self.integers(f"{stem}_{index}_places", places)
                name = f"{stem}_{index}_in_order"
                read = self.node("Gather", [vector, order], {"axis": 0}, vector, [len(places)], name)
                node.replace_input_with(index, read)

    def convert(self, source: Physical, target: Dims, extents: tuple[Extent, ...], stem: str) -> Physical:
        """The same tensor with the dimensions `target`: a Transpose where something moves, Pad and Slice where an axis
        is longer on one side, Reshapes where dimensions split or merge."""
        *_, reached = (source, *self.on_the_way(source, target, extents, stem))
        return reached

    def on_the_way(self, source: Physical, target: Dims, extents: tuple[Extent, ...], stem: str) -> Iterator[Physical]:
        """The tensors after each node of the conversion to `target`, which is last; empty if no node is needed."""
        if source.shape is not None:
            source = Physical(self._reshaped(source, source.dims, extents, stem), source.dims)
            yield source
        for stage in path(source.dims, target, extents):
            source = self._stage(source, stage, extents, stem)
            yield source

    def shaped(self, source: Physical, shape: tuple[Extent, ...], extents: tuple[Extent, ...], stem: str) -> Physical:
        """The same memory as a tensor of that shape."""
        own = tuple(source.value.shape) if source.value.shape is not None else ()
        given = [
            extent if isinstance(extent, int) else 0 if place < len(own) and _same(own[place], extent) else -1
            for place, extent in enumerate(shape)
        ]
        if given.count(-1) > 1:
            value = self._reshape_at_run_time(source, _whole_axes(shape, extents), shape, extents, stem)
        else:
            value = self._reshape_to(source.value, given, shape, stem)
        return Physical(value, source.dims, shape)

    def _stage(self, source: Physical, stage: Stage, extents: tuple[Extent, ...], stem: str) -> Physical:
        shape = dims_shape(stage.dims, extents)
        value = source.value
        if stage.kind == "transpose":
            value = self.node("Transpose", [value], {"perm": list(stage.perm)}, value, shape, stem)
        elif stage.kind == "pad":
            value = self.padded(value, stage.zeros, shape, stem)
            self.emitted[-1].metadata_props[CONVERSION_KEY] = stage.kind
        elif stage.kind == "crop":
            value = self.cropped(value, [place for place, zeros in enumerate(stage.zeros) if zeros], shape, stem)
            self.emitted[-1].metadata_props[CONVERSION_KEY] = stage.kind
        elif [g for g in source.dims if g] == [g for g in stage.dims if g]:
            return self._units(source, stage.dims, extents, stem)
        else:
            value = self._reshaped(source, stage.dims, extents, stem)
        return Physical(value, stage.dims)

    def _reshaped(self, source: Physical, target: Dims, extents: tuple[Extent, ...], stem: str) -> ir.Value:
        """A Reshape. Its shape is a constant if possible, else computed from the tensor's shape."""
        shape = dims_shape(target, extents)
        given = _static_target(source.dims if source.shape is None else None, source.shape, target, extents)
        if given is not None:
            return self._reshape_to(source.value, given, shape, stem)
        if shape.count(0) > 1 and self.opset < _ZERO_IS_AN_EXTENT:
            raise ValueError(f"no Reshape from {source.dims} to {target}")
        return self._reshape_at_run_time(source, target, shape, extents, stem)

    def _reshape_at_run_time(
        self, source: Physical, target: Dims, shape: Sequence[Extent], extents: tuple[Extent, ...], stem: str
    ) -> ir.Value:
        """A Reshape to `shape`; its extents that are no numbers are those of `target`. They are the shape of another
        value where one is known to have it, else read one by one: by name off any value, else off the source.

        None of them copies a dimension where it is 0. Opsets that cannot say so have -1 for an extent known to be 0.
        """
        attributes = {"allowzero": 1} if self.opset >= _ZERO_IS_AN_EXTENT else {}
        wanted = [-1 if not attributes and extent == 0 else extent for extent in shape]
        numbers = [extent for extent in wanted if isinstance(extent, int)]
        if len(numbers) == len(wanted):
            fixed = self.integers(f"{stem}_shape", numbers)
            return self.node("Reshape", [source.value, fixed], attributes, source.value, shape, stem)
        if (alike := self._here.shaped.get(tuple(wanted))) is not None:
            read = self._shape_of(alike, len(shape))
            return self.node("Reshape", [source.value, read], attributes, source.value, shape, stem)
        own = source.dims if source.shape is None else _whole_axes(source.shape, extents)
        parts = [
            self.integers(f"{stem}_extent", [extent])
            if isinstance(extent, int)
            else (self._extent_named(extent, stem) if extent in self._here.dims else None)
            or self._extent_of(group, own, source.value, extents, stem)
            or self._extent_named(extent, stem)
            for group, extent in zip(target, wanted, strict=True)
        ]
        given = [part for part in parts if part is not None]
        if len(given) < len(parts):
            raise ValueError(f"no extents of {target} in {own}")
        given_value = self.node("Concat", given, {"axis": 0}, None, [len(given)], f"{stem}_shape")
        return self.node("Reshape", [source.value, given_value], attributes, source.value, shape, stem)

    def _shape_of(self, value: ir.Value, rank: int) -> ir.Value:
        """The shape of a value at run time, read once."""
        shapes = self._here.shapes
        if value not in shapes:
            shapes[value] = self.node("Shape", [value], {}, None, [rank], f"{value.name}_extents")
        return shapes[value]

    def _extent_of(
        self, group: MemoryFormat, own: Dims, value: ir.Value, extents: tuple[Extent, ...], stem: str
    ) -> ir.Value | None:
        """The group's extent at run time: that of a dimension, of several that merge, a part of one that splits, or a
        product of these. None where the dimensions do not tell."""
        if not group:
            return None
        if len(group) == 1 and isinstance(size := atom_extent(group[0], extents), int):
            return self.integers(f"{stem}_extent", [size])
        for first in range(len(own)):
            for last in range(first + 1, len(own) + 1):
                if normal_form(flat(own[first:last]), extents) == normal_form(group, extents):
                    places = [place for place in range(first, last) if own[place]]
                    read = self._gathered(self._shape_of(value, len(own)), places, stem)
                    if len(places) == 1:
                        return read
                    return self.node("ReduceProd", [read], {"keepdims": 1}, None, [1], f"{stem}_extent")
        for place, whole_group in enumerate(own):
            cut = [atom for atom in whole_group if any(a.axis == atom.axis for a in group)]
            others = [atom_extent(atom, extents) for atom in whole_group if atom not in cut]
            sizes = [extent for extent in others if isinstance(extent, int)]
            is_in_it = len(group) == 1 and len(cut) == 1 and (cut[0].inner, cut[0].outer) == (1, group[0].outer)
            if is_in_it and len(sizes) == len(others):
                divisor = self.integers(f"{stem}_part", [group[0].inner * prod(sizes)])
                read = self._gathered(self._shape_of(value, len(own)), [place], stem)
                return self.node("Div", [read, divisor], {}, None, [1], f"{stem}_extent")
        parts = [self._extent_of((atom,), own, value, extents, stem) for atom in group] if len(group) > 1 else []
        factors = [part for part in parts if part is not None]
        if not factors or len(factors) < len(group):
            return None
        read = self.node("Concat", factors, {"axis": 0}, None, [len(factors)], f"{stem}_extent")
        return self.node("ReduceProd", [read], {"keepdims": 1}, None, [1], f"{stem}_extent")

    def _extent_named(self, extent: Extent, stem: str) -> ir.Value | None:
        """The extent of this name at run time, read off the first value that has it; None where no value has."""
        if not isinstance(extent, str):
            return None
        read = self._here.read
        if extent in read:
            return read[extent]
        if (dim := self._here.dims.get(extent) or self._anywhere.get(extent)) is not None:
            value, place = dim
            read[extent] = self._gathered(self._shape_of(value, len(value.shape or ())), [place], stem)
            return read[extent]
        if (parts := dividend_of(extent)) is not None:
            whole = self._extent_named(parts[0], stem)
            if whole is None:
                return None
            divisor = self.integers(f"{stem}_part", [parts[1]])
            read[extent] = self.node("Div", [whole, divisor], {}, whole, [1], f"{stem}_extent")
            return read[extent]
        term = term_of(extent)
        factors = [self._extent_named(name, stem) if name != extent else None for name in term.names]
        if None in factors or term.factor.denominator != 1:
            return None
        found = self.integers(f"{stem}_extent", [int(term.factor)])
        for each in factors:
            found = self.node("Mul", [found, each], {}, each, [1], f"{stem}_extent")
        read[extent] = found
        return found

    def _gathered(self, whole: ir.Value, places: Sequence[int], stem: str) -> ir.Value:
        read = [whole, self.integers(f"{stem}_places", places)]
        return self.node("Gather", read, {"axis": 0}, whole, [len(places)], f"{stem}_extent")

    def _reshape_to(self, value: ir.Value, given: Sequence[int], shape: Sequence[Extent], stem: str) -> ir.Value:
        return self.node("Reshape", [value, self.integers(f"{stem}_shape", given)], {}, value, shape, stem)

    def padded(self, value: ir.Value, ends: Sequence[int], shape: Sequence[Extent], stem: str) -> ir.Value:
        """`value` with this many zeros added at the end of each dimension, which makes it `shape`."""
        pads = [0] * len(ends) + list(ends)
        if self.opset < 11:
            return self.node("Pad", [value], {"pads": pads}, value, shape, stem)
        return self.node("Pad", [value, self.integers(f"{stem}_pads", pads)], {}, value, shape, stem)

    def cropped(self, value: ir.Value, places: Sequence[int], shape: Sequence[Extent], stem: str) -> ir.Value:
        """`value` without the end of these dimensions, which makes it `shape`, as far as they are known."""
        starts, ends = [0] * len(places), [extent for p in places if isinstance(extent := shape[p], int)]
        if self.opset < 10:
            window = {"starts": starts, "ends": ends, "axes": list(places)}
            return self.node("Slice", [value], window, value, shape, stem)
        numbers = {"start": starts, "end": ends, "axis": places}
        bounds = [self.integers(f"{stem}_{what}", given) for what, given in numbers.items()]
        return self.node("Slice", [value, *bounds], {}, value, shape, stem)

    def _units(self, source: Physical, target: Dims, extents: tuple[Extent, ...], stem: str) -> Physical:
        """Remove or add unit dimensions.

        For both at once one Reshape suffices if its shape is static. But with a copied dimension, which may be 0 at run
        time, runtimes cannot infer the extent of a -1.
        """
        gone, come = _unit_changes(source.dims, target)
        if gone and come:
            given = _static_target(source.dims, None, target, extents)
            if given is not None and not {0, -1} <= {*given}:
                return Physical(self._reshape_to(source.value, given, dims_shape(target, extents), stem), target)
            bare = tuple(g for i, g in enumerate(source.dims) if i not in set(gone))
            return self._units(self._units(source, bare, extents, stem), target, extents, stem)
        operator, axes = ("Squeeze", gone) if gone else ("Unsqueeze", come)
        shape_after = dims_shape(target, extents)
        if self.opset < 13:
            value = self.node(operator, [source.value], {"axes": axes}, source.value, shape_after, stem)
        else:
            given_axes = self.integers(f"{stem}_axes", axes)
            value = self.node(operator, [source.value, given_axes], {}, source.value, shape_after, stem)
        return Physical(value, target)


def _static_target(
    source: Dims | None, own_shape: tuple[Extent, ...] | None, target: Dims, extents: tuple[Extent, ...]
) -> list[int] | None:
    """The shape input of a Reshape: numbers, 0 for a dimension that keeps its index, one -1; None if impossible."""
    if 0 in extents:
        return None  # 0 would copy a dimension, and -1 would be ambiguous
    source, own_shape = source or (), own_shape or ()
    shape: list[int] = []
    for place, extent in enumerate(dims_shape(target, extents)):
        same_atoms = place < len(source) and source[place] == target[place]
        same_extent = place < len(own_shape) and _same(own_shape[place], extent)
        shape.append(extent if isinstance(extent, int) else 0 if same_atoms or same_extent else -1)
    return shape if shape.count(-1) <= 1 else None


def _whole_axes(shape: tuple[Extent, ...], extents: tuple[Extent, ...]) -> Dims:
    """For each dimension of an aliased shape, the axis that has its extent; none for a number, or if no axis has it.

    Axes are found by the names of their extents. Unnamed extents are matched in order, if both sides have as many.
    """
    unnamed = [axis for axis, extent in enumerate(extents) if extent is None]
    in_order = iter(unnamed if shape.count(None) == len(unnamed) else ())

    def axis_of(extent: Extent) -> int | None:
        if extent is None:
            return next(in_order, None)
        return next((axis for axis, known in enumerate(extents) if known == extent), None)

    axes = [None if isinstance(extent, int) else axis_of(extent) for extent in shape]
    return tuple(() if axis is None else (Atom(axis),) for axis in axes)


def _same(one: object, other: object) -> bool:
    """Whether two extents are one known symbol."""
    name = one.value if isinstance(one, ir.SymbolicDim) else one
    return name is not None and name == (other.value if isinstance(other, ir.SymbolicDim) else other)


def _unit_changes(source: Dims, target: Dims) -> tuple[list[int], list[int]]:
    """The unit dimensions of the source to remove and those of the target to add; unchanged ones are in neither."""
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
