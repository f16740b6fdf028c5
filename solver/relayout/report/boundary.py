"""The inputs and outputs of a legal model as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relayout.report.schema import BoundaryValue


def boundary_lines(boundary: Sequence[BoundaryValue]) -> Iterator[str]:
    """The layout of each input and output that differs from the source's, or was set or freed."""
    for value in boundary:
        if value.order is None and not value.transform and value.wanted is None:
            continue
        extents = None if value.shape is None else ",".join("?" if d is None else str(d) for d in value.shape)
        shape = "" if extents is None else f"shape [{extents}]"
        order = "" if value.order is None else f"the source's axes in the order {','.join(map(str, value.order))}"
        named = [value.layout] if value.layout else []
        if value.transform:
            steps = value.back or value.transform
            order = f"{'read back' if value.back else 'fed'} by {', then '.join(map(_step, steps))}"
        layout = ", ".join([*named, *[shape] * bool(shape), order or "as in the source"])
        coupled = f", coupled with {', '.join(value.coupled_with)}" if value.coupled_with else ""
        yield f"{value.side} {value.name}: {layout}{coupled}"


def _step(step: Mapping[str, Any]) -> str:
    """One step of a transform as text."""
    numbers = step.get("perm") or step.get("pads") or step["shape"]
    return f"{step['op']} {','.join(map(str, numbers))}"
