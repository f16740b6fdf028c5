"""The backend's requirements: every operand in a layout that the backend requires."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache, partial

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import ask, is_met_by, supported_by
from relayout.backend.interface import Backend, Implementation, TensorType, element_size
from relayout.backend.kept_answers import Kept, ask_once
from relayout.backend.members import answers_by_type, is_pure
from relayout.backend.noted_costs import noted_cost
from relayout.layout.binding import is_tiled
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import DEVICE_KEY, LAYOUT_KEY, OPERAND_ORDERS_KEY, WRITTEN_FOR_KEY
from relayout.ops.node_reader import extents_of
from relayout.report.schema import Finding
from relayout.verification.axis_classes import CommonNames
from relayout.verification.axis_names import Derivation, declared_layout
from relayout.verification.counterparts import VIEWS
from relayout.verification.model_index import ModelIndex
from relayout.verification.operator_facts import OURS, AxisNames, declared_layout_of, named, parsed_layout
from relayout.verification.resize_axes import may_be_cut, names_by_extents

_kept: Kept[tuple[Implementation, ...]] = Kept()

Charges = dict[ir.Node, tuple[int, int]]
"""The least and the most that the implementation of a node costs, in bytes: its operands may meet several."""


class _Known(Struct, frozen=True):
    """The known layouts of a model's values; `boxes` are their black boxes."""

    index: ModelIndex
    derivation: Derivation
    common: CommonNames
    boxes: dict[ir.Value, Layout]

    def asked(self, node: ir.Node, implementations: Sequence[Implementation]) -> list[tuple[bool, int, bool]]:
        """The operands of which an implementation requires a layout: whether each is a result, its number, and whether
        the operator itself names its axes."""
        kind = self.index.class_of(node)
        sides = [(False, kind.inputs, [each.inputs for each in implementations])]
        sides += [(True, kind.results, [each.results for each in implementations])]
        return [
            (is_result, n, names is not None)
            for is_result, own, layouts in sides
            for n, names in enumerate(own)
            if not all(each[n].is_any for each in layouts)
        ]

    def namings(self, node: ir.Node, n: int, value: ir.Value, *, is_result: bool) -> Sequence[AxisNames]:
        """The namings of the n-th input or result of the node. A constant has those of the same axes of the node's
        results: each of its readers names its axes by what it combines it with."""
        if is_result or value not in self.index.constants:
            return self.derivation.candidates(value)
        kind, found = self.index.class_of(node), []
        for m, result in enumerate(node.outputs):
            path = kind.path(n, m)
            for naming in self.derivation.candidates(result) if path is not None else ():
                names: list[str | None] = [None] * len(value.shape or ())
                for axis, own in enumerate(path or ()):
                    if own is not None:
                        names[own] = naming[axis]
                found.append(tuple(names))
        return [names for names in dict.fromkeys(found) if any(names)]

    def situation(self, node: ir.Node, asked: Sequence[tuple[bool, int, bool]]) -> Hashable:
        """All that decides, beside the operator class and the backend's answer, which implementations are met."""
        index, inputs, results = self.index, node.inputs, node.outputs
        marks_of = index.marks_of
        # The order of a Resize's operands counts for either of them.
        found: list[Hashable] = [value and marks_of(value)[:2] for value in (*inputs, *results)]
        keys = (OPERAND_ORDERS_KEY, WRITTEN_FOR_KEY) if node in index.noted else ()
        found += [node.metadata_props.get(key) for key in keys]
        # The class has no scales, by which a Resize names its axes.
        found.append(names_by_extents(node) if asked else None)
        for is_result, n, is_named in asked:
            value = results[n] if is_result else inputs[n]
            if value is not None:
                found.append(self.boxes.get(value))
                if not is_named:
                    found += [value in index.constants, *self.namings(node, n, value, is_result=is_result)]
                    found += [self.common.of(value), self.common.beside_pieces.of(value)]
        return tuple(found)


