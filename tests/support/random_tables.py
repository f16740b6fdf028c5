"""Random backends for a random graph: tables of rules, and several devices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from random_graphs import RandomGraph
from random_settings import SPATIAL, Settings, draw_options, draw_settings, mixed, shipped

from relayout.ops.operand_roles import OPERATORS, kernel_input

KINDS = ("table", "devices")
_CONDITIONS: Sequence[dict[str, Any]] = (
    {"rank": 4},
    {"rank": [3, 4]},
    {"dtype": ["float32"]},
    {"channels": {"min": 2}},
    {"channels": {"multiple_of": 2}},
)
# The first result and the first operand have the same rank, so a layout fits both.
_OF_ONE_RANK = frozenset(
    "Abs Cast Clip CumSum DequantizeLinear Dropout Elu Erf Exp Hardmax LeakyRelu LogSoftmax Neg QuantizeLinear Relu "
    "Sigmoid Softmax Sqrt Tanh".split()
)
# View ops: a layout required of them does not bind, since they are where conversions are made.
_MOVING = frozenset("Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
_ALIGNED = {"W": ["N[a=8]WC"], "HW": ["N[a=4]HWC", "NHW[a=8]C", "NC[a=16]HW"], "DHW": ["NDHW[a=4]C"]}


def draw_specified(graph: RandomGraph, kind: str) -> Settings:
    """The settings of the graph with a random backend of this kind; inputs and outputs keep the identity format."""
    draw = random.Random(graph.seed * 104729 + 7)
    spec = _table(draw, graph) if kind == "table" else _devices(draw, graph)
    settings = draw_settings(graph)
    return Settings(kind, settings.objective, second=settings.second, spec=spec)


def _table(draw: random.Random, graph: RandomGraph) -> dict[str, Any]:
    base = draw.choice(shipped())
    rules = [_rule(draw, graph) for _ in range(draw.randint(1, 3))]
    return {"name": "drawn", "extends": base, "rule": rules, **_options(draw, graph, base)}


def _devices(draw: random.Random, graph: RandomGraph) -> dict[str, Any]:
    """Two or three devices; the last one accepts every node."""
    present = sorted({node.op_type for node in graph.model.graph.node})
    names = ["npu", "gpu", "cpu"][: draw.randint(2, 3)]
    devices = [_device(draw, graph, name) for name in names]
    for device in devices[:-1]:
        taken = draw.random()
        if taken < 0.5:
            device["op"] = draw.sample(present, max(1, len(present) // 2))
        elif taken < 0.7:
            device["when"] = draw.choice([{"rank": 4}, {"rank": [1, 2, 3]}, {"dtype": "float32"}])
        elif taken < 0.8:
            device["nodes"] = ["*2", "*4", "*1*"]
    spec: dict[str, Any] = {"name": "drawn", "device": devices}
    if draw.random() < 0.5:
        spec["host"] = draw.choice(names)
    if draw.random() < 0.6:
        spec["assign"] = [_assignment(draw, present, names) for _ in range(draw.randint(1, 3))]
    return spec


def _device(draw: random.Random, graph: RandomGraph, name: str) -> dict[str, Any]:
    backend = draw.choice(shipped())
    prices = {"transfer": draw.choice([0, 0.1, 1, 3]), "transfer_fixed": draw.choice([0, 0, 100])}
    rules = [_rule(draw, graph) for _ in range(draw.randint(1, 2))] if draw.random() < 0.3 else []
    options = _options(draw, graph, backend) if draw.random() < 0.7 else {}
    return {"name": name, "backend": backend, **prices, **options, **({"rule": rules} if rules else {})}


def _assignment(draw: random.Random, present: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Devices for the nodes of one operator: the last device and some of the others."""
    *others, last = names
    costs = {name: draw.choice([0, 0, 50, 1000]) for name in draw.sample(others, draw.randint(0, len(others)))}
    return {"op": draw.choice(present), "devices": {**costs, last: draw.choice([0, 200])}}


def _options(draw: random.Random, graph: RandomGraph, backend: str) -> dict[str, Any]:
    options = {name: value for name, value in draw_options(draw, graph, backend).items() if value != []}
    return {"options": options} if options else {}


def _rule(draw: random.Random, graph: RandomGraph) -> dict[str, Any]:
    """A rule for an operator, mostly one of the graph, with one or several implementations."""
    present = sorted({node.op_type for node in graph.model.graph.node if node.domain == ""} - _MOVING)
    spatial = sorted({*present}.intersection(OPERATORS))
    kind = draw.random()
    if spatial and kind < 0.6:
        operator = draw.choice(spatial)
    else:
        operator = draw.choice(present if present and kind < 0.9 else OPERATORS)
    letters = draw.choice(("HW", "HW", "HW", *SPATIAL))
    rule: dict[str, Any] = {"op": operator}
    if operator in OPERATORS:
        implementations = [_spatial_implementation(draw, operator, letters) for _ in range(draw.choice([1, 1, 2, 3]))]
        if draw.random() < 0.3:
            rule["when"] = draw.choice(_CONDITIONS)
    else:
        implementations = [_implementation(draw, graph, operator, letters) for _ in range(draw.choice([1, 2]))]
        rule["when"] = {"rank": len(letters) + 2}
    if len(implementations) == 1:
        return {**rule, **implementations[0]}
    costs = [0, 0, 100, 1000, 10000]
    return {**rule, "implementation": [{**each, "cost": draw.choice(costs)} for each in implementations]}


def _spatial_implementation(draw: random.Random, operator: str, spatial: str) -> dict[str, Any]:
    has_kernel = kernel_input(operator) is not None
    if draw.random() < 0.2:
        tile = draw.choice([2, 2, 3, 4])
        kernels = [f"OI{spatial}{tile}i{tile}o", f"OI{spatial}{tile}o", f"O{spatial}I", f"OI{spatial}"]
        return {"data": f"NC{spatial}{tile}c", **({"kernel": draw.choice(kernels)} if has_kernel else {})}
    usual = [f"N{spatial}C", f"N{spatial}C", f"NC{spatial}", "NSC", "NCS"]
    kernels = [mixed(draw, "OI" + spatial), f"{spatial}IO", "SIO", "OSI"]
    implementation = {"data": draw.choice([mixed(draw, "NC" + spatial), *usual])}
    return {**implementation, "kernel": draw.choice(kernels)} if has_kernel and draw.random() < 0.7 else implementation


def _implementation(draw: random.Random, graph: RandomGraph, operator: str, spatial: str) -> dict[str, Any]:
    """An implementation without named axes: a layout for the first operand, the first result, or both."""
    node = next(node for node in graph.model.graph.node if node.op_type == operator)
    layout = draw.choice(_ALIGNED[spatial]) if draw.random() < 0.15 else mixed(draw, "NC" + spatial)
    read, result = (layout if draw.random() < 0.5 else "*" for _ in range(2))
    first = result if operator in _OF_ONE_RANK else "*"
    return {"inputs": [read] if node.input else [], "results": [first, *["*"] * (len(node.output) - 1)]}
