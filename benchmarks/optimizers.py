"""One optimiser on one model, in the process that is started for it: relayout and its peers.

    python benchmarks/optimizers.py TOOL IN.onnx OUT.onnx     relayout, onnxruntime, onnxsim or onnxslim
    python benchmarks/optimizers.py equal A.onnx B.onnx       the largest relative difference of their outputs
    python benchmarks/optimizers.py count MODEL.onnx          its transposes and the bytes that they move

Exit status 3: the tool is not installed. A tool that crashes takes only this process with it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOT_INSTALLED = 3


def relayout(source: str, target: str) -> None:
    import relayout as library
    from relayout.model_io import write_model

    model, report = library.legalize(source, "onnx")
    write_model(model, target)
    print(json.dumps({"status": report.status, "cost": report.cost, "bound": report.bound}))


def onnxruntime(source: str, target: str) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    # One level more would hide transposes in its own blocked layout, which has other conversions (ReorderInput).
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    options.log_severity_level = 3
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnxsim(source: str, target: str) -> None:
    import onnx
    import onnxsim as tool  # type: ignore[import-not-found,unused-ignore]

    model, _ = tool.simplify(onnx.load(source))
    onnx.save(model, target)


def onnxslim(source: str, target: str) -> None:
    import onnx
    import onnxslim as tool  # type: ignore[import-not-found,unused-ignore]

    onnx.save(tool.slim(onnx.load(source)), target)


def count(path: str) -> None:
    """Print the totals. What an optimiser's own operators hide from shape inference is seen by running the model."""
    import onnx_ir as ir

    from relayout.model_io import read_model
    from relayout.totals import data_transposes, totals

    model = read_model(path)
    unknown = {
        str(node.outputs[0].name): node.outputs[0]
        for node in data_transposes(model)
        if node.graph is model.graph and (node.outputs[0].shape is None or node.outputs[0].dtype is None)
    }
    for name, array in _values(path, list(unknown)).items() if unknown else ():
        unknown[name].shape = ir.Shape(array.shape)
        unknown[name].dtype = ir.DataType.from_numpy(array.dtype)
        source = unknown[name].producer().inputs[0]  # type: ignore[union-attr]
        assert source is not None
        source.dtype = unknown[name].dtype
    print(totals(model, {}).model_dump_json())


def _values(path: str, names: list[str]) -> dict[str, Any]:
    """These values of the main graph, for some input."""
    import onnx

    feeds = _feeds(path)
    model = onnx.load(path)
    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    given = [value.name for value in model.graph.output]
    found = zip(given, _outputs(model.SerializeToString(), feeds), strict=True)
    return {name: value for name, value in found if name in names}


def equal(one: str, other: str) -> None:
    """Print the largest difference of any output, relative to that output's largest absolute value."""
    import numpy as np

    feeds = _feeds(one)
    # One session at a time: two of these models need not fit beside one another.
    expected = _outputs(one, feeds)
    found = _outputs(other, feeds)
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise SystemExit(f"an output is {b.dtype} {b.shape} and was {a.dtype} {a.shape}")
        if not a.size:
            continue
        one64, other64 = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isfinite(one64), np.isfinite(other64)):
            raise SystemExit("an output is finite in one model and not in the other")
        finite = np.isfinite(one64)
        difference = float(np.abs(one64 - other64)[finite].max(initial=0.0))
        largest = float(np.abs(one64)[finite].max(initial=0.0))
        if difference:
            worst = max(worst, difference / max(largest, 1e-30))
    print(json.dumps({"difference": worst}))


def _feeds(path: str) -> dict[str, object]:
    import numpy as np
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    draw = np.random.default_rng(0)
    feeds: dict[str, object] = {}
    for value in graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        # A first dim without a number is a batch, of one; any other takes what most networks can divide.
        shape = [
            dim.dim_value if dim.HasField("dim_value") else 1 if place == 0 else 64
            for place, dim in enumerate(tensor.shape.dim)
        ]
        numbers = draw.standard_normal(shape) if dtype.kind == "f" else draw.integers(0, 2, shape)
        feeds[value.name] = numbers.astype(dtype)
    return feeds


def _outputs(model: str | bytes, feeds: dict[str, object]) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return list(ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds))


TOOLS: dict[str, Callable[[str, str], None]] = {
    "relayout": relayout,
    "onnxruntime": onnxruntime,
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "equal": equal,
}


def main(arguments: list[str]) -> None:
    # A tool and the function that runs it have the same name: nothing of this folder may stand in for the tool.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent.resolve()]
    tool, *paths = arguments
    try:
        if tool == "count":
            count(paths[0])
        else:
            TOOLS[tool](paths[0], paths[1])
    except ModuleNotFoundError as error:
        if error.name != tool:
            raise
        print(f"{tool} is not installed", file=sys.stderr)
        raise SystemExit(NOT_INSTALLED) from None


if __name__ == "__main__":
    main(sys.argv[1:])
