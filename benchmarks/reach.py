"""Does any order that is not in reach make a model cheaper? Every order of a few axes is considered as well.

    python benchmarks/reach.py --seconds 60 --seed 0 --backends onnx,nhwc,x86-nchwc

Each random graph is legalized twice: as always, and with every order of at most four axes as a further candidate of
each tensor and each layout-agnostic operator. A cost that is lower then belongs to a format that propagation does not
reach. Prints each such seed, with both costs. The exit status is 1 if there is one. Results without a proof that is
over all copies do not count: with many formats, a tensor is converted from the format in which it is made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count, permutations
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import onnx
from random_graphs import Rejected
from random_patterns import draw_graph

from relayout import legalize
from relayout.candidates import propagation
from relayout.errors import RelayoutError
from relayout.layout.memory_format import Extent, MemoryFormat, normal_form, order_of
from relayout.report.schema import Report

MOST_AXES = 4
MOST_NODES = 24


def main() -> int:
    """Print a line for each model that gets cheaper, and the number of models."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backends", default="onnx,nhwc,x86-nchwc")
    arguments = parser.parse_args()
    end, compared, cheaper = perf_counter() + arguments.seconds, 0, 0
    for seed in count(arguments.seed):
        if perf_counter() > end:
            break
        try:
            model = draw_graph(seed).model
        except Rejected:
            continue
        for backend in arguments.backends.split(",") if len(model.graph.node) <= MOST_NODES else ():
            both = costs(model, backend)
            if both is not None:
                compared += 1
                if both[1] < both[0]:
                    cheaper += 1
                    print(f"seed {seed}, {backend}: {both[0]}, with every order {both[1]}", flush=True)
    print(f"{compared} pairs of graph and backend, {cheaper} cheaper with every order")
    return 1 if cheaper else 0


def costs(model: onnx.ModelProto, backend: str) -> tuple[int, int] | None:
    """The cost as always, and with every order; None where a run has no proof, or the model is refused."""
    try:
        found = _proved(legalize(model, backend, verify=False)[1])
        with every_order():
            least = _proved(legalize(model, backend, verify=False)[1])
    except RelayoutError:
        return None
    return None if found is None or least is None else (found, least)


def _proved(report: Report) -> int | None:
    return report.cost if report.status == "optimal" else None


@contextmanager
def every_order() -> Iterator[None]:
    """Considers every order of the axes, where these are few."""
    start = propagation._Propagation.start

    def start_with_all(self: Any, seeds: Iterable[Any], further: int) -> None:
        start(self, seeds, further)
        for tensor in self.formats:
            for order in _orders(tensor.extents):
                self.add_format(tensor, order)
        for space in self.orders:
            for order in _orders(space.maps.extents):
                self.add_order(space, order, is_required=False)

    propagation._Propagation.start = start_with_all  # type: ignore[method-assign]
    try:
        yield
    finally:
        propagation._Propagation.start = start  # type: ignore[method-assign]


def _orders(extents: tuple[Extent, ...]) -> Iterator[MemoryFormat]:
    places = range(len(extents))
    return (normal_form(order_of(perm), extents) for perm in permutations(places) if len(places) <= MOST_AXES)


if __name__ == "__main__":
    sys.exit(main())
