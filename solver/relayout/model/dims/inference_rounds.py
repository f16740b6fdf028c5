"""Shape inference in rounds, to a fixpoint: onnx's inference, the ranks that rules of operators give it, and the sizes
that Reshapes force dims of inputs to.

The fixpoint is that of the legal model, which declares both: read again, it has the same types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain

import onnx
import onnx_ir as ir

from relayout.errors import InputError
from relayout.model.dims.constant_propagation import Inferred, infer_with_values
from relayout.model.dims.declared_dims import open_wrong_outputs
from relayout.model.dims.forced_dims import enter_sizes, sizes_of_all_runs
from relayout.model.dims.operator_placeholders import insert_operator_placeholders, remove_operator_placeholders
from relayout.model.dims.output_dims import open_output_dims
from relayout.model.dims.rank_completion import complete_ranks, known_dims, name_completed, state_completed
from relayout.model.proto_graphs import copied

ROUNDS = 16
"""At most so many times is the model inferred again with the ranks that rules have completed."""


def infer_in_rounds(
    proto: onnx.ModelProto,
    infer: Callable[..., onnx.ModelProto],
    build: Callable[[Inferred], ir.Model],
    *,
    has_graphs: bool,
    notes: list[str],
) -> ir.Model:
    """The model with every type that onnx's inference and the rules of operators tell of each other.

    `infer` fills shapes in. With a list of `notes`, shapes that are declared for results may be wrong, and a note about
    each such fault is added. `build` makes the model of an inferred protobuf and uses the protobuf up. A round starts
    from all that the round before has found. There is another one only while some value of the graph has no rank and
    rules complete one, or equal dims make one a number, and onnx's inference then knows more dims than are declared;
    while an output is declared with other dims than those tell; while rules find the element type of a value, without
    which its rank cannot be declared; or while results have dims that are forced to one size. `proto` is used up.
    """

    def with_values(model: onnx.ModelProto) -> Inferred:
        return infer_with_values(model, partial(infer, notes=notes), has_graphs=has_graphs)

    def without_values(model: onnx.ModelProto, notes: list[str] | None = None) -> onnx.ModelProto:
        return _inferred(model, lambda each: Inferred(infer(each, notes=notes), {}, is_ranked=False)).proto

    first = open_output_dims(proto, lambda model: _inferred(model, with_values))
    # Of other models no more is known than what onnx has held against the declared shapes.
    is_unchecked = has_graphs
    for _ in range(ROUNDS):
        inferred, first = first or _inferred(proto, with_values), None
        is_known = inferred.is_ranked and not _is_open(inferred.proto.graph)
        known = None if is_known and not is_unchecked else copied(inferred.proto)
        model = build(inferred)
        completed = complete_ranks(model.graph, model.opset_imports)
        # onnx has not held these against the declared shapes yet.
        is_new = bool(completed) or inferred.has_new_numbers
        is_unchecked |= is_new
        if known is None:
            break
        has_new_types = state_completed(completed, known.graph)
        opened = open_wrong_outputs(known, without_values, scalars_alone=True)
        # A scalar would force the sizes of the dims before it to 1.
        if not opened and enter_sizes(known.graph, sizes_of_all_runs(model)):
            proto = known
            continue
        if not is_unchecked:
            break
        try:
            trial = without_values(copied(known))
        except InputError:
            opened += open_wrong_outputs(known, without_values)
            trial = without_values(copied(known), notes)
        notes += opened
        is_learning = has_new_types or (is_new and known_dims(trial.graph) > known_dims(known.graph))
        if not opened and not is_learning:
            break
        proto = known
    name_completed(model)
    return model


def _is_open(graph: onnx.GraphProto) -> bool:
    """Whether a value has an extent that is not known. A result may have one though no input has: a Loop's."""
    values = chain(graph.input, graph.value_info, graph.output)
    return any(not dim.HasField("dim_value") for value in values for dim in value.type.tensor_type.shape.dim)


def _inferred(proto: onnx.ModelProto, infer: Callable[[onnx.ModelProto], Inferred]) -> Inferred:
    """The result of `infer` while ONNX's own operators replace the contributed ones. `proto` is used up."""
    replaced = insert_operator_placeholders(proto)
    inferred = infer(proto)
    remove_operator_placeholders(inferred.proto.graph, replaced)
    return inferred
