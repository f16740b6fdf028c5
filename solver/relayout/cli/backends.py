"""`relayout backends`: which there are, and what one wants of each operator."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from relayout.cli.failures import DONE
from relayout.cli.terminal import print_result
from relayout.errors import BackendError

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend import Backend, Implementation
    from relayout.discovery import Plugin
    from relayout.layout import Layout

__all__ = ["list_backends", "show_backend"]

# Ranks with one, two and three spatial axes.
RANKS = (3, 4, 5)
# The inputs of an operator that the table needs: up to its kernel, or its data.
_ONLY_2D = frozenset({"DeformConv", "DepthToSpace", "MaxRoiPool", "RoiAlign", "SpaceToDepth"})


def list_backends() -> int:
    """Print the installed backends, each with the first line of its documentation and where it comes from."""
    from relayout.discovery import find_backends

    plugins = find_backends().values()
    rows = [(plugin.name, plugin.owner, _about(plugin)) for plugin in plugins]
    print_result(_aligned(rows) if rows else "no backend is installed")
    return DONE


def show_backend(spec: str) -> int:
    """Print what a backend wants of each operator whose axes have names, and of the others."""
    from relayout.backend import load_backend
    from relayout.roles import OPERATORS

    backend = load_backend(spec)
    lines = [f"{backend.name}: {_first_line(backend)}", ""]
    rows = [row for operator in OPERATORS for row in _rows(backend, operator)]
    lines.append(_aligned([("operator", "rank", "inputs -> results", ""), *rows]) if rows else "")
    lines.append("" if rows else "Every operator in the layout that ONNX defines.")
    print_result("\n".join(lines).rstrip())
    return DONE


def _about(plugin: Plugin) -> str:
    try:
        return _first_line(plugin.load())
    except BackendError as error:
        # One broken package must not hide the others.
        return f"broken: {error.problem} ({error.found})"


def _first_line(backend: Backend | type[Backend]) -> str:
    found = backend if isinstance(backend, type) else type(backend)
    return (inspect.getdoc(found) or "").partition("\n")[0]


def _rows(backend: Backend, operator: str) -> Iterator[tuple[str, ...]]:
    from relayout.answers import ask

    for rank in RANKS:
        if rank != 4 and operator in _ONLY_2D:
            continue
        implementations = ask(backend, _sample(operator, rank))
        if all(_is_any(implementation) for implementation in implementations):
            continue
        for number, implementation in enumerate(implementations):
            name = (operator, str(rank)) if not number else ("", "")
            cost = f"costs {implementation.cost} bytes more" if implementation.cost else ""
            yield *name, _shown(implementation), cost


def _is_any(implementation: Implementation) -> bool:
    return all(layout.is_any for layout in (*implementation.inputs, *implementation.results))


def _shown(implementation: Implementation) -> str:
    return f"{_listed(implementation.inputs)} -> {_listed(implementation.results)}"


def _listed(layouts: Sequence[Layout]) -> str:
    return ", ".join("any" if layout.is_any else str(layout) for layout in layouts)


def _sample(operator: str, rank: int) -> ir.Node:
    """A node of this operator with operands of `rank` where it has data or a kernel, and missing ones elsewhere."""
    import onnx_ir as ir

    from relayout.roles import kernel_input

    last = kernel_input(operator) or 0
    if operator == "MaxUnpool":
        last = 1
    shape = ir.Shape([8] * rank)

    def value(name: str) -> ir.Value:
        return ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT))

    inputs = [value(f"input{n}") if n in (0, last) else None for n in range(last + 1)]
    results = [value("result0"), value("result1")] if operator == "MaxPool" else [value("result0")]
    return ir.Node("", operator, inputs, outputs=results, name=operator.lower())


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
