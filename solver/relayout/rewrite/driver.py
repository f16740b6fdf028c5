"""The rewrite of a model by a plan."""

from __future__ import annotations

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.formulate.plan import Plan
from relayout.rewrite.boundary import enter_inputs, leave_outputs
from relayout.rewrite.context import RewriteContext, Written
from relayout.rewrite.dead_code import clean_up
from relayout.rewrite.devices import assign_devices
from relayout.rewrite.nodes import write

__all__ = ["rewrite"]


def rewrite(model: ir.Model, backend: Backend, plan: Plan) -> Written:
    """Rewrite the model by its plan, in place. Returns the nodes that its parts became.

    The model is not copied: cloning one of 10,000 nodes takes as long as this whole rewrite. The public entry functions
    parse their own model and do not change their argument.
    """
    context = RewriteContext(model, backend, plan)
    enter_inputs(context)
    for node in list(model.graph):
        write(context, node)
    leave_outputs(context)
    clean_up(context)
    if backend.devices():
        assign_devices(context)
    return context.written
