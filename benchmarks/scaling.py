"""Wall and CPU seconds of the library's stages on generated ONNX networks of growing size.

    python benchmarks/scaling.py [--nodes 1000 10000 100000] [--backend onnx|mixed|...] [--repeat 3] [--profile]

`read` parses the file and infers shapes, `build` goes from the model to the problem, `solve` proves the optimum,
`rewrite` creates the legal model. Every run has its own process; the table shows medians. The backend `mixed` runs half
of the convolutions in one of four layouts and half in several, at different costs. `--profile` profiles the largest
size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from measuring import machine, run

if TYPE_CHECKING:
    from relayout.backend import Backend

HERE = Path(__file__).parent
STAGES = ("read", "build", "solve", "rewrite")


def mixed() -> Backend:
    """Convolutions in several layouts of different cost, seeded by the node's name; other operators as in ONNX."""
    import random

    import onnx_ir as ir

    from relayout.backend import Backend, Implementation
    from relayout.layout.layout import Layout

    layouts = [Layout.parse(letters) for letters in ("NCHW", "NHWC", "NHCW", "NCWH")]

    class Mixed(Backend):
        name = "mixed"

        def implementations(self, node: ir.Node) -> Sequence[Implementation]:
            if node.op_type != "Conv":
                return super().implementations(node)
            draw = random.Random(node.name)
            shape = node.outputs[0].shape
            size = 4 * prod(dim for dim in shape or () if isinstance(dim, int))
            chosen = draw.sample(layouts, draw.randint(2, 4) if draw.random() < 0.5 else 1)
            rest = tuple(Layout.any(len(v.shape) if v and v.shape else 0) for v in node.inputs[1:])
            return [Implementation((each, *rest), (each,), draw.randrange(4 * size)) for each in chosen]

    return Mixed()


def measured(path: str, backend: str) -> dict[str, object]:
    """One run in this process: [wall, CPU] seconds by stage, and the result."""
    from relayout.backend import load_backend
    from relayout.legalization import legalize_model
    from relayout.model.io import read_model
    from relayout.options import Options

    chosen = mixed() if backend == "mixed" else load_backend(backend)
    marks: list[tuple[str, float, float]] = []

    def mark(stage: str) -> None:
        marks.append((stage, perf_counter(), process_time()))

    mark("read")
    model = read_model(path)
    nodes = len(model.graph)
    mark("count")
    report = legalize_model(model, chosen, Options(), progress=mark).report
    mark("end")
    assert report.solver is not None
    names = {"requirements": "build"}
    seconds = {
        names.get(stage, stage): (end - start, end_cpu - start_cpu)
        for (stage, start, start_cpu), (_, end, end_cpu) in pairwise(marks)
    }
    return {
        "nodes": nodes,
        "status": report.status,
        "proved": report.cost == report.bound,
        "before": report.before.transposes,
        "after": report.after.transposes,
        "choices": report.solver.choices,
        "kernel": report.solver.kernel_choices,
        "seconds": seconds,
    }


def row(size: int, backend: str, repeat: int, limit: float) -> dict[str, object]:
    """The line with the medians of `repeat` runs on a network of `size` nodes."""
    with tempfile.TemporaryDirectory() as folder:
        made = run([sys.executable, str(HERE / "networks.py"), folder, str(size)], limit=limit)
        if made.status:
            raise SystemExit(made.errors)
        (path,) = Path(folder).glob("*.onnx")
        command = [sys.executable, str(HERE / "scaling.py"), "--one", str(path), "--backend", backend]
        runs = [run(command, limit=limit) for _ in range(repeat)]
    for each in runs:
        if each.status:
            raise SystemExit(each.errors or each.fault)
    results = [json.loads(each.output) for each in runs]
    facts: dict[str, object] = results[0]
    facts["peak"] = median(each.peak for each in runs)
    facts["seconds"] = {
        stage: [median(r["seconds"][stage][clock] for r in results) for clock in (0, 1)] for stage in STAGES
    }
    return facts


def profile(path: str, backend: str) -> None:
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.runcall(measured, path, backend)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Seconds by stage on generated networks of growing size.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--backend", default="onnx")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900, help="seconds for one run")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        if options.profile:
            profile(options.one, options.backend)
        else:
            print(json.dumps(measured(options.one, options.backend)))
        return
    print(f"Backend {options.backend}, medians of {options.repeat} runs, wall seconds (CPU seconds). ", end="")
    print(f"{machine('onnx', 'onnx-ir', 'ortools')}.\n")
    stages = " | ".join(STAGES)
    print(f"| nodes | transposes | status | choices | kernel | {stages} | build + solve | CPU growth | peak MB |")
    print("|---" * (len(STAGES) + 8) + "|")
    before: tuple[int, float] | None = None
    for size in options.nodes:
        facts = row(size, options.backend, options.repeat, options.limit)
        seconds = facts["seconds"]
        assert isinstance(seconds, dict)
        nodes, peak = int(str(facts["nodes"])), float(str(facts["peak"]))
        proof = [seconds["build"][clock] + seconds["solve"][clock] for clock in (0, 1)]
        # Growth of the CPU time over growth of the nodes: 1.00 is linear.
        growth = "" if before is None else f"{proof[1] / before[1] / (nodes / before[0]):.2f}"
        before = (nodes, proof[1])
        cells = [f"{nodes}", f"{facts['before']} -> {facts['after']}", str(facts["status"])]
        cells += [str(facts["choices"]), str(facts["kernel"])]
        cells += [f"{wall:.2f} ({cpu:.2f})" for wall, cpu in (*(seconds[stage] for stage in STAGES), proof)]
        print("| " + " | ".join([*cells, growth, f"{peak / 1e6:.0f}"]) + " |", flush=True)
    if options.profile:
        with tempfile.TemporaryDirectory() as folder:
            run([sys.executable, str(HERE / "networks.py"), folder, str(options.nodes[-1])])
            (path,) = Path(folder).glob("*.onnx")
            profile(str(path), options.backend)


if __name__ == "__main__":
    main()
