"""OR-tools models: the linear relaxation of a kernel (GLOP, PDLP), a kernel and the whole problem (CP-SAT).

The only package that imports ortools. CP-SAT is imported where it is called: its import takes longer than most
relaxations. The encodings are tight: their linear relaxation is that of the local polytope.
"""

from relayout.solve.or_tools.cpsat import Outcome, solve_kernel, solve_whole
from relayout.solve.or_tools.lp import relax

__all__ = ["Outcome", "relax", "solve_kernel", "solve_whole"]
