"""Gap and time of the solver on networks that elimination alone does not finish.

Every convolution runs in every layout, at random costs. The families are dense concatenation (of all features, or of
most), exchange between branches as in HRNet, and random graphs. Each family runs with two kinds of conversion costs:
growing with the distance between the layouts, and equal for all conversions of a tensor, as for transposes.

    python benchmarks/hard.py [--family dense] [--nodes 1000] [--layouts 4] [--seeds 3] [--time-limit 30] [--check 0]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import synthetic
from measuring import machine
from msgspec.structs import replace

from relayout.solve.problem import Problem
from relayout.solve.solver import Solution, solve

__all__ = ["FAMILIES", "PRICES", "problem_of"]

SIZES = (100_352, 200_704, 401_408, 802_816)
GAP = 0.01


class _Builder(synthetic.Builder):
    def convolution(self, x: int, size: int = 0) -> int:
        """A convolution that runs in every layout, at costs similar to that of a conversion."""
        size = size or self.size
        return self.add("conv", (x,), {layout: self.draw.randrange(2 * size) for layout in self.layouts}, size)

    @property
    def layouts(self) -> range:
        return range(self.network.layouts)


def dense(nodes: int, layouts: int, seed: int, *, share: float = 1.0) -> synthetic.Network:
    """Every layer reads a random share of the results of all earlier layers."""
    net = _Builder(layouts, seed)
    features = [0]
    while len(net.network.nodes) < nodes - 1:
        read = [x for x in features if net.draw.random() < share] or features[-1:]
        features.append(net.convolution(net.add("concat", tuple(read))))
    net.add("output", (net.add("concat", tuple(features)),), {0: 0})
    return net.network


def exchange(nodes: int, layouts: int, seed: int, *, branches: int = 4) -> synthetic.Network:
    """Branches of halving size, as in HRNet. After each layer, every branch becomes a sum over all of them."""
    net = _Builder(layouts, seed)
    sizes = [802_816 >> k for k in range(branches)]
    streams = [net.convolution(0, size) for size in sizes]
    while len(net.network.nodes) < nodes - 1:
        streams = [net.convolution(x, size) for x, size in zip(streams, sizes, strict=True)]
        streams = [
            net.add("add", tuple([x if j == k else net.convolution(x, size) for j, x in enumerate(streams)]), size=size)
            for k, size in enumerate(sizes)
        ]
    net.add("output", (net.add("concat", tuple(streams)),), {0: 0})
    return net.network


def random_graph(nodes: int, layouts: int, seed: int, *, followers: float) -> synthetic.Network:
    """Every node reads one to three random earlier nodes. The share `followers` takes any layout of its operands."""
    net = _Builder(layouts, seed)
    while len(net.network.nodes) < nodes - 1:
        earlier = len(net.network.nodes)
        read = tuple(sorted({net.draw.randrange(earlier) for _ in range(net.draw.randint(1, 3))}))
        size = net.draw.choice(SIZES)
        if net.draw.random() < followers:
            net.add("add", read, size=size)
        else:
            net.add("node", read, {layout: net.draw.randrange(2 * size) for layout in net.layouts}, size)
    net.add("output", (len(net.network.nodes) - 1,), {0: 0})
    return net.network


Make = Callable[[int, int, int], synthetic.Network]

FAMILIES: dict[str, Make] = {
    "dense": dense,
    "dense, 4 in 5": lambda nodes, layouts, seed: dense(nodes, layouts, seed, share=0.8),
    "exchange of 4": exchange,
    "exchange of 8": lambda nodes, layouts, seed: exchange(nodes, layouts, seed, branches=8),
    "random, half follow": lambda nodes, layouts, seed: random_graph(nodes, layouts, seed, followers=0.5),
    "random, none follow": lambda nodes, layouts, seed: random_graph(nodes, layouts, seed, followers=0.0),
}
PRICES = ("apart", "equal")


def problem_of(network: synthetic.Network, prices: str) -> Problem:
    """The problem of the network. `prices`: conversion costs grow with the distance of layouts, or are equal."""
    problem: Problem = synthetic.problem_of(network)
    if prices == "apart":
        return problem
    values = []
    for value, node in zip(problem.items, network.nodes, strict=True):
        every = range(network.layouts)
        equal = tuple([tuple([node.size if f != g else 0 for g in every]) for f in every])
        values.append(replace(value, conversion=equal))
    return Problem(problem.choices, tuple(values))


@dataclass(frozen=True, slots=True)
class Measured:
    """One family with one kind of conversion costs, over several seeds."""

    family: str
    nodes: int
    prices: str
    solutions: tuple[Solution, ...]
    seconds: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def worst_gap(self) -> float:
        return max([_gap(solution) for solution in self.solutions])

    def row(self) -> str:
        proved = sum(solution.status == "optimal" for solution in self.solutions)
        kernels = ", ".join(str(solution.kernel_choices) for solution in self.solutions)
        seconds, cpu = (", ".join(f"{one:.1f}" for one in some) for some in (self.seconds, self.cpu))
        gap = "0" if self.worst_gap == 0 else f"{self.worst_gap:.3%}"
        proved_of = f"{proved} of {len(self.solutions)}"
        cells = (self.family, f"{self.nodes:,}", self.prices, kernels, proved_of, gap, seconds, cpu)
        return f"| {' | '.join(cells)} |"


def _gap(solution: Solution) -> float:
    if solution.cost is None or solution.bound is None:
        return 1.0
    return (solution.cost - solution.bound) / solution.cost if solution.cost else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Solve hard networks within a limit; exit status 1 above 1 %.")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="all of them by default")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--layouts", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--check", type=float, default=0.0, help="seconds for CP-SAT on the whole problem beside it")
    options = parser.parse_args(arguments)
    print(f"{machine('ortools', 'numpy')}; at most {options.time_limit:g} s each\n")
    print("| family | nodes | conversions | elimination leaves | proved optimal | worst gap | seconds | CPU seconds |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for name in options.family or FAMILIES:
        for prices in PRICES:
            measured = _measure(name, prices, options)
            worst = max(worst, measured.worst_gap)
            print(measured.row(), flush=True)
    return int(worst > GAP)


def _measure(name: str, prices: str, options: argparse.Namespace) -> Measured:
    solutions: list[Solution] = []
    seconds: list[float] = []
    cpu: list[float] = []
    nodes = 0
    for seed in range(options.seeds):
        network = FAMILIES[name](options.nodes, options.layouts, seed)
        nodes = len(network.nodes)
        problem = problem_of(network, prices)
        started, used = perf_counter(), process_time()
        solutions.append(solve(problem, time_limit=options.time_limit))
        seconds.append(perf_counter() - started)
        cpu.append(process_time() - used)
        if options.check:
            _compare(solutions[-1], solve(problem, engine="cp-sat", time_limit=options.check), f"{name}, seed {seed}")
    return Measured(name, nodes, prices, tuple(solutions), tuple(seconds), tuple(cpu))


def _compare(solution: Solution, whole: Solution, where: str) -> None:
    """Check that the cost of neither engine is below the bound of the other."""
    for one, other in ((solution, whole), (whole, solution)):
        if one.cost is not None and other.bound is not None and one.cost < other.bound:
            raise SystemExit(f"{where}: {one.engine} found {one.cost}, below the bound {other.bound} of {other.engine}")


if __name__ == "__main__":
    raise SystemExit(main())
