"""The branches of an If, each forced: the drawn inputs may never take one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from relayout.ops import graphs_of
from relayout.verification.constants import constants_of

__all__ = ["Forcing", "forced", "forcings"]

Forcing = tuple[bool, bool]
"""Whether the then branch is taken, of an If outside any other one, and of one inside a branch."""

_NAME = "relayout_forced"


def forcings(model: ir.Model) -> list[Forcing]:
    """The ways to force the branches so that each is taken once; none where no condition depends on the inputs."""
    depths = {depth > 0 for _, depth in _open(model)}
    if not depths:
        return []
    return [(True, True), (False, False)] + ([(True, False), (False, True)] if True in depths else [])


def forced(model: ir.Model, forcing: Forcing) -> ir.Model:
    """A copy whose conditions are constants, those that were constants before aside."""
    copy = model.clone()
    names = []
    for inside, taken in enumerate(forcing):
        name = f"{_NAME}_{inside}"
        constant = ir.Value(name=name, const_value=ir.tensor(np.array(taken), name=name))
        constant.shape, constant.type = ir.Shape(()), ir.TensorType(ir.DataType.BOOL)
        copy.graph.register_initializer(constant)
        names.append(constant)
    for node, depth in list(_open(copy)):
        node.replace_input_with(0, names[depth > 0])
    return copy


def _open(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    """Each If whose condition is not a constant, with the number of those around it."""
    constants = constants_of(model.graph)
    yield from _open_in(model.graph, constants, 0)


def _open_in(graph: ir.Graph, constants: set[ir.Value], depth: int) -> Iterator[tuple[ir.Node, int]]:
    for node in graph:
        is_open = node.op_type == "If" and node.domain == "" and node.inputs[0] not in constants
        if is_open:
            yield node, depth
        for inner in graphs_of(node):
            yield from _open_in(inner, constants, depth + is_open)
