"""Model and backend to the alternatives of every node, as memory formats of the tensors that it reads and produces.

Candidates are the formats of every requirement, the boundary and the source, propagated to a fixpoint. Where a tensor
has many, some propagated formats are dropped: the requirements are then not complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.interface import Backend
from relayout.candidates.aliases import collect_tensors
from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.backend_requirements import RequirementChecker
from relayout.candidates.boundary import Boundary, capped_tensors, coupled_formats, list_boundary, set_boundary
from relayout.candidates.free_node import Pricing, known_elements
from relayout.candidates.nodes import SeedContext, list_alternatives, seed_nodes
from relayout.candidates.propagation import propagate
from relayout.candidates.tensors import Tensor, Tensors
from relayout.model.constants import remembering_constants


class Requirements(Struct, frozen=True, eq=False):
    """Every choice of a graph and its subgraphs, with the analysis results to interpret them.

    `is_complete`: no format was dropped, so the optimum over these choices is global. `warnings` name these tensors.
    """

    tensors: Tensors
    names: AxisNames
    choices: tuple[NodeAlternatives, ...]
    warnings: tuple[str, ...]
    boundary: Boundary
    is_complete: bool = True

    def coupled(self) -> dict[ir.Node, list[int]]:
        """The nodes that may have several choices: a region op (a node with graphs inside) has its own and those of its
        region edges, another one has those of its operands."""
        found: dict[ir.Node, list[int]] = {}
        for c, choice in enumerate(self.choices):
            if choice.node is not None and (choice.node in self.tensors.region_edges or choice.others):
                found.setdefault(choice.node, []).append(c)
        return found


@remembering_constants()
def collect_requirements(
    graph: ir.Graph,
    backend: Backend,
    tensors: Tensors,
    *,
    input_layouts: Mapping[str, str] | None = None,
    output_layouts: Mapping[str, str] | None = None,
    elements: Pricing | None = None,
    keeps_dear: bool = True,
) -> Requirements:
    """Every node's alternatives under `backend`, with the graph's inputs and outputs pinned, set, or freed ("any").

    `elements` prices the traffic of an alternative beyond the operator itself; without it unknown extents count as 1.
    `keeps_dear` keeps decompositions that cost more bytes than conversions around the node: an objective that does not
    count bytes first, or a limit on conversions, may choose them.
    Views that block a required tiling are materialized: `tensors` are then collected anew.

    Raises InfeasibleError where a requirement has no alternative at all, UsageError for a boundary layout that does not
    fit, BackendError for an invalid answer of the backend.
    """
    while True:
        names = AxisNames(tensors)
        context = SeedContext(
            RequirementChecker(backend, names), names, tensors, elements or known_elements, keeps_dear
        )
        ends = set_boundary(graph, tensors, names, input_layouts or {}, output_layouts or {})
        seeds = () if ends.blocking_views else seed_nodes(graph, context)
        blocking_views = ends.blocking_views.union(*(seed.blocking for seed in seeds))
        if not blocking_views:
            break
        materialized = tensors.materialized | blocking_views
        tensors = collect_tensors(graph, tensors.opsets, materialized, reads_extents=tensors.reads_extents)
    candidates = propagate(
        tensors.tensors,
        [own.space for seed in seeds for own in seed.spaces],
        [seed.shuffle for seed in seeds if seed.shuffle is not None],
        [*ends.seeds(), *(each for seed in seeds for each in seed.seeds())],
        lambda formats: coupled_formats(ends, formats),
    )
    boundary = list_boundary(ends, candidates.formats, names)
    nodes = list_alternatives(context, seeds, candidates, ends.inputs)
    capped = dict.fromkeys((*candidates.capped, *capped_tensors(ends, candidates.formats)))
    warnings = (_dropped_formats(capped),) if capped else ()
    choices = (*boundary.inputs, *nodes, *boundary.outputs)
    return Requirements(tensors, names, choices, warnings, boundary, is_complete=not capped)


def _dropped_formats(capped: Iterable[Tensor]) -> str:
    first, *others = [f"'{tensor.base.name}'" for tensor in capped]
    more = f" and {len(others)} other tensor{'s' if len(others) > 1 else ''}" if others else ""
    return (
        f"there are too many formats of {first}{more} to consider all; some were left out, "
        "so a cheaper result may exist"
    )
