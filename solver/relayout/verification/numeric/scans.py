"""Scan for onnx's reference evaluator, whose own supports only axis 0 in the forward direction."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_scan

_CHOICES = ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")


# Without types: the evaluator sets these from the node's attributes.
_Forward: Any = op_scan.Scan


class Scan(_Forward):  # type: ignore[misc]
    """Scan along any axes in both directions: operands are arranged for the evaluator's own Scan, results after it."""

    op_domain = ""

    def __init__(self, onnx_node: Any, run_params: Any) -> None:
        OpRun.__init__(self, onnx_node, run_params)
        self._chosen = {name: list(getattr(self, name, None) or ()) for name in _CHOICES}
        for name in _CHOICES:
            setattr(self, name, None)
        self.input_directions_ = self.input_axes_ = [0] * self.num_scan_inputs
        self.input_names, self.output_names = self.body.input_names, self.body.output_names

    def _run(self, *args: Any, **settings: Any) -> tuple[Any, ...]:
        states = len(args) - self.num_scan_inputs
        read = [self._arranged(array, "input", n) for n, array in enumerate(args[states:])]
        found = super()._run(*args[:states], *read, **settings)
        given = [self._arranged(array, "output", n) for n, array in enumerate(found[states:])]
        return (*found[:states], *given)

    def _arranged(self, array: Any, side: str, n: int) -> Any:
        """Scanned operand or result `n` with its axis moved to the front, or back, and reversed if its direction is."""
        axes, directions = self._chosen[f"scan_{side}_axes"], self._chosen[f"scan_{side}_directions"]
        if n < len(directions) and directions[n]:
            array = np.flip(array, axes[n] if side == "input" and n < len(axes) else 0)
        if n < len(axes) and axes[n]:
            array = np.moveaxis(array, axes[n], 0) if side == "input" else np.moveaxis(array, 0, axes[n])
        return array
