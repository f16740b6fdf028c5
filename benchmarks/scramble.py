"""Models with conversions inserted that undo each other: they must cost what the models cost without.

    python benchmarks/scramble.py MODEL... [--backend NAME ...] [--seed 0] [--edges 12]

At random values of a model, inserts a Transpose and its inverse, the same at a Reshape to a further dim, or at one that
merges two dims. Prints a line for each model, backend and kind whose cost differs, that is not proved optimal, or that
fails, and a summary. The exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import relayout
from relayout.errors import RelayoutError

KINDS = ("transposes", "further dim", "merged dims")
BACKENDS = ("onnx", "nhwc", "x86-nchwc", "xla-cpu", "canonical", "tpu")


class Detour:
    """Nodes after a value of known extents that end in the same value."""

    def __init__(self, model: onnx.ModelProto, name: str, dims: Sequence[int]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.last, self.dims = name, list(dims)
        self._model, self._stem = model, f"{name}_detour"

    def transpose(self, perm: Sequence[int]) -> None:
        """Append a Transpose."""
        self._append("Transpose", [self.last], perm=list(perm))
        self.dims = [self.dims[axis] for axis in perm]

    def reshape(self, dims: Sequence[int]) -> None:
        """Append a Reshape."""
        shape = numpy_helper.from_array(np.array(dims, np.int64), f"{self._stem}_{len(self.nodes)}_shape")
        self._model.graph.initializer.append(shape)
        self._append("Reshape", [self.last, shape.name])
        self.dims = list(dims)

    def _append(self, operator: str, inputs: Sequence[str], **attributes: Any) -> None:
        result = f"{self._stem}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], name=result, **attributes))
        self.last = result


def scrambled(model: onnx.ModelProto, kind: str, edges: int, draw: random.Random) -> onnx.ModelProto:
    """A copy of the model with detours after so many of its values."""
    shapes = _shapes(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    made = [name for node in graph.node for name in node.output if node.op_type not in ("Constant", "Shape")]
    chosen = [name for name in made if len(shapes.get(name, ())) > 1]
    detours = {
        name: _detour(changed, name, shapes[name], kind, draw) for name in draw.sample(chosen, min(edges, len(chosen)))
    }
    nodes = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in detours:
                node.input[index] = detours[name].last
        nodes.append(node)
        for name in node.output:
            nodes += detours[name].nodes if name in detours else ()
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(kept)
    return changed


def _detour(model: onnx.ModelProto, name: str, dims: Sequence[int], kind: str, draw: random.Random) -> Detour:
    detour = Detour(model, name, dims)
    outer = _shuffled(len(dims), draw)
    if kind == "transposes" or len(dims) < 3:
        detour.transpose(outer)
    elif kind == "further dim":
        place = draw.randrange(len(dims) + 1)
        detour.reshape([*dims[:place], 1, *dims[place:]])
        inner = _shuffled(len(dims) + 1, draw)
        detour.transpose(inner)
        detour.transpose(_inverse(inner))
        detour.reshape(dims)
        return detour
    else:
        detour.transpose(outer)
        turned, place = detour.dims, draw.randrange(len(dims) - 1)
        detour.reshape([*turned[:place], turned[place] * turned[place + 1], *turned[place + 2 :]])
        inner = _shuffled(len(dims) - 1, draw)
        detour.transpose(inner)
        detour.transpose(_inverse(inner))
        detour.reshape(turned)
    detour.transpose(_inverse(outer))
    return detour


def _shuffled(rank: int, draw: random.Random) -> list[int]:
    return draw.sample(range(rank), rank)


def _inverse(perm: Sequence[int]) -> list[int]:
    return [perm.index(axis) for axis in range(len(perm))]


def _shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """The extents of the values whose extents are all known."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    found = {value.name: value.type.tensor_type.shape.dim for value in (*graph.value_info, *graph.output)}
    return {name: [dim.dim_value for dim in dims] for name, dims in found.items() if all(dim.dim_value for dim in dims)}


def main() -> int:
    """Print the pairs that differ, and a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--backend", nargs="+", default=BACKENDS, dest="backends")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edges", type=int, default=12, help="values after which conversions are inserted")
    arguments = parser.parse_args()
    pairs = faults = 0
    for path in arguments.models:
        model = onnx.load(path, load_external_data=False)
        for backend in arguments.backends:
            try:
                cost = relayout.legalize(model, backend)[1].cost
            except RelayoutError as error:
                print(f"{path}, {backend}: {error.problem}")
                continue
            for kind in KINDS:
                pairs += 1
                draw = random.Random(f"{arguments.seed} {path} {backend} {kind}")
                fault = _fault(scrambled(model, kind, arguments.edges, draw), backend, cost)
                if fault:
                    faults += 1
                    print(f"{path}, {backend}, {kind}: {fault}", flush=True)
    print(f"{pairs} pairs of scrambled model and backend, {faults} with another cost or a fault")
    return 1 if faults else 0


def _fault(model: onnx.ModelProto, backend: str, cost: int | None) -> str:
    try:
        report = relayout.legalize(model, backend)[1]
    except RelayoutError as error:
        return error.problem
    if report.status != "optimal":
        return report.status
    return f"{report.cost} in place of {cost} bytes" if report.cost != cost else ""


if __name__ == "__main__":
    sys.exit(main())
