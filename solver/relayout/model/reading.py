"""From an opened source to an `onnx_ir.Model`, one stage after the other.

| stage | result |
|---|---|
| `io.read_model` opens the source | `Opened`: a protobuf or an `onnx_ir.Model` |
| `detached` | `Light`: a checked protobuf without large constants, and these |
| `normalized` | `Light` in canonical form |
| `model_from`, by `infer_in_rounds` | `onnx_ir.Model` with the types of all values and its constants |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from hashlib import sha256

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import BOUNDARY_LAYOUT_KEY, SOURCE_HASH_KEY
from relayout.model.dims.constant_propagation import Inferred, infer_with_values
from relayout.model.dims.declared_dims import correct_declared_dims, do_agree, open_wrong_outputs
from relayout.model.dims.inference_rounds import infer_in_rounds
from relayout.model.dims.output_dims import note_names
from relayout.model.dims.shape_merging import name_input_dims, share_input_shapes
from relayout.model.external_data import Folder
from relayout.model.layout_functions import with_bodies
from relayout.model.layout_transform import deduce_permutations
from relayout.model.normalize import normalize
from relayout.model.onnx_file import LARGEST_FILE
from relayout.model.opset_conversion import lifted
from relayout.model.proto_graphs import copied
from relayout.model.serialization import model_of
from relayout.model.shape_checks import check_shapes
from relayout.model.shape_inference import infer_shapes
from relayout.model.structure import Structure, check_structure
from relayout.model.weights import Weights, attach, detach, detach_from_model, load_small
from relayout.ops import extents_of, nested_graphs

WARNINGS_KEY = "relayout.warnings"
DECLARED_KEY = "relayout.declared"

Declared = int | str | None
"""An extent as a file declares it: a number, a name, or neither."""


class Opened(Struct, frozen=True):
    """A source that is parsed. `digest` is the SHA-256 of its file, where there is one. `is_ours`: the protobuf was
    made here and may be changed. `data` is that of the constants of which a protobuf has none, by index."""

    model: onnx.ModelProto | ir.Model
    folder: Folder
    digest: str | None
    is_ours: bool
    data: Mapping[int, memoryview]


class Light(Struct, frozen=True):
    """A model as a checked protobuf without its large constants, which are the weights. `notes`: the warnings so far.
    The protobuf is shared with no one, and the next stage uses it up."""

    proto: onnx.ModelProto
    structure: Structure
    weights: Weights
    folder: Folder
    digest: str | None
    notes: tuple[str, ...]


def detached(opened: Opened, *, convert_opset: bool) -> Light:
    """The source's structure checked, its large constants detached. `convert_opset` is as in `read_model`."""
    source, folder, digest = opened.model, opened.folder, opened.digest
    if isinstance(source, ir.Model):
        proto, weights = detach_from_model(source, folder)
        return Light(proto, check_structure(proto), weights, folder, digest, source.meta.get(WARNINGS_KEY, ()))
    notes: list[str] = []
    source = lifted(source, notes) if convert_opset else source
    structure = check_structure(source)
    digest = digest or _digest(source)
    proto, weights = detach(source, opened.data, folder, is_ours=opened.is_ours)
    if structure.has_external:
        load_small(proto, folder)
    return Light(proto, structure, weights, folder, digest, tuple(notes))


def normalized(light: Light, *, bodies: bool) -> Light:
    """The canonical form of a model. `bodies`: an operator of the domain `relayout` without a body gets one."""
    notes = [*light.notes]
    proto, structure = normalize(light.proto, light.structure, notes)
    proto = deduce_permutations(proto, infer_shapes, structure.kinds)
    proto = with_bodies(proto) if bodies else proto
    return replace(light, proto=proto, structure=structure, notes=tuple(notes))


def with_input_shapes(light: Light, shapes: Mapping[str, Sequence[int]]) -> Light:
    """A copy of the model with these shapes for its inputs, by name, and without those declared for other values, whose
    annotations stay."""
    proto = copied(light.proto)
    graph = proto.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for extent in shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = extent
    given = {value.name for value in (*graph.input, *graph.initializer)}
    for value in (*graph.value_info, *graph.output):
        # An input may be an output as well, and a constant may have a declared type.
        if value.name not in given and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return replace(light, proto=proto)


def without_output_shapes(light: Light, names: Set[str]) -> Light:
    """The model without the shapes declared for the outputs of these names and for the values inside."""
    del light.proto.graph.value_info[:]
    for value in light.proto.graph.output:
        if value.name in names:
            value.type.tensor_type.ClearField("shape")
    return light


