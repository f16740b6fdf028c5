"""Why each conversion of a solution is there: who gives the value, who wants it otherwise, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.formulation import Formulation, Touch
from relayout.memory_format import Atom, Order
from relayout.report import Conversion, Crossing, RequiredBy
from relayout.views import Operand

__all__ = ["conversions_of", "crossings_of"]


def conversions_of(formulation: Formulation, assignment: Sequence[int]) -> tuple[Conversion, ...]:
    """The conversions of this assignment, in the report's words, in the order of the graph."""
    found = []
    for made in formulation.conversions(assignment):
        giver = formulation.requirements.choices[made.producer.choice]
        operand = giver.ports[made.producer.port].operand
        found.append(
            Conversion(
                value=made.tensor.root.name or "",
                from_=_shown(formulation, operand, made.source),
                to=_shown(formulation, operand, made.target),
                kind="transpose",
                bytes=made.bytes,
                producer=giver.label,
                required_by=tuple(_required_by(formulation, assignment, touch) for touch in made.wanted_by),
            )
        )
    return tuple(found)


def crossings_of(formulation: Formulation, assignment: Sequence[int]) -> tuple[Crossing, ...]:
    """What this assignment brings from one place to another, in the report's words, in the order of the graph."""
    found = []
    for crossed in formulation.crossings(assignment):
        giver = formulation.requirements.choices[crossed.producer.choice]
        found.append(
            Crossing(
                value=crossed.tensor.root.name or "",
                from_=crossed.source,
                to=crossed.target,
                layout=_shown(formulation, giver.ports[crossed.producer.port].operand, crossed.format),
                bytes=crossed.bytes,
                cost=crossed.cost,
                producer=giver.label,
                required_by=tuple(_required_by(formulation, assignment, touch) for touch in crossed.wanted_by),
            )
        )
    return tuple(found)


def _required_by(formulation: Formulation, assignment: Sequence[int], touch: Touch) -> RequiredBy:
    choice = formulation.requirements.choices[touch.choice]
    port = choice.ports[touch.port]
    picked = assignment[touch.choice]
    stated = choice.layouts[picked][touch.port] if picked < len(choice.layouts) else ""
    layout = stated or _shown(formulation, port.operand, choice.alternatives[picked].formats[touch.port])
    return RequiredBy(node=choice.label, operand=max(port.index, 0), layout=layout)


def _shown(formulation: Formulation, operand: Operand, format_: Order) -> str:
    """A format in letters where the axes have names, else in the numbers of the source's axes.

    Unit axes have no place in a format; they are shown where the source has them.
    """
    letters = formulation.requirements.names.of(operand)
    own = operand.view.from_root(format_)
    if own is None or not all(a.is_whole for a in own):
        return ",".join(_atom_text(a) for a in format_)
    axes = [a.axis for a in own]
    for axis in range(len(operand.view.axes)):
        if axis not in axes:
            before = [p for p, other in enumerate(axes) if other < axis]
            axes.insert(max(before, key=lambda p: axes[p]) + 1 if before else 0, axis)
    return "".join(letters[a] for a in axes) if letters else ",".join(map(str, axes))


def _atom_text(atom: Atom) -> str:
    """An axis by its number; a factor of one as what its index is computed by: `1/16` the block, `1%16` the place."""
    inner = f"/{atom.inner}" if atom.inner > 1 else ""
    return f"{atom.axis}" + (f"%{atom.outer}{inner}" if atom.outer else inner)
