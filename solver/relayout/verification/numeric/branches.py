"""The branches of an If and the body of a Loop, each forced to run: the drawn inputs may never take one of them."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from relayout.ops.node_reader import constant_tensor
from relayout.verification.constants import constants_of
from relayout.verification.counterparts import bodies_of

_NAME = "relayout_forced"

_ROUNDS = (1, 2)
"""The rounds of a Loop. A second one reads what the first gives, and may undo its fault."""


class Forcing(NamedTuple):
    """The conditions that are forced. `branches`: whether the then branch is taken, of an If outside any other one, of
    one inside a branch, and so on. `rounds` are those of each Loop that may have none; 0: as the inputs have it."""

    branches: tuple[bool, ...]
    rounds: int

    def __str__(self) -> str:
        if self.rounds:
            return "the Loops whose rounds depend on the inputs do not run with their conditions forced"
        return f"the {'then' if self.branches[0] else 'else'} branches do not run with their conditions forced"


def forcings(model: ir.Model) -> list[Forcing]:
    """The ways to force conditions so that each branch is taken once, and each Loop runs; none where no condition
    depends on the inputs."""
    constants = constants_of(model.graph)
    paths = sorted(set(_paths(model.graph, constants, ())), reverse=True)
    deepest = max(map(len, paths), default=0)
    # A longer path takes the branches of a shorter one too.
    ends = [path for path in paths if not any(other != path and other[: len(path)] == path for other in paths)]
    branches = [path + path[-1:] * (deepest - len(path)) for path in ends]
    found = [Forcing(each, 0) for each in branches]
    if any(_may_not_run(node, constants) for node in model.graph.all_nodes()):
        found += [Forcing(each, rounds) for rounds in _ROUNDS for each in branches or [()]]
    return found


def _paths(graph: ir.Graph, constants: Set[ir.Value], path: tuple[bool, ...]) -> Iterator[tuple[bool, ...]]:
    """For each branch of an If whose condition is not a constant, the branches that lead to it, and itself."""
    for node in graph:
        is_open = _is_open(node, constants)
        for name, inner in bodies_of(node).items():
            longer = (*path, name == "then_branch") if is_open else path
            if is_open:
                yield longer
            yield from _paths(inner, constants, longer)


def forced(model: ir.Model, forcing: Forcing) -> ir.Model:
    """A copy whose conditions are constants, those that were constants before aside."""
    copy = model.clone()
    constants = constants_of(copy.graph)
    taken = [_given(copy.graph, f"{_NAME}_at_{depth}", np.array(each)) for depth, each in enumerate(forcing.branches)]
    open_ = list(_open_in(copy.graph, constants, 0)) if taken else []
    loops = [each for each in copy.graph.all_nodes() if forcing.rounds and _may_not_run(each, constants)]
    for node, depth in open_:
        node.replace_input_with(0, taken[depth])
    if loops:
        goes = _given(copy.graph, f"{_NAME}_on", np.array(True))
        rounds = _given(copy.graph, f"{_NAME}_rounds", np.array(forcing.rounds))
    for n, node in enumerate(loops):
        node.replace_input_with(0, rounds)
        node.replace_input_with(1, goes)
        for body in bodies_of(node).values():
            again = ir.node("Identity", [goes])
            body.append(again)
            body.outputs[0] = again.outputs[0]
            body.outputs[0].name, body.outputs[0].type, body.outputs[0].shape = f"{_NAME}_in_{n}", goes.type, goes.shape
    return copy


def _given(graph: ir.Graph, name: str, data: np.ndarray[tuple[()], np.dtype[np.generic]]) -> ir.Value:
    """A new constant of the graph, a scalar."""
    constant = ir.val(name, const_value=ir.tensor(data, name=name))
    graph.register_initializer(constant)
    return constant


def _open_in(graph: ir.Graph, constants: Set[ir.Value], depth: int) -> Iterator[tuple[ir.Node, int]]:
    """Each If whose condition is not a constant, with the number of those around it."""
    for node in graph:
        is_open = _is_open(node, constants)
        if is_open:
            yield node, depth
        for inner in bodies_of(node).values():
            yield from _open_in(inner, constants, depth + is_open)


def _is_open(node: ir.Node, constants: Set[ir.Value]) -> bool:
    return node.op_type == "If" and node.domain == "" and node.inputs[0] not in constants


def _may_not_run(node: ir.Node, constants: Set[ir.Value]) -> bool:
    """Whether a Loop has rounds for some inputs alone: it has no known count, or a condition that may be false."""
    if node.op_type != "Loop" or node.domain != "":
        return False
    most, condition = node.inputs[:2]
    count = _count(node, constants)
    if count is not None and count < 1:
        return False  # it never has any
    is_on = condition is None or (condition in constants and _number(condition) == 1)
    return not is_on or (most is not None and count is None)


def _count(node: ir.Node, constants: Set[ir.Value]) -> int | None:
    """The largest number of rounds of a Loop, where it is known."""
    most = node.inputs[0]
    return _number(most) if most is not None and most in constants else None


def _number(value: ir.Value) -> int | None:
    tensor = constant_tensor(value)
    return int(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None
