"""Random settings for a graph: backend, its options, objective, and layouts of inputs and outputs."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from random_graphs import RandomGraph

from relayout.backend import Backend, load_backend
from relayout.backend.registry import find_backends
from relayout.ops.operand_roles import OPERATORS, kernel_input

# Weights of the shipped backends in the draw; the default is 1.
_OFTEN = {"onnx": 5, "nhwc": 3, "convert-layout": 3, "auto-nhwc": 2, "x86-nchwc": 2}
SPATIAL = ("W", "HW", "DHW")


@dataclass(frozen=True)
class Settings:
    """The settings of one legalization. `options` are the backend's; `spec` is a backend without a name."""

    backend: str = "onnx"
    objective: str = "bytes"
    options: Mapping[str, Any] = field(default_factory=dict)
    input_layouts: Mapping[str, str] = field(default_factory=dict)
    output_layouts: Mapping[str, str] = field(default_factory=dict)
    second: str = "onnx"
    spec: Mapping[str, Any] | None = None

    def loaded(self, backend: str = "") -> Backend:
        if self.spec is not None and not backend:
            return load_backend(self.spec)
        return _loaded(backend, "") if backend else _loaded(self.backend, repr(self.options))


@cache
def _loaded(name: str, options: str) -> Backend:
    """One instance for all graphs with these options, since a backend keeps no state of a graph."""
    return load_backend(name, options=ast.literal_eval(options) if options else {})


@cache
def shipped() -> tuple[str, ...]:
    return tuple(name for name, plugin in find_backends().items() if plugin.value.startswith("relayout_backends."))


def draw_settings(graph: RandomGraph) -> Settings:
    """A shipped backend with options, an objective, and sometimes boundary layouts."""
    draw = random.Random(graph.seed * 7919 + 13)
    names = shipped()
    backend = draw.choices(names, [_OFTEN.get(name, 1) for name in names])[0]
    options = draw_options(draw, graph, backend)
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    if draw.random() < 0.3:
        for values, chosen in ((graph.model.graph.input, inputs), (graph.model.graph.output, outputs)):
            for value in values:
                if draw.random() < 0.4:
                    rank = len(value.type.tensor_type.shape.dim)
                    order = mixed(draw, "NC" + SPATIAL[rank - 3]) if 3 <= rank <= 5 else ""
                    chosen[value.name] = draw.choice(["any", order or "any"])
    objective = "transposes" if draw.random() < 0.25 else "bytes"
    return Settings(backend, objective, options, inputs, outputs, draw.choice(["onnx", *names]))


def draw_options(draw: random.Random, graph: RandomGraph, backend: str) -> dict[str, Any]:
    """Random options of a shipped backend."""
    return _OPTIONS[backend](draw, graph) if backend in _OPTIONS else {}


def mixed(draw: random.Random, letters: str) -> str:
    return "".join(draw.sample(letters, len(letters)))


def _desired_layouts(draw: random.Random, graph: RandomGraph) -> dict[str, Any]:
    """Layouts for some operators, mostly of the graph: usual ones or random permutations, one rank each."""
    present = sorted({operator for operator, _ in graph.operators}.intersection(OPERATORS))
    desired = {}
    for operator in dict.fromkeys([*draw.sample(present, min(len(present), 3)), *draw.sample(OPERATORS, 2)]):
        spatial = draw.choice(("HW", "HW", "HW", *SPATIAL))
        if draw.random() < 0.2:
            desired[operator] = _packed(draw, operator, spatial)
            continue
        usual = draw.random() < 0.7
        data = draw.choice([f"N{spatial}C", f"N{spatial}C", f"NC{spatial}"]) if usual else mixed(draw, "NC" + spatial)
        layouts = [data]
        if kernel_input(operator) is not None:
            kernel = mixed(draw, "OI" + spatial)
            layouts += draw.choice([[], ["default"], [kernel]]) if usual else [kernel]
        desired[operator] = layouts
    skipped = [node.name or node.output[0] for node in graph.model.graph.node if draw.random() < 0.1]
    return {"desired_layouts": desired, "skip": skipped}


def _packed(draw: random.Random, operator: str, spatial: str) -> list[str]:
    """Layouts with tiled channels, of the data alone or of the kernel too."""
    tile = draw.choice([2, 2, 3, 4])
    data = f"NC{spatial}{tile}c"
    kernels = [f"OI{spatial}{tile}i{tile}o", f"OI{spatial}{tile}o", f"O{spatial}I"]
    return [data] if kernel_input(operator) is None else [data, draw.choice(kernels)]


def _device(draw: random.Random, graph: RandomGraph) -> dict[str, Any]:
    return {"device": draw.choice(["cuda"] * 9 + ["cpu"])}


def _first_convolution(draw: random.Random, graph: RandomGraph) -> dict[str, Any]:
    return draw.choice([{}, {"max_batch": 64, "max_channels": 64}, {"space_to_depth": False}])


_OPTIONS: dict[str, Callable[[random.Random, RandomGraph], dict[str, Any]]] = {
    "auto-nhwc": _device,
    "convert-layout": _desired_layouts,
    "tpu": _first_convolution,
}
