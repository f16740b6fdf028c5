"""The operator table: rows by operator and opset, and the look-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import onnx_ir as ir
from msgspec import Struct

from relayout.ops.node_reader import NodeSnapshot, NoRuleError, Reading
from relayout.ops.rule import Rule

Builder = Callable[[Reading], Rule]
Built = TypeVar("Built", bound=Callable[[Reading], Rule])


class Row(Struct, frozen=True):
    """One operator from one opset on, until the operator's next row. `kind`: free, contract, fixed, relabel."""

    domain: str
    operator: str
    since: int
    kind: str
    build: Builder


_table: dict[tuple[str, str], list[Row]] = {}


def row(kind: str, *operators: str, since: int = 7, domain: str = "") -> Callable[[Built], Built]:
    """Register a builder for these operators. Rows of one operator are in ascending order of `since`."""

    def enter(build: Built) -> Built:
        for operator in operators:
            entries = _table.setdefault((domain, operator), [])
            entries.append(Row(domain, operator, since, kind, build))
            entries.sort(key=lambda entry: entry.since)
        return build

    return enter


def rows() -> tuple[Row, ...]:
    """Every row, sorted by domain, operator and opset."""
    return tuple(entry for key in sorted(_table) for entry in _table[key])


def row_of(node: ir.Node, opsets: Mapping[str, int]) -> tuple[Row, int] | None:
    """The row of the node's operator and the opset of its domain; None without a row.

    The operators of domain `relayout` have the rows of ONNX's own.
    """
    domain = "" if node.domain in ("", "relayout") else node.domain
    opset = opsets.get(domain, opsets.get("ai.onnx", 1) if domain == "" else 1)
    found = row_for(domain, node.op_type, opset)
    return (found, opset) if found is not None else None


def row_for(domain: str, operator: str, opset: int) -> Row | None:
    """The row of an operator in an opset of its domain; None without a row."""
    found = [entry for entry in _table.get((domain, operator), ()) if entry.since <= opset]
    return found[-1] if found else None


def built_rule(row: Row, reading: Reading) -> Rule | None:
    """The rule of one node, or None: the node is pinned."""
    try:
        return row.build(reading)
    except NoRuleError:
        return None


def rule_of(node: ir.Node, opsets: Mapping[str, int]) -> Rule | None:
    """The node's rule, or None: the node is pinned. Region ops always are."""
    found = row_of(node, opsets)
    subgraph = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    if found is None or any(attribute.type in subgraph for attribute in node.attributes.values()):
        return None
    return built_rule(found[0], Reading(NodeSnapshot.of(node), found[1]))
