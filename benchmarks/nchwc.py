"""onnxruntime's blocked layout: times of its operators, and of relayout's blocked models.

    python benchmarks/nchwc.py operators           each operator plain and blocked, and the conversions between
    python benchmarks/nchwc.py FOLDER [NAME...]    the source at level ALL, relayout's models at three levels

One thread, CPU time of the process, medians. In each round every variant is loaded, warmed up, run and released before
the next one. So only one session exists at a time, and a slow minute of the machine affects all variants.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import onnx
from measuring import machine
from onnx import TensorProto, helper, numpy_helper
from optimizers import _feeds as feeds_of

from relayout.model.runtime import import_onnxruntime

ort = import_onnxruntime()

DOMAIN = "com.microsoft.nchwc"
LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

# name, input channels, output channels, kernel, stride, groups, height and width of the data
CONVOLUTIONS = [
    ("1x1", 64, 64, 1, 1, 1, 56),
    ("1x1", 64, 256, 1, 1, 1, 56),
    ("1x1", 512, 128, 1, 1, 1, 28),
    ("1x1", 512, 2048, 1, 1, 1, 7),
    ("3x3", 32, 32, 3, 1, 1, 112),
    ("3x3", 64, 64, 3, 1, 1, 56),
    ("3x3", 128, 128, 3, 2, 1, 56),
    ("3x3", 512, 512, 3, 1, 1, 7),
    ("7x7 of an image", 3, 64, 7, 2, 1, 224),
    ("3x3, 4 groups", 128, 128, 3, 1, 4, 28),
    ("depthwise 3x3", 64, 64, 3, 1, 64, 56),
    ("depthwise 3x3, stride 2", 96, 96, 3, 2, 96, 112),
    ("depthwise 5x5", 240, 240, 5, 1, 240, 14),
    ("depthwise 3x3", 960, 960, 3, 1, 960, 7),
]
COLUMNS = (
    "model",
    "solver",
    "ALL: ms",
    "reorders, transposes",
    "ours: ms disabled",
    "extended",
    "all",
    "reorders, transposes",
    "best / ALL",
    "difference",
)


def session(model: str | bytes, level: str = "disabled", dump: str = "") -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if dump:
        options.optimized_model_filepath = dump
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# --- operators --------------------------------------------------------------------------------------------------------


def one_operator(
    operator: str, x: np.ndarray, weights: Sequence[np.ndarray], domain: str, **attributes: Any
) -> Callable[[], Any]:
    """A run of four equal nodes on `x`, so that the overhead of the session is small."""
    names = [f"w{i}" for i in range(len(weights))]
    nodes = [helper.make_node(operator, ["x", *names], [f"y{i}"], domain=domain, **attributes) for i in range(4)]
    graph = helper.make_graph(
        nodes,
        "operator",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(4)],
        [numpy_helper.from_array(array, name) for array, name in zip(weights, names, strict=True)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    run = session(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())
    return lambda: run.run(None, {"x": x})


def medians(runs: Sequence[Callable[[], Any]], rounds: int = 15) -> list[float]:
    """The median CPU seconds of each run, measured in turn."""
    taken: list[list[float]] = [[] for _ in runs]
    for each in runs:
        each()
    for _ in range(rounds):
        for times, each in zip(taken, runs, strict=True):
            start = process_time()
            each()
            times.append((process_time() - start) / 4)
    return [median(times) for times in taken]


def operators() -> None:
    from relayout_backends.x86_nchwc.blocks import probe

    block = probe()
    draw = np.random.default_rng(0)
    print(f"blocks of {block} channels\n")
    print("| convolution | channels | plain us | blocked us | | plain ns per 1,000 multiplications | blocked |")
    print("|---|---|---|---|---|---|---|")
    for name, inputs, outputs, size, stride, groups, extent in CONVOLUTIONS:
        x = draw.standard_normal((1, inputs, extent, extent)).astype(np.float32)
        kernel = draw.standard_normal((outputs, inputs // groups, size, size)).astype(np.float32)
        chosen = {"group": groups, "strides": [stride] * 2, "pads": [size // 2] * 4}
        plain, blocked = medians(
            [one_operator("Conv", x, [kernel], "", **chosen), one_operator("Conv", x, [kernel], DOMAIN, **chosen)]
        )
        places = ((extent - 1) // stride + 1) ** 2
        thousands = places * kernel.size / 1000
        print(
            f"| {name} | {inputs} to {outputs} | {plain * 1e6:.0f} | {blocked * 1e6:.0f} | {plain / blocked:.2f} "
            f"| {plain / thousands * 1e9:.1f} | {blocked / thousands * 1e9:.1f} |"
        )
    print(
        "\n| operator | data, KB | plain us | blocked us | | plain less blocked, ns per KB |\n|---|---|---|---|---|---|"
    )
    for name, x, plain_run, blocked_run in _others(draw):
        plain, blocked = medians([plain_run, blocked_run])
        kilobytes, ratio = x.nbytes / 1e3, plain / blocked
        saved = (plain - blocked) * 1e9 / kilobytes
        print(f"| {name} | {kilobytes:.0f} | {plain * 1e6:.0f} | {blocked * 1e6:.0f} | {ratio:.2f} | {saved:.0f} |")
    print("\n| conversion, GB/s read and written | [1,64,56,56] | [1,512,14,14] |\n|---|---|---|")
    for label, operator, domain, attributes in (
        ("NCHW to blocks", "ReorderInput", DOMAIN, {}),
        ("NHWC to blocks", "ReorderInput", DOMAIN, {"channels_last": 1}),
        ("blocks to NCHW", "ReorderOutput", DOMAIN, {"channels": 0}),
        ("NCHW to NHWC", "Transpose", "", {"perm": [0, 2, 3, 1]}),
        ("two groups of NCHW shuffled into blocks", "Transpose", "", {"perm": [0, 2, 4, 3, 1]}),
        ("two groups of NCHW shuffled in place", "Transpose", "", {"perm": [0, 2, 3, 1, 4]}),
    ):
        speeds = []
        for shape in ((1, 64, 56, 56), (1, 512, 14, 14)):
            x = draw.standard_normal(shape).astype(np.float32)
            if "channels" in attributes:
                attributes = {"channels": shape[1]}
            x = x.reshape(shape[0], *shape[2:], shape[1]) if "channels_last" in attributes else x
            x = x.reshape(1, 2, shape[1] // block, block // 2, -1) if "groups" in label else x
            (seconds,) = medians([one_operator(operator, x, [], domain, **attributes)])
            speeds.append(f"{2 * x.nbytes / seconds / 1e9:.1f}")
        print(f"| {label} | {' | '.join(speeds)} |")


def _others(draw: np.random.Generator) -> Iterator[tuple[str, np.ndarray, Callable[[], Any], Callable[[], Any]]]:
    """Pools, a batch normalization and a resize: their names and data, plain and blocked."""
    pooling = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for operator, channels, extent, chosen in (
        ("MaxPool", 64, 112, pooling),
        ("MaxPool", 256, 14, {"kernel_shape": [5, 5], "pads": [2] * 4}),
        ("AveragePool", 64, 56, pooling),
        ("AveragePool", 192, 28, {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("GlobalAveragePool", 512, 7, {}),
        ("GlobalAveragePool", 64, 56, {}),
    ):
        x = draw.standard_normal((1, channels, extent, extent)).astype(np.float32)
        yield operator, x, one_operator(operator, x, [], "", **chosen), one_operator(operator, x, [], DOMAIN, **chosen)
    for channels, extent in ((64, 56), (512, 7)):
        x = draw.standard_normal((1, channels, extent, extent)).astype(np.float32)
        vector = np.ones(channels, np.float32)
        plain = one_operator("BatchNormalization", x, [vector] * 4, "")
        kernel = np.ones((channels, 1, 1, 1), np.float32)
        yield "BatchNormalization", x, plain, one_operator("Conv", x, [kernel, vector], DOMAIN, group=channels)
    x = draw.standard_normal((1, 64, 28, 28)).astype(np.float32)
    scales = np.array([1, 1, 2, 2], np.float32)
    placing = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    plain = one_operator("Resize", x, [np.zeros(0, np.float32), scales], "", **placing)
    yield "Resize", x, plain, one_operator("Upsample", x, [], DOMAIN, scales=[1, 1, 2, 2])


# --- models -----------------------------------------------------------------------------------------------------------


def legal_model(path: Path, target: Path) -> tuple[str, float]:
    """Write the blocked model. Return the status and the seconds of the whole legalization."""
    import relayout
    from relayout.model.io import write_model
    from relayout_backends.x86_nchwc import X86Nchwc

    start = perf_counter()
    model, report = relayout.legalize(str(path), X86Nchwc())
    write_model(model, target)
    return report.status, perf_counter() - start


def _conversions(model: Path, level: str, folder: Path) -> str:
    """The number of reorders and transposes in the model that onnxruntime runs at `level`."""
    dump = folder / "optimized.onnx"
    session(str(model), level, str(dump))
    counts = Counter(node.op_type for node in onnx.load(dump, load_external_data=False).graph.node)
    return f"{counts['ReorderInput'] + counts['ReorderOutput']}, {counts['Transpose']}"


def difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The largest difference of any output, relative to its largest absolute value."""
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(one, other, strict=True) if a.size]
    return max((float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)) for a, b in pairs), default=0.0)


