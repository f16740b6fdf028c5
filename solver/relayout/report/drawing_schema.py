"""The schema of a drawn model: nodes, values with their layouts, and the alternatives of each node.

Values and nodes are referred to by their index, since names may repeat in graphs inside nodes.
"""

from __future__ import annotations

from functools import cached_property

from pydantic import BaseModel, ConfigDict


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DrawnValue(_Record):
    """A value. `layout` is its axis names in the order of its shape, None where they are not known. `bytes` estimates
    symbolic dims, None for an unknown type. `constant`: known before the model runs. `data`: the elements of a constant
    that the model has, as short text; None where they are absent or more than 16."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    layout: str | None
    bytes: int | None
    constant: bool = False
    data: str | None = None


class DrawnBody(_Record):
    """A graph inside a node: the attribute that has it, and its inputs and outputs as indices of values."""

    attribute: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class DrawnOperand(_Record):
    """An operand or result of a choice: its layout under an alternative. `required`: the backend requires it."""

    layout: str
    required: bool


class DrawnAlternative(_Record):
    """One way to run a node: the layout of each operand of its choice, and its own cost.

    `change` is the change of the total cost if only this node took the alternative, in the objective's unit; None where
    it needs a conversion that does not exist. `source`: it leaves the node as it is.
    """

    operands: tuple[DrawnOperand, ...]
    cost: int
    change: int | None
    chosen: bool = False
    source: bool = False
    elided: bool = False
    device: str = ""


class DrawnChoice(_Record):
    """The alternatives of a node, the chosen one first, then by their change of the cost. At most 16 of `count` are
    listed. `operands` has the operands' names, as `input 0` or `result 0`."""

    operands: tuple[str, ...]
    alternatives: tuple[DrawnAlternative, ...]
    count: int


class DrawnNode(_Record):
    """A node. `inputs` and `outputs` are indices of values, None for an omitted input; `attributes` are in short text.

    `within` is the index of the node around it, if it is in a graph inside a node. `constant`: it does not run, because
    all its results are known before. In the drawing of a legal model, `source` is the index of the node of the source
    that it is, if any, and `conversions` are the conversions of the report that it performs.
    """

    name: str
    operator: str
    domain: str
    attributes: dict[str, str]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    within: int | None = None
    bodies: tuple[DrawnBody, ...] = ()
    device: str | None = None
    constant: bool = False
    source: int | None = None
    conversions: tuple[int, ...] = ()
    choice: DrawnChoice | None = None


class Drawing(_Record):
    """A model to draw. `inputs` and `outputs` are indices of values. `properties` are the fields of the model that are
    not empty, such as `producer_name`, and `metadata` is the model's own; their texts are short."""

    name: str
    ir_version: int
    opsets: dict[str, int]
    properties: dict[str, str]
    metadata: dict[str, str]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    values: tuple[DrawnValue, ...]
    nodes: tuple[DrawnNode, ...]

    @cached_property
    def producers(self) -> dict[int, int]:
        """The node that produces each value."""
        return {value: index for index, node in enumerate(self.nodes) for value in node.outputs}
