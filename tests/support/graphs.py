"""Small models built with onnx.helper, and their execution in onnxruntime without optimisations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from gpu_operators import evaluator
from onnx import TensorProto, helper, numpy_helper

from relayout.model.runtime import plain_session


class Net:
    """A graph under construction: each call adds a node and returns the name of its result."""

    def __init__(self, opset: int = 17, seed: int = 0, prefix: str = "") -> None:
        self.prefix = prefix
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)
        self._shapes: dict[str, tuple[int, ...]] = {}

    def input(self, name: str, shape: Sequence[int | str | None], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, array: np.ndarray | Sequence[int], name: str = "") -> str:
        array = np.asarray(array)
        name = self.prefix + (name or f"constant_{len(self.constants)}")
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32), f"weight_{len(self.constants)}")

    def node(self, operator: str, *inputs: str, results: int = 1, domain: str = "", **attributes: Any) -> Any:
        number = len(self.nodes)
        names = [f"{self.prefix}{operator.lower()}_{number}" + (f"_{i}" if i else "") for i in range(results)]
        made = helper.make_node(operator, inputs, names, name=f"{self.prefix}n{number}", domain=domain, **attributes)
        self.nodes.append(made)
        return names[0] if results == 1 else tuple(names)

    def transpose(self, value: str, *perm: int) -> str:
        return str(self.node("Transpose", value, perm=perm))

    def conv(self, value: str, inputs: int, outputs: int, kernel: int = 3, **attributes: Any) -> str:
        pads = [kernel // 2] * 4
        weight = self.weight(outputs, inputs // attributes.get("group", 1), kernel, kernel)
        return str(self.node("Conv", value, weight, self.weight(outputs), pads=pads, **attributes))

    def output(self, value: str, dtype: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_value_info(value, helper.make_tensor_type_proto(dtype, None)))

    def shape(self, value: str) -> tuple[int, ...]:
        """The extents of a value, where all extents are known."""
        if value not in self._shapes:
            graph = self._inferred().graph
            for each in (*graph.input, *graph.value_info, *graph.output):
                self._shapes[each.name] = tuple(dim.dim_value for dim in each.type.tensor_type.shape.dim)
        return self._shapes[value]

    def model(self, **extra: Any) -> onnx.ModelProto:
        model = self._model(**extra)
        model.graph.output.extend(self._inferred(**extra).graph.output)
        return model

    def _model(self, outputs: Sequence[onnx.ValueInfoProto] = (), **extra: Any) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", self.inputs, outputs, self.constants)
        foreign = sorted({node.domain for node in self.nodes} - {""})
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in foreign)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, **extra)

    def _inferred(self, **extra: Any) -> onnx.ModelProto:
        return onnx.shape_inference.infer_shapes(self._model(self.outputs, **extra), data_prop=True)


def random_feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [d.dim_value if d.HasField("dim_value") else 3 for d in value.type.tensor_type.shape.dim]
        kind = np.dtype(dtype).kind
        drawn = rng.standard_normal(shape) if kind == "f" else rng.integers(0, 2 if kind == "b" else 5, shape)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def session(model: onnx.ModelProto) -> Any:
    """The model in onnxruntime, on one thread."""
    return plain_session(model, threads=1)


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    # It writes over what it is fed where a BatchNormalization in training mode comes out of a function.
    copies = {name: deepcopy(fed) for name, fed in feeds.items()}
    return list((evaluator(model) or session(model)).run(None, copies))


def assert_same_numbers(
    model: onnx.ModelProto, legal: onnx.ModelProto, feeds: Mapping[str, np.ndarray] | None = None
) -> None:
    """Both models give equal outputs up to rounding, and these outputs depend on the inputs."""
    if _is_defined_by_onnx(legal):
        onnx.checker.check_model(legal, full_check=True)
    feeds = feeds if feeds is not None else random_feeds(model)
    assert_close(run(model, feeds), run(legal, feeds))


def _is_defined_by_onnx(model: onnx.ModelProto) -> bool:
    """Whether ONNX has, in this version, all operators of its domain; onnxruntime has some more there."""
    version = next(each.version for each in model.opset_import if each.domain == "")
    names = {node.op_type for node in model.graph.node if node.domain == ""}
    return all(onnx.defs.has(name, max_inclusive_version=version) for name in names)


def assert_close(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
    """The outputs are equal up to rounding, each relative to its own scale."""
    for one, other in zip(expected, found, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        scale = float(np.abs(one.astype(np.float64)).max(initial=1.0))
        np.testing.assert_allclose(other.astype(np.float64), one.astype(np.float64), rtol=1e-4, atol=1e-5 * scale)
