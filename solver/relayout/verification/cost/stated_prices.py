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
from relayout.verification.counting import ExtentOf

__all__ = ["charges_for_orders", "prices_conversions", "stated_prices"]

_ONNX = ("", "ai.onnx")
_ONNX_ORDER = "NOICDHW"

Extents = tuple[int, ...]


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
    backend: Backend,
    node: ir.Node,
    source: ir.Value,
    result: ir.Value,
    listed: Conversion | None,
    extent_of: ExtentOf,
) -> list[int | None]:
    """The prices that the backend states of a conversion by one node, None: its bytes. Empty if it cannot be asked.

    `listed` is the conversion in a report, with its layouts. Where operators name an axis differently, the backend was
    asked by numbers, so a Transpose may have two prices.
    """
    numbered = list(_by_number(backend, node, source, extent_of))
    layouts = _layouts_of(listed) if listed is not None else None
    if listed is None or layouts is None:
        return numbered if listed is not None else []
    is_reorder = listed.kind == "reorder"
    ends = [
        (before, after)
        for before in _readings(source, _reshaped(source, is_source=True), layouts[0], extent_of, is_reorder)
        for after in _readings(result, _reshaped(result, is_source=False), layouts[1], extent_of, is_reorder)
    ]
    if not ends:
        return []
    # Only padding makes an axis longer at one end: of several readings, that with the fewest such axes is right.
    before, after = min(ends, key=lambda pair: _difference(_axes(layouts[0], pair[0]), _axes(layouts[1], pair[1])))
    own, other = _axes(layouts[0], before), _axes(layouts[1], after)
    given, wanted = _padded(layouts[0], own, other), _padded(layouts[1], other, own)
    tensor = TensorType(element_size(source), before)
    native = conversion_of(backend, tensor, given, wanted, source.name)
    if native is not None and native.cost is not None:
        return [native.cost]
    named = conversion_cost_of(backend, tensor, given, wanted, source.name)
    return [named] if native is not None or not numbered else [*numbered, *([named] if named is not None else [])]


def _layouts_of(listed: Conversion) -> tuple[Layout, Layout] | None:
    """The layouts of a conversion; None if its axes have no names."""
    try:
        layouts = Layout.parse(listed.from_), Layout.parse(listed.to)
    except LayoutSyntaxError:
        return None
    return None if any(layout.is_any or layout.is_numbered for layout in layouts) else layouts


def _by_number(backend: Backend, node: ir.Node, source: ir.Value, extent_of: ExtentOf) -> Iterator[int | None]:
    """The price of a Transpose by the numbers of its dimensions, without those of extent 1."""
    shape = source.shape
    if node.op_type != "Transpose" or shape is None or len(shape) > MAX_RANK:
        return
    perm = node.attributes.get_ints("perm", tuple(reversed(range(len(shape))))) or ()
    long = [axis for axis, extent in enumerate(shape) if extent != 1]
    extents = tuple(extent_of(shape[axis], axis) for axis in long)
    given = Layout.from_names("".join(map(str, range(len(long)))))
    wanted = Layout.from_names("".join(str(long.index(axis)) for axis in perm if axis in long))
    yield conversion_cost_of(backend, TensorType(element_size(source), extents), given, wanted, source.name)


def _reshaped(value: ir.Value, *, is_source: bool) -> ir.Value | None:
    """The value that a Reshape makes this one of, or makes of this one."""
    node = value.producer() if is_source else next((use.node for use in value.uses()), None)
    if node is None or node.op_type != "Reshape" or node.domain not in _ONNX:
        return None
    return node.inputs[0] if is_source else node.outputs[0]


def _readings(
    value: ir.Value, other: ir.Value | None, layout: Layout, extent_of: ExtentOf, is_blocked: bool
) -> Iterator[Extents]:
    """The extents that the dimensions of a layout may have by the shape of a value, or else of the `other` one.

    A value in blocks of a backend's own may be declared without the blocks, and with its axes as ONNX orders them.
    """
    whole = [i for i in range(layout.rank) if layout.outer(i) is None]
    shapes = [each.shape for each in (value, other) if each is not None and each.shape is not None]
    shape = next((shape for shape in shapes if len(shape) in (layout.rank, len(whole))), None)
    if shape is None:
        return
    known = tuple(map(extent_of, shape, range(len(shape))))
    if len(known) == layout.rank:
        yield known
    places = sorted(whole, key=lambda place: _ONNX_ORDER.find(layout.names[place]))
    for order in (whole, places) if is_blocked else (whole,) if len(known) < layout.rank else ():
        if len(order) != len(known):
            continue
        found = [layout.tile(i) or 0 for i in range(layout.rank)]
        for place, extent in zip(order, known, strict=True):
            for i in range(layout.rank):
                tile = layout.tile(i) if layout.outer(i) == place else None
                extent //= tile or 1
            found[place] = extent
        yield tuple(found)


def _axes(layout: Layout, extents: Extents) -> dict[str, int]:
    """The extent of each axis by its name, all of its dimensions together."""
    found: dict[str, int] = {}
    for place, extent in enumerate(extents):
        outer = layout.outer(place)
        name = layout.names[place if outer is None else outer]
        found[name] = found.get(name, 1) * extent
    return found


def _difference(here: Mapping[str, int], there: Mapping[str, int]) -> int:
    return sum(extent != there.get(name) for name, extent in here.items())


def _padded(layout: Layout, own: Mapping[str, int], other: Mapping[str, int]) -> Layout:
    """The layout with the number of zeros at each axis that is longer here than at the other end."""
    for place in range(layout.rank):
        name = layout.names[place]
        if layout.outer(place) is None and name in other and own[name] > other[name]:
            layout = layout.with_boxes(place, [("pad", str(own[name] - other[name]))])
    return layout
