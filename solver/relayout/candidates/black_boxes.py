"""Black boxes: layout extensions that only the backend understands.

The requirements of a backend, or a boundary layout, put a format in black boxes. Only the backend's own operators
convert such formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from relayout.candidates.alternatives import NodeAlternatives, NodePorts, Port, in_source
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.backend_conversions import conversion_query
from relayout.candidates.backend_requirements import Requirement, RequirementChecker
from relayout.candidates.tensors import Tensor, Tensors
from relayout.errors import first_few
from relayout.layout.conversion import Dims
from relayout.layout.layout import Layout
from relayout.layout.memory_format import BlackBoxFormat, Box, MemoryFormat, boxes_of


def with_black_boxes(
    choice: NodePorts, requirement: Requirement, formats: Sequence[MemoryFormat], port_dims: Sequence[Dims | None]
) -> tuple[MemoryFormat, ...] | None:
    """The ports' formats with the black boxes of the requirement. None where an operand of these dimensions cannot be
    in one, and for a region edge."""
    if not any(requirement.boxes):
        return tuple(formats)
    if choice.region_edge is not None:
        return None
    found = [
        boxed(format_, port, layout, dims) if layout is not None else format_
        for format_, port, layout, dims in zip(formats, choice.ports, requirement.layouts, port_dims, strict=True)
    ]
    return tuple([format_ for format_ in found if format_ is not None]) if None not in found else None


def boxed(format_: MemoryFormat, port: Port, layout: Layout, dims: Dims | None) -> MemoryFormat | None:
    """A format of the port's tensor with the black boxes of `layout`, in which its operand has these dimensions. None
    where the operand has other axes than the tensor: a Reshape of a black box has no defined result."""
    view = port.operand.view
    own_dims = dims if dims is not None else in_source(len(view.axes))
    found: list[Box] = []
    for i in range(layout.rank):
        boxes = layout.boxes(i)
        if not boxes:
            continue
        group = own_dims[i] if len(own_dims) == layout.rank else ()
        own = view.axes[group[0].axis] if len(group) == 1 else ()
        if len(own) != 1 or not view.is_plain:
            return None
        found += [(own[0].axis, group[0].inner, *box) for box in boxes]
    units = tuple([view.extents[group[0].axis] == 1 for group in own_dims])
    return BlackBoxFormat(format_, found, units) if found else format_


def without_unreachable(
    checker: RequirementChecker,
    names: AxisNames,
    tensors: Tensors,
    inputs: Sequence[NodeAlternatives],
    nodes: Sequence[NodeAlternatives],
    with_boxes: Sequence[int],
) -> list[NodeAlternatives]:
    """The nodes without the alternatives that read an unreachable black box: one that no node, no graph input in
    `inputs` and no conversion produces. Only the nodes `with_boxes` have such alternatives."""
    found = list(nodes)
    while True:
        # A node without alternatives produces no black box either.
        produced = produced_formats([*inputs, *found])
        fewer = {n: reachable(checker, names, tensors, produced, found[n]) for n in with_boxes}
        if all(found[n] is each for n, each in fewer.items()):
            return found
        for n, each in fewer.items():
            found[n] = each


Produced = Mapping[Tensor, Mapping[MemoryFormat, None]]
"""The formats in which each tensor is produced."""


def produced_formats(choices: Iterable[NodeAlternatives]) -> Produced:
    found: dict[Tensor, dict[MemoryFormat, None]] = {}
    for choice in choices:
        for index, port in enumerate(choice.ports):
            if port.is_result:
                formats = found.setdefault(port.operand.tensor, {})
                formats.update((alternative.formats[index], None) for alternative in choice.alternatives)
    return found


def reachable(
    checker: RequirementChecker, names: AxisNames, tensors: Tensors, produced: Produced, choice: NodeAlternatives
) -> NodeAlternatives:
    """The node without the alternatives that read a black box that is neither produced nor converted to."""

    def is_reachable(port: Port, format_: MemoryFormat) -> bool:
        if port.is_result or not boxes_of(format_):
            return True
        given, base = produced.get(port.operand.tensor, {}), tensors.operands[port.operand.tensor.base]
        if format_ in given or base is None:
            return format_ in given
        return any(checker.converts(conversion_query(names, base, source, format_)) for source in given)

    kept = tuple([each for each in choice.alternatives if all(map(is_reachable, choice.ports, each.formats))])
    return choice if len(kept) == len(choice.alternatives) else replace(choice, alternatives=kept)


def lacking_conversions(names: AxisNames, tensors: Tensors, produced: Produced, choice: NodeAlternatives) -> str:
    """The conversions to the black boxes of the node's inputs, none of which the backend has, for a message."""
    found: dict[str, None] = {}
    for port, n in ((port, n) for n, port in enumerate(choice.ports) if not port.is_result):
        base = tensors.operands[port.operand.tensor.base]
        given = produced.get(port.operand.tensor, {})
        for wanted in dict.fromkeys(each.formats[n] for each in choice.alternatives):
            if not boxes_of(wanted) or wanted in given:
                continue
            for query in (conversion_query(names, base, source, wanted) for source in given):
                if query is None or query.is_nameless:
                    name = port.operand.tensor.base.name
                    found[f"'{name}' has axes without names, so `conversion` is not asked"] = None
                else:
                    found[f"no `conversion` of the backend makes {query.target} of {query.source}"] = None
    return first_few([*found], "; ")
