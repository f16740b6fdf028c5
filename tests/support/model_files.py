"""Small models as text and in files, and their comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from relayout.model.io import to_proto


def parse(text: str, ir_version: int = 10, opset: int = 20) -> onnx.ModelProto:
    imports = f'["" : {opset}, "relayout" : 1, "mine" : 1]'
    return onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: {imports}> {text}")


def conv() -> onnx.ModelProto:
    """A convolution, and a Reshape by a constant."""
    model = parse(
        """g (float[1,3,8,8] x) => (y) <int64[3] shape = {1, 4, -1}> {
            c = Conv (x, w)
            y = Reshape (c, shape)
        }"""
    )
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def large(count: int = 3) -> onnx.ModelProto:
    """A chain of matrix products with weights of 4 KiB each."""
    rng = np.random.default_rng(1)
    weights = [onnx.numpy_helper.from_array(rng.random((32, 32), np.float32), f"w{i}") for i in range(count)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"m{i}") for i in range(count)]
    value = helper.make_tensor_value_info
    ends = [value("x0", TensorProto.FLOAT, [1, 32])], [value(f"x{count}", TensorProto.FLOAT, [1, 32])]
    graph = helper.make_graph(nodes, "chain", *ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def outside(folder: Path, model: onnx.ModelProto | None = None) -> Path:
    """Save the model with all of its weights in a second file."""
    path = folder / "model.onnx"
    onnx.save(
        model or large(),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


def same(one: onnx.ModelProto | ir.Model, other: onnx.ModelProto | ir.Model) -> bool:
    protos = [to_proto(model) if isinstance(model, ir.Model) else model for model in (one, other)]
    first, second = (proto.SerializeToString(deterministic=True) for proto in protos)
    return first == second


def shapes(model: ir.Model) -> dict[str, list[int | str | None]]:
    values = [value for node in model.graph.all_nodes() for value in node.outputs]
    return {
        str(value.name): [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        for value in values
        if value.shape is not None
    }
