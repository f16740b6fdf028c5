"""The price that a backend states of one conversion, asked about the tensor that a legal model converts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import onnx_ir as ir

from relayout.backend.calls import conversion_cost_of, conversion_of
from relayout.backend.interface import Backend, TensorType, element_size
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.report.schema import Conversion
from relayout.verification.counting import ExtentOf
from relayout.verification.operator_facts import parsed_layout, perm_of

_ONNX_ORDER = "NOICDHW"

Extents = tuple[int, ...]


def prices_conversions(backend: Backend) -> bool:
    """Whether the backend states prices of conversions, other than the bytes that they move."""
    kind = type(extended(backend))
    return kind.conversion_cost is not Backend.conversion_cost or kind.conversion is not Backend.conversion


def charges_for_orders(backend: Backend) -> bool:
    """Whether the backend charges for orders of axes, other than the bytes that they move."""
    return type(extended(backend)).order_cost is not Backend.order_cost


def extended(backend: Backend) -> Backend:
    """The backend that a table extends, as a table itself states no prices of conversions or orders."""
    if type(backend).__module__ != "relayout.backend.declarative":
        return backend  # tables are loaded late
    from relayout.backend.declarative import DeclarativeBackend

    return extended(backend.extended) if isinstance(backend, DeclarativeBackend) else backend


def stated_prices(
    backend: Backend,
    node: ir.Node,
    read: ir.Value,
    between: tuple[ir.Value, ir.Value],
    listed: Conversion | None,
    extent_of: ExtentOf,
) -> list[int | None]:
    """The prices that the backend states of one node of a conversion, None: its bytes. Empty if it cannot be asked.

    The node converts `read`; the whole conversion is `between` two values, one of them without the zeros that it adds.
    `listed` is the conversion in a report, with its layouts. Where operators name an axis differently,
    the backend was asked by numbers, so a Transpose may have two prices.
    """
    numbered = list(numbered_price(backend, node, extent_of))
    layouts = _layouts_of(listed) if listed is not None else None
    if listed is None or layouts is None:
        return numbered if listed is not None else []
    given, wanted = layouts
    # Only padding makes an axis longer at one end: of several readings, that with the fewest such axes is right.
    ends = [
        (padded, before, after)
        for before in _readings(_same_memory(read, is_source=True), given, extent_of)
        for after in _readings(_same_memory(node.outputs[0], is_source=False), wanted, extent_of)
        if (padded := _difference(_axes(given, before), _axes(wanted, after))) is not None
    ]
    if not ends:
        return []
    _, before, after = min(ends, key=lambda each: each[0])
    own, other = _axes(given, before), _axes(wanted, after)
    least = {name: min(extent, other.get(name, extent)) for name, extent in own.items()}
    for value, layout in zip(between, (given, wanted), strict=True):
        readings = [_axes(layout, extents) for extents in _readings(iter([value]), layout, extent_of)]
        for name, extent in _nearest(readings, least).items():
            least[name] = min(extent, least.get(name, extent))
    given, wanted = _padded(given, own, least), _padded(wanted, other, least)
    tensor = TensorType(element_size(read), before)
    native = conversion_of(backend, tensor, given, wanted, read.name)
    if native is not None and native.cost is not None:
        return [native.cost]
    named = conversion_cost_of(backend, tensor, given, wanted, read.name)
    return [named] if native is not None or not numbered else [*numbered, *([named] if named is not None else [])]


def _layouts_of(listed: Conversion) -> tuple[Layout, Layout] | None:
    """The layouts of a conversion; None if its axes have no names."""
    given, wanted = parsed_layout(listed.from_), parsed_layout(listed.to)
    if given is None or wanted is None or any(each.is_any or each.is_numbered for each in (given, wanted)):
        return None
    return given, wanted


def numbered_price(backend: Backend, node: ir.Node, extent_of: ExtentOf) -> Iterator[int | None]:
    """The price of a Transpose by the numbers of its dimensions, without those of extent 1; neighbours of known extents
    that stay neighbours are one dimension."""
    source = node.inputs[0]
    shape = source.shape if source is not None else None
    if node.op_type != "Transpose" or source is None or shape is None:
        return
    perm = perm_of(node, len(shape))
    order = [axis for axis in perm if shape[axis] != 1]
    follows = {pair for pair in pairwise(sorted(order)) if all(isinstance(shape[axis], int) for axis in pair)}
    starts = [0, *(n for n, pair in enumerate(pairwise(order), start=1) if pair not in follows), len(order)]
    moved = [order[start:end] for start, end in pairwise(starts) if start < end]
    if len(moved) > MAX_RANK:
        return
    dims = sorted(moved)
    extents = tuple([prod(extent_of(shape[axis]) or 1 for axis in group) for group in dims])
    given, wanted = ("".join(str(dims.index(group)) for group in each) for each in (dims, moved))
    tensor = TensorType(element_size(source), extents)
    yield conversion_cost_of(backend, tensor, Layout.from_names(given), Layout.from_names(wanted), source.name)


def _same_memory(value: ir.Value, *, is_source: bool) -> Iterator[ir.Value]:
    """The value, and those that Reshapes make it of, or make of it."""
    while True:
        yield value
        node = value.producer() if is_source else next((use.node for use in value.uses()), None)
        if node is None or node.op_type != "Reshape" or node.domain != "" or node.inputs[0] is None:
            return
        value = node.inputs[0] if is_source else node.outputs[0]


def _readings(values: Iterator[ir.Value], layout: Layout, extent_of: ExtentOf) -> Iterator[Extents]:
    """The extents that the dimensions of a layout may have, by the shapes of values in the same memory.

    A value in blocks of a backend's own may be declared without the blocks, and with its axes as ONNX orders them.
    """
    whole = [i for i in range(layout.rank) if layout.outer(i) is None]
    in_onnx = sorted(whole, key=lambda place: _ONNX_ORDER.find(layout.names[place]))
    for value in values:
        known = tuple(map(extent_of, value.shape)) if value.shape is not None else ()
        if len(known) == layout.rank:
            yield known
        for order in (whole, in_onnx) if len(known) == len(whole) else ():
            found = [layout.tile(i) or 0 for i in range(layout.rank)]
            for place, extent in zip(order, known, strict=True):
                tiles = [layout.tile(i) or 1 for i in range(layout.rank) if layout.outer(i) == place]
                found[place] = extent // prod(tiles)
            yield tuple(found)


def _axes(layout: Layout, extents: Extents) -> dict[str, int]:
    """The extent of each axis by its name, all of its dimensions together."""
    found: dict[str, int] = {}
    for place, extent in enumerate(extents):
        outer = layout.outer(place)
        name = layout.names[place if outer is None else outer]
        found[name] = found.get(name, 1) * extent
    return found


def _difference(here: Mapping[str, int], there: Mapping[str, int]) -> int | None:
    """How many axes are padded at one end; None if not only padding makes the difference."""
    longer = sum(extent > there.get(name, 0) for name, extent in here.items())
    shorter = sum(extent < there.get(name, 0) for name, extent in here.items())
    return None if longer and shorter else longer + shorter


def _nearest(readings: Sequence[Mapping[str, int]], axes: Mapping[str, int]) -> Mapping[str, int]:
    """Of several readings the one that padding at the fewest axes makes these axes; none if there is no such one."""
    padded = [(found, reading) for reading in readings if (found := _difference(reading, axes)) is not None]
    return min(padded, key=lambda each: each[0])[1] if padded else {}


def _padded(layout: Layout, own: Mapping[str, int], other: Mapping[str, int]) -> Layout:
    """The layout with the number of zeros at each axis that is longer here than at the other end."""
    for place in range(layout.rank):
        name = layout.names[place]
        if layout.outer(place) is None and name in other and own[name] > other[name]:
            layout = layout.with_boxes(place, [("pad", str(own[name] - other[name]))])
    return layout
