"""The verb `backends`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from relayout.cli.exit_status import DONE
from relayout.cli.terminal import print_result
from relayout.errors import BackendError

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend.interface import Backend, Implementation
    from relayout.backend.registry import Plugin
    from relayout.layout.layout import Layout

__all__ = ["backends"]

# With one, two and three spatial axes.
RANKS = (3, 4, 5)
WIDTH = 100


def backends(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE]", help="One backend: its options and requirements.", show_default=False),
    ] = None,
) -> int:
    """List the backends, or describe one.

    One is described by its options and its requirements on each operator."""
    return _list_backends() if name is None else _show_backend(name)


def _list_backends() -> int:
    """Print the installed backends, each with the first line of its documentation and where it comes from."""
    from relayout.backend.registry import find_backends

    rows = [(plugin.name, plugin.owner, _about(plugin)) for plugin in find_backends().values()]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    print_result("\n".join(lines) or "no backend is installed")
    return DONE


def _show_backend(spec: str) -> int:
    """Print the requirements on each operator, by rank; operators with equal requirements share a paragraph."""
    from relayout.backend.loading import load_backend

    backend = load_backend(spec)
    alike: dict[tuple[str, ...], list[str]] = {}
    for operator in _operators():
        if found := tuple(_requirements(backend, operator)):
            alike.setdefault(found, []).append(operator)
    blocks = ["\n".join([*wrap(", ".join(names), WIDTH), *found]) for found, names in alike.items()]
    others = "All other operators" if blocks else "All operators"
    options = ["\n".join(["Options, as --backend-option NAME=VALUE:", *lines])] if (lines := _options(spec)) else []
    head = f"{backend.name}: {_first_line(backend)}"
    print_result("\n\n".join([head, *options, *blocks, f"{others} are as ONNX defines them."]))
    return DONE


def _options(name: str) -> list[str]:
    """Each option with its default, its type and its description; a file has none."""
    from relayout.backend.options import options_of
    from relayout.backend.registry import find_backends

    plugin = find_backends().get(name)
    lines: list[str] = []
    for option in options_of(plugin.load()) if plugin is not None else ():
        lines.append(f"  {option.name}={option.default_text}  ({option.expected})")
        lines += wrap(option.about, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines


def _about(plugin: Plugin) -> str:
    try:
        return _first_line(plugin.load())
    except BackendError as error:
        # A broken package must not hide the others.
        return f"broken: {error.problem} ({error.found})"


def _first_line(backend: Backend | type[Backend]) -> str:
    from relayout.backend.declarative import DeclarativeBackend

    if isinstance(backend, DeclarativeBackend):
        table = backend.table
        options = ", ".join(f"{name}={json.dumps(value)}" for name, value in table.options.items())
        extends = f"a table that extends {table.extends}{f' with {options}' if options else ''}"
        return table.description or extends
    found = backend if isinstance(backend, type) else type(backend)
    return (inspect.getdoc(found) or "").partition("\n")[0]


def _operators() -> Iterator[str]:
    """The operators with named axes, then the rest of ONNX's."""
    import onnx

    from relayout.ops.operand_roles import OPERATORS

    yield from OPERATORS
    yield from sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain} - {*OPERATORS})


def _requirements(backend: Backend, operator: str) -> Iterator[str]:
    """One line for each rank with a requirement."""
    from relayout.backend.calls import ask

    for rank in RANKS:
        try:
            implementations = ask(backend, _sample(operator, rank))
        except BackendError:
            # The backend's rule is for other ranks, or reads attributes that the sample lacks.
            continue
        ways = [_shown(implementation) for implementation in implementations]
        if any(not _is_any(implementation) for implementation in implementations):
            yield f"  rank {rank}: {' or '.join(ways)}"


def _is_any(implementation: Implementation) -> bool:
    return all(layout.is_any or str(layout) == "N" for layout in (*implementation.inputs, *implementation.results))


def _shown(implementation: Implementation) -> str:
    cost = f" ({implementation.cost} bytes more)" if implementation.cost else ""
    return f"{_listed(implementation.inputs)} -> {_listed(implementation.results)}{cost}"


def _listed(layouts: Sequence[Layout]) -> str:
    return ", ".join("any" if layout.is_any else str(layout) for layout in layouts)


def _sample(operator: str, rank: int) -> ir.Node:
    """A sample node of this operator: with data and kernels of `rank` if it has these, else with few operands."""
    import onnx
    import onnx_ir as ir

    from relayout.ops.operand_roles import OPERATORS, kernel_input

    schema = onnx.defs.get_schema(operator)
    shape = ir.Shape([8] * rank)

    def value(name: str) -> ir.Value:
        return ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT))

    needed: set[int] = set(range(schema.min_input))
    if operator in OPERATORS:
        needed = {0, kernel_input(operator) or 0, *({1} if operator == "MaxUnpool" else ())}
    inputs = [value(f"input{n}") if n in needed else None for n in range(max(needed, default=-1) + 1)]
    outputs = 2 if operator == "MaxPool" else max(schema.min_output, 1)
    return ir.Node("", operator, inputs, outputs=[value(f"result{n}") for n in range(outputs)], name=operator.lower())
