"""One way or more to add each operator of the op table to a random graph, by name in `PROPOSALS`."""

from __future__ import annotations

import random_elementwise
import random_pieces
import random_products
import random_reductions
import random_relabels
import random_spatial
from random_operands import PROPOSALS, adapted, floats, integers, kernel, partner, propose

__all__ = ["PROPOSALS", "adapted", "floats", "integers", "kernel", "partner", "propose"]

# Each enters its operators.
_MODULES = (
    random_elementwise,
    random_pieces,
    random_products,
    random_reductions,
    random_relabels,
    random_spatial,
)
