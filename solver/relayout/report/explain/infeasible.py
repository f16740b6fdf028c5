"""An infeasible solution -> the error that names the conflicting requirements by node, operand and layout."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.candidates.alternatives import Alternative, Port
from relayout.candidates.boundary_options import ANY
from relayout.candidates.messages import contradiction, format_text, operand_name, relaxed, required
from relayout.errors import InfeasibleError, option_text
from relayout.formulate.def_use import DefUse, TensorUse
from relayout.formulate.formulation import Formulation
from relayout.layout.memory_format import MemoryFormat
from relayout.solve.conflict import DroppedRequirement, Requirement
from relayout.solve.solver import Solution


def refusal(
    solution: Solution, formulation: Formulation, most: int | None = None, option: str = "max_transposes"
) -> InfeasibleError:
    """The error for an infeasible solution; `most` is the limit on conversions, where there is one, and `option` its
    name."""
    messages = _Messages(formulation)
    conflict = messages.of_conflict(solution.conflict)
    if solution.over_limit and most is not None:
        error = _over_limit(solution, most, conflict, option)
    else:
        relaxation = messages.of_relaxation(solution.relaxation)
        error = contradiction("the requirements contradict each other", conflict, relaxation)
    # A dropped format might be feasible.
    error.hint = "; ".join(text for text in (error.hint, *formulation.requirements.warnings) if text)
    return error


def _over_limit(solution: Solution, most: int, conflict: Sequence[str], option: str) -> InfeasibleError:
    hint, relaxed = f"{most} are too few, and the least number is unknown: raise {option_text(option)}", ""
    if solution.fewest_conversions is not None:
        relaxed = option_text(option, value=solution.fewest_conversions)
        hint = f"the least possible number is {relaxed}"
    return InfeasibleError(
        f"no legal model has at most {most} {option.removeprefix('max_').removesuffix('s' if most == 1 else '')}",
        conflict=(option_text(option, value=most), *conflict),
        relaxation=(relaxed,) if relaxed else (),
        hint=hint,
    )


class _Messages:
    """Requirements of the problem as messages about the graph."""

    def __init__(self, formulation: Formulation) -> None:
        self._formulation = formulation
        self._choices = formulation.requirements.choices
        self._numbered = {
            port.operand.tensor
            for choice in self._choices
            for alternative in choice.alternatives
            for port, text in zip(choice.ports, alternative.layouts, strict=True)
            if text.startswith("{")
        }

    def of_conflict(self, conflict: Sequence[Requirement]) -> tuple[str, ...]:
        """Each requirement by node, operand and layout; if several layouts meet it, with its coupled operands."""
        uses = [use for one in conflict if (use := self._use(one)) is not None]
        return tuple(dict.fromkeys(self._required(use, uses) for use in uses))

    def of_relaxation(self, relaxation: Sequence[DroppedRequirement]) -> tuple[str, ...]:
        """Each relaxed requirement, with the layout that its operand then has."""
        texts = [self._relaxed(use, one) for one in relaxation if (use := self._use(one.requirement)) is not None]
        return tuple(dict.fromkeys(texts))

    def _def_use(self, requirement: Requirement) -> DefUse | None:
        """The tensor of the requirement; None for an item that couples choices."""
        origin = self._formulation.provenance[requirement.item]
        return None if origin is None else self._formulation.def_use[origin]

    def _use(self, requirement: Requirement) -> TensorUse | None:
        """The use of the requirement; None for a requirement on a transfer or on the device of a node."""
        def_use = self._def_use(requirement)
        if def_use is None or def_use.transfers is None:
            return def_use.uses[requirement.use] if def_use is not None else None
        item = self._formulation.problem.items[requirement.item]
        choice = item.uses[requirement.use].choice
        return next((use for use in def_use.uses if use.choice == choice), None)

    def _required(self, use: TensorUse, conflict: Sequence[TensorUse]) -> str:
        choice, port = self._choices[use.choice], self._port(use)
        layouts = [self._layout(use, each) for each in choice.alternatives]
        name = choice.label if choice.node is None else choice.port_name(port)
        coupled = [self._port(other) for other in conflict if other.choice == use.choice and other != use]
        return required(name, layouts, [_name(other) for other in coupled])

    def _relaxed(self, use: TensorUse, change: DroppedRequirement) -> str:
        choice, port = self._choices[use.choice], self._port(use)
        layout = self._layout_instead(change)
        if choice.node is not None:
            return relaxed(choice.label, _name(port), layout, is_result=port.is_result)
        side, _, name = choice.label.partition(" ")
        # The option takes an order of the axis names.
        is_end = side in ("input", "output") and layout.isalpha()
        return f"{choice.label} were {layout}" + (
            f" ({option_text(f'{side}_layouts', name, layout)})" if is_end else ""
        )

    def _layout_instead(self, change: DroppedRequirement) -> str:
        """The operand's format after the relaxation, as some implementation spells it, else by axis names."""
        def_use = self._def_use(change.requirement)
        assert def_use is not None
        if def_use.transfers is not None:
            return "another layout or at another device"
        format_ = def_use.formats[change.format]
        for use in def_use.uses:
            for alternative in self._choices[use.choice].alternatives:
                if alternative.formats[use.port] == format_:
                    return self._layout(use, alternative)
        return self._text(def_use.producer, format_)

    def _layout(self, use: TensorUse, alternative: Alternative) -> str:
        """The layout of one port in one alternative, as the backend spells it, else by axis names."""
        stated = alternative.layouts[use.port]
        return stated if stated not in ("", ANY) else self._text(use, alternative.formats[use.port])

    def _text(self, use: TensorUse, format_: MemoryFormat) -> str:
        """A format by axis names, or in the notation of a layout that is required of its tensor by axis numbers."""
        operand, names = self._port(use).operand, self._formulation.requirements.names
        return format_text(names, operand, format_, is_numbered=operand.tensor in self._numbered)

    def _port(self, use: TensorUse) -> Port:
        return self._choices[use.choice].ports[use.port]


def _name(port: Port) -> str:
    return operand_name(port.index, is_result=port.is_result)
