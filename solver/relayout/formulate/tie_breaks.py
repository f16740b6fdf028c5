"""The tie-break between alternatives of the same cost: how many changes each alternative counts as.

An alternative that leaves the node as in the source is no change, any other is one. Some backends, such as those of TVM
and OneFlow, propagate layouts to consumers (`Backend.flows_down`): there, a consumer in a layout that its producer
states is no change, and any other alternative counts as one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import onnx_ir as ir

from relayout.backend.interface import Backend, rank_of
from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.requirements import Requirements
from relayout.candidates.tensors import Tensor
from relayout.errors import LayoutSyntaxError
from relayout.layout.binding import bind
from relayout.layout.conversion import one_each
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import has_roles, native_role, own_layout

MOST_CHANGES = 2
"""The most changes that an alternative counts as."""


def changes(requirements: Requirements, backend: Backend) -> Iterator[tuple[int, ...]]:
    """For each choice, the changes that each of its alternatives counts as. Choices come in the order of the graph."""
    flowing_in: dict[Tensor, frozenset[Layout]] = {}
    # Nodes with the same alternatives share them.
    known: dict[int, tuple[tuple[int, ...], list[Literal[True] | frozenset[str]]]] = {}
    for choice in requirements.choices:
        if id(choice.alternatives) not in known:
            devices = {a.device for a in choice.alternatives}
            known[id(choice.alternatives)] = (
                tuple([int(not a.is_source) for a in choice.alternatives]),
                [kind for device in devices if (kind := backend.at(device).flows_down)],
            )
        as_source, kinds = known[id(choice.alternatives)]
        if not kinds or choice.node is None:
            yield as_source
            continue
        stated, followed = _stated(choice), None
        flowing = stated
        # One implementation may state a layout, and another none.
        takes_any = not stated or not all(any(each.layouts) for each in choice.alternatives)
        if takes_any and any(kind is True or choice.node.op_type in kind for kind in kinds):
            read = [port.operand.tensor for port in choice.ports if not port.is_result]
            above = frozenset().union(*(flowing_in.get(tensor, ()) for tensor in read))
            followed = _in_layouts(requirements, choice, above)
            flowing = stated or above
        for port in choice.ports:
            if port.is_result and flowing:
                flowing_in[port.operand.tensor] = flowing
        if followed is None or not any(followed):
            yield as_source
        else:
            # The same format on another device than the source's is a change even so.
            kept = {a.formats for a in choice.alternatives if a.is_source}
            each = zip(choice.alternatives, followed, as_source, strict=True)
            yield tuple(int(change and a.formats in kept) if follows else 1 + change for a, follows, change in each)


def _stated(choice: NodeAlternatives) -> frozenset[Layout]:
    """The layouts of the results in the backend's implementations, else by the node's layout attributes."""
    results = [(index, port) for index, port in enumerate(choice.ports) if port.is_result]
    found = {each.layouts[index] for each in choice.alternatives for index, _ in results}
    if not any(found) and choice.node is not None and has_roles(choice.node):
        found = {_own(choice.node, port.index) for _, port in results}
    return frozenset(filter(None, map(_plain, found)))


def _own(node: ir.Node, n: int) -> str:
    if node.domain != "relayout":
        return ""  # ONNX's own order
    layout = own_layout(node, native_role(node.op_type, 1, n), rank_of(node.outputs[n]), is_result=True)
    return "" if layout.is_any else str(layout)


def _plain(text: str) -> Layout | None:
    """The layout if it has only names and tiles, else None."""
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError:
        return None
    if not text or any(layout.alignment(i) > 1 or layout.boxes(i) for i in range(layout.rank)):
        return None
    return layout


def _in_layouts(
    requirements: Requirements, choice: NodeAlternatives, layouts: frozenset[Layout]
) -> Sequence[bool] | None:
    """Whether each alternative produces its result in one of these layouts; None if the result's axes have no names."""
    for index, port in enumerate(choice.ports):
        axis_names = requirements.names.of(port.operand) if port.is_result else None
        if axis_names is None:
            continue
        extents = port.operand.view.extents
        orders = [bind(layout, axis_names, extents, 1, pads=True) for layout in layouts]
        wanted = {port.format_in(one_each(order)) for order in orders if order is not None} - {None}
        if wanted:
            return [alternative.formats[index] in wanted for alternative in choice.alternatives]
    return None
