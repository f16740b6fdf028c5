"""`convert-layout`: TVM's ConvertLayout: `desired_layouts` for the listed operators, none for the others.

    load_backend("convert-layout", options={"desired_layouts": {"Conv": ["NHWC", "default"]}, "skip": ["conv1"]})

Operators have their ONNX names or TVM's (`nn.conv2d`, `relax.nn.conv2d`). A list is [data] or, for convolutions, [data,
kernel] or [data, kernel, result], in letters or packed as TVM writes it (`NCHW16c`); a kernel of "default" is TVM's for
that data layout. A list applies to nodes of its rank, and a packed one where the channels divide.

`skip` has names or numbers of nodes. A node without a name has that of its first result. A number that is not the name
of a node is TVM's index among the two-dimensional and the deformable convolutions, in the order of the graph. Skipped
nodes and operators that are not listed keep the layout of the source, except that lightly sensitive ones (pools, norms,
Resize, DepthToSpace, SpaceToDepth) may have that of their neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation, axis_count, rank_of
from relayout.layout.layout import Layout
from relayout.ops.logical_node import logical, node_name
from relayout.ops.operand_roles import (
    DATA,
    KERNEL,
    OTHER,
    has_roles,
    input_role,
    is_transposed,
    kernel_input,
    own_layout,
    result_role,
    spatial_letters,
    written_node,
)
from relayout_backends.desired_layouts import DEFAULT_KERNELS, DesiredLayouts, read_desired

if TYPE_CHECKING:
    import onnx_ir as ir

# Lightly sensitive operators cost the same in any layout of TVM's operator.
_FOLLOWERS = frozenset(
    """
    AveragePool BatchNormalization DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization
    InstanceNormalization LRN LpPool MaxPool Resize SpaceToDepth Upsample""".split()
)
_COUNTED = ("Conv", "DeformConv")
# Resize was called Upsample up to opset 9.
_OLD_NAMES = {"Upsample": "Resize"}
_RESIZES = ("Resize", "Upsample")
# Their results have other channels than their data, each from another part of a tile.
_NEVER_PACKED = ("DepthToSpace", "SpaceToDepth")


class ConvertLayout(Backend):
    """TVM's desired_layouts: the named operators in the given layouts, the others as they are."""

    name = "convert-layout"
    is_pure = True
    flows_down = True

    def __init__(
        self,
        context: Backend | None = None,
        *,
        desired_layouts: Mapping[str, Sequence[str]] | None = None,
        skip: Collection[str | int] = (),
    ) -> None:
        """`desired_layouts`: by operator, a list of the layouts of its data, its kernel and its result. `skip`: nodes
        that stay as they are, by name or by TVM's count."""
        super().__init__(context)
        self._desired = dict(read_desired(operator, words) for operator, words in (desired_layouts or {}).items())
        self._followed = tuple(dict.fromkeys(desired.data for desired in self._desired.values()))
        self._skipped = frozenset(skip)
        numbers = [int(each) for each in skip if isinstance(each, int) or each.isdecimal()]
        self._largest_number = max(numbers, default=-1)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return _input_layout(node, n, self._desired_of(node))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return _result_layout(node, n, self._desired_of(node))

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        desired = self._desired_of(node)
        if desired is not None or node.op_type not in _FOLLOWERS or self._is_skipped(node) or not has_roles(node):
            return (_implementation(node, desired),)
        followed = [DesiredLayouts(data) for data in self._followed if _runs(node, DesiredLayouts(data))]
        return [_implementation(node, each) for each in (None, *followed)]

    def warnings(self, model: ir.Model) -> Iterable[str]:
        nodes = [logical(node) for node in model.graph.all_nodes()]
        met = {id(desired) for node in nodes if (desired := self._desired_of(node)) is not None}
        # In a legal model the extent of a tiled axis may be unknown; the node says how it lies.
        lying = {(node.op_type, str(own_layout(node, DATA, 0))) for node in nodes if has_roles(node)}
        for (operator, rank), desired in self._desired.items():
            if id(desired) not in met and (operator, str(desired.data)) not in lying:
                yield f"{operator}={desired.data} fits no node: {_misfit(operator, rank, nodes)}"
        names = {node_name(node) for node in nodes}
        for each in sorted(map(str, self._skipped)):
            if not each.isdecimal() and each not in names:
                yield f"skip: the model has no node of the name {each}"

    def _desired_of(self, node: ir.Node) -> DesiredLayouts | None:
        if not has_roles(node) or not node.inputs:
            return None
        rank = rank_of(node.inputs[0])
        names = (node.op_type, _OLD_NAMES.get(node.op_type, ""))
        desired = next((desired for name in names if (desired := self._desired.get((name, rank))) is not None), None)
        return desired if desired is not None and _runs(node, desired) and not self._is_skipped(node) else None

    def _is_skipped(self, node: ir.Node) -> bool:
        if node_name(node) in self._skipped:
            return True
        number = _number(node, self._largest_number)
        if number is None or number in self._skipped:
            return number is not None
        return str(number) in self._skipped and all(node_name(each) != str(number) for each in node.graph or ())


