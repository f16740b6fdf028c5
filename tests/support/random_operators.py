"""For each operator of the op table, a function in `PROPOSALS` that adds it to a random graph."""

from __future__ import annotations

import random_attention
import random_elementwise
import random_indexing
import random_matmul
import random_reductions
import random_reshapes
import random_spatial
from random_operands import PROPOSALS, adapted, floats, integers, kernel, partner, propose, unsqueezed

__all__ = ["PROPOSALS", "adapted", "floats", "integers", "kernel", "partner", "propose", "unsqueezed"]

# Each module registers its operators on import.
_MODULES = (
    random_attention,
    random_elementwise,
    random_indexing,
    random_matmul,
    random_reductions,
    random_reshapes,
    random_spatial,
)
