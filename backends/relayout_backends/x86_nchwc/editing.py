"""The editor of a written graph: views, new constants, replaced nodes and dead code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from relayout.backend import DEVICE_KEY

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})


def is_view(node: ir.Node) -> bool:
    """Whether `node` is a view op: its first input in another shape."""
    return node.domain == "" and node.op_type in _VIEWS


def sources(value: ir.Value) -> list[ir.Value]:
    """`value`, its base, the base of that, and so on."""
    found = [value]
    while (producer := found[-1].producer()) is not None and is_view(producer) and producer.inputs[0] is not None:
        found.append(producer.inputs[0])
    return found


def same_shape(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values have the same shape for certain: unknown dims without a name may differ."""
    if one.shape is None or other.shape is None or list(one.shape) != list(other.shape):
        return False
    return all(isinstance(extent, int) or extent.value is not None for extent in one.shape)


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads `value`, once; None where there are others, or it is a graph output."""
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


class Editing:
    """A graph that is being edited, its used names, and whether anything was `changed`.

    `device`: only the nodes there are edited.
    """

    def __init__(self, graph: ir.Graph, device: str = "") -> None:
        self.graph = graph
        self.changed = False
        self._device = device
        self._names = {value.name for node in graph.all_nodes() for value in (*node.inputs, *node.outputs) if value}
        self._names.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
        self._idle = {node for node in graph if is_view(node) and _comes_back_to(node) is not None}

    def is_own(self, node: ir.Node) -> bool:
        """Whether `node` runs on the device whose nodes are edited."""
        return not self._device or node.metadata_props.get(DEVICE_KEY) == self._device

    def name(self, stem: str) -> str:
        """A name that begins with `stem` and that no value has."""
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def constant(self, stem: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A new constant of the graph."""
        tensor.name = self.name(stem)
        value = ir.val(tensor.name, const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def insert(self, node: ir.Node, before: ir.Node, shape: ir.Shape, like: ir.Value, stem: str) -> ir.Value:
        """Insert `node` before another; its result has this shape, and the type of `like`."""
        if self._device:
            node.metadata_props[DEVICE_KEY] = self._device
        self.changed = True
        made = node.outputs[0]
        made.name, made.type, made.shape = self.name(stem), like.type, shape
        self.graph.insert_before(before, node)
        return made

    def view(self, value: ir.Value, shape: ir.Shape, before: ir.Node, *, like: Sequence[int] = ()) -> ir.Value | None:
        """`value` in another shape, by a Reshape before the node `before`, unless it is a view of that shape itself.

        `like` is the Reshape's target if more than one dim is unknown: 0 for a dim that keeps its index. None if no
        target describes the shape.
        """
        wanted = ir.Value(shape=shape)
        known = next((source for source in sources(value) if same_shape(source, wanted)), None)
        if known is not None:
            return known
        said = reshape_of(shape, like)
        if said is None:
            return None
        target = self.constant(f"{value.name}_shape", ir.tensor(np.array(said, np.int64)))
        return self.insert(ir.Node("", "Reshape", [value, target]), before, shape, value, f"{value.name}_as")

    def replace(self, old: ir.Value, new: ir.Value, gone: Sequence[ir.Node]) -> None:
        """Replace `old` with `new`, which gets its name and metadata, and remove the nodes `gone`."""
        name = old.name
        new.metadata_props.update(old.metadata_props)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self.remove(gone)
        new.name = name

    def remove(self, nodes: Sequence[ir.Node]) -> None:
        """Remove dead nodes, and the constants that only they read."""
        read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
        self.graph.remove(nodes, safe=True)
        self.changed = True
        for value in read:
            maker = value.producer()
            if value.uses() or value.is_graph_output() or value.is_graph_input():
                continue
            if maker is not None and maker.op_type == "Constant" and maker.graph is self.graph:
                self.graph.remove(maker, safe=True)
            elif value.is_initializer():
                self.graph.initializers.pop(str(value.name), None)

    def drop_idle_views(self) -> None:
        """Bypass views that give back a base, and remove those that become dead.

        Those that gave back a base before any editing stay: an unedited graph is left as it is.
        """
        views = [node for node in self.graph if is_view(node) and self.is_own(node) and node not in self._idle]
        for node in views:
            result, source = node.outputs[0], _comes_back_to(node)
            if source is None:
                continue
            if not result.is_graph_output():
                self.changed = self.changed or bool(result.uses())
                ir.convenience.replace_all_uses_with(result, source)
            elif source.producer() is not None and not source.is_graph_output():
                self.replace(result, source, [node])
        for node in reversed(views):
            if node.graph is not self.graph:
                continue
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                self.remove([node])


def _comes_back_to(view: ir.Node) -> ir.Value | None:
    """The base that a view of views has the shape of; None without one."""
    result = view.outputs[0]
    return next((source for source in sources(result)[1:] if same_shape(source, result)), None)


def reshape_of(shape: ir.Shape, like: Sequence[int]) -> list[int] | None:
    """The target of a Reshape to `shape`, as in `like` if more than one dim is unknown; None if there is none."""
    unknown = sum(1 for extent in shape if not isinstance(extent, int))
    if unknown <= 1:
        return [extent if isinstance(extent, int) else -1 for extent in shape]
    return list(like) if len(like) == len(shape) else None
