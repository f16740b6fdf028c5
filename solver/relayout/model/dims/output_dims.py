"""Dims that outputs declare under names of their own, such as `out_h` behind a convolution over an open `height`.

Inference keeps a declared name, and gives it to the values inside. There it would hide that the extent is
`(height - 1)//2 + 1`. So a name that no input has is taken off where the operators tell the extent, and the legal model
declares it again. PyTorch's TorchScript exporter makes up such names too: `Gemm839_dim_0`, sometimes of the dim of
another output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from relayout.errors import InputError
from relayout.layout.metadata_keys import EXTENTS_KEY
from relayout.layout.terms import GENERATED
from relayout.model.dims.constant_propagation import Inferred
from relayout.model.dims.formula import formula_names
from relayout.model.proto_graphs import copied, subgraphs_of
from relayout.ops.node_reader import extents_of

Declared = int | str | None

_NAMES = "relayout.declared_names"


def open_output_dims(proto: onnx.ModelProto, infer: Callable[[onnx.ModelProto], Inferred]) -> Inferred | None:
    """Remove the name of each dim of an output where no input has that name and the operators give a number, or a
    formula of the inputs' dims. Values inside lose a name that has no place left.

    `infer` fills shapes in, and uses its argument up. Its result is returned where it is that of the changed model.
    """
    fed = _fed_names(proto)
    for value in proto.graph.output:
        _enter_noted_extents(value, fed)
    own = set(_own_names(proto, fed))
    if not own:
        return None
    probe = copied(proto)
    for value in _results(probe):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in own:
                dim.Clear()
    try:
        inferred = infer(probe)
    except InputError:
        return None  # the model itself is inferred next, and its fault told
    kept = set()
    for value, known in zip(proto.graph.output, inferred.proto.graph.output, strict=True):
        dims, found = value.type.tensor_type.shape.dim, known.type.tensor_type.shape.dim
        for place, dim in enumerate(dims):
            if dim.dim_param not in own:
                continue
            if len(found) == len(dims) and _is_known(found[place], fed):
                dim.Clear()
            else:
                kept.add(dim.dim_param)
    for value in _results(proto):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in own - kept:
                dim.Clear()
    return None if kept else inferred


def _enter_noted_extents(value: onnx.ValueInfoProto, fed: frozenset[str]) -> None:
    """Give the dims of an output of a legal model the extents that are noted on it: formulas of the inputs' dims, as
    far as these have such names, or nothing where an extent is not known."""
    noted = [entry.value for entry in value.metadata_props if entry.key == EXTENTS_KEY]
    dims = value.type.tensor_type.shape.dim
    try:
        found = json.loads(noted[0]) if noted else None
    except (ValueError, RecursionError):
        return
    if not isinstance(found, list) or len(found) != len(dims):
        return
    for dim, text in zip(dims, found, strict=True):
        if not isinstance(text, str) or not dim.dim_param:
            continue
        formula = onnx.TensorShapeProto.Dimension(dim_param=text)
        if not text or _is_known(formula, fed):
            dim.CopyFrom(formula)


def _own_names(proto: onnx.ModelProto, fed: frozenset[str]) -> Iterator[str]:
    """The names of output dims that are neither names of input dims nor formulas of these; inference finds those that
    it has generated anew."""
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and not _is_known(dim, fed) and not dim.dim_param.startswith(GENERATED):
                yield dim.dim_param


def _fed_names(proto: onnx.ModelProto) -> frozenset[str]:
    fed = (dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim)
    return frozenset(fed) - {""}


def _is_known(dim: onnx.TensorShapeProto.Dimension, fed: frozenset[str]) -> bool:
    """Whether the extent is a number, a dim of an input, or a formula of these."""
    if dim.HasField("dim_value") or dim.dim_param in fed:
        return True
    names = formula_names(dim.dim_param)
    return bool(names) and names is not None and names <= fed


def _results(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    for graph in subgraphs_of(proto.graph):
        yield from graph.value_info
        yield from graph.output


def note_names(model: ir.Model, declared: Mapping[str, Sequence[Declared] | None]) -> None:
    """Note on each output the names that its file has `declared` for dims of which inference tells more."""
    for value in model.graph.outputs:
        stated = declared.get(value.name or "")
        if stated is None or value.shape is None or len(stated) != len(value.shape):
            continue
        names = [
            name if isinstance(name, str) and isinstance(dim, ir.SymbolicDim) and _says_less(name, dim) else None
            for name, dim in zip(stated, value.shape, strict=True)
        ]
        if any(names):
            value.meta[_NAMES] = tuple(names)


def _says_less(name: str, dim: ir.SymbolicDim) -> bool:
    return name != dim.value and not name.startswith(GENERATED)


def noted_names(value: ir.Value) -> tuple[str | None, ...]:
    """The names that are noted on an output, one a dim; None for a dim that has none, and no entries for no names."""
    names: tuple[str | None, ...] = value.meta.get(_NAMES, ())
    return names


def carry_names(value: ir.Value, names: Sequence[str | None]) -> None:
    """Note these names on an output of the legal model, one a dim."""
    value.meta.pop(_NAMES, None)
    if any(names):
        value.meta[_NAMES] = tuple(names)


def formulas_of_names(model: ir.Model) -> dict[str, str]:
    """The extent of each dim whose name is noted on an output, as a formula of the inputs' dims."""
    return {
        name: dim.value
        for value in model.graph.outputs
        for name, dim in zip(noted_names(value), value.shape or (), strict=False)
        if name is not None and isinstance(dim, ir.SymbolicDim) and dim.value is not None
    }


def declare_names(model: ir.Model, *, notes: bool) -> bool:
    """Declare the dims of outputs under the names that are noted, in place, once. With `notes`, the extents of these
    dims are written into the outputs' metadata. Returns whether there was a name."""
    named = [value for value in model.graph.outputs if value.shape is not None and noted_names(value)]
    for value in named:
        shape = value.shape
        assert shape is not None
        names = noted_names(value)
        if notes:
            extents = [None if name is None else _extent_text(dim) for name, dim in zip(names, shape, strict=True)]
            value.metadata_props[EXTENTS_KEY] = json.dumps(extents)
        value.shape = ir.Shape(noted_extents(value) or (), [shape.get_denotation(place) for place in range(len(shape))])
        del value.meta[_NAMES]
    return bool(named)


def noted_extents(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """The extents of an input or output under the names that are noted; None for an unknown rank."""
    dims = extents_of(value)
    if dims is None:
        return None
    names = noted_names(value) or (None,) * len(dims)
    return tuple([dim if name is None else name for name, dim in zip(names, dims, strict=True)])


def _extent_text(dim: int | ir.SymbolicDim) -> str:
    text = str(dim)
    return "" if text.startswith(GENERATED) else text
