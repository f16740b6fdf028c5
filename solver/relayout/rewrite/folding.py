"""Computing what hangs on stored constants alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from relayout.tensors import AbsentTensor

__all__ = ["folded_value"]

FOLD_LIMIT = 1 << 28
"""Bytes of a constant that is not computed with."""


def folded_value(value: ir.Value) -> ir.TensorProtocol | None:
    """The value's numbers, computed by ONNX's reference implementation; None where data is absent or large."""
    nodes: list[ir.Node] = []
    leaves: dict[str, np.ndarray] = {}
    pending, seen = [value], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        tensor = ir.convenience.get_const_tensor(current)
        if tensor is not None:
            if isinstance(tensor, AbsentTensor) or tensor.nbytes > FOLD_LIMIT:
                return None
            leaves[current.name or ""] = tensor.numpy()
            continue
        producer = current.producer()
        if producer is None:
            return None
        nodes.append(producer)
        pending += [v for v in producer.inputs if v is not None]
    return _evaluate(value, nodes, leaves)


def _evaluate(value: ir.Value, nodes: list[ir.Node], leaves: dict[str, np.ndarray]) -> ir.TensorProtocol | None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    graph = nodes[0].graph
    assert graph is not None
    order = {node: place for place, node in enumerate(graph)}
    protos = [ir.to_proto(node) for node in sorted(set(nodes), key=order.__getitem__)]
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in leaves.items()
    ]
    output = onnx.helper.make_value_info(value.name or "", onnx.TypeProto())
    body = onnx.helper.make_graph(protos, "constants", inputs, [output])
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in graph.opset_imports.items()]
    try:
        (result,) = ReferenceEvaluator(onnx.helper.make_model(body, opset_imports=opsets)).run(None, leaves)
    except Exception:  # the reference implementation lacks operators and types; then the model computes it itself
        return None
    return ir.tensor(np.asarray(result))
