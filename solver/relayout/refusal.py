"""From a solution that says "infeasible" to the error that says why, by node, operand and layout, and what would do."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.boundary_words import ANY
from relayout.choices import Port
from relayout.errors import InfeasibleError
from relayout.formulation import Formulation, Touch
from relayout.solve import Lifted, Requirement, Solution
from relayout.words import contradiction, lifted, operand_name, required, shown

__all__ = ["refusal"]


def refusal(solution: Solution, formulation: Formulation, most: int | None = None) -> InfeasibleError:
    """The error for an infeasible solution; `most`: the model may have so many transposes."""
    words = _Words(formulation)
    conflict = words.of_conflict(solution.conflict)
    if solution.over_limit and most is not None:
        error = _over_limit(solution, most, conflict)
    else:
        relaxation = words.of_relaxation(solution.relaxation)
        error = contradiction("the requirements contradict each other", conflict, relaxation)
    # Formats that were left out may be those that would do.
    error.hint = "; ".join(text for text in (error.hint, *formulation.requirements.warnings) if text)
    return error


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
        # Which tensor each value of the problem is of: one that may cross between places has several.
        self._held: list[int] = []
        for index, held in enumerate(formulation.held):
            count = int(len(held.formats) > 1) if held.arrivals is None else sum(1 for _ in held.arrivals.values(0))
            self._held += [index] * count

    def of_conflict(self, conflict: Sequence[Requirement]) -> tuple[str, ...]:
        """Each requirement by node, operand and layout; one that several layouts meet with what it is tied to."""
        touches = [touch for one in conflict if (touch := self._touch(one)) is not None]
        return tuple(dict.fromkeys(self._required(touch, touches) for touch in touches))

    def of_relaxation(self, relaxation: Sequence[Lifted]) -> tuple[str, ...]:
        """Each requirement that is lifted, with what its operand could be then."""
        texts = [self._lifted(touch, one) for one in relaxation if (touch := self._touch(one.requirement)) is not None]
        return tuple(dict.fromkeys(texts))

    def _touch(self, requirement: Requirement) -> Touch | None:
        """Where the requirement is stated; None of what only stands for a tensor's way between two places, or for where
        a node runs."""
        if requirement.value >= len(self._held):
            return None
        value = self._formulation.problem.values[requirement.value]
        held = self._formulation.held[self._held[requirement.value]]
        if held.arrivals is None:
            return held.touches[requirement.use]
        choice = (value.producer, *value.consumers)[requirement.use].choice
        return next((touch for touch in held.touches if touch.choice == choice), None)

    def _required(self, touch: Touch, conflict: Sequence[Touch]) -> str:
        choice, port = self._choices[touch.choice], self._port(touch)
        layouts = [self._layout(touch, a) for a in range(len(choice.alternatives))]
        place = choice.label if choice.node is None else choice.place(port)
        tied = [self._port(other) for other in conflict if other.choice == touch.choice and other != touch]
        return required(place, layouts, [_name(other) for other in tied])

    def _lifted(self, touch: Touch, change: Lifted) -> str:
        choice, port = self._choices[touch.choice], self._port(touch)
        layout = self._layout_instead(change)
        if choice.node is not None:
            return lifted(choice.label, _name(port), layout, is_result=port.is_result)
        word, _, name = choice.label.partition(" ")
        # Only what the option takes is worth naming it: letters in some order.
        option = f" (--{word}-layout {name}={layout})" if word in ("input", "output") and layout.isalpha() else ""
        return f"{choice.label} were {layout}{option}"

    def _layout_instead(self, change: Lifted) -> str:
        """The format that the operand has then, in the words of whoever asks for it, else in letters of the axes."""
        held = self._formulation.held[self._held[change.requirement.value]]
        if held.arrivals is not None:
            return "another layout or at another place"
        format_ = held.formats[change.format]
        for touch in held.touches:
            for a, alternative in enumerate(self._choices[touch.choice].alternatives):
                if alternative.formats[touch.port] == format_:
                    return self._layout(touch, a)
        return shown(self._formulation.requirements.names, self._port(held.producer).operand, format_)

    def _layout(self, touch: Touch, alternative: int) -> str:
        """The layout of one port in one alternative: as it was asked for, else as the format lies."""
        choice = self._choices[touch.choice]
        asked = choice.layouts[alternative][touch.port]
        if asked not in ("", ANY):
            return asked
        format_ = choice.alternatives[alternative].formats[touch.port]
        return shown(self._formulation.requirements.names, self._port(touch).operand, format_)

    def _port(self, touch: Touch) -> Port:
        return self._choices[touch.choice].ports[touch.port]


def _name(port: Port) -> str:
    return operand_name(port.index, is_result=port.is_result)
