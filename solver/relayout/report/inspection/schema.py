"""The facts of one model and the difference of two, as JSON. Sizes are bytes."""

from __future__ import annotations

from relayout.report.record import Record
from relayout.report.schema import Count, Totals


class OperatorCount(Record, frozen=True, kw_only=True):
    """An operator, with its domain if that is not ONNX's, and its number of nodes; `before`: in the first model."""

    operator: str
    count: Count
    before: Count | None = None


class NodeFacts(Record, frozen=True, kw_only=True):
    """A node of the graph or of a graph inside it; `is_conversion`: it only moves data from one layout to another."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_conversion: bool = False


class ValueFacts(Record, frozen=True, kw_only=True):
    """A value that is no constant. `layout` has the names of its axes, outermost first; None where operators do not
    tell them. A dim of `shape` is a number, a symbol, or None; `bytes` takes sizes for symbols."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    layout: str | None
    bytes: Count
    producer: str | None = None
    readers: tuple[str, ...] = ()


class TransposeFacts(Record, frozen=True, kw_only=True):
    """A Transpose, or a backend's own conversion operator.

    `bytes` are read and written; 0 for a constant, which does not run, and where only dims of extent 1 move. `origin`
    is the exporter's note of the source line, else the scope in the name.
    """

    name: str
    operator: str
    input: str
    output: str
    perm: tuple[int, ...] = ()
    from_: str | None = None
    to: str | None = None
    bytes: Count
    is_constant: bool = False
    producer: str | None = None
    readers: tuple[str, ...] = ()
    origin: str | None = None


class Inspection(Record, frozen=True, kw_only=True):
    """One model. `nodes` are in the graph's order, `operators` the most frequent first, `transposes` the largest."""

    model: str
    ir_version: int | None
    opsets: dict[str, int]
    producer: str | None
    totals: Totals
    operators: tuple[OperatorCount, ...]
    nodes: tuple[NodeFacts, ...]
    values: tuple[ValueFacts, ...]
    transposes: tuple[TransposeFacts, ...]
    warnings: tuple[str, ...] = ()


class LayoutChange(Record, frozen=True, kw_only=True):
    """A value of both models whose shape or layout differs."""

    value: str
    before: str
    after: str


class Difference(Record, frozen=True, kw_only=True):
    """The differences of the second model from the first."""

    first: str
    second: str
    before: Totals
    after: Totals
    operators: tuple[OperatorCount, ...]
    removed: tuple[TransposeFacts, ...]
    added: tuple[TransposeFacts, ...]
    layouts: tuple[LayoutChange, ...]
