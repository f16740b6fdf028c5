"""Text for messages: formats, requirements and relaxations by node, operand and layout."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.candidates.axis_names import AxisNames
from relayout.candidates.tensors import Operand
from relayout.errors import InfeasibleError, first_few
from relayout.layout.memory_format import Atom, BlackBoxFormat, MemoryFormat, with_units


def operand_name(index: int, *, is_result: bool) -> str:
    """The operand's name in messages."""
    return f"{'result' if is_result else 'input'} {index}"


def required(place: str, layouts: Sequence[str], together: Sequence[str]) -> str:
    """The requirement of one operand; if several layouts meet it, with the operands that depend on the choice.

    >>> required("Relu 'n1' input 0", ["NCHW", "NHWC"], ["result 0"])
    "Relu 'n1' input 0 requires NCHW or NHWC, chosen together with result 0"
    """
    layouts = list(dict.fromkeys(layouts))
    text = f"{place} requires {' or '.join(layouts)}"
    if len(layouts) == 1 or not together:
        return text
    return f"{text}, chosen together with {' and '.join(dict.fromkeys(together))}"


def relaxed(label: str, operand: str, layout: str, *, is_result: bool) -> str:
    """The layout of one operand if its requirement were relaxed."""
    return f"{label} {'gave' if is_result else 'took'} {operand} in {layout}"


def contradiction(
    problem: str, conflict: Sequence[str], relaxation: Sequence[str], reasons: Sequence[str] = ()
) -> InfeasibleError:
    """The error for requirements that cannot be met together, with a relaxation that is feasible.

    `reasons` say why a layout does not fit its tensor.
    """
    feasible = [f"it would be feasible if {first_few(relaxation, ' and ')}"] if relaxation else []
    hint = "; ".join([*dict.fromkeys(reasons[:2]), *feasible])
    return InfeasibleError(problem, conflict=conflict, relaxation=relaxation, hint=hint)


def format_text(names: AxisNames, operand: Operand, format_: MemoryFormat, *, is_numbered: bool = False) -> str:
    """A format by axis names where the axes have some, else by the numbers of the source's axes.

    A format does not contain unit axes; the text has them after their neighbours in the source. `is_numbered`: whole
    axes are in the notation of a layout by numbers, innermost first, as in `{1,0}`.
    """
    axis_names = names.of(operand) if not is_numbered else None
    own = operand.view.from_base(format_)
    boxes = operand.boxes(format_)
    if own is None or not all(a.is_whole for a in own):
        full = BlackBoxFormat(with_units(own, operand.view.extents), boxes) if own is not None else None
        layout = names.layout(operand, full) if full is not None else None
        return str(layout) if layout is not None else ",".join(_atom_text(a) for a in format_)
    axes = [a.axis for a in with_units(own, operand.view.extents)]
    words = [axis_names[a] if axis_names else str(a) for a in axes]
    if is_numbered and not boxes:
        return f"{{{','.join(reversed(words))}}}"
    for axis, _, namespace, data in boxes:
        words[axes.index(axis)] += f"[{namespace}:{data}]"
    return ("" if axis_names else ",").join(words)


def _atom_text(atom: Atom) -> str:
    """An axis by its number, a factor by the formula of its index: `1/16` the outer tile, `1%16` the inner one."""
    inner = f"/{atom.inner}" if atom.inner > 1 else ""
    return f"{atom.axis}" + (f"%{atom.outer}{inner}" if atom.outer else inner)
