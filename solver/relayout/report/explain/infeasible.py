"""From a solution that says "infeasible" to the error that says why, by node, operand and layout, and what would do."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.candidates.alternatives import Port
from relayout.candidates.boundary_options import ANY
from relayout.candidates.messages import contradiction, operand_name, relaxed, required, shown
from relayout.errors import InfeasibleError
from relayout.formulate.formulation import Formulation, TensorUse
from relayout.solve.solver import Lifted, Requirement, Solution

__all__ = ["refusal"]


def refusal(solution: Solution, formulation: Formulation, most: int | None = None) -> InfeasibleError:
    """The error for an infeasible solution; `most`: the model may have so many transposes."""
    words = _Words(formulation)
    conflict = words.of_conflict(solution.conflict)
    if solution.over_limit and most is not None:
        return _over_limit(solution, most, conflict)
    relaxation = words.of_relaxation(solution.relaxation)
    return contradiction("the requirements contradict each other", conflict, relaxation)


def _over_limit(solution: Solution, most: int, conflict: Sequence[str]) -> InfeasibleError:
    hint, lifted = f"no more is known than that {most} do not do: raise --max-transposes", ""
    if solution.fewest_conversions is not None:
        lifted = f"--max-transposes {solution.fewest_conversions}"
        hint = f"the least that can be had is {lifted}"
    return InfeasibleError(
        f"no legal model has {most} transposes or fewer",
        conflict=(f"--max-transposes {most}", *conflict),
        relaxation=(lifted,) if lifted else (),
        hint=hint,
    )


class _Words:
    """Requirements of the problem in the words of the graph."""

    def __init__(self, formulation: Formulation) -> None:
        self._formulation = formulation
        self._choices = formulation.requirements.choices
        # Which tensor each value of the problem is of: one that may cross between devices has several.
        self._def_use: list[int] = []
        for index, def_use in enumerate(formulation.def_use):
            count = int(len(def_use.formats) > 1) if def_use.arrivals is None else sum(1 for _ in def_use.arrivals.values(0))
            self._def_use += [index] * count

    def of_conflict(self, conflict: Sequence[Requirement]) -> tuple[str, ...]:
        """Each requirement by node, operand and layout; one that several layouts meet with what it is tied to."""
        uses = [use for one in conflict if (use := self._use(one)) is not None]
        return tuple(dict.fromkeys(self._required(use, uses) for use in uses))

    def of_relaxation(self, relaxation: Sequence[Lifted]) -> tuple[str, ...]:
        """Each requirement that is relaxed, with what its operand could be then."""
        texts = [self._lifted(use, one) for one in relaxation if (use := self._use(one.requirement)) is not None]
        return tuple(dict.fromkeys(texts))

    def _use(self, requirement: Requirement) -> TensorUse | None:
        """Where the requirement is stated; None of what only stands for a tensor's way between two devices, or for where
        a node runs."""
        if requirement.value >= len(self._def_use):
            return None
        value = self._formulation.problem.values[requirement.value]
        def_use = self._formulation.def_use[self._def_use[requirement.value]]
        if def_use.arrivals is None:
            return def_use.uses[requirement.use]
        choice = (value.producer, *value.consumers)[requirement.use].choice
        return next((use for use in def_use.uses if use.choice == choice), None)

    def _required(self, use: TensorUse, conflict: Sequence[TensorUse]) -> str:
        choice, port = self._choices[use.choice], self._port(use)
        layouts = [self._layout(use, a) for a in range(len(choice.alternatives))]
        name = choice.label if choice.node is None else choice.port_name(port)
        tied = [self._port(other) for other in conflict if other.choice == use.choice and other != use]
        return required(name, layouts, [_name(other) for other in tied])

    def _lifted(self, use: TensorUse, change: Lifted) -> str:
        choice, port = self._choices[use.choice], self._port(use)
        layout = self._layout_instead(change)
        if choice.node is not None:
            return relaxed(choice.label, _name(port), layout, is_result=port.is_result)
        word, _, name = choice.label.partition(" ")
        # Only what the option takes is worth naming it: letters in some order.
        option = f" (--{word}-layout {name}={layout})" if word in ("input", "output") and layout.isalpha() else ""
        return f"{choice.label} were {layout}{option}"

    def _layout_instead(self, change: Lifted) -> str:
        """The format that the operand has then, in the words of whoever asks for it, else in letters of the axes."""
        def_use = self._formulation.def_use[self._def_use[change.requirement.value]]
        if def_use.arrivals is not None:
            return "another layout or at another device"
        format_ = def_use.formats[change.format]
        for use in def_use.uses:
            for a, alternative in enumerate(self._choices[use.choice].alternatives):
                if alternative.formats[use.port] == format_:
                    return self._layout(use, a)
        return shown(self._formulation.requirements.names, self._port(def_use.producer).operand, format_)

    def _layout(self, use: TensorUse, alternative: int) -> str:
        """The layout of one port in one alternative: as it was asked for, else as the format lies."""
        choice = self._choices[use.choice]
        asked = choice.layouts[alternative][use.port]
        if asked not in ("", ANY):
            return asked
        format_ = choice.alternatives[alternative].formats[use.port]
        return shown(self._formulation.requirements.names, self._port(use).operand, format_)

    def _port(self, use: TensorUse) -> Port:
        return self._choices[use.choice].ports[use.port]


def _name(port: Port) -> str:
    return operand_name(port.index, is_result=port.is_result)
