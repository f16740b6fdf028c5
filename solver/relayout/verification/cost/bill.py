"""The cost of a legal model, part by part: its conversions, its transfers and the implementations of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.calls import conversion_operators_of, transfer_cost_of
from relayout.backend.interface import Backend
from relayout.backend.members import answers_by_type
from relayout.backend.noted_costs import noted_cost
from relayout.layout.metadata_keys import DEVICE_KEY, INLINED_KEY, WRITTEN_FOR_KEY
from relayout.report.schema import Report, Transfer
from relayout.verification.cost.conversions import ConversionSearch, FoundConversion, converting_nodes
from relayout.verification.cost.stated_prices import (
    charges_for_orders,
    numbered_price,
    prices_conversions,
    stated_prices,
)
from relayout.verification.counting import bytes_of, extent_counter, moved_bytes
from relayout.verification.devices import transferred
from relayout.verification.model_index import ModelIndex
from relayout.verification.requirements import Charges, node_label


class Part(Struct, frozen=True):
    """One part of the account as the model has it. The cost may depend on the names of axes; `unpriced` says why it is
    not known."""

    count: int
    bytes: int
    least: int
    most: int
    unpriced: str = ""

    def __str__(self) -> str:
        cost = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        return f"{self.count} with {self.bytes} bytes at a cost of {'?' if self.unpriced else cost}"


class Bill:
    """The costs of the conversions, transfers and implementations of a legal model."""

    def __init__(
        self,
        index: ModelIndex,
        backend: Backend,
        charges: Charges,
        dims: Mapping[str, int],
        objective: str,
        report: Report | None = None,
    ) -> None:
        self.in_bytes = objective == "bytes"
        self._index, self._backend = index, backend
        self._extent_of = extent_counter(index.model, dims, None if index.nesting else index.nodes)
        self._operators = conversion_operators_of(backend)
        converting = converting_nodes(index, self._operators)
        self.charges = {node: cost for node, cost in charges.items() if node not in converting}
        known = backend.devices()
        copies = transferred(index.model, index.constants) if known else ()
        self._transfers = [(value, a, b) for value, a, b in copies if a in known and b in known]
        self._devices = [backend.at(device) for device in backend.devices()] or [backend]
        listed, charged = (report.conversions, report.charges) if report is not None else ((), ())
        search = ConversionSearch(index.nodes, converting, self._operators, self._extent_of, listed, charged)
        self._conversions = search.found
        self.is_missing = search.is_missing
        """Whether the report names a node that the model does not have."""
        self.contradictions = search.contradictions
        """The differences between what the report lists and the nodes of the model."""
        if report is not None:
            self.contradictions += self._other_transfers(report.transfers)

    @property
    def charged(self) -> tuple[int, int]:
        """The least and the most bytes that the implementations of the nodes cost: operands may fit several."""
        return sum(least for least, _ in self.charges.values()), sum(most for _, most in self.charges.values())

    @property
    def is_inlined(self) -> str:
        """Why the nodes of the model are others than those charged; "" if they are not."""
        is_inlined = INLINED_KEY in self._index.model.metadata_props
        return "the bodies of operators are inlined, with Transposes of their own" if is_inlined else ""

    @property
    def is_elsewhere(self) -> str:
        """Why conversions in the model may be others than those charged, or of other sizes; "" if they are the same."""
        if self.is_inlined:
            return self.is_inlined
        values = [each.source for each in self._conversions] + [value for value, _, _ in self._transfers]
        unsized = [value for value in values if value.shape is None or not value.shape.is_static()]
        return f"the size of {unsized[0].name} is known only at run time" if unsized else ""

    def is_unnamed(self, part: str) -> str:
        """Why conversions of a part may not be found; "" if all are."""
        if part != "reorders" or self._operators or not any(map(prices_conversions, self._devices)):
            return ""
        return "the backend has conversions of its own, and does not name their operators (`conversion_operators`)"

    @property
    def is_by_type(self) -> bool:
        """Whether the nodes of the legal model show all that the backend charges for implementations."""
        return all(map(answers_by_type, self._devices))

    @property
    def unseen(self) -> str:
        """Why operators may cost more than their implementations; "" if they cannot."""
        if any(map(charges_for_orders, self._devices)):
            return "the backend charges for orders of axes (`order_cost`)"
        return ""

    @property
    def noted(self) -> int | None:
        """The bytes at which operators that are decomposed into others are charged, as the model's metadata notes; None
        without such an operator, or if no operator has a cost."""
        decomposed = [node for node in self._index.noted if WRITTEN_FOR_KEY in node.metadata_props]
        if not decomposed or not self.in_bytes:
            return None
        return sum(noted_cost(node) or 0 for node in decomposed)

    def part(self, part: str) -> Part:
        """A part of the account: its count, bytes and cost."""
        if part == "transfers":
            sizes = [bytes_of(value, self._extent_of) for value, _, _ in self._transfers]
            ends = [(source, target) for _, source, target in self._transfers]
            cost = 0
            if self.in_bytes:
                cost = sum(transfer_cost_of(self._backend, n, *pair) for n, pair in zip(sizes, ends, strict=True))
            return Part(len(sizes), sum(sizes), cost, cost)
        own = [each for each in self._conversions if each.is_in(part)]
        size = sum(each.size(part) for each in own)
        count = sum(each.passes for each in own) if part == "transposes" else len(own)
        if not self.in_bytes:
            # A conversion that pads and transposes counts as a transpose. Only a report says which pads do.
            alone = [each for each in own if not each.passes]
            if part == "pads":
                return Part(count, size, sum(each.listed is not None for each in alone), len(alone))
            return Part(count, size, count, count)
        if part == "pads":
            return Part(count, size, size, size)
        prices = [self._prices[each] for each in own]
        least, most = sum(min(known, default=0) for known in prices), sum(max(known, default=0) for known in prices)
        unpriced = _without_names([each for each in own if not self._prices[each]])
        return Part(count, size, least, most, unpriced)

    def first_other(self, part: str) -> str:
        """The first contradiction, or else a conversion of this part, for the end of a message."""
        if part == "transfers":
            return "".join(f"; one is of {value.name} from {a} to {b}" for value, a, b in self._transfers[:1])
        own = [f"the first is {node_label(e.nodes[0])}" for e in self._conversions if e.is_in(part)]
        return "".join(f"; {text}" for text in [*self.contradictions, *own][:1])

    def _other_transfers(self, listed: Sequence[Transfer]) -> Iterator[str]:
        made, claimed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for value, source, target in self._transfers:
            made[source, target] += bytes_of(value, self._extent_of)
        for each in listed:
            claimed[each.from_, each.to] += each.bytes
        for a, b in sorted({*made, *claimed}):
            if made[a, b] != claimed[a, b]:
                yield f"the transfers from {a} to {b} move {made[a, b]} bytes, and the report lists {claimed[a, b]}"

    @cached_property
    def _prices(self) -> dict[FoundConversion, tuple[int, ...]]:
        return {each: self._priced(each) for each in self._conversions}

    def _priced(self, found: FoundConversion) -> tuple[int, ...]:
        """The prices of a conversion but for the zeros that it adds or removes, by named and by numbered axes; none if
        the backend cannot be asked."""
        backend, moved = self._backend_of(found.nodes[0]), found.reordered or found.transposed
        if not moved or not prices_conversions(backend):
            return (moved,)
        turns = [node for node in found.nodes if found.reordered or node.op_type == "Transpose"]
        if found.listed is None or (found.reordered and len(turns) > 1):
            return ()
        if len(turns) > 1:
            return (sum(self._priced_by_number(backend, node) for node in turns),)
        read = found.source if found.reordered else turns[0].inputs[0]
        assert read is not None
        ends = found.source, found.nodes[-1].outputs[0]
        stated = stated_prices(backend, turns[0], read, ends, found.listed, self._extent_of)
        return tuple(sorted({moved if cost is None else cost for cost in stated}))

    def _priced_by_number(self, backend: Backend, transpose: ir.Node) -> int:
        stated = next(numbered_price(backend, transpose, self._extent_of), None)
        return 2 * moved_bytes(transpose, self._extent_of) if stated is None else stated

    def _backend_of(self, node: ir.Node) -> Backend:
        device = node.metadata_props.get(DEVICE_KEY, "")
        return self._backend.at(device) if device in self._backend.devices() else self._backend


def _without_names(found: Sequence[FoundConversion]) -> str:
    if not found:
        return ""
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    first = node_label(found[0].nodes[0])
    return f"the backend states prices, and the layouts of {first}{others} have no names here"
