"""Legalize random graphs and check the results.

    python benchmarks/fuzz.py --graphs 20000 --seed 0 --processes 2

A seed determines a graph and random settings: backend, options, objective, boundary layouts.
`tests/support/fuzzing.py` has the checks. Prints the counts, every failing seed, and how often each row of the op table
occurred. The exit status is 1 if a check failed. `--only SEED` repeats one seed with every check, and `--save FILE`
keeps its model. The backend is a shipped one; `--backends table` or `devices` draws one for the graph. For `--backends
open`, graphs have extents that are computed while they run, and the backend is `onnx`: at no drawn size may the legal
model move more bytes than the source.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import onnx
from fuzzing import Failure, check, runs
from random_graphs import RandomGraph, Rejected
from random_open_extents import draw_open, worse_sizes
from random_patterns import draw_graph
from random_settings import Settings, draw_settings
from random_tables import KINDS, draw_specified

from relayout.ops import rows

DEEP_EVERY = 20
CHUNK = 50


@dataclass
class Tally:
    """The results of some seeds."""

    counts: Counter[str] = field(default_factory=Counter)
    covered: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[tuple[int, str, Failure]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.covered += other.covered
        self.failures += other.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=inf, help="after so long, the other seeds are left out")
    parser.add_argument("--only", type=int, help="this seed alone, with every check")
    parser.add_argument("--save", type=Path, help="where the model of --only goes")
    parser.add_argument("--backends", choices=("shipped", "open", *KINDS), default="shipped")
    parser.add_argument("--rows", action="store_true", help="print how often each row occurred")
    arguments = parser.parse_args()
    if arguments.only is not None:
        return _repeat(arguments.only, arguments.backends, arguments.save)
    seeds = range(arguments.seed, arguments.seed + arguments.graphs)
    start = perf_counter()
    total = Tally()
    for tally in _tallies(seeds, arguments.backends, arguments.processes, time() + arguments.seconds):
        for seed, backend, failure in tally.failures:
            print(f"seed {seed} {backend}: {failure}", flush=True)
        total.add(tally)
    _tell(total, list_rows=arguments.rows)
    print(f"{perf_counter() - start:8.0f} seconds")
    return 1 if total.failures else 0


def _settings(graph: RandomGraph, backends: str) -> Settings:
    return draw_settings(graph) if backends == "shipped" else draw_specified(graph, backends)


def _repeat(seed: int, backends: str, save: Path | None) -> int:
    if backends == "open":
        print(onnx.printer.to_text(draw_open(seed)))
        print(*(failures := worse_sizes(seed)), sep="\n")
        return 1 if failures else 0
    graph = draw_graph(seed)
    settings = _settings(graph, backends)
    print(settings)
    print(onnx.printer.to_text(graph.model))
    if save is not None:
        onnx.save(graph.model, save)
    failures = check(graph, settings, deep=True)
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def _tallies(seeds: range, backends: str, processes: int, end: float) -> Iterator[Tally]:
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    examine = partial(_examine, backends, end)
    if processes == 1:
        yield from map(examine, chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(examine, chunks)


def _examine(backends: str, end: float, seeds: range) -> Tally:
    """The results of some seeds, drawn before the time `end`, in seconds since the epoch."""
    warnings.simplefilter("ignore")
    tally = Tally()
    for seed in seeds:
        if time() > end:
            tally.counts["left out for want of time"] += 1
            continue
        if backends == "open":
            tally.counts["legalized"] += 1
            tally.failures += [(seed, "onnx", Failure("open extents", each)) for each in worse_sizes(seed)]
            continue
        try:
            graph = draw_graph(seed)
        except Rejected:
            tally.counts["not drawn"] += 1
            continue
        if not runs(graph):
            tally.counts["refused by onnx or onnxruntime"] += 1
            continue
        settings = _settings(graph, backends)
        tally.counts["legalized"] += 1
        tally.counts[f"backend {settings.backend}"] += 1
        tally.covered.update({_row_of(*each) for each in graph.operators} - {None})  # type: ignore[arg-type]
        failures = check(graph, settings, deep=seed % DEEP_EVERY == 0)
        tally.failures += [(seed, settings.backend, failure) for failure in failures]
    return tally


def _tell(total: Tally, *, list_rows: bool) -> None:
    for name, count in sorted(total.counts.items()):
        print(f"{count:8} {name}")
    if not total.covered:
        return
    table = [r for r in rows() if not r.domain]
    missing = [f"{r.operator} since {r.since}" for r in table if not total.covered[r.operator, r.since]]
    print(
        f"{len(table) - len(missing):8} of {len(table)} rows of the op table; without: {', '.join(missing) or 'none'}"
    )
    if list_rows:
        for r in table:
            print(f"{total.covered[r.operator, r.since]:8} {r.operator} since {r.since}")
    kinds: dict[str, list[int]] = {}
    for seed, _, failure in total.failures:
        kinds.setdefault(failure.kind, []).append(seed)
    for kind, failing in sorted(kinds.items()):
        print(f"{len(failing):8} failures: {kind}; seeds {' '.join(map(str, failing[:20]))}")


def _row_of(operator: str, opset: int) -> tuple[str, int] | None:
    found = [r for r in rows() if not r.domain and r.operator == operator and r.since <= opset]
    return (operator, found[-1].since) if found else None


if __name__ == "__main__":
    sys.exit(main())
