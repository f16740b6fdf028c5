"""Declared shapes that are wrong: a number where the operators give an open dim of the model's inputs, a name where
they give a number and the same name is open elsewhere, or no dims for an output that has some.

PyTorch's exporter declares a batch of 1 for products inside a model with an open batch, if the batch of its example is
1. Where a batch is opened by hand, the values inside keep the old number. jax2onnx keeps the shape of channels last for
values that it has moved to channels second. Runtimes go by the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import count

import onnx

from relayout.errors import InputError
from relayout.layout.metadata_keys import VERSION_KEY
from relayout.layout.terms import term_of
from relayout.model.dims.forced_dims import RESHAPES
from relayout.model.proto_graphs import STANDARD_DOMAINS, copied, declared_values, subgraphs_of

_UNNAMED = "relayout.open"

Extents = list[int | str]
"""The number or the name of each dim, the empty string for neither."""


def correct_declared_dims(proto: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto]) -> str | None:
    """Open each dim of a result that is declared as a number, where inference finds an open dim of an input, and all
    dims of a result that has a name where inference finds a number, and that name is open elsewhere.

    `infer` fills shapes in. Returns a note about the values whose dims are changed; None if there are none. A model
    that relayout has written is left alone: its numbers are those that were known of the source. A Reshape may tell
    there that an open dim has that number, and stand elsewhere in the legal model, or be gone.
    """
    if any(entry.key == VERSION_KEY for entry in proto.metadata_props):
        return None
    is_open = any(not dim.HasField("dim_value") for value in proto.graph.input for dim in _dims(value))
    if not is_open or not any(dim.WhichOneof("value") for value in _results(proto) for dim in _dims(value)):
        return None
    probe, given = _undeclared(proto)
    try:
        inferred = infer(probe)
    except InputError:
        return None  # the model itself is inferred next, and its fault told
    fixed = set(_fixed_names(inferred.graph))
    found = _extents_by_value(inferred)
    misplaced = _misplaced_names(proto, found, given.keys()) - fixed
    outputs = {value.name for value in proto.graph.output}
    wrong: dict[str, str] = {}
    for value in _results(proto):
        extents = found.get(value.name, [])
        for place, (dim, extent) in enumerate(zip(_dims(value), extents, strict=False)):
            if isinstance(extent, int):
                if dim.dim_param in misplaced and value.name not in outputs:
                    text = f"value '{value.name}', dim {place} is {extent}, not '{dim.dim_param}'"
                    wrong.setdefault(value.name, text)
                    # The other dims are those of another order of axes as well.
                    for each in _dims(value):
                        each.Clear()
                    break
            elif extent in given and extent not in fixed and dim.HasField("dim_value"):
                text = f"value '{value.name}', dim {place} is {given[extent] or 'open'}, not {dim.dim_value}"
                wrong.setdefault(value.name, text)
                dim.Clear()
                if given[extent]:
                    dim.dim_param = given[extent]
    if not wrong:
        return None
    more = f", and {len(wrong) - 1} more values" if len(wrong) > 1 else ""
    first = next(iter(wrong.values()))
    return f"declared dims are not those that follow from the operators, which are used: {first}{more}"


def open_wrong_outputs(
    proto: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto], *, scalars_alone: bool = False
) -> tuple[str, ...]:
    """Remove the shape of each output that contradicts the operators before it, where all else fits together: of
    outputs that are declared as scalars alone, or of all. `infer` fills shapes in, and raises InputError for a
    contradiction. Returns a note about each output.

    onnx's inference tells a rank less often than the rules of operators do: PyTorch's exporter declares an output
    behind an If, such as that of `scatter_reduce`, with a rank that neither branch has.
    """
    declared = {
        value.name: _extents(value)
        for value in _results(proto, outputs_alone=True)
        if value.type.tensor_type.HasField("shape") and not (scalars_alone and _dims(value))
    }
    if not declared:
        return ()
    probe = copied(proto)
    _clear_shapes(probe, declared.keys())
    try:
        inferred = infer(probe)
    except InputError:
        return ()  # another value is at fault
    outputs = {v.name: _extents(v) for v in inferred.graph.output if v.type.tensor_type.HasField("shape")}
    wrong = {
        name: found
        for name, stated in declared.items()
        if (found := outputs.get(name)) is not None and not do_agree(stated, found)
    }
    _clear_shapes(proto, wrong.keys())
    return tuple(
        f"output '{name}' is declared with dims {_text(declared[name])}, and those that follow from the operators are "
        f"used: {_text(found)}"
        for name, found in wrong.items()
    )


def _clear_shapes(proto: onnx.ModelProto, names: Set[str]) -> None:
    for value in _results(proto):
        if value.name in names:
            value.type.tensor_type.ClearField("shape")


def do_agree(one: Sequence[int | str | None], other: Sequence[int | str | None]) -> bool:
    """Whether a value can have both extents."""
    return len(one) == len(other) and all(
        not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in zip(one, other, strict=True)
    )


def _text(extents: Extents) -> str:
    return "[" + ", ".join(str(extent or "?") for extent in extents) + "]"


def _undeclared(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A copy whose results have no dims but names of inputs, in which each open dim of an input has a name, and these
    names with those that the model gives them; an open dim without a name gets one for the inference, and the empty
    string here. The inputs of the body of a Loop or a Scan are inputs too: what they get is open where the model's
    inputs are."""
    probe = copied(proto)
    given: dict[str, str] = {}
    unnamed = (f"{_UNNAMED}{n}" for n in count())
    for value in (value for graph in subgraphs_of(probe.graph) for value in graph.input):
        for dim in _dims(value):
            if not dim.HasField("dim_value"):
                name = dim.dim_param
                dim.dim_param = name or next(unnamed)
                given[dim.dim_param] = name
    for value in _results(probe):
        for dim in _dims(value):
            if dim.dim_param not in given:
                dim.Clear()
    return probe, given


