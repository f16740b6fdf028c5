"""The graphs that a backend is tested on: generated ones, one operator each, and models that ship with onnx.

A generated graph has an operator alone, between the graph's input and output, or between two convolutions, so that its
neighbours have requirements too. Channels are 3, 8, 16 and 20: a block of 4, 8 or 16 does not divide all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter

OPSET = 21
_Shape = Sequence[int | str]
_Constants = Mapping[str, np.ndarray[Any, Any]]
_Node = tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class SampleGraph:
    """One model, or a function that reads it when it is needed. `runs`: its numbers are compared."""

    name: str
    source: onnx.ModelProto | Callable[[], onnx.ModelProto]
    runs: bool = True

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model."""
        return self.source() if callable(self.source) else self.source

    def __str__(self) -> str:
        return self.name


def sample_graphs() -> list[SampleGraph]:
    """Every generated graph, and every model that ships with onnx."""
    return [*generated_graphs(), *shipped_graphs()]


@cache
def generated_graphs() -> tuple[SampleGraph, ...]:
    """Small graphs, the same ones each time."""
    return (*_convolutions(), *_spatial(), *_alone(), *_between(), *_patterns())


@cache
def shipped_graphs() -> tuple[SampleGraph, ...]:
    """The models that the package onnx has on disk: layers exported from PyTorch, lifted to a later opset, and image
    classifiers without weights, whose numbers say nothing and are not compared."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    layers, light = sorted(folder.glob("pytorch-converted/*/model.onnx")), sorted(folder.glob("light/*.onnx"))
    return (
        *[SampleGraph(f"onnx/{path.parent.name.removeprefix('test_')}", partial(_lifted, path)) for path in layers],
        *[SampleGraph(f"onnx/{path.stem}", partial(onnx.load, path), runs=False) for path in light],
    )


def _lifted(path: Path) -> onnx.ModelProto:
    return version_converter.convert_version(onnx.load(path), OPSET)


def _graph(
    name: str, inputs: Mapping[str, _Shape], nodes: Sequence[_Node], results: Sequence[str], constants: _Constants
) -> SampleGraph:
    made = [helper.make_node(op, reads, writes, name=f"{op}_{n}", **attributes)
            for n, (op, reads, writes, attributes) in enumerate(nodes)]  # fmt: skip
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info(each, TensorProto.FLOAT, shape) for each, shape in inputs.items()],
        [onnx.ValueInfoProto(name=each) for each in results],
        [numpy_helper.from_array(array, each) for each, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return SampleGraph(name, onnx.shape_inference.infer_shapes(model))


def _drawn(*shape: int) -> np.ndarray[Any, Any]:
    """Multiples of 1/8, so that sums are exact; no element is 0."""
    drawn = np.random.default_rng(sum(shape)).integers(1, 9, shape) * np.random.default_rng(1).choice([-1, 1], shape)
    return np.asarray(drawn / 8, np.float32)


def _convolutions() -> Iterator[SampleGraph]:
    for channels, filters in ((3, 16), (8, 8), (16, 32), (20, 12)):
        yield _conv(f"Conv/{channels}-to-{filters}-channels", channels, filters)
    yield _conv("Conv/1-dimension", 8, 16, spatial=1)
    yield _conv("Conv/3-dimensions", 8, 16, spatial=3)
    yield _conv("Conv/strided", 3, 16, strides=[2, 2], pads=[1, 1, 1, 1])
    yield _conv("Conv/dilated", 8, 8, dilations=[2, 2])
    yield _conv("Conv/grouped", 16, 16, group=2)
    yield _conv("Conv/depthwise", 16, 16, group=16)
    yield _conv("Conv/without-a-bias", 16, 16, bias=False)
    yield _conv("Conv/open-batch", 16, 16, batch="batch")
    yield _conv("ConvTranspose", 16, 8, op="ConvTranspose", strides=[2, 2])
    kernel = {"x": (1, 8, 9, 9), "w": (8, 8, 3, 3)}
    yield _graph("Conv/kernel-is-an-input", kernel, [("Conv", ["x", "w"], ["y"], {})], ["y"], {})


def _conv(
    name: str,
    channels: int,
    filters: int,
    *,
    op: str = "Conv",
    spatial: int = 2,
    group: int = 1,
    bias: bool = True,
    batch: int | str = 1,
    **attributes: Any,
) -> SampleGraph:
    ends = (channels, filters) if op == "ConvTranspose" else (filters, channels // group)
    constants = {"w": _drawn(*ends, *[3] * spatial), **({"b": _drawn(filters)} if bias else {})}
    nodes: list[_Node] = [(op, ["x", *constants], ["y"], {"group": group, **attributes})]
    return _graph(name, {"x": (batch, channels, *[7, 9, 10][:spatial])}, nodes, ["y"], constants)


# Operators on data with channels and an image: attributes and further constant inputs.
_ON_IMAGES: dict[str, tuple[Mapping[str, Any], _Constants]] = {
    "MaxPool": ({"kernel_shape": [2, 2], "strides": [2, 2]}, {}),
    "AveragePool": ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, {}),
    "LpPool": ({"kernel_shape": [2, 2]}, {}),
    "GlobalAveragePool": ({}, {}),
    "GlobalMaxPool": ({}, {}),
    "BatchNormalization": (
        {}, {"scale": _drawn(16), "bias": _drawn(16), "mean": _drawn(16), "var": abs(_drawn(16))},
    ),
    "InstanceNormalization": ({}, {"scale": _drawn(16), "bias": _drawn(16)}),
    "GroupNormalization": ({"num_groups": 2}, {"scale": _drawn(16), "bias": _drawn(16)}),
    "LRN": ({"size": 3}, {}),
    "Resize": (
        {"mode": "nearest"},
        {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "DepthToSpace": ({"blocksize": 2}, {}),
    "SpaceToDepth": ({"blocksize": 2}, {}),
}  # fmt: skip


def _spatial() -> Iterator[SampleGraph]:
    for op, (attributes, constants) in _ON_IMAGES.items():
        yield _graph(op, {"x": (1, 16, 6, 8)}, [(op, ["x", *constants], ["y"], attributes)], ["y"], constants)
    for spatial in (1, 3):
        shape = (1, 16, *[6, 8, 10][:spatial])
        node: _Node = ("MaxPool", ["x"], ["y"], {"kernel_shape": [2] * spatial})
        yield _graph(f"MaxPool/{spatial}-dimension{'s' * (spatial > 1)}", {"x": shape}, [node], ["y"], {})


def _indices(*shape: int) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape)) % 3).reshape(shape).astype(np.int64)


# Operators that take their axes by number, or any axes at all.
_OTHERS: dict[str, tuple[Mapping[str, Any], _Constants]] = {
    "Relu": ({}, {}),
    "Sigmoid": ({}, {}),
    "Clip": ({}, {"low": np.float32(-1), "high": np.float32(1)}),  # type: ignore[dict-item]
    "PRelu": ({}, {"slope": _drawn(16, 1, 1)}),
    "Add": ({}, {"addend": _drawn(16, 1, 1)}),
    "Mul": ({}, {"factor": _drawn(1, 16, 1, 1)}),
    "Concat": ({"axis": 1}, {"more": _drawn(1, 16, 6, 8)}),
    "Pad": ({}, {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}),
    "Slice": ({}, {"starts": np.array([2], np.int64), "ends": np.array([10], np.int64),
                   "axes": np.array([1], np.int64)}),
    "Softmax": ({"axis": 1}, {}),
    "LogSoftmax": ({"axis": 3}, {}),
    "ReduceMean": ({"keepdims": 1}, {"axes": np.array([2, 3], np.int64)}),
    "ReduceSum": ({"keepdims": 0}, {"axes": np.array([1], np.int64)}),
    "ReduceL2": ({"keepdims": 1}, {"axes": np.array([1], np.int64)}),
    "ReduceProd": ({"keepdims": 0}, {"axes": np.array([3], np.int64)}),
    "Gather": ({"axis": 1}, {"rows": np.array([2, 0, 1, 3], np.int64)}),
    "GatherElements": ({"axis": 1}, {"places": _indices(1, 16, 6, 8)}),
    "ScatterElements": ({"axis": 1}, {"places": _indices(1, 1, 6, 8), "updates": _drawn(1, 1, 6, 8)}),
    "LayerNormalization": ({"axis": 3}, {"scale": _drawn(8), "bias": _drawn(8)}),
    "Transpose": ({"perm": [0, 2, 3, 1]}, {}),
    "Reshape": ({}, {"shape": np.array([1, 16, 48], np.int64)}),
    "Flatten": ({}, {}),
    "Expand": ({}, {"shape": np.array([2, 16, 6, 8], np.int64)}),
    "Tile": ({}, {"repeats": np.array([1, 2, 1, 1], np.int64)}),
    "MatMul": ({}, {"matrix": _drawn(8, 5)}),
    "CumSum": ({}, {"axis": np.array(1, np.int64)}),
    "Identity": ({}, {}),
}  # fmt: skip


def _alone() -> Iterator[SampleGraph]:
    for op, (attributes, constants) in _OTHERS.items():
        yield _graph(op, {"x": (1, 16, 6, 8)}, [(op, ["x", *constants], ["y"], attributes)], ["y"], constants)
    yield _graph("Split", {"x": (1, 16, 6, 8)}, [("Split", ["x"], ["y", "z"], {"axis": 1, "num_outputs": 2})],
                 ["y", "z"], {})  # fmt: skip
    index = {"k": np.array([3], np.int64)}
    yield _graph("TopK", {"x": (1, 16, 6, 8)}, [("TopK", ["x", "k"], ["y", "i"], {"axis": 1})], ["y", "i"], index)
    gemm: _Node = ("Gemm", ["x", "w", "b"], ["y"], {"transB": 1})
    yield _graph("Gemm", {"x": (4, 16)}, [gemm], ["y"], {"w": _drawn(8, 16), "b": _drawn(8)})
    yield _graph("MatMul/two-inputs", {"x": (2, 4, 6, 8), "w": (2, 4, 8, 6)}, [("MatMul", ["x", "w"], ["y"], {})],
                 ["y"], {})  # fmt: skip


def _between() -> Iterator[SampleGraph]:
    """Each operator that keeps four axes and 16 channels, between two convolutions."""
    keeps = {**_ON_IMAGES, **_OTHERS}
    changed = "Transpose Reshape Flatten ReduceSum ReduceProd MatMul Concat Slice Gather DepthToSpace SpaceToDepth Tile"
    changed += " ReduceL2"
    for op in sorted({*keeps} - {*changed.split()}):
        attributes, constants = keeps[op]
        nodes: list[_Node] = [
            ("Conv", ["x", "w1"], ["a"], {}),
            (op, ["a", *constants], ["b"], attributes),
            ("Conv", ["b", "w2"], ["y"], {}),
        ]
        weights = {"w1": _drawn(16, 8, 1, 1), "w2": _drawn(8, 16, 1, 1)}
        yield _graph(f"{op}/between-convolutions", {"x": (1, 8, 6, 8)}, nodes, ["y"], {**weights, **constants})


def _patterns() -> Iterator[SampleGraph]:
    weights = {"w1": _drawn(16, 16, 3, 3), "b1": _drawn(16), "w2": _drawn(16, 16, 1, 1)}
    block: list[_Node] = [
        ("Conv", ["x", "w1", "b1"], ["a"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["a"], ["b"], {}),
        ("Conv", ["b", "w2"], ["c"], {}),
        ("Add", ["c", "x"], ["d"], {}),
        ("Relu", ["d"], ["y"], {}),
    ]
    yield _graph("residual-block", {"x": (1, 16, 6, 8)}, block, ["y"], weights)
    head: list[_Node] = [
        *block[:4],
        ("GlobalAveragePool", ["d"], ["e"], {}),
        ("Flatten", ["e"], ["f"], {}),
        ("Gemm", ["f", "w3"], ["g"], {}),
        ("Softmax", ["g"], ["y"], {}),
    ]
    yield _graph("classifier", {"x": (1, 16, 6, 8)}, head, ["y"], {**weights, "w3": _drawn(16, 10)})
    gate: list[_Node] = [
        ("Conv", ["x", "w2"], ["a"], {}),
        ("GlobalAveragePool", ["a"], ["b"], {}),
        ("Conv", ["b", "w2"], ["c"], {}),
        ("Sigmoid", ["c"], ["d"], {}),
        ("Mul", ["a", "d"], ["y"], {}),
    ]
    yield _graph("squeeze-and-excitation", {"x": (1, 16, 6, 8)}, gate, ["y"], {"w2": weights["w2"]})
    channels_last: list[_Node] = [
        ("Transpose", ["x"], ["a"], {"perm": [0, 3, 1, 2]}),
        ("Conv", ["a", "w2"], ["b"], {}),
        ("MaxPool", ["b"], ["c"], {"kernel_shape": [2, 2]}),
        ("Transpose", ["c"], ["y"], {"perm": [0, 2, 3, 1]}),
    ]
    yield _graph("channels-last-source", {"x": (1, 6, 8, 16)}, channels_last, ["y"], {"w2": weights["w2"]})
    branches: list[_Node] = [
        ("Conv", ["x", "w2"], ["a"], {}),
        ("MaxPool", ["x"], ["b"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("Concat", ["a", "b"], ["c"], {"axis": 1}),
        ("Split", ["c"], ["y", "z"], {"axis": 1, "num_outputs": 2}),
    ]
    yield _graph("branches", {"x": (1, 16, 6, 8)}, branches, ["y", "z"], {"w2": weights["w2"]})
    attention: list[_Node] = [
        ("MatMul", ["x", "wq"], ["q"], {}),
        ("Reshape", ["q", "heads"], ["h"], {}),
        ("Transpose", ["h"], ["t"], {"perm": [0, 2, 1, 3]}),
        ("Transpose", ["h"], ["k"], {"perm": [0, 2, 3, 1]}),
        ("MatMul", ["t", "k"], ["s"], {}),
        ("Softmax", ["s"], ["p"], {}),
        ("MatMul", ["p", "t"], ["o"], {}),
        ("Transpose", ["o"], ["u"], {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["u", "rows"], ["y"], {}),
    ]
    sizes = {"heads": np.array([1, 6, 2, 8], np.int64), "rows": np.array([1, 6, 16], np.int64)}
    yield _graph("attention", {"x": (1, 6, 16)}, attention, ["y"], {"wq": _drawn(16, 16), **sizes})
    yield _if()


def _if() -> SampleGraph:
    """A convolution in each branch of an If."""
    value = helper.make_tensor_value_info("r", TensorProto.FLOAT, (1, 16, 6, 8))
    branches = [
        helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node(op, ["c"], ["r"])], op, [], [value]
        )
        for op in ("Relu", "Sigmoid")
    ]
    nodes: list[_Node] = [
        ("ReduceSum", ["x"], ["sum"], {"keepdims": 0}),
        ("Greater", ["sum", "zero"], ["is_positive"], {}),
        ("If", ["is_positive"], ["y"], {"then_branch": branches[0], "else_branch": branches[1]}),
    ]
    constants = {"w": _drawn(16, 16, 1, 1), "zero": np.array(0, np.float32)}
    return _graph("If", {"x": (1, 16, 6, 8)}, nodes, ["y"], constants)
