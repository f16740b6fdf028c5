"""Wrong models from outside, and what refuses each of them.

    python benchmarks/mutation.py [--most 12] [--only MODEL]

Makes mutants of the legal models of `tests/support/outside_models.py`, by the kinds of
`tests/support/outside_mutation.py`, and runs the verifier over them. A mutant is wrong if onnxruntime gives other
outputs for some inputs, or if it breaks the contract by construction. Prints a table of kinds: mutants, wrong ones that
are refused, by which rules of the verifier, and those that pass; then each wrong one that passes. Exit status 1 where
there is one, or where a sound model is refused.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from outside_models import CASES, model_of
from outside_mutation import KINDS, differs, mutants

import relayout
from relayout.verification import Original, verify


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=12, help="mutants of a kind, model and backend")
    parser.add_argument("--only", choices=list(CASES), help="this model alone")
    options = parser.parse_args(arguments)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    rules: dict[str, Counter[str]] = defaultdict(Counter)
    faults: list[str] = []
    for name, (text, backends) in CASES.items():
        for backend in backends if options.only in (None, name) else ():
            original = model_of(text)
            legal, _ = relayout.legalize(original, backend)
            if not verify(legal, backend, against=original).passed:
                faults.append(f"{name}, {backend}: the legal model is refused")
            shared = Original(original)
            for mutant in mutants(legal, options.most):
                found = verify(mutant.model, backend, against=shared)
                is_wrong = mutant.breaks_contract or differs(mutant.model, original)
                counts[mutant.kind].update(["mutants", f"{'wrong' if is_wrong else 'same'} {found.passed}"])
                for rule in {finding.rule for finding in found.findings if finding.severity == "error" and is_wrong}:
                    rules[mutant.kind][rule] += 1
                if is_wrong and found.passed:
                    faults.append(f"{name}, {backend}: {mutant.kind}, {mutant.name} passes")
    print("| kind | mutants | wrong, refused | by | wrong, passed | same outputs, refused | same outputs, passed |")
    print("|---|---|---|---|---|---|---|")
    for kind, count in counts.items():
        by = ", ".join(f"{rule} {times}" for rule, times in rules[kind].most_common())
        cells = [
            count["mutants"],
            count["wrong False"],
            by,
            count["wrong True"],
            count["same False"],
            count["same True"],
        ]
        print(f"| {kind} | {' | '.join(map(str, cells))} |")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
