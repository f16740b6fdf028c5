"""Shape inference in rounds, to a fixpoint: onnx's inference, the ranks that rules of operators give it, and the sizes
that Reshapes force dims of inputs to.

The fixpoint is that of the legal model, which declares both: read again, it has the same types.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import onnx
import onnx_ir as ir

from relayout.model.dims.constant_propagation import Infer, Inferred, infer_with_values
from relayout.model.dims.forced_dims import enter_sizes, sizes_of_all_runs
from relayout.model.dims.operator_placeholders import insert_operator_placeholders, remove_operator_placeholders
from relayout.model.dims.output_dims import open_output_dims
from relayout.model.dims.rank_completion import complete_ranks, known_dims, name_completed, state_completed
from relayout.model.proto_graphs import copied

ROUNDS = 16
"""At most so many times is the model inferred again with the ranks that rules have completed."""


def infer_in_rounds(
    proto: onnx.ModelProto, infer: Infer, build: Callable[[Inferred], ir.Model], *, has_graphs: bool
) -> ir.Model:
    """The model with every type that onnx's inference and the rules of operators tell of each other.

    `infer` fills shapes in; `build` makes the model of an inferred protobuf and uses the protobuf up. A round starts
    from all that the round before has found. There is another one only while some value of the graph has no rank, rules
    complete one, and onnx's inference then knows more dims than are declared; while rules find the element type of a
    value, without which its rank cannot be declared; or while results have dims that are forced to one size. `proto` is
    used up.
    """

    def with_values(model: onnx.ModelProto) -> Inferred:
        return infer_with_values(model, infer, has_graphs=has_graphs)

    first = open_output_dims(proto, lambda model: _inferred(model, with_values))
    for _ in range(ROUNDS):
        inferred, first = first or _inferred(proto, with_values), None
        known = None if inferred.is_ranked and not _is_open(inferred.proto.graph) else copied(inferred.proto)
        model = build(inferred)
        completed = complete_ranks(model.graph, model.opset_imports)
        if known is not None and enter_sizes(known.graph, sizes_of_all_runs(model)):
            state_completed(completed, known.graph)
            proto = known
            continue
        if known is None or not completed:
            break
        if not state_completed(completed, known.graph):
            trial = _inferred(copied(known), lambda model: Inferred(infer(model), {}, is_ranked=False))
            if known_dims(trial.proto.graph) <= known_dims(known.graph):
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
