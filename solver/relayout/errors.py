"""Every error that relayout raises on purpose.

    RelayoutError                      where, expected, found, and what to do
    |-- InputError                     a model, a file or a graph JSON that is not what it claims to be
    |   `-- LayoutSyntaxError          a layout string, with the column of the fault
    |-- UsageError                     an option, a backend's name or file, a combination that makes no sense
    |   `-- BackendError               a backend that cannot be found, loaded, or that answers nonsense
    |-- InfeasibleError                the requirements contradict each other
    |-- OutOfTimeError                 no solution was found in the time that was given
    `-- InternalError                  our own fault: an invariant of relayout does not hold

A wrong layout in a graph is data (a finding of the verifier), never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BackendError",
    "InfeasibleError",
    "InputError",
    "InternalError",
    "LayoutSyntaxError",
    "OutOfTimeError",
    "RelayoutError",
    "UsageError",
]


class RelayoutError(Exception):
    """An error with its place and its remedy.

    `where` names the place (file, node, operand, option, column), `expected` and `found` the two sides of the
    disagreement, `hint` what to do. Each may be empty; `problem` never is.
    """

    def __init__(
        self, problem: str, *, where: str = "", expected: str = "", found: str = "", hint: str = ""
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.problem}" if self.where else self.problem]
        for label, text in (("expected", self.expected), ("found", self.found), ("hint", self.hint)):
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling, and errors cross processes in the service.
        return _rebuild, (type(self), self.__dict__.copy(), self.args)


def _rebuild(kind: type[RelayoutError], state: dict[str, object], args: tuple[object, ...]) -> RelayoutError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InputError(RelayoutError):
    """A model, a file or a graph JSON that is not what it claims to be."""


class LayoutSyntaxError(InputError):
    """A layout string that does not parse; `column` counts from 1 and the message carries a caret under it."""

    def __init__(self, text: str, column: int, *, expected: str, found: str, hint: str = "") -> None:
        super().__init__(
            "not a layout", where=f"layout, column {column}", expected=expected, found=found, hint=hint
        )
        self.text = text
        self.column = column

    def __str__(self) -> str:
        # Tabs and other controls are shown escaped one to one, so that the caret stays under its column.
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in self.text)
        return f"{super().__str__()}\n    {shown}\n    {' ' * (self.column - 1)}^"


class UsageError(RelayoutError):
    """An option, a backend's name or file, or a combination of them that makes no sense."""


class BackendError(UsageError):
    """A backend that cannot be found or loaded, that clashes with another, or that answers nonsense."""


class InfeasibleError(RelayoutError):
    """No assignment of memory formats meets all requirements.

    `conflict` holds a smallest set of them found to conflict, each by node, operand and layout. `relaxation` holds what
    would have to change for a solution: fewest changes, and of as few the cheapest; empty where that is not known.
    """

    def __init__(
        self, problem: str, *, conflict: Sequence[str] = (), relaxation: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(problem, found="; ".join(conflict), hint=hint)
        self.conflict = tuple(conflict)
        self.relaxation = tuple(relaxation)


class OutOfTimeError(RelayoutError):
    """No solution was found in the time that was given."""


class InternalError(RelayoutError):
    """An invariant of relayout does not hold: please report it."""
