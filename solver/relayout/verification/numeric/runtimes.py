"""The runtimes: onnxruntime without optimizations, else onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from relayout.model.runtime import import_onnxruntime
from relayout.verification.numeric.inputs import Array

__all__ = ["LARGEST_MODEL", "RUNTIMES", "Session", "weights_size"]

LARGEST_MODEL = 1 << 30
"""Bytes of weights above which a model is not run: two copies of them would be in memory at a time."""


def weights_size(model: ir.Model) -> int:
    """The bytes of all stored tensors of the graph and its subgraphs."""
    graphs = [model.graph, *model.graph.subgraphs()]
    tensors = [value.const_value for graph in graphs for value in graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class Session:
    """One model, ready to run, with `extra` inner values among its results. Free it before making another."""

    def __init__(self, model: ir.Model, runtime: str, extra: Sequence[str] = ()) -> None:
        proto = ir.to_proto(model)
        declared = {info.name: info for info in proto.graph.value_info}
        present = {info.name for info in proto.graph.output}
        for name in extra:
            if name not in present:
                proto.graph.output.append(declared.get(name) or onnx.ValueInfoProto(name=name))
        self.names = [info.name for info in proto.graph.output]
        self._run = RUNTIMES[runtime](proto)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return every output, and every extra value, by name.

        The runtime is given copies: onnxruntime writes the new running mean over the old one where a function holds a
        BatchNormalization in training mode.
        """
        copies = {name: array.copy() for name, array in feeds.items()}
        return dict(zip(self.names, self._run(self.names, copies), strict=True))


def _onnxruntime(proto: onnx.ModelProto) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run


def _reference(proto: onnx.ModelProto) -> Any:
    import numpy as np
    from onnx.reference import ReferenceEvaluator
    from onnx_ir.passes.common import InlinePass

    from relayout.verification.numeric.scans import Scan

    # A function's attribute that its node lacks is absent; the reference evaluator passes its name on instead.
    flat = ir.from_proto(proto)
    InlinePass()(flat)
    evaluator = ReferenceEvaluator(ir.to_proto(flat), new_ops=[Scan])

    def run(names: list[str], feeds: Mapping[str, Array]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return evaluator.run(names, dict(feeds))
        except RuntimeError as error:
            # The evaluator raises errors of several types for unsupported operators; these are not faults of the model.
            if "not implemented" in str(error).lower():
                raise NotImplementedError(str(error)) from error
            raise

    return run


RUNTIMES = {"onnxruntime": _onnxruntime, "onnx.reference": _reference}
