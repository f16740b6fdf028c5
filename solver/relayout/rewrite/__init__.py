"""Model and plan -> the legal model.

Node by node, in topological order: operands read the planned copies, attributes are rewritten, and each conversion is
emitted once, right after the producer of its tensor. View ops are removed. Graph inputs and outputs keep their names,
and everything unaffected by layouts stays unchanged.
"""

from relayout.rewrite.driver import rewrite, sweep
from relayout.rewrite.in_place import is_in_place
from relayout.rewrite.shardings import lost_shardings

__all__ = ["is_in_place", "lost_shardings", "rewrite", "sweep"]