def model_from(light: Light) -> ir.Model:
    """The model with the types of all values and with its constants."""
    structure = light.structure
    infer = partial(infer_shapes, has_graphs=structure.has_graphs, has_tensors=structure.has_tensors)
    with_values = partial(infer_with_values, infer=infer, has_graphs=structure.has_graphs)
    opened = open_wrong_outputs(light.proto, lambda proto: with_values(proto).proto, scalars_alone=True)
    notes = [*light.notes, *opened]
    declared = {
        side: {value.name: _declared(value.type) for value in values}
        for side, values in (("input", light.proto.graph.input), ("output", light.proto.graph.output))
    }
    share_input_shapes(light.proto.graph)
    corrected = correct_declared_dims(light.proto, infer)
    notes += [corrected] if corrected is not None else []
    name_input_dims(light.proto.graph)
    build = partial(_built, light=light)
    model = infer_in_rounds(light.proto, infer, build, has_graphs=structure.has_graphs, notes=notes)
    _check_boundary(model.graph)
    for value in model.graph.outputs:
        stated, found = declared["output"].get(value.name or ""), extents_of(value)
        if stated is not None and found is not None and not do_agree(stated, found):
            declared["output"][value.name or ""] = None  # of a shape that was wrong, nothing is declared
    model.meta[WARNINGS_KEY] = tuple(notes)
    model.meta[SOURCE_HASH_KEY] = light.digest
    model.meta[DECLARED_KEY] = declared
    note_names(model, declared["output"])
    return model


def _declared(kind: onnx.TypeProto) -> tuple[Declared, ...] | None:
    """The extents that a type has, that of the elements of a sequence or an optional; None where it has no shape."""
    for part in ("sequence_type", "optional_type"):
        if kind.HasField(part):
            return _declared(getattr(kind, part).elem_type)
    tensor = kind.sparse_tensor_type if kind.HasField("sparse_tensor_type") else kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple([dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim])


def _built(inferred: Inferred, light: Light) -> ir.Model:
    """The model of an inferred protobuf, with its constants, the propagated ones included, and with checked shapes."""
    has_graphs, has_tensors = light.structure.has_graphs, light.structure.has_tensors
    model = model_of(inferred.proto)
    graphs = nested_graphs(model.graph) if has_graphs else [model.graph]
    for graph in graphs:
        # ONNX lists them once for the whole model; here each graph of a node has them.
        graph.opset_imports.update(model.opset_imports)
    graphs += [graph for function in model.functions.values() for graph in nested_graphs(function.graph)]
    attach(model, graphs, light.weights, light.folder, in_nodes=has_tensors or bool(model.functions))
    if inferred.values:
        _note_values(model.graph, inferred.values)
    check_shapes(graphs)
    return model


def _digest(proto: onnx.ModelProto) -> str | None:
    """The SHA-256 of the model as protobuf would write it to a file; None if it is too large for one."""
    return sha256(proto.SerializeToString(deterministic=True)).hexdigest() if proto.ByteSize() < LARGEST_FILE else None


def _note_values(graph: ir.Graph, known: Mapping[str, np.ndarray]) -> None:
    """Give each propagated constant its numbers as `const_value`; onnx_ir writes only those of initializers."""
    for node in graph:
        for value in node.outputs:
            if value.name is not None and value.name in known:
                value.const_value = ir.Tensor(known[value.name], name=value.name)


def _check_boundary(graph: ir.Graph) -> None:
    """A layout given for an input or output has to be one, of the value's rank."""
    for value in (*graph.inputs, *graph.outputs):
        text = value.metadata_props.get(BOUNDARY_LAYOUT_KEY)
        if text is None or text == "any" or ("*" in text and not text.strip("* \t")):
            # The solver chooses the layout: `any`, or Glow's ANY_LAYOUT.
            continue
        try:
            layout = Layout.parse(text)
        except LayoutSyntaxError as error:
            error.where = f"value '{value.name}', {error.where}"
            raise
        rank = None if value.shape is None else len(value.shape)
        axes = sum(1 for i in range(layout.rank) if layout.tile(i) is None)
        if axes != rank:
            raise InputError(
                "a layout does not fit the value's rank",
                where=f"value '{value.name}', layout '{text}'",
                expected="a shape" if rank is None else f"{rank} dimensions",
                found=f"{axes} dimensions",
            )
