"""Model x solution -> the legal model.

Node by node, in topological order: operands read from the right copy, attributes rewritten, each copy made once, right
after its source. Relabel nodes vanish. Names of graph inputs and outputs stay; so does all that layouts do not concern.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.backend import Backend
from relayout.formulation import Formulation
from relayout.rewrite.placing import place_nodes
from relayout.rewrite.rewriter import clean_up, enter_inputs, leave_outputs, write
from relayout.rewrite.workshop import Workshop

__all__ = ["rewrite"]


def rewrite(
    model: ir.Model, graph: ir.Graph, backend: Backend, formulation: Formulation, assignment: Sequence[int]
) -> None:
    """Make `graph`, the model's own or one inside it, what the assignment says.

    The formulation was built from this very object, which is changed.
    """
    shop = Workshop(model, graph, backend, formulation, assignment)
    enter_inputs(shop)
    for node in list(graph):
        write(shop, node)
    leave_outputs(shop)
    clean_up(shop)
    if backend.places():
        place_nodes(shop)
