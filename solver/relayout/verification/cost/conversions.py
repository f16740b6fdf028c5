"""The conversions of a legal model: the nodes that convert data, and the entries of a report that name them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import onnx_ir as ir
from msgspec import Struct

from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.report.schema import Charge, Conversion
from relayout.verification.counting import ExtentOf, bytes_of, moved_bytes, moves_axes
from relayout.verification.model_index import ModelIndex
from relayout.verification.requirements import node_label

_FILLERS = ("Concat", "Pad")


class FoundConversion(Struct, frozen=True, eq=False):
    """One conversion: the nodes that convert, in order, the tensor that the first reads, and the bytes by kind.
    `listed` is the conversion of the report that names these nodes; None where a node was found by itself."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    transposed: int
    padded: int
    reordered: int
    listed: Conversion | None = None

    @property
    def passes(self) -> int:
        return sum(node.op_type == "Transpose" for node in self.nodes)

    @property
    def bytes(self) -> int:
        return self.reordered or self.transposed + self.padded

    def size(self, part: str) -> int:
        """Its bytes in a part of the account."""
        if self.reordered:
            return self.reordered if part == "reorders" else 0
        return {"transposes": self.transposed, "pads": self.padded}.get(part, 0)

    def is_in(self, part: str) -> bool:
        """Whether a part counts it; one of a tensor without elements is a transpose of 0 bytes."""
        return self.size(part) > 0 if self.bytes else part == "transposes"

    def is_as(self, listed: Conversion) -> bool:
        """Whether it is the conversion of the report; without elements, the backend's own operator moves nothing."""
        kind = "reorder" if self.reordered else "transpose" if self.passes else "pad"
        sizes = self.bytes, self.size("pads"), max(1, self.passes)
        is_alike = kind == listed.kind or not self.bytes
        return is_alike and sizes == (listed.bytes, listed.padding, listed.passes)


def converting_nodes(index: ModelIndex, operators: AbstractSet[tuple[str, str]]) -> dict[ir.Node, None]:
    """The nodes that convert data, in the model's order. `operators`: the backend's own conversion operators."""
    return dict.fromkeys(node for node in index.nodes if _converts(node, index, operators))


def _converts(node: ir.Node, index: ModelIndex, operators: AbstractSet[tuple[str, str]]) -> bool:
    may_convert = (node.domain, node.op_type) in operators or (
        node in index.noted and CONVERSION_KEY in node.metadata_props
    )
    if not may_convert and node.op_type == "Transpose":
        may_convert = node.domain == "" and moves_axes(node)
    read = node.inputs[0] if may_convert and node.inputs else None
    return read is not None and read not in index.constants


class ConversionSearch:
    """The conversions that `converting` nodes are: each belongs to the first entry of the report that names it, and is
    one by itself if none does.

    `contradictions` are the differences between the conversions that the report lists and the nodes that it names for
    them; `is_missing`: it names a node that the model does not have.
    """

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        converting: Iterable[ir.Node],
        operators: AbstractSet[tuple[str, str]],
        extent_of: ExtentOf,
        listed: Sequence[Conversion] = (),
        charged: Sequence[Charge] = (),
    ) -> None:
        self._operators, self._extent_of = operators, extent_of
        self._left = dict.fromkeys(converting)
        charged = [each for each in charged if each.kind in ("reorder", "pad")]
        entries: list[Conversion | Charge] = [*listed, *charged]
        self._of_name = _by_name(nodes, {name for each in entries for name in each.nodes or ()})
        self.contradictions: list[str] = []
        self.is_missing = False
        self.found = [*self._listed(listed), *self._charged(charged)]
        names_all = all(each.nodes is not None for each in entries)
        self.found += self._unnamed(is_contradiction=names_all)

    def _listed(self, listed: Iterable[Conversion]) -> Iterator[FoundConversion]:
        for each in listed:
            if each.nodes is None:
                continue
            named, own = self._claim(each.nodes)
            found = self._of(own, named, each) if own else None
            if found is not None:
                yield found
            if not (found.is_as(each) if found is not None else each.kind in ("folded", "reshape")):
                about = f"the {each.kind} of {each.value} from {each.from_} to {each.to} ({each.bytes} bytes)"
                nodes = ", ".join(map(node_label, own)) or "no node"
                size = found.bytes if found is not None else 0
                self.contradictions.append(f"{about} is {nodes} ({size} bytes) in the model")

    def _charged(self, charged: Iterable[Charge]) -> Iterator[FoundConversion]:
        for charge in charged:
            named, own = self._claim(charge.nodes or ())
            yield from [self._of([node], named) for node in own]

    def _unnamed(self, *, is_contradiction: bool) -> Iterator[FoundConversion]:
        for node in self._left:
            found = self._of([node])
            if is_contradiction:
                self.contradictions.append(f"the report does not list {node_label(node)} ({found.bytes} bytes)")
            yield found

    def _claim(self, names: Sequence[str]) -> tuple[list[ir.Node], list[ir.Node]]:
        """The nodes of these names, and those of them that convert and that no other entry has."""
        named = []
        for name in names:
            # The branches of an If may use the same name.
            nodes = self._of_name[name]
            named += [*[node for node in nodes if node in self._left], *nodes][:1]
            if not nodes:
                self.is_missing = True
                self.contradictions.append(f"the model has no node that makes {name}, which the report names")
        own = [node for node in named if node in self._left]
        for node in own:
            del self._left[node]
        return named, own

    def _of(
        self, nodes: Sequence[ir.Node], named: Collection[ir.Node] = (), listed: Conversion | None = None
    ) -> FoundConversion:
        """The conversion by these nodes. One of all that are `named` may fill its operand up first."""
        transposed = padded = reordered = 0
        source: ir.Value | None = None
        for node in nodes:
            read, made, is_own = node.inputs[0], node.outputs[0], (node.domain, node.op_type) in self._operators
            assert read is not None
            filler = read.producer()
            if filler is not None and filler in named and filler.op_type in _FILLERS and filler not in nodes:
                read = filler.inputs[0] or read
            size = bytes_of(read, self._extent_of) + bytes_of(made, self._extent_of)
            if is_own:
                reordered += size
            elif node.op_type == "Transpose":
                transposed += 2 * moved_bytes(node, self._extent_of)
            else:
                padded += size
            source = source or read
        assert source is not None
        return FoundConversion(tuple(nodes), source, transposed, padded, reordered, listed)


def _by_name(nodes: Iterable[ir.Node], names: AbstractSet[str]) -> Mapping[str, list[ir.Node]]:
    """The nodes that make the values of these names."""
    found: dict[str, list[ir.Node]] = {name: [] for name in names}
    for node in nodes if names else ():
        if node.outputs[0].name in found:
            found[node.outputs[0].name].append(node)
    return found