def _misfit(operator: str, rank: int, nodes: Iterable[ir.Node]) -> str:
    """Why the layouts of an operator at this rank apply to none of these nodes."""
    ranks = {rank_of(node.inputs[0]) for node in nodes if node.op_type == operator and has_roles(node) and node.inputs}
    if not ranks:
        return f"the model has no {operator}"
    if rank not in ranks:
        found = " and ".join(map(str, sorted(ranks)))
        return f"it is for data of rank {rank}, and the model has {operator} on data of rank {found}"
    return f"every {operator} on data of rank {rank} is skipped, or has channels that the tiles do not divide"


def _number(node: ir.Node, most: int) -> int | None:
    """The number of this node among its graph's two-dimensional and deformable convolutions, from 0 to `most`."""
    if most < 0 or not _is_counted(node) or node.graph is None:
        return None
    # No further than `most`: each hook asks for each convolution.
    numbered = enumerate(islice(filter(_is_counted, node.graph), most + 1))
    written = written_node(node)
    return next((number for number, each in numbered if each is written), None)


def _is_counted(node: ir.Node) -> bool:
    node = logical(node)
    return node.op_type in _COUNTED and bool(node.inputs) and rank_of(node.inputs[0]) == 4


def _runs(node: ir.Node, desired: DesiredLayouts) -> bool:
    """Whether the operands have the axes of these layouts, and every packed axis is known to be a multiple of its tile.

    TVM does not convert a convolution whose channels do not divide.
    """
    if rank_of(node.inputs[0]) != axis_count(desired.data):
        return False
    if node.op_type in _NEVER_PACKED and desired.data.rank != axis_count(desired.data):
        return False
    inputs = [(v, input_role(node, n), _input_layout(node, n, desired)) for n, v in enumerate(node.inputs)]
    results = [(v, result_role(node, n), _result_layout(node, n, desired)) for n, v in enumerate(node.outputs)]
    return all(
        value is None or role == OTHER or _divides(node, role, value, layout)
        for value, role, layout in (*inputs, *results)
    )


def _divides(node: ir.Node, role: str, value: ir.Value, wanted: Layout) -> bool:
    tiles = [(wanted.names[i].upper(), tile) for i in range(wanted.rank) if (tile := wanted.tile(i)) is not None]
    if not tiles:
        return True
    extents = dict(zip(_onnx_letters(node, role, rank_of(value)), value.shape or (), strict=False))
    return all(isinstance(extent := extents.get(name), int) and extent % tile == 0 for name, tile in tiles)


def _onnx_letters(node: ir.Node, role: str, rank: int) -> str:
    """ONNX's names of an operand's axes. A Resize has none: it resizes rows and columns, so an image whose second axis
    is resized and whose last one is not has its channels last."""
    if node.op_type in _RESIZES:
        before, after = (value.shape if value is not None else None for value in (node.inputs[0], node.outputs[0]))
        changes = [not isinstance(a, int) or a != b for a, b in zip(before or (), after or (), strict=False)]
        if len(changes) == rank and changes[1] and not changes[0] and not changes[-1]:
            return f"N{spatial_letters(rank)}C"
    channels = "NC" if role == DATA else "IO" if is_transposed(node) else "OI"
    return channels + (spatial_letters(rank) or "")


def _implementation(node: ir.Node, desired: DesiredLayouts | None) -> Implementation:
    return Implementation(
        tuple(_input_layout(node, n, desired) for n in range(len(node.inputs))),
        tuple(_result_layout(node, n, desired) for n in range(len(node.outputs))),
    )


def _input_layout(node: ir.Node, n: int, desired: DesiredLayouts | None) -> Layout:
    role, rank = input_role(node, n), rank_of(node.inputs[n])
    if desired is None:
        return own_layout(node, role, rank)
    if role == KERNEL:
        return desired.kernel or _default_kernel(node, desired.data)
    return desired.data if role == DATA else Layout.any(rank)


def _result_layout(node: ir.Node, n: int, desired: DesiredLayouts | None) -> Layout:
    role, rank = result_role(node, n), rank_of(node.outputs[n])
    if desired is None:
        return own_layout(node, role, rank, is_result=True)
    return (desired.result or desired.data) if role == DATA else Layout.any(rank)


def _default_kernel(node: ir.Node, data: Layout) -> Layout:
    plain, depthwise, transposed = DEFAULT_KERNELS[data.names]
    if is_transposed(node):
        return Layout.parse(transposed)
    return Layout.parse(depthwise if _is_depthwise(node) else plain)


def _is_depthwise(node: ir.Node) -> bool:
    place = kernel_input(node.op_type)
    kernel = node.inputs[place] if place is not None else None
    if "group" not in node.attributes or kernel is None or kernel.shape is None:
        return False
    groups = node.attributes["group"].as_int()
    return groups > 1 and kernel.shape[0] == groups and kernel.shape[1] == 1
