"""Errors of plugin code: what a backend raised or answered wrongly, as a `BackendError` with its file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

from relayout.backend.interface import Backend
from relayout.errors import BackendError, LayoutRankError, LayoutSyntaxError, RelayoutError


@contextmanager
def guarded(backend: Backend, hook: str, where: object = "", expected: str = "") -> Iterator[None]:
    """Turn an exception of plugin code into a BackendError; relayout's own errors pass, as they name their cause.

    `where` is the node or the tensor that the hook is called for, and is made a text for an error alone; `expected` is
    the answer that was due.
    """
    try:
        yield
    except LayoutSyntaxError as error:
        found = f"{error.found} in {error.text!r}, column {error.column}"
        operand = _operand_of(error)
        asked = _requirement_of(operand) if operand else hook
        raise wrong_answer(backend, asked, where, error.expected, found, operand=operand) from error
    except RelayoutError:
        raise
    except (Exception, SystemExit) as error:
        operand = _operand_of(error)
        raise BackendError(
            f"the backend failed in {_requirement_of(operand) if operand else hook}",
            where=_location(backend, where, operand),
            expected="a layout" if operand else expected,
            found=failure_text(error, type(backend).__module__),
            hint="this is a fault of the backend, not of the model",
        ) from error


def may_be_written(is_legal: Callable[[], bool]) -> bool:
    """Whether relayout may write a node that the model lacks, in place of one that it has: `is_legal` asks the backend.

    A layout of another rank than one of its operands is no fault of a backend, whose requirements are for the nodes of
    a model. The node is not legal then, as the verifier and a second run would ask the same. Any other error passes,
    and says that the model has no such node. Raises BackendError.
    """
    try:
        return is_legal()
    except LayoutRankError:
        return False
    except BackendError as error:
        written = "the model has no such node, which relayout would write in place of another"
        error.hint = f"{written}; {error.hint}" if error.hint else written
        raise


def _requirement_of(operand: str) -> str:
    """The method that states the layout of an operand, such as `input 0`."""
    return f"nth_{operand.partition(' ')[0]}_layout_requirements"


def wrong_answer(
    backend: Backend,
    hook: str,
    where: object,
    expected: str,
    found: str,
    *,
    operand: str = "",
    hint: str = "",
    kind: type[BackendError] = BackendError,
) -> BackendError:
    """The error for an answer of the wrong form. `operand`: the one that it is about, such as `input 0`."""
    places = [_defined_at(backend, hook)]
    if operand and hook == "implementations":
        # The layout of an operand is the answer of another method, where `Backend.implementations` made the answer.
        method = _requirement_of(operand)
        if type(backend).implementations is Backend.implementations:
            hook, places = method, []
        places.append(_defined_at(backend, method))
    return kind(
        f"invalid value from the backend's {hook}",
        where=_location(backend, where, operand),
        expected=expected,
        found=found,
        hint=hint or "; ".join(filter(None, places)),
    )


def shown(answer: object) -> str:
    """The type and the start of the text of any object, for an error."""
    try:
        text = repr(answer)
    except Exception:  # a plugin's code too
        text = "(its repr fails)"
    return f"{type(answer).__name__}: {text[:77] + '...' if len(text) > 80 else text}"


def _operand_of(error: BaseException) -> str:
    """The operand that `Backend.implementations` noted on an error of a requirement method; empty without one. A class
    that overrides it may still call it."""
    notes = [note for note in getattr(error, "__notes__", ()) if re.fullmatch(r"(input|result) \d+", note)]
    return notes[-1] if notes else ""


def _defined_at(backend: Backend, hook: str) -> str:
    """The line of the class that defines a hook; empty for a hook of `Backend` itself."""
    member = getattr(type(backend), hook, None)
    code = getattr(member, "__code__", None)
    if code is None or member is getattr(Backend, hook, None):
        return ""
    return f"{hook} is defined in {shown_path(code.co_filename)}, line {code.co_firstlineno}"


def failure_text(error: BaseException, module: str) -> str:
    """The type and the first line of an exception, with the innermost line of the plugin's own package.

    `module` is a module of that package. Without a line there, the innermost line outside relayout is told.
    """
    first_line = next(iter(str(error).splitlines()), "no message")
    own, others = None, None
    package = module.partition(".")[0]
    for frame, line in walk_tb(error.__traceback__):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root == package:
            own = frame.f_code.co_filename, line
        elif root not in ("relayout", "importlib") and not frame.f_code.co_filename.startswith("<"):
            others = frame.f_code.co_filename, line
    place = own or others
    at = f", in {shown_path(place[0])}, line {place[1]}" if place is not None else ""
    return f"{type(error).__name__}: {first_line}{at}"


def shown_path(file: str) -> str:
    """A file below the current folder relative to it, any other by its last two parts: servers keep their paths."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(*path.parts[-2:]))


def _location(backend: Backend, *places: object) -> str:
    try:
        name = backend.name
    except Exception:  # a plugin's property
        name = ""
    label = f"backend {name if isinstance(name, str) and name else type(backend).__name__}"
    return ", ".join(filter(None, [label, *map(str, places)]))
