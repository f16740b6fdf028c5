"""The orders in which inputs and outputs may lie: those that are considered inside the graph, alone and across ties."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations

from relayout.boundary_words import ANY, is_cut
from relayout.candidates import FORMATS_PER_TENSOR, Spaces
from relayout.choices import NodeChoice, Port
from relayout.memory_format import Atom, Order, normal_form, source_order, with_units
from relayout.names import Names

__all__ = ["format_in", "orders_of", "shown"]


def orders_of(ports: Sequence[Port], spaces: Spaces) -> Iterator[Order]:
    """The orders, of all axes, in which one of the ports has a format that is considered, the source's first."""
    yield source_order(len(ports[0].operand.view.axes))
    shapes = {port.operand.view.extents for port in ports}
    pads = all(port.is_result for port in ports)
    for port in ports:
        view = port.operand.view
        for format_ in spaces.formats[port.operand.tensor]:
            own = view.from_root(format_)
            # What is tied is cut alike, which takes axes of the same lengths.
            if own is not None and len(shapes) == 1 and is_cut(own, view.extents, pads=pads):
                yield with_units(own, view.extents)
            elif own is not None and all(atom.is_whole for atom in own):
                # A value lies the same wherever its unit axes are put; one of another shape may have longer ones there.
                completions = _completions(own, len(view.axes))
                yield from islice(completions, FORMATS_PER_TENSOR if len(shapes) > 1 else 1)
                if len(shapes) > 1 and next(completions, None) is not None:
                    spaces.capped[port.operand.tensor] = None


def _completions(placed: Order, rank: int) -> Iterator[Order]:
    """The orders of all axes that have the whole axes `placed` in their sequence, the likeliest first."""
    likeliest = _completed(placed, rank)
    yield likeliest
    if len(placed) < rank:
        for axes in permutations(source_order(rank)):
            if axes != likeliest and tuple(atom for atom in axes if atom in placed) == placed:
                yield axes


def _completed(placed: Order, rank: int) -> Order:
    """The order with the axes that it lacks, which are unit axes, each after its neighbour in the source."""
    order = list(placed)
    for axis in sorted(set(range(rank)) - {atom.axis for atom in placed}):
        before = [place for place, atom in enumerate(order) if atom.axis < axis]
        order.insert(max(before, key=lambda place: (order[place].axis, place)) + 1 if before else 0, Atom(axis))
    return tuple(order)


def format_in(port: Port, order: Order) -> Order | None:
    """The format of the port's tensor when its own axes lie in this order."""
    view = port.operand.view
    return view.to_root(normal_form(order, view.extents))


def shown(choice: NodeChoice, order: Order, names: Names) -> list[str]:
    """The order in words, for each port of the choice: the names of the axes in it, else their numbers."""
    natural = order == source_order(len(order))
    if any(not atom.is_whole for atom in order):
        return [str(names.layout(port.operand, order) or ANY) for port in choice.ports]
    numbers = "as in the source" if natural else ",".join(str(atom.axis) for atom in order)
    return [names.in_order(port.operand, order) or numbers for port in choice.ports]