def timings(variants: Sequence[tuple[Path, str]], feeds: dict[str, Any], rounds: int, seconds: float) -> list[float]:
    """The median CPU milliseconds per run of each variant (model, level)."""
    taken: list[list[float]] = [[] for _ in variants]
    for _ in range(rounds):
        for times, (model, level) in zip(taken, variants, strict=True):
            loaded = session(str(model), level)
            for _ in range(2):
                loaded.run(None, feeds)
            end = perf_counter() + seconds
            while perf_counter() < end:
                start = process_time()
                loaded.run(None, feeds)
                times.append((process_time() - start) * 1e3)
            del loaded
    return [median(times) for times in taken]


def models(folder: Path, names: Sequence[str], rounds: int, seconds: float) -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for path in sorted(folder.glob("*.onnx")):
            if names and path.stem not in names:
                continue
            source = onnx.load(path, load_external_data=False)
            if not any("Conv" in node.op_type for node in source.graph.node):
                continue
            target = Path(temporary) / path.name
            try:
                status, took = legal_model(path, target)
            except Exception as error:
                print(f"| {path.stem} | {type(error).__name__}: {str(error).splitlines()[0][:90]} |", flush=True)
                continue
            feeds = feeds_of(str(path))
            off = difference(session(str(path)).run(None, feeds), session(str(target)).run(None, feeds))
            variants = [(path, "all"), *((target, level) for level in LEVELS)]
            theirs, *ours = timings(variants, feeds, rounds, seconds)
            best = min(ours)
            level = list(LEVELS)[ours.index(best)]
            shown = " | ".join(f"**{ms:.2f}**" if ms == best else f"{ms:.2f}" for ms in ours)
            before, after = (_conversions(m, a, Path(temporary)) for m, a in ((path, "all"), (target, level)))
            print(
                f"| {path.stem} | {status}, {took:.1f} s | {theirs:.2f} | {before} | {shown} | {after} "
                f"| {best / theirs:.2f} | {off:.0e} |",
                flush=True,
            )
            target.unlink()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", help="`operators`, or a folder of models")
    parser.add_argument("names", nargs="*", help="models of the folder, without .onnx; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each variant runs in each round")
    given = parser.parse_args(arguments)
    print(f"{machine('onnxruntime', 'onnx')}\n")
    if given.what == "operators":
        operators()
    else:
        models(Path(given.what), given.names, given.rounds, given.seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