def _extents_by_value(inferred: onnx.ModelProto) -> dict[str, Extents]:
    """The number or the name of each dim of each result, the empty string for neither; none for values of one name that
    differ, as the branches of an If may."""
    found: dict[str, Extents] = {}
    for value in _results(inferred):
        extents = _extents(value)
        found[value.name] = extents if found.get(value.name, extents) == extents else []
    return found


def _misplaced_names(proto: onnx.ModelProto, found: Mapping[str, Extents], fed: Set[str]) -> set[str]:
    """The names that results declare where the operators give a number, and that are open or another number elsewhere;
    those of inputs, which are `fed`, are open."""
    numbers: dict[str, set[int]] = {}
    open_ = {*fed}
    for value in _results(proto):
        for dim, extent in zip(_dims(value), found.get(value.name, ()), strict=False):
            if dim.dim_param and isinstance(extent, int):
                numbers.setdefault(dim.dim_param, set()).add(extent)
            elif dim.dim_param:
                open_.add(dim.dim_param)
    return {name for name, extents in numbers.items() if name in open_ or len(extents) > 1}


def _fixed_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of open dims that a Reshape to a known shape lets have one extent alone: an exporter may have written
    the batch of its example there, and the model runs with no other."""
    shapes = {value.name: _dims(value) for value in declared_values(graph)}
    sources: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in RESHAPES and node.domain in STANDARD_DOMAINS:
            # All reshapes one after the other have as many elements.
            source = sources[node.output[0]] = sources.get(node.input[0], node.input[0])
            before, after = shapes.get(source, []), shapes.get(node.output[0], [])
            names = [n for dim in before if not dim.HasField("dim_value") for n in term_of(dim.dim_param).names]
            if len(names) == 1 and all(dim.HasField("dim_value") for dim in after):
                yield names[0]


def _results(proto: onnx.ModelProto, *, outputs_alone: bool = False) -> Iterator[onnx.ValueInfoProto]:
    """The declared results of ONNX's operators, in the graph and those inside it, or of its outputs alone."""
    for graph in (proto.graph,) if outputs_alone else subgraphs_of(proto.graph):
        made = {name for node in graph.node if node.domain in STANDARD_DOMAINS for name in node.output}
        declared = graph.output if outputs_alone else (*graph.value_info, *graph.output)
        yield from (value for value in declared if value.name in made)


def _extents(value: onnx.ValueInfoProto) -> Extents:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in _dims(value)]


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return [*value.type.tensor_type.shape.dim]
