"""Time of the solver on synthetic networks of any size.

Random residual, inception and squeeze-excite blocks. Half of the convolutions run in several layouts at different
costs, the others in one; all other nodes take any layout. The same seed gives the same network on every machine.

    python benchmarks/synthetic.py [--kind blocks] [--nodes 100 1000 10000 100000] [--layouts 4] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from relayout.solve.problem import Choice, Item, Problem, Use
from relayout.solve.solver import solve


@dataclass(slots=True)
class Node:
    """A node with one result: its operands, the size of its result, and its cost in each possible layout."""

    operator: str
    inputs: tuple[int, ...]
    size: int
    costs: dict[int, int]


@dataclass(slots=True)
class Network:
    """Nodes in topological order. Node 0 is the input, the last node is the output."""

    layouts: int
    nodes: list[Node] = field(default_factory=list)


class Builder:
    def __init__(self, layouts: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.network = Network(layouts)
        self.size = 802_816
        self.add("input", (), {0: 0})

    def add(self, operator: str, inputs: tuple[int, ...], costs: dict[int, int] | None = None, size: int = 0) -> int:
        if costs is None:
            costs = dict.fromkeys(range(self.network.layouts), 0)
        self.network.nodes.append(Node(operator, inputs, size or self.size, costs))
        return len(self.network.nodes) - 1

    def convolution(self, x: int, size: int = 0) -> int:
        """A convolution and an activation. Half of the convolutions run in 2 layouts or more, at different costs."""
        layouts = list(range(self.network.layouts))
        chosen = self.draw.sample(layouts, self.draw.randint(2, len(layouts)) if self.draw.random() < 0.5 else 1)
        costs = {layout: self.draw.randrange(4 * self.size) for layout in sorted(chosen)}
        x = self.add("conv", (x,), costs, size)
        return self.add("relu", (x,), size=size)

    def residual(self, x: int) -> int:
        y = x
        for _ in range(self.draw.randint(2, 3)):
            y = self.convolution(y)
        return self.add("relu", (self.add("add", (y, x)),))

    def inception(self, x: int) -> int:
        branches = []
        for branch in range(self.draw.randint(3, 4)):
            y = self.add("pool", (x,)) if branch == 0 else x
            for _ in range(self.draw.randint(1, 2)):
                y = self.convolution(y, self.size // 4)
            branches.append(y)
        return self.add("concat", tuple(branches))

    def squeeze_excite(self, x: int) -> int:
        y = self.convolution(x)
        channels = max(self.size // 3136, 1)
        scale = self.add("mean", (y,), size=channels)
        for _ in range(2):
            scale = self.convolution(scale, channels)
        return self.add("add", (self.add("mul", (y, scale)), x))

    def resize(self, x: int) -> int:
        # Sizes go down and up again, so that a large network does not consist of small tensors.
        self.size = self.draw.choice((100_352, 200_704, 401_408, 802_816))
        return self.add("resize", (x,))


def blocks(nodes: int, *, layouts: int = 4, seed: int = 0) -> Network:
    """Residual, inception and squeeze-excite blocks: at least `nodes` nodes, at most about twenty more."""
    builder = Builder(layouts, seed)
    kinds = (builder.residual, builder.inception, builder.squeeze_excite)
    x = 0
    while len(builder.network.nodes) < nodes - 1:
        if builder.draw.random() < 0.05:
            x = builder.resize(x)
        x = builder.draw.choice(kinds)(x)
    builder.add("output", (x,), {0: 0})
    return builder.network


def dense(nodes: int, *, layouts: int = 4, seed: int = 0) -> Network:
    """Dense concatenation: every layer reads the results of all earlier layers."""
    builder = Builder(layouts, seed)
    features = [0]
    while len(builder.network.nodes) < nodes - 1:
        features.append(builder.convolution(builder.add("concat", tuple(features))))
    builder.add("output", (builder.add("concat", tuple(features)),), {0: 0})
    return builder.network


def exchange(nodes: int, *, layouts: int = 4, seed: int = 0) -> Network:
    """Four branches of different resolution, as in HRNet. After two layers each becomes a sum over all four."""
    builder = Builder(layouts, seed)
    sizes = [802_816, 401_408, 200_704, 100_352]
    streams = [builder.convolution(0, size) for size in sizes]
    while len(builder.network.nodes) < nodes - 1:
        streams = [builder.convolution(builder.convolution(x, s), s) for x, s in zip(streams, sizes, strict=True)]
        sums = []
        for k, size in enumerate(sizes):
            terms = [x if j == k else builder.convolution(x, size) for j, x in enumerate(streams)]
            sums.append(builder.add("add", tuple(terms), size=size))
        streams = sums
    builder.add("output", (builder.add("concat", tuple(streams)),), {0: 0})
    return builder.network


def scattered(nodes: int, *, layouts: int = 4, seed: int = 0) -> Network:
    """A random graph: every node reads one to three random earlier nodes."""
    builder = Builder(layouts, seed)
    while len(builder.network.nodes) < nodes - 1:
        earlier = len(builder.network.nodes)
        inputs = [builder.draw.randrange(earlier) for _ in range(builder.draw.randint(1, 3))]
        size = builder.draw.choice((100_352, 200_704, 401_408, 802_816))
        if len(set(inputs)) == 1:
            builder.convolution(inputs[0], size)
        else:
            builder.add("add", tuple(inputs), size=size)
    builder.add("output", (len(builder.network.nodes) - 1,), {0: 0})
    return builder.network


KINDS = {"blocks": blocks, "dense": dense, "exchange": exchange, "scattered": scattered}


def problem_of(network: Network) -> Problem:
    """The layout problem. A node reads and writes its own layout; a conversion costs the bytes of the tensor."""
    layouts = network.layouts
    readers: list[list[int]] = [[] for _ in network.nodes]
    choices: list[Choice] = []
    formats: list[tuple[int, ...]] = []
    for index, node in enumerate(network.nodes):
        choices.append(Choice(f"{node.operator}{index}", tuple(node.costs.values())))
        formats.append(tuple(node.costs))
        for x in node.inputs:
            readers[x].append(index)
    values: list[Item] = []
    prices: dict[int, tuple[tuple[int, ...], ...]] = {}
    for index, node in enumerate(network.nodes):
        conversion = prices.get(node.size)
        if conversion is None:
            # Conversions between neighbouring layouts move contiguous runs; others move single elements and cost more.
            conversion = prices[node.size] = tuple(
                tuple(node.size * abs(a - b) for b in range(layouts)) for a in range(layouts)
            )
        consumers = tuple([Use(reader, formats[reader]) for reader in readers[index]])
        values.append(Item(choices[index].name, Use(index, formats[index]), consumers, conversion))
    return Problem(tuple(choices), tuple(values))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Build and solve synthetic networks; seconds by stage.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--kind", choices=KINDS, default="blocks")
    parser.add_argument("--layouts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--time-limit", type=float)
    options = parser.parse_args(arguments)
    for nodes in options.nodes:
        graph = KINDS[options.kind](nodes, layouts=options.layouts, seed=options.seed)
        started = perf_counter()
        problem = problem_of(graph)
        built = perf_counter() - started
        solution = solve(problem, engine=options.engine, time_limit=options.time_limit)
        total = perf_counter() - started
        stages = {"problem": built, **solution.seconds}
        print(
            f"{len(graph.nodes):>7} nodes  {solution.status:<10} cost {solution.cost}  bound {solution.bound}  "
            f"kernel {solution.kernel_choices}  {total:.2f} s  ("
            + ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items())
            + ")",
            flush=True,
        )


if __name__ == "__main__":
    main()