class _Verdict(Struct, frozen=True):
    """The implementations that a node meets, the least and the most that they cost, and whether any has black boxes."""

    met: Sequence[Implementation]
    least: int
    most: int
    has_boxes: bool

    @classmethod
    def of(cls, met: Sequence[Implementation]) -> _Verdict:
        costs = [each.cost for each in met] or [0]
        has_boxes = any(_boxes(layout) for each in met for layout in each.results)
        return cls(met, min(costs), max(costs), has_boxes)


def check_requirements(
    index: ModelIndex, backend: Backend, derivation: Derivation, common: CommonNames, charges: Charges
) -> Iterator[Finding]:
    """Yield a finding for each operand that does not meet a requirement of `backend`.

    The costs of the implementations that are met, other than 0, are added to `charges`. A rewritten node costs
    what is noted on it: the backend was asked about the operator that it stands for. A view op, and an operator that
    only computes the shape of a Reshape, is charged from 0 to what the backend states: which of them the backend was
    asked about is not seen in the model.

    Standard operators on constants alone run before the model does: they have no requirements. A node is sound if one
    of its implementations is met; else the findings are those of the implementation with the fewest missed operands.

    A backend that answers by type is asked once for each operator class and device. Nodes of one class in the same
    situation then meet the same implementations, so that only the first of them is checked, and any that meets none.
    """
    graph = index.model.graph
    boxes = {value: layout for value in graph.inputs if (layout := declared_layout(value)) is not None}
    known = _Known(index, derivation, common, boxes)
    is_shared = all(map(answers_by_type, [backend, *map(backend.at, backend.devices())]))
    is_kept = is_shared and is_pure(backend)
    answers: dict[Hashable, tuple[tuple[Implementation, ...], list[tuple[bool, int, bool]]]] = {}
    verdicts: dict[Hashable, _Verdict] = {}
    for node in index.nodes:
        if node in index.ahead:
            continue
        is_noted = node in index.noted
        device = node.metadata_props.get(DEVICE_KEY, "") if is_noted else ""
        key: Hashable = index.class_of(node) if is_shared else node, device
        if key not in answers:
            kind = index.class_of(node).key if is_kept else None
            stated = ask_once(_kept, backend, kind and (kind, device), partial(_implementations_of, node, backend))
            answers[key] = stated, known.asked(node, stated)
        implementations, asked = answers[key]
        place = key, known.situation(node, asked) if is_shared else ()
        verdict = verdicts.get(place)
        if verdict is None or not verdict.met:
            at = [backend.at(each.device or device) for each in implementations]
            faults = [list(_missed(node, each, own, known)) for each, own in zip(implementations, at, strict=True)]
            yield from min(faults, key=len, default=[])
            met = [each for each, fault in zip(implementations, faults, strict=True) if not fault]
            verdict = verdicts[place] = _Verdict.of(met)
        if verdict.has_boxes:
            _note_boxes(node, verdict.met, boxes)
        noted = noted_cost(node) if is_noted else None
        least, most = (verdict.least, verdict.most) if noted is None else (noted, noted)
        least = 0 if _may_be_no_operator(node, index) else least
        if least or most:
            charges[node] = least, most
    yield from _check_outputs(graph, boxes)
    yield from _unchecked(index, backend, asked_as_assumed=is_shared)


def _may_be_no_operator(node: ir.Node, index: ModelIndex) -> bool:
    """Whether the backend may not have been asked about the node, as a rewrite writes such nodes anew: a view op, or
    one that only computes the shape of a Reshape. Dropout is a view op in inference."""
    is_view = node.domain == "" and node.op_type in (*VIEWS, "Dropout") and not any(v.name for v in node.outputs[1:])
    return is_view or node in index.of_shapes


