"""Run one optimiser, relayout or a peer, on one model.

    python benchmarks/optimizers.py TOOL IN.onnx OUT.onnx     relayout-bytes, relayout-transposes or a peer;
                                                              relayout-NHWC, relayout-NCHW: convolutions in a layout
    python benchmarks/optimizers.py equal A.onnx B.onnx       the difference of their outputs, and its scale
    python benchmarks/optimizers.py count MODEL.onnx          its transposes, and the bytes that they move

Exit status 3: the tool is not installed. Each tool has its own process, because some crash.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

# Read when onnxruntime is loaded; its telemetry would write and upload in the timed process.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

NOT_INSTALLED = 3


def relayout(source: str, target: str, backend: str = "onnx", **options: Any) -> None:
    import relayout as library
    from relayout.model.io import write_model

    model, report = library.legalize(source, backend, **options)
    write_model(model, target)
    print(json.dumps({"status": report.status, "cost": report.cost, "bound": report.bound}))


def converted(source: str, target: str, layouts: tuple[str, str]) -> None:
    """Convolutions with data and kernels in these layouts."""
    relayout(source, target, "convert-layout", backend_options={"desired_layouts": {"Conv": list(layouts)}})


def onnxruntime(source: str, target: str) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    # The next level uses a blocked layout, where other conversions (ReorderInput) replace transposes.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    # By default it starts a thread for each processor of the machine, also for those that this process may not use.
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnxsim(source: str, target: str) -> None:
    import onnx
    import onnxsim as tool

    model, _ = tool.simplify(onnx.load(source))
    onnx.save(model, target)


def onnxslim(source: str, target: str) -> None:
    import onnx
    import onnxslim as tool

    onnx.save(tool.slim(onnx.load(source)), target)


def count(path: str) -> None:
    """Print the totals. Shapes that inference cannot pass through an optimiser's operators come from a run."""
    import onnx_ir as ir

    from relayout.model.constants import constant_values
    from relayout.model.io import read_model
    from relayout.report.totals import is_transpose, totals

    model = read_model(path)
    constants = constant_values(model.graph)
    unknown = {
        str(node.outputs[0].name): node.outputs[0]
        for node in model.graph
        if is_transpose(node) and node.inputs[0] not in constants
        if (node.outputs[0].dtype is None or not _is_known(node.outputs[0].shape))
    }
    for name, array in _values(path, list(unknown)).items() if unknown else ():
        unknown[name].shape = ir.Shape(array.shape)
        unknown[name].dtype = ir.DataType.from_numpy(array.dtype)
        source = unknown[name].producer().inputs[0]  # type: ignore[union-attr]
        assert source is not None
        source.dtype = unknown[name].dtype
        source.shape = None
    print(totals(model, {}).model_dump_json())


def _is_known(shape: ir.Shape | None) -> bool:
    """Whether each dim is a number or a name of the model. Shape inference names unknown dims unk__0 and so on."""
    if shape is None:
        return False
    names = [dim.value for dim in shape if not isinstance(dim, int)]
    return not any(name is None or name.startswith("unk__") for name in names)


def _values(path: str, names: list[str]) -> dict[str, Any]:
    """These values of the main graph for random inputs."""
    import onnx

    feeds = _feeds(path)
    model = onnx.load(path)
    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    given = [value.name for value in model.graph.output]
    found = zip(given, _outputs(model.SerializeToString(), feeds), strict=True)
    return {name: value for name, value in found if name in names}


def equal(one: str, other: str) -> None:
    """Print two differences, each relative to an output's largest absolute value.

    `difference` is the largest one between the models. `moves` is the least one of the first model between two draws of
    its inputs. If an output does not move, its equality proves nothing.
    """
    feeds = _feeds(one)
    # One session at a time, because two of these models may not fit into memory.
    expected = _outputs(one, feeds)
    again = _outputs(one, _feeds(one, seed=1))
    found = _outputs(other, feeds)
    difference = max(_difference(a, b) for a, b in zip(expected, found, strict=True))
    moves = min(_difference(a, b) for a, b in zip(expected, again, strict=True))
    print(json.dumps({"difference": difference, "moves": moves}))


def _difference(one: Any, other: Any) -> float:
    """The largest difference of two arrays, relative to the first's largest absolute value."""
    import numpy as np

    if one.shape != other.shape or one.dtype != other.dtype:
        raise SystemExit(f"an output is {other.dtype} {other.shape} and was {one.dtype} {one.shape}")
    if not one.size:
        return 0.0
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        raise SystemExit("an output is finite in one model and not in the other")
    largest = float(np.abs(one)[finite].max(initial=0.0))
    return float(np.abs(one - other)[finite].max(initial=0.0)) / max(largest, 1e-30)


def _feeds(path: str, seed: int = 0) -> dict[str, object]:
    import numpy as np
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    draw = np.random.default_rng(seed)
    feeds: dict[str, object] = {}
    for value in graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        # An unknown first dim is a batch of 1. Any other gets an extent that most networks can divide.
        shape = [
            dim.dim_value if dim.HasField("dim_value") else 1 if axis == 0 else 64
            for axis, dim in enumerate(tensor.shape.dim)
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
    "relayout-bytes": partial(relayout, objective="bytes"),
    "relayout-transposes": partial(relayout, objective="transposes"),
    "relayout-NHWC": partial(converted, layouts=("NHWC", "OHWI")),
    "relayout-NCHW": partial(converted, layouts=("NCHW", "OIHW")),
    "onnxruntime": onnxruntime,
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "equal": equal,
}


def main(arguments: list[str]) -> None:
    # Tools are imported by name, so this folder must not shadow them.
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
