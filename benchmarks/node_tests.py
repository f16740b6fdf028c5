"""onnx's own node tests, each made legal for each backend that ships, and what does not hold of the results.

    python benchmarks/node_tests.py [--backend NAME ...] [--only SUBSTRING] [--shard K/N] [--wrapped]

For each pair of a test and a backend: legalizing ends with a model or with a clear refusal; onnx.checker accepts the
model; it gives the outputs that the test expects; `verify` has no finding of its layouts, of its report or against the
source; and legalizing it once more changes nothing and costs nothing more. `tests/support/node_cases.py` has the
checks. With `--wrapped` each input and output of two axes or more goes through two Transposes that cancel each other,
and the model must not cost more than without them. Every fault is printed as it is found, then a table of counts and
the reasons of the refusals. A pair that no runtime can judge, since the source does not give the expected outputs
either, is counted as not run. Exit status 1 where there is a fault.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from measuring import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from node_cases import KINDS, Case, Outcome, backends, cases, check, wrapped

COLUMNS = ("backend", "tests", "legal", "refused", "not run", *KINDS)


@dataclass
class Tally:
    """The counts by backend and column, and each reason of a refusal with the pairs that it is given for."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: dict[str, list[str]] = field(default_factory=dict)

    def add(self, case: Case, backend: str, outcome: Outcome) -> None:
        found = ["tests"]
        if outcome.refused is not None:
            found.append("refused")
            reason = f"{type(outcome.refused).__name__}: {outcome.refused.problem}"
            self.refusals.setdefault(reason, []).append(f"{case.name} ({backend})")
        elif outcome.is_legal:
            found += ["legal"] if outcome.runtime else ["legal", "not run"]
        found += sorted({fault.kind for fault in outcome.faults})
        self.counts.update((backend, column) for column in found)

    @property
    def faults(self) -> int:
        return sum(self.counts[pair] for pair in self.counts if pair[1] in KINDS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", metavar="NAME", choices=list(backends()), default=list(backends()))
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="tests with this in their name")
    parser.add_argument("--shard", metavar="K/N", type=_shard, default=(1, 1), help="every N-th test, from the K-th on")
    parser.add_argument("--wrapped", action="store_true", help="through Transposes that cancel each other")
    options = parser.parse_args(arguments)
    first, step = options.shard
    chosen = [case for case in cases() if options.only in case.name][first - 1 :: step]
    if not chosen:
        parser.error("no such test")
    warnings.simplefilter("ignore")
    print(f"{machine('onnx', 'onnx-ir', 'onnxruntime', 'ortools')}.\n")
    start, tally = perf_counter(), Tally()
    for case in chosen:
        subject, unwrapped = (wrapped(case), case) if options.wrapped else (case, None)
        for backend in options.backend:
            outcome = check(subject, backend, unwrapped=unwrapped)
            tally.add(case, backend, outcome)
            for fault in outcome.faults:
                print(f"{case.name}, {backend}: {fault}", flush=True)
    print("\n".join(_table(tally, options.backend)))
    print(f"\n{perf_counter() - start:.0f} seconds, {tally.faults} faults")
    return 1 if tally.faults else 0


def _shard(text: str) -> tuple[int, int]:
    shard, _, shards = text.partition("/")
    if not (shard.isdigit() and shards.isdigit() and 1 <= int(shard) <= int(shards)):
        raise argparse.ArgumentTypeError(f"K/N with 1 <= K <= N expected, found {text}")
    return int(shard), int(shards)


def _table(tally: Tally, wanted: Sequence[str]) -> Iterator[str]:
    """Counts by backend, then each reason of a refusal with the first pair that it is given for."""
    yield f"\n| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for backend in wanted:
        yield f"| {backend} | {' | '.join(str(tally.counts[backend, column]) for column in COLUMNS[1:])} |"
    yield "\n| refused | times | for the first time |\n|---|---|---|"
    for reason, pairs in sorted(tally.refusals.items(), key=lambda item: -len(item[1])):
        yield f"| {reason} | {len(pairs)} | {pairs[0]} |"


if __name__ == "__main__":
    sys.exit(main())
