"""The runtimes: onnxruntime without optimizations, else onnx's reference evaluator.

A model of a version that onnxruntime does not know yet runs under an older one if that changes no operator's meaning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from relayout.model.dims.negative_extents import has_negative_extents
from relayout.model.operator_schema import since
from relayout.model.proto_graphs import STANDARD_DOMAINS, copied, declared_values, nodes_inside
from relayout.model.runtime import plain_session
from relayout.model.serialization import proto_of
from relayout.verification.numeric.guards import doubtful_divisions, doubtful_scans, error_of_guard, guard
from relayout.verification.numeric.inputs import Array

_OLD_IR_VERSION, _OLD_OPSET = 10, 13
"""Versions that every onnxruntime of the last years knows."""

_CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""The memory of the container, in bytes, or `max`."""

LARGEST_COPY = 1 << 30
"""Bytes of weights above which a model runs only where these need not be copied: in onnxruntime, after relayout has
read it."""
_LARGE = 1 << 20
"""Bytes of a weight from which on onnxruntime reads it where it is. A protobuf has at most 2 GiB."""

_SMALL = 1 << 12
"""Elements of a value up to which an operator runs for less time than threads take to start: 1 ms for two of them."""


def largest_model() -> int:
    """Bytes of weights above which a model is not run as a whole: a quarter of the memory that this process may have,
    by the machine, the container and its own limits. Those of the original and those of the legal model may be in
    memory at a time."""
    return min(_memory_sizes()) // 4


def _memory_sizes() -> Iterator[int]:
    if sys.platform == "win32":
        import psutil

        yield psutil.virtual_memory().total
    else:
        import resource

        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
        yield from (size for size, _ in map(resource.getrlimit, limits) if size != resource.RLIM_INFINITY)
        with suppress(OSError, ValueError):  # no Linux, or no limit
            yield int(_CONTAINER.read_text())


def weights_size(model: ir.Model) -> int:
    """The bytes of all stored tensors of the graph and its subgraphs."""
    graphs = [model.graph, *model.graph.subgraphs()]
    tensors = [value.const_value for graph in graphs for value in graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class Session:
    """One model, ready to run, with `extra` inner values among its results. Free it before making another."""

    def __init__(self, model: ir.Model | onnx.ModelProto, runtime: str, extra: Sequence[str] = ()) -> None:
        weights: dict[str, Array] = {}
        if isinstance(model, ir.Model) and runtime == "onnxruntime":
            proto, weights = _apart(model)
        else:
            proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
        # A model as it was given runs on inputs on which no guard of the model that was read has raised an error.
        if isinstance(model, ir.Model) and runtime == "onnxruntime":
            divisors, scans = doubtful_divisions(model) or {}, doubtful_scans(model)
            if divisors or scans:
                guard(proto.graph, divisors, scans, model.opset_imports.get("", 1))
        declared = {info.name: info for info in proto.graph.value_info}
        present = {info.name for info in proto.graph.output}
        asked = [name for name in dict.fromkeys(extra) if name not in present]
        for name in asked:
            proto.graph.output.append(declared.get(name) or onnx.ValueInfoProto(name=name))
        self.names = [info.name for info in proto.graph.output]
        # onnxruntime makes no session of a model without results, which is what is left where all of it was cut out.
        self._run = _RUNTIMES[runtime](proto, weights) if self.names else lambda names, feeds: []

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return every output, and every extra value, by name. Raises ZeroDivisionError where an integer divides by 0,
        and ValueError where a Scan goes over no elements.

        The runtime is given copies: onnxruntime writes the new running mean over the old one where a function holds a
        BatchNormalization in training mode.
        """
        copies = {name: array.copy() for name, array in feeds.items()}
        try:
            results = self._run(self.names, copies)
        except Exception as error:  # a runtime may raise anything
            raise (error_of_guard(error) or error) from None
        return dict(zip(self.names, results, strict=True))


def _apart(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The protobuf of a model without the data of large weights, which it declares as external, and these by name."""
    large = {
        str(value.name): tensor for value in model.graph.initializers.values() if (tensor := _large(value)) is not None
    }
    proto = proto_of(model, lambda value: value.name not in large)
    for name, tensor in large.items():
        declared = proto.graph.initializer.add(name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
        declared.data_location = onnx.TensorProto.EXTERNAL
        declared.external_data.add(key="location", value=name)
    return proto, {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in large.items()}


def _large(value: ir.Value) -> ir.TensorProtocol | None:
    """The data of a weight that is large, and of a type that NumPy has."""
    tensor = value.const_value
    if tensor is None or tensor.nbytes < _LARGE or value.is_graph_input() or not value.uses():
        return None
    return tensor if tensor.dtype.numpy().isbuiltin == 1 and not tensor.dtype.is_string() else None


def _onnxruntime(proto: onnx.ModelProto, weights: Mapping[str, Array]) -> Any:
    if has_negative_extents(proto):
        raise ValueError("a window is larger than the operand that it moves over")
    threads = 1 if _is_small(proto) else 0
    try:
        return plain_session(proto, threads=threads, weights=weights).run
    except Exception:
        for older in _older(proto):
            try:
                return plain_session(older, threads=threads, weights=weights).run
            except Exception:  # the first error says more
                continue
        raise


def _is_small(proto: onnx.ModelProto) -> bool:
    """Whether all values of the graph are known to be small."""
    graph = proto.graph
    types = {each.name: each.type.tensor_type for each in declared_values(graph)}
    if not all(each.HasField("shape") for each in types.values()):
        return False
    if not all(name in types for node in graph.node for name in node.output if name):
        return False
    # The number of a dim without one is 0.
    sizes = [prod(dim.dim_value for dim in each.shape.dim) or _SMALL + 1 for each in types.values()]
    return max([*sizes, *(prod(each.dims) for each in graph.initializer)], default=0) <= _SMALL


def _older(proto: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The model under older versions of the file format, and of ONNX's operators where they mean the same."""
    older = copied(proto)
    older.ir_version = min(proto.ir_version, _OLD_IR_VERSION)
    if older.ir_version != proto.ir_version:
        yield older
    imports = [
        each for owner in (older, *older.functions) for each in owner.opset_import if each.domain in STANDARD_DOMAINS
    ]
    newest = max((each.version for each in imports), default=0)
    nodes = nodes_inside([*proto.graph.node, *(node for function in proto.functions for node in function.node)])
    standard = {node.op_type for node in nodes if node.domain in STANDARD_DOMAINS}
    least = max((since(operator, "", newest) or newest for operator in standard), default=0)
    for version in range(newest - 1, max(least, _OLD_OPSET) - 1, -1):
        for each in imports:
            each.version = min(each.version, version)
        yield older


def _reference(proto: onnx.ModelProto, weights: Mapping[str, Array]) -> Any:
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


_RUNTIMES = {"onnxruntime": _onnxruntime, "onnx.reference": _reference}


def runtimes_for(model: ir.Model) -> list[str]:
    """The names of the installed runtimes that run a model, the first choice first."""
    # An integer that is divided by 0 ends the process in onnxruntime.
    runtimes = [*_RUNTIMES] if doubtful_divisions(model) is not None else ["onnx.reference"]
    if weights_size(model) > LARGEST_COPY:
        runtimes.remove("onnx.reference")
    return [name for name in runtimes if find_spec(name.split(".")[0]) is not None]