def _implementations_of(node: ir.Node, backend: Backend) -> tuple[Implementation, ...]:
    """The implementations of a node: on the device that its metadata names, where it names one."""
    device = node.metadata_props.get(DEVICE_KEY)
    if not backend.devices():
        return ask(backend, node)
    if device in backend.devices():
        # A backend of several devices may charge for a device what that device's own backend does not.
        placed = [each for each in ask(backend, node) if each.device == device] if supported_by(backend, node) else []
        return tuple(placed) or ask(backend.at(device), node)
    return ask(backend, node) if supported_by(backend, node) else ()


_ASSUMED_RANK = 4


def _unchecked(index: ModelIndex, backend: Backend, *, asked_as_assumed: bool) -> Iterator[Finding]:
    """Yield a warning for each kind of ONNX's operators with an operand of unknown rank that may have a requirement.

    A backend often states none at rank 0. One that answers by type is asked about operands of a usual rank instead.
    """
    kinds: dict[str, list[ir.Node]] = {}
    for node in index.nodes:
        values = (*node.inputs, *node.outputs)
        unknown = [n for n, value in enumerate(values) if value is not None and _is_of_unknown_rank(value)]
        if not unknown or node.domain != "" or node in index.ahead or node in index.nesting:
            continue
        stated = ask(backend, _with_ranks(node) if asked_as_assumed else node)
        if any(not (*each.inputs, *each.results)[n].is_any for each in stated for n in unknown):
            kinds.setdefault(node.op_type, []).append(node)
    for kind, nodes in kinds.items():
        yield Finding(
            rule="layout-requirement",
            severity="warning",
            node=node_label(nodes[0]),
            expected="operands of known rank",
            found=kind if len(nodes) == 1 else f"{kind}, {len(nodes)} nodes",
            message=f"an operand of unknown rank: the requirements of backend {backend.name} are not checked there",
        )


def _is_of_unknown_rank(value: ir.Value) -> bool:
    return value.shape is None and isinstance(value.type, ir.TensorType | None)


def _with_ranks(node: ir.Node) -> ir.Node:
    """A node of no graph with the types of this one, and with a rank for each tensor that has none."""

    def like(value: ir.Value) -> ir.Value:
        shape = ir.Shape([None] * _ASSUMED_RANK) if _is_of_unknown_rank(value) else value.shape
        return ir.Value(name=value.name, shape=shape, type=value.type, const_value=value.const_value)

    inputs = [value and like(value) for value in node.inputs]
    return ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=[like(value) for value in node.outputs])


def _check_outputs(graph: ir.Graph, boxes: dict[ir.Value, Layout]) -> Iterator[Finding]:
    """Yield a finding for each output without the black boxes that it declares."""
    for value in graph.outputs:
        declared, given = _boxes(declared_layout(value)), _boxes(boxes.get(value))
        if declared != given:
            yield Finding(
                rule="layout-requirement",
                node=value.name,
                expected=str(declared_layout(value) or "no black box"),
                found=str(boxes.get(value) or "no black box"),
                message=f"output {value.name} is not in the black boxes that it declares",
            )


def _missed(node: ir.Node, chosen: Implementation, backend: Backend, known: _Known) -> Iterator[Finding]:
    sound = True
    for is_result, values, layouts in ((False, node.inputs, chosen.inputs), (True, node.outputs, chosen.results)):
        for n, (value, required) in enumerate(zip(values, layouts, strict=True)):
            if value is None or value.shape is None or required.is_any:
                continue
            found = _unsatisfied(node, n, value, required, backend, known, is_result=is_result)
            # A wrong result after wrong operands would repeat the finding.
            if found is not None and (not is_result or sound):
                sound = False
                yield found


