"""Model x solution -> the legal model.

Node by node, in topological order: operands read from the right copy, attributes rewritten, each copy made once, right
after its source. Relabel nodes vanish. Names of graph inputs and outputs stay; so does all that layouts do not concern.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.formulate.formulation import Formulation
from relayout.rewrite.boundary import enter_inputs, leave_outputs
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.dead_code import clean_up, sweep
from relayout.rewrite.devices import assign_devices, is_placed
from relayout.rewrite.nodes import write

__all__ = ["is_placed", "rewrite", "sweep"]


def rewrite(model: ir.Model, backend: Backend, formulation: Formulation, assignment: Sequence[int]) -> None:
    """Make the model what the assignment says. The formulation was built from this very object, which is changed."""
    context = RewriteContext(model, backend, formulation, assignment)
    enter_inputs(context)
    for node in list(model.graph):
        write(context, node)
    leave_outputs(context)
    clean_up(context)
    if backend.devices():
        assign_devices(context)
