"""The graph's inputs and outputs: as in the source, in a layout that the caller names, or left to the solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from relayout.candidates import Spaces, placements
from relayout.choices import NodeChoice, boundary_choice
from relayout.errors import InfeasibleError, UsageError
from relayout.layout import Layout
from relayout.memory_format import order_of, source_order
from relayout.names import Names, conventional
from relayout.rules import Axes
from relayout.views import Operand, Tensors

__all__ = ["ANY", "free_boundary", "outer_choices", "set_boundary"]

ANY = "any"


def set_boundary(
    values: Sequence[ir.Value], layouts: Mapping[str, str], tensors: Tensors, names: Names, *, is_input: bool
) -> list[NodeChoice]:
    """A choice for each input or output; one that is left to the solver ("any") has no alternatives yet.

    An output that is one of the inputs has no choice of its own: it is that very value, in that layout. Raises
    UsageError for a name that the graph does not have and for a layout that does not fit the tensor.
    """
    word = "input" if is_input else "output"
    _check_names(values, layouts, word)
    choices: list[NodeChoice] = []
    for index, value in enumerate(values):
        operand = tensors.operands.get(value)
        wanted = layouts.get(value.name or "")
        passed_through = not is_input and value.is_graph_input()
        if operand is None or operand.tensor.constant or passed_through:
            if wanted:
                constant = "a constant" if operand is not None else "a value of unknown rank"
                raise UsageError(
                    f"the layout of this {word} cannot be chosen",
                    where=f"--{word}-layout {value.name}",
                    expected="a value of known rank that is computed from the graph's inputs",
                    found="an input, which the graph gives as it came" if passed_through else constant,
                )
            continue
        choice = boundary_choice(f"{word} {value.name}", operand, is_input=is_input, index=index)
        choices.append(choice)
        if wanted != ANY:
            axes = _boundary_axes(operand, wanted, names, f"--{word}-layout {value.name}")
            shown = wanted or names.of(operand) or "as in the source"
            choice.add([choice.ports[0].format_of(axes)], order_of(axes), 0, [shown])
    return choices


def outer_choices(values: Sequence[ir.Value], tensors: Tensors) -> list[NodeChoice]:
    """What the graph reads of enclosing graphs comes as they hold it."""
    choices: list[NodeChoice] = []
    for index, value in enumerate(values):
        operand = tensors.operands.get(value)
        if operand is None or operand.tensor.constant:
            continue
        choice = boundary_choice(f"outer value {value.name}", operand, is_input=True, index=index)
        natural = source_order(len(operand.view.axes))
        choice.add([choice.ports[0].format_of(None)], natural, 0, ["as in the source"])
        choices.append(choice)
    return choices


def free_boundary(choice: NodeChoice, spaces: Spaces) -> None:
    """Let the solver take any format that somebody inside the graph considers."""
    (port,) = choice.ports
    view = port.operand.view
    for format_ in spaces.formats[port.operand.tensor]:
        own = view.from_root(format_)
        place = next(placements(own, len(view.axes)), None) if own is not None else None
        if place is not None:
            choice.add([format_], order_of(place), 0, [ANY])


def _check_names(values: Sequence[ir.Value], layouts: Mapping[str, str], word: str) -> None:
    known = sorted(value.name for value in values if value.name)
    for name in layouts:
        if name not in known:
            raise UsageError(
                f"the graph has no {word} of this name",
                where=f"--{word}-layout {name}",
                expected=", ".join(known) or f"a graph with {word}s",
                found=name,
            )


def _boundary_axes(operand: Operand, wanted: str | None, names: Names, where: str) -> Axes:
    rank = len(operand.view.axes)
    if wanted is None:
        return tuple(range(rank))
    layout = Layout.parse(wanted)
    letters = names.of(operand) or conventional(rank)
    if letters is None or sorted(layout.names) != sorted(letters):
        raise UsageError(
            "the layout does not fit the tensor",
            where=where,
            expected=f"the letters of {letters} in any order" if letters else "a tensor whose axes have names",
            found=wanted,
            hint="the letters are those of the operators that use the tensor; `any` lets the solver choose",
        )
    if any(layout.alignment(i) > 1 or layout.boxes(i) for i in range(layout.rank)):
        raise InfeasibleError(
            "no conversion provides alignment or black boxes", conflict=(f"{where}: requires {layout}",)
        )
    return tuple(letters.index(letter) for letter in layout.names)