def _unsatisfied(
    node: ir.Node,
    n: int,
    value: ir.Value,
    required: Layout,
    backend: Backend,
    known: _Known,
    *,
    is_result: bool,
) -> Finding | None:
    resizes_places = n == 0 and _resizes_only_places(node, required)
    if resizes_places and is_tiled(required):
        return None
    shared = known.index.class_of(node)
    own = (shared.own_results if is_result else shared.own_inputs)[n]
    required_here = _as_kernel(required) if not is_result and _is_kernel(node, n) else required
    derived = known.namings(node, n, value, is_result=is_result)
    namings: Sequence[AxisNames | None] = [own] if own is not None else derived or [None]
    tensor = TensorType(element_size(value), _with_tiles(extents_of(value) or (), node, n, is_result=is_result))
    if required.is_numbered:
        # Numbers count the axes that the operand has in the source.
        namings = [_order_of(value, node, len(node.inputs) + n if is_result else n, known.index)]
    carried = known.boxes.get(value)
    if is_result:
        # The backend provides the extensions of a result, so only the names can be wrong.
        required_here = Layout.from_names(required_here.names) if not is_tiled(required_here) else required_here
    if own is None and not required.is_numbered:
        # A name that the layout lacks does not count: D of an image without channels.
        namings = [naming and tuple(_among(name, required) for name in naming) for naming in namings]
    layouts = [_current(naming, carried, tensor.shape) for naming in namings]
    if own is None and not required.is_numbered:
        layouts += [
            _current(_movable(naming, tensor), carried, tensor.shape) for naming in namings if naming is not None
        ]
        any_names = known.common.towards(value, required_here)
        layouts += [_current(any_name, carried, tensor.shape) for any_name in any_names]
        resized = tuple(required.names) if resizes_places else names_by_extents(node) if n == 0 else None
        layouts += [_current(resized, carried, tensor.shape)] if resized is not None else []
    where = f"node {node.name or '(no name)'}"
    if any(is_met_by(backend, tensor, required_here, layout, where) for layout in layouts):
        return None
    found = str(layouts[0]) if layouts[0] is not None else f"unknown layout, shape {list(tensor.shape)}"
    producer = value.producer()
    if _boxes(required_here) and carried is None and producer is not None:
        found += f", as the backend states no black box for the result of {_kind(producer)}"
    elif layouts[0] is not None and layouts[0].same_names(required_here):
        found += f" with strides that are multiples of {list(tensor.stride_factors())} bytes"
    place = f"result {n}" if is_result else f"operand {n}"
    subject = f"{place} of this {_kind(node)} ({value.name})"
    return Finding(
        rule="layout-requirement",
        node=node_label(node),
        operand=None if is_result else n,
        expected=str(required),
        found=found,
        message=f"{subject} is not in the layout that backend {backend.name} requires",
    )


def noted_order(value: ir.Value, node: ir.Node, place: int) -> tuple[str, ...] | None:
    """The source's axes in the order of an input of a node, or of a result, as the node notes it; None without a note.
    `place` counts the inputs, and then the results. The value's own annotation counts the axes of its producer."""
    noted = node.metadata_props.get(OPERAND_ORDERS_KEY, "").split(";")
    order = tuple(noted[place].split(",")) if place < len(noted) else ()
    return order if sorted(order) == [*map(str, range(len(value.shape or ())))] else None


def _order_of(value: ir.Value, node: ir.Node, place: int, index: ModelIndex) -> AxisNames | None:
    """The source's axes in the order of an input of a node, or of a result; None for a computed constant without a
    note, of which each reader has an order of its own."""
    is_unknown = value in index.made_ahead and WRITTEN_FOR_KEY not in node.metadata_props
    return noted_order(value, node, place) or (None if is_unknown else tuple(map(str, range(len(value.shape or ())))))


def _among(name: str | None, required: Layout) -> str | None:
    return name if name is not None and name in required.names else None


