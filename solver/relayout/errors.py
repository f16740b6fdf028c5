"""All errors that relayout raises.

    RelayoutError                      location, expected, found, and a hint
    |-- InputError                     an invalid model, file or graph JSON
    |   `-- LayoutSyntaxError          a layout string, with the column of the fault
    |-- UsageError                     a wrong option, backend name or file, or combination of them
    |   `-- BackendError               a backend that cannot be found or loaded, or that gives an invalid answer
    |       |-- UnknownOptionError     options that a backend does not take, with their names
    |       `-- LayoutRankError        a layout of another rank than the operand that it is for
    |-- InfeasibleError                the requirements contradict each other
    |-- OutOfTimeError                 no solution was found within the time limit
    `-- InternalError                  a bug in relayout: an invariant does not hold

A wrong layout in a graph is a finding of the verifier, never an exception.

Where a text names an option, it does so as `option_text` writes it. These are the words of a body of the HTTP service;
the command replaces them by its flags when it prints an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

MOST_NAMED, MOST_LETTERS = 5, 110
"""A message has so many of a list, each of at most so many letters."""


def shortened(text: str) -> str:
    """A name as one short line: control characters are escaped, and the middle of a long one is left out.

    >>> shortened("one\\nline")
    'one\\\\nline'
    """
    line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    half = MOST_LETTERS // 2 - 2
    return line if len(line) <= MOST_LETTERS else f"{line[:half]}...{line[-half:]}"


def first_few(texts: Sequence[str], separator: str) -> str:
    """The first texts of a list, each shortened in its middle, and how many more there are.

    >>> first_few(["a", "b", "c", "d", "e", "f", "g"], "; ")
    'a; b; c; d; e, and 2 more'
    """
    shown = [shortened(each) for each in texts[:MOST_NAMED]]
    more = len(texts) - len(shown)
    return f"{separator.join(shown)}{f', and {more} more' * bool(more)}"


def option_text(name: str, entry: str = "", value: object = "") -> str:
    """An option in a message, or one entry of an option that is a mapping, with its value where there is one.

    >>> option_text("time_limit"), option_text("dims", "N"), option_text("input_layouts", "x", "NHWC")
    ('options.time_limit', 'options.dims[N]', 'options.input_layouts[x]=NHWC')
    """
    return f"options.{name}{f'[{entry}]' * bool(entry)}{f'={value}' * (value != '')}"


def did_you_mean(text: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """The names that are spelled much like a text, as a hint; empty where there is none.

    >>> did_you_mean("Convv", ["Conv", "MaxPool"]), did_you_mean("Relu", ["Conv", "MaxPool"])
    ('did you mean Conv?', '')
    >>> did_you_mean("NHWC", ["nhwc", "x86-nchwc"])
    'did you mean nhwc?'
    """
    from difflib import get_close_matches

    names = [*names]
    near = [name for name in names if name.lower() == text.lower()] or get_close_matches(text, names, most, cutoff)
    return f"did you mean {' or '.join(near)}?" if near else ""


class RelayoutError(Exception):
    """An error with its location and a hint.

    `where` is the location (file, node, operand, option, column), `expected` and `found` are the two sides of the
    disagreement, and `hint` is a remedy. Only `problem` is never empty.
    """

    def __init__(self, problem: str, *, where: str = "", expected: str = "", found: str = "", hint: str = "") -> None:
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
    """An invalid model, file or graph JSON."""


class LayoutSyntaxError(InputError):
    """A layout string that does not parse. `column` counts from 1; the message has a caret under it."""

    def __init__(self, text: str, column: int, *, expected: str, found: str, hint: str = "") -> None:
        super().__init__("not a layout", where=f"layout, column {column}", expected=expected, found=found, hint=hint)
        self.text = text
        self.column = column

    def __str__(self) -> str:
        # Each control character is replaced by one character, so that the caret stays under its column.
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in self.text)
        return f"{super().__str__()}\n    {shown}\n    {' ' * (self.column - 1)}^"


class UsageError(RelayoutError):
    """A wrong option, backend name or file, or combination of them."""


class BackendError(UsageError):
    """A backend that cannot be found or loaded, clashes with another, or gives an invalid answer."""


class UnknownOptionError(BackendError):
    """Options that a backend does not take; `names` are theirs."""

    names: tuple[str, ...] = ()


class LayoutRankError(BackendError):
    """A layout of another rank than the operand that a backend gives it for."""


class InfeasibleError(RelayoutError):
    """No assignment of memory formats meets all requirements.

    `conflict` is a smallest conflicting set of requirements, each by node, operand and layout. `relaxation` is a
    smallest set of changes that allows a solution, the cheapest among several; it is empty if unknown. The message has
    the first few of each and how many more there are.
    """

    def __init__(
        self, problem: str, *, conflict: Sequence[str] = (), relaxation: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(first_few([problem], ""), found=first_few(conflict, "; "), hint=hint)
        self.conflict = tuple(conflict)
        self.relaxation = tuple(relaxation)


class OutOfTimeError(RelayoutError):
    """No solution was found within the time limit."""


class InternalError(RelayoutError):
    """An invariant of relayout does not hold: please report it."""


def check_known(
    option: str,
    names: Iterable[str],
    known: Iterable[str],
    what: str,
    problem: str = "the model has no {} of this name",
) -> None:
    """Raise UsageError for a name that is not in the model; `option` is where the name `{}` is."""
    there = sorted(set(known))
    for name in names:
        if name not in there:
            raise UsageError(
                problem.format(what),
                where=option.format(name),
                expected=", ".join(there[:8]) + (", ..." if len(there) > 8 else "") or f"a model with {what}s",
                found=name,
                hint=did_you_mean(name, there, 3),
            )


def check_argument(name: str, value: object, kinds: Any, expected: str) -> None:
    """Raise UsageError for an argument of another type; None stands for no argument, and a truth value is no number."""
    is_truth_value = kinds is Integral and isinstance(value, bool)
    if value is not None and (is_truth_value or not isinstance(value, kinds)):
        raise UsageError("a value of another type", where=name, expected=expected, found=repr(value)[:200])
