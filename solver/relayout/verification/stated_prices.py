"""What a backend states of the price of one conversion, asked about the tensor that a legal model converts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from relayout.backend.calls import conversion_cost_of, conversion_of
from relayout.backend.interface import Backend, TensorType, element_size
from relayout.errors import LayoutSyntaxError
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.report.schema import Conversion

__all__ = ["charges_for_orders", "prices_conversions", "stated_prices"]

_ONNX = ("", "ai.onnx")
_ONNX_ORDER = "NOICDHW"

Extents = tuple[int | str | None, ...]


def prices_conversions(backend: Backend) -> bool:
    """Whether the backend states prices of conversions, other than the bytes that they move."""
    kind = type(_extended(backend))
    return kind.conversion_cost is not Backend.conversion_cost or kind.conversion is not Backend.conversion


def charges_for_orders(backend: Backend) -> bool:
    """Whether the backend charges for orders of axes, other than the bytes that they move."""
    return type(_extended(backend)).order_cost is not Backend.order_cost


def _extended(backend: Backend) -> Backend:
    """The backend that a table extends, as a table itself states no prices of conversions or orders."""
    if type(backend).__module__ != "relayout.backend.declarative":
        return backend  # tables are loaded late
    from relayout.backend.declarative import DeclarativeBackend

    return backend.extended if isinstance(backend, DeclarativeBackend) else backend


def stated_prices(
    backend: Backend, node: ir.Node, source: ir.Value, result: ir.Value, listed: Conversion | None
) -> list[int | None]:
    """The prices that the backend states of a conversion by one node, None: its bytes. Empty if it cannot be asked.

    `listed` is the conversion in a report, with its layouts. Where operators name an axis differently, the layouts that
    the backend was asked about have numbers in place of names. So a Transpose may have two prices.
    """
    if listed is None:
        return []
    try:
        layouts = Layout.parse(listed.from_), Layout.parse(listed.to)
    except LayoutSyntaxError:
        return list(_by_number(backend, node, source))
    if any(layout.is_any or layout.is_numbered for layout in layouts):
        return list(_by_number(backend, node, source))
    own = list(_by_name(backend, source, result, layouts, is_reorder=listed.kind == "reorder"))
    return [*own, *_by_number(backend, node, source)] if own else []


def _by_name(
    backend: Backend, source: ir.Value, result: ir.Value, layouts: tuple[Layout, Layout], *, is_reorder: bool
) -> Iterator[int | None]:
    """The price by layouts with names; nothing if these are no layouts of the two ends."""
    given, wanted = layouts
    ends = [
        (before, after)
        for before in _readings(source, _reshaped(source, is_source=True), given, is_blocked=is_reorder)
        for after in _readings(result, _reshaped(result, is_source=False), wanted, is_blocked=is_reorder)
    ]
    if not ends:
        return
    # Only padding makes an axis longer at one end: of several readings, that with the fewest such axes is right.
    before, after = min(ends, key=lambda pair: _difference(_axes(given, pair[0]), _axes(wanted, pair[1])))
    own, other = _axes(given, before), _axes(wanted, after)
    given, wanted = _padded(given, own, other), _padded(wanted, other, own)
    tensor = TensorType(element_size(source), before)
    stated = conversion_of(backend, tensor, given, wanted, source.name)
    if stated is not None and stated.cost is not None:
        yield stated.cost
    else:
        yield conversion_cost_of(backend, tensor, given, wanted, source.name)


def _by_number(backend: Backend, node: ir.Node, source: ir.Value) -> Iterator[int | None]:
    """The price of a Transpose by the numbers of its dimensions, without those of extent 1."""
    shape = source.shape
    if node.op_type != "Transpose" or shape is None or len(shape) > MAX_RANK:
        return
    perm = node.attributes.get_ints("perm", tuple(reversed(range(len(shape))))) or ()
    long = [axis for axis, extent in enumerate(shape) if extent != 1]
    extents = tuple(_extent(shape[axis]) for axis in long)
    given = Layout.from_names("".join(map(str, range(len(long)))))
    wanted = Layout.from_names("".join(str(long.index(axis)) for axis in perm if axis in long))
    yield conversion_cost_of(backend, TensorType(element_size(source), extents), given, wanted, source.name)


def _reshaped(value: ir.Value, *, is_source: bool) -> ir.Value | None:
    """The value that a Reshape makes this one of, or makes of this one."""
    node = value.producer() if is_source else next((use.node for use in value.uses()), None)
    if node is None or node.op_type != "Reshape" or node.domain not in _ONNX:
        return None
    return node.inputs[0] if is_source else node.outputs[0]


def _readings(value: ir.Value, other: ir.Value | None, layout: Layout, *, is_blocked: bool) -> Iterator[Extents]:
    """The extents that the dimensions of a layout may have by the shape of a value, or else of the `other` one.

    A value in blocks of a backend's own may be declared without the blocks, and with its axes as ONNX orders them.
    """
    whole = [i for i in range(layout.rank) if layout.outer(i) is None]
    shapes = [each.shape for each in (value, other) if each is not None and each.shape is not None]
    shape = next((shape for shape in shapes if len(shape) in (layout.rank, len(whole))), None)
    if shape is None:
        return
    known = tuple(map(_extent, shape))
    if len(known) == layout.rank:
        yield known
    places = sorted(whole, key=lambda place: _ONNX_ORDER.find(layout.names[place]))
    for order in (whole, places) if is_blocked else (whole,) if len(known) < layout.rank else ():
        if len(order) != len(known):
            continue
        found: list[int | str | None] = [layout.tile(i) for i in range(layout.rank)]
        for place, extent in zip(order, known, strict=True):
            for i in range(layout.rank):
                tile = layout.tile(i) if layout.outer(i) == place else None
                if tile is not None:
                    extent = extent // tile if isinstance(extent, int) else None
            found[place] = extent
        yield tuple(found)


def _extent(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def _axes(layout: Layout, extents: Extents) -> dict[str, int | str | None]:
    """The extent of each axis by its name, all of its dimensions together."""
    found: dict[str, int | str | None] = {}
    for place, extent in enumerate(extents):
        outer = layout.outer(place)
        name = layout.names[place if outer is None else outer]
        before = found.get(name, 1)
        if isinstance(extent, int) and isinstance(before, int):
            found[name] = extent * before
        else:
            found[name] = extent if before == 1 else None
    return found


def _difference(here: Mapping[str, int | str | None], there: Mapping[str, int | str | None]) -> int:
    return sum(extent != there.get(name) for name, extent in here.items())


def _padded(layout: Layout, own: Mapping[str, int | str | None], other: Mapping[str, int | str | None]) -> Layout:
    """The layout with the number of zeros at each axis that is longer here than at the other end."""
    for place in range(layout.rank):
        name = layout.names[place]
        here, there = own.get(name), other.get(name)
        if layout.outer(place) is None and isinstance(here, int) and isinstance(there, int) and here > there:
            layout = layout.with_boxes(place, [("pad", str(here - there))])
    return layout