def _kind(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def node_label(node: ir.Node) -> str:
    """A node's name, or its operator and results where it has none."""
    return node.name or f"{node.op_type} of {', '.join(str(value.name) for value in node.outputs)}"


def _resizes_only_places(node: ir.Node, required: Layout) -> bool:
    """Whether a Resize changes only axes that are spatial in the layout.

    The Resize names its axes by the extents that it changes; operators on the other side of a Transpose may name them
    differently.
    """
    if node.op_type not in ("Resize", "Upsample") or node.domain != "":
        return False
    before, after = node.inputs[0], node.outputs[0]
    if before is None or before.shape is None or after.shape is None:
        return False
    if is_tiled(required):
        return not may_be_cut(node, required)
    if not len(before.shape) == len(after.shape) == required.rank or not {"N", "C"} <= set(required.names):
        return False
    pairs = zip(before.shape, after.shape, required.names, strict=True)
    return all(a == b or name not in "NC" for a, b, name in pairs)


def _movable(naming: AxisNames, tensor: TensorType) -> AxisNames:
    """The naming without the names of axes of extent 1: these may be anywhere."""
    return tuple(name if extent != 1 else None for name, extent in zip(naming, tensor.shape, strict=True))


def _is_kernel(node: ir.Node, n: int) -> bool:
    facts = named(node)
    return facts is not None and facts.kernel == n


def _as_kernel(required: Layout) -> Layout:
    """A data layout as a kernel's: in Glow the letters of a kernel are N for output and C for input channels."""
    is_data = "N" in required.names and "C" in required.names and not ("O" in required.names or "I" in required.names)
    if not is_data or required.names != str(required):
        return required
    return Layout.parse(required.names.replace("N", "O").replace("C", "I"))


def _current(naming: AxisNames | None, carried: Layout | None, shape: Sequence[int | str | None]) -> Layout | None:
    """The layout of a value with these names and this shape; a tile is as large as its dimension."""
    if naming is None:
        return carried
    names = [name or "*" for name in naming]
    if names and all(name.isdecimal() for name in names):
        return Layout.from_names("".join(names)) if len(names) <= MAX_RANK else None
    if carried is not None and carried.rank == len(names):
        dims = [name + "".join(f"[{space}:{data}]" for space, data in carried.boxes(i)) for i, name in enumerate(names)]
        return Layout.parse("".join(dims))
    if len(set(names) - {"*"}) != len([name for name in names if name != "*"]):
        return None
    tiles = [i for i, name in enumerate(names) if name.islower() and name.upper() in names]
    for i in tiles:
        names[i] = f"{names[i]}[tile:{shape[i]}]" if isinstance(shape[i], int) and shape[i] else "*"
    return Layout.parse("".join(names))


def _note_boxes(node: ir.Node, met: Sequence[Implementation], boxes: dict[ir.Value, Layout]) -> None:
    """Add the black boxes of the results of a node.

    Of several implementations, the one whose black boxes are annotated on the results applies.
    """
    noted = [_boxes(parsed_layout(value.metadata_props.get(LAYOUT_KEY, ""))) for value in node.outputs]
    chosen = next((each for each in met if [_boxes(layout) for layout in each.results] == noted), met[0])
    boxes.update({value: given for value, given in zip(node.outputs, chosen.results, strict=True) if _boxes(given)})


@lru_cache(maxsize=1024)
def _boxes(layout: Layout | None) -> dict[int, tuple[tuple[str, str], ...]]:
    """The black boxes of the dimensions that have any."""
    return {i: boxes for i in range(layout.rank) if (boxes := layout.boxes(i))} if layout is not None else {}


def _with_tiles(
    extents: tuple[int | str | None, ...], node: ir.Node, n: int, *, is_result: bool
) -> tuple[int | str | None, ...]:
    """The extents of an operand, with the size that the node's attributes give a tile where it is not known."""
    is_open = node.domain == OURS and not all(isinstance(extent, int) for extent in extents)
    layout = declared_layout_of(node, n, is_result=is_result) if is_open else None
    if layout is None or layout.rank != len(extents):
        return extents
    tiles = [layout.tile(i) for i in range(layout.rank)]
    return tuple(
        tile if tile is not None and not isinstance(extent, int) else extent
        for extent, tile in zip(extents, tiles, strict=True)
    )
