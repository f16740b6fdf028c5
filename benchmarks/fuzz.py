"""Legalize random graphs and look for what does not hold.

    python benchmarks/fuzz.py --graphs 20000 --seed 0

Each graph is drawn from its seed, legalized under a random backend, objective and boundary, and run beside its source;
`tests/support/fuzzing.py` says what is checked. Prints the counts, every failing seed, and how often each row of the op
table occurred. Exit status 1 where anything failed. `--only SEED` repeats one seed and saves its models.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import onnx
from fuzzing import check, draw_settings, runs
from random_graphs import Rejected
from random_patterns import draw_graph

from relayout.rules import rows

DEEP_EVERY = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, help="this seed alone, with every check; saves its models")
    parser.add_argument("--rows", action="store_true", help="print how often each row occurred")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = range(arguments.seed, arguments.seed + arguments.graphs)
    if arguments.only is not None:
        seeds = range(arguments.only, arguments.only + 1)
    return _run(seeds, deep=arguments.only is not None, list_rows=arguments.rows)


def _run(seeds: range, *, deep: bool, list_rows: bool) -> int:
    counts: Counter[str] = Counter()
    covered: Counter[tuple[str, int]] = Counter()
    kinds: dict[str, list[int]] = {}
    start = perf_counter()
    for seed in seeds:
        try:
            graph = draw_graph(seed)
        except Rejected:
            counts["not drawn"] += 1
            continue
        if not runs(graph):
            counts["refused by onnx or onnxruntime"] += 1
            continue
        settings = draw_settings(graph)
        counts["legalized"] += 1
        counts[f"backend {settings.backend}"] += 1
        covered.update({_row_of(*each) for each in graph.operators} - {None})  # type: ignore[arg-type]
        failures = check(graph, settings, deep=deep or seed % DEEP_EVERY == 0)
        for failure in failures:
            kinds.setdefault(failure.kind, []).append(seed)
            print(f"seed {seed} {settings.backend}: {failure}", flush=True)
        if deep:
            print(settings)
            onnx.save(graph.model, f"/tmp/fuzz_{seed}.onnx")
            print(onnx.printer.to_text(graph.model))
    for name, count in sorted(counts.items()):
        print(f"{count:8} {name}")
    missing = [f"{r.operator} since {r.since}" for r in rows() if not covered[r.operator, r.since]]
    print(
        f"{len(rows()) - len(missing):8} of {len(rows())} rows of the op table; without: {', '.join(missing) or 'none'}"
    )
    if list_rows:
        for r in rows():
            print(f"{covered[r.operator, r.since]:8} {r.operator} since {r.since}")
    for kind, failing in sorted(kinds.items()):
        print(f"{len(failing):8} failures: {kind}; seeds {' '.join(map(str, failing[:20]))}")
    print(f"{perf_counter() - start:8.0f} seconds")
    return 1 if kinds else 0


def _row_of(operator: str, opset: int) -> tuple[str, int] | None:
    found = [r for r in rows() if r.operator == operator and r.since <= opset]
    return (operator, found[-1].since) if found else None


if __name__ == "__main__":
    sys.exit(main())
