"""The rewrite of a model by a plan."""

from __future__ import annotations

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.formulate.plan import Plan
from relayout.rewrite.boundary import enter_inputs, leave_outputs
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.dead_code import clean_up
from relayout.rewrite.devices import assign_devices
from relayout.rewrite.nodes import write

__all__ = ["rewrite"]


def rewrite(model: ir.Model, backend: Backend, plan: Plan) -> None:
    """Carry the plan out in the model that it was made for."""
    context = RewriteContext(model, backend, plan)
    enter_inputs(context)
    for node in list(model.graph):
        write(context, node)
    leave_outputs(context)
    clean_up(context)
    if backend.devices():
        assign_devices(context)
