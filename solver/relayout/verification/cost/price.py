"""The price of the answer, computed again from the legal model and the backend's answers.

Found in the model are each Transpose of data, each Pad and Slice that a conversion added, each conversion operator of
the backend's own, and each copy from one device to another, with the bytes that it reads and writes. That is the price
of a conversion unless the backend states another: then it is asked again, about the tensor that was found and the
layouts that the report lists for it. The cost of a node's implementation is asked while requirements are checked.

The report names the nodes that each conversion became. They are looked up: each node that converts must belong to one
conversion, and each conversion must be its nodes, by kind and bytes. A report of an earlier version names none, and the
sums are compared alone. Several Transposes of one conversion are priced by the numbers of their axes: the layouts
between them have no names here, so that another price is not refused, but said not to be computed.

The model does not show what it costs to write an operator out in others, which counts as its writer has noted it, or to
run it in another order, nor sizes that are known only when it runs. `Price.not_computed` says which part was not
computed for such a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from relayout.backend.calls import (
    answers_by_type,
    conversion_operators_of,
    transfer_cost_of,
)
from relayout.backend.interface import Backend
from relayout.layout.metadata_keys import (
    BACKEND_KEY,
    BOUND_KEY,
    CONVERSION_KEY,
    COST_KEY,
    DEVICE_KEY,
    INLINED_KEY,
    OBJECTIVE_KEY,
    WRITTEN_FOR_KEY,
)
from relayout.report.schema import Charge, Conversion, Entry, Finding, Price, Report, Transfer
from relayout.verification.cost.stated_prices import (
    charges_for_orders,
    numbered_price,
    prices_conversions,
    stated_prices,
)
from relayout.verification.counting import bytes_of, extent_counter, moved_bytes, moves_axes
from relayout.verification.devices import transferred
from relayout.verification.model_index import ModelIndex
from relayout.verification.requirements import Charges, node_label

__all__ = ["check_price", "check_recorded_price"]

_ONNX = ("", "ai.onnx")
_PARTS = ("transposes", "reorders", "pads", "transfers")
_FILLERS = ("Concat", "Pad")
_NOT_BY_TYPE = "the backend may charge by more than a node's operator (`answers_by_type` is not set)"


def check_price(
    report: Report, index: ModelIndex, backend: Backend, charges: Charges, dims: Mapping[str, int] | None = None
) -> tuple[list[Finding], Price | None]:
    """A finding for each part of the report's account that the model and the backend contradict, and the price as far
    as it can be computed again. `charges` are the costs of implementations (see `check_requirements`)."""
    account = report.account
    if report.status not in ("optimal", "feasible") or account is None:
        return [], None
    bill = _Bill(index, backend, charges, dims or {}, report.objective, report)
    findings, unknown, computed = [], [], 0
    for part in _PARTS:
        found, claimed = bill.part(part), getattr(account, part)
        is_counted = (found.count, found.bytes) == (claimed.count, claimed.bytes)
        is_priced = found.least <= claimed.cost <= found.most
        computed += min(max(found.least, claimed.cost), found.most)
        if not is_counted and (reason := bill.is_elsewhere or bill.is_unnamed(part)):
            unknown.append(f"the {part} of the model ({found}) may be others: {reason}")
        elif not is_counted or not (is_priced or found.unpriced):
            message = f"the {part} are not those that the report charges{bill.first_other(part)}"
            findings.append(_error(message, str(found), _words(claimed)))
        elif found.unpriced:
            unknown.append(f"the price of the {part}: {found.unpriced}")
    if bill.contradictions and not findings:
        reason = bill.is_inlined if bill.is_missing else bill.is_elsewhere or bill.is_unnamed("reorders")
        if not reason:
            message = "the conversions are not those that the report lists"
            findings.append(_error(message, "the nodes that it names", bill.contradictions[0]))
        elif not any(reason in each for each in unknown):
            unknown.append(f"the conversions of the model may be others: {reason}")
    finding, reason = _check_operators(bill, account.operators)
    if bill.in_bytes:
        computed += min(max(bill.charged[0], account.operators.cost), bill.charged[1])
    findings += [finding] if finding is not None else []
    unknown += [reason] if reason else []
    return findings, Price(claimed=account.cost, computed=computed, not_computed=tuple(unknown))


def _check_operators(bill: _Bill, claimed: Entry) -> tuple[Finding | None, str]:
    """A finding about the cost of operators, or else the reason why it is not known in whole."""
    least, most = bill.charged
    if claimed.cost != (claimed.bytes if bill.in_bytes else 0):
        message = "the operators do not cost what is charged for them"
        return _error(message, f"{claimed.bytes if bill.in_bytes else 0}", str(claimed.cost)), ""
    is_sound, unseen = least <= claimed.bytes <= most, bill.unseen
    if unseen and (claimed.bytes >= least or not bill.is_by_type):
        return None, f"the cost of operators: {unseen}"
    if is_sound:
        return None, ""
    if not bill.is_by_type:
        return None, f"the cost of operators: {_NOT_BY_TYPE}"
    first = next((f"; the first that costs any is {node_label(node)}" for node in bill.charges), "")
    expected = f"{least} bytes" if least == most else f"{least} to {most} bytes"
    return _error(f"the operators cost other than the report says{first}", expected, f"{claimed.bytes} bytes"), ""


def check_recorded_price(
    index: ModelIndex, backend: Backend, charges: Charges, dims: Mapping[str, int] | None = None
) -> tuple[list[Finding], Price | None]:
    """A finding if the model costs other than it records for this backend, and the price as far as it is known."""
    facts = index.model.metadata_props
    text, bound = facts.get(COST_KEY, ""), facts.get(BOUND_KEY, "0")
    if COST_KEY in facts and not (text.isdecimal() and bound.isdecimal()):
        return [_error("the model records no cost with a bound", "whole numbers of bytes", f"{text}, {bound}")], None
    if not text or facts.get(BACKEND_KEY) != backend.name:
        return [], None
    recorded = int(text)
    bill = _Bill(index, backend, charges, dims or {}, facts.get(OBJECTIVE_KEY, "bytes"))
    found = [bill.part(part) for part in _PARTS]
    own = bill.charged if bill.in_bytes else (0, 0)
    least, most = sum(each.least for each in found) + own[0], sum(each.most for each in found) + own[1]
    unknown = [f"the price of conversions: {each.unpriced}" for each in found if each.unpriced]
    # An objective that counts conversions has no cost of operators.
    unknown += [f"the cost of operators: {bill.unseen}"] if bill.unseen and bill.in_bytes else []
    is_sound = least <= recorded <= most
    if is_sound and least < most and not bill.in_bytes:
        unknown.append("the number of conversions: a pad may be a part of one with a Transpose")
    if not is_sound and not unknown:
        reason = bill.is_elsewhere or bill.is_unnamed("reorders")
        unknown += [reason or ("" if bill.is_by_type else _NOT_BY_TYPE)]
    price = Price(claimed=recorded, computed=min(max(least, recorded), most), not_computed=tuple(filter(None, unknown)))
    message = "the model costs other than it records"
    if is_sound and int(bound) > recorded:
        return [_error("the model records a bound above its cost", f"at most {text}", bound)], price
    if not is_sound and price.not_computed and not (bill.is_elsewhere or any(each.unpriced for each in found)):
        text += f"; not computed: {'; '.join(price.not_computed)}"
        return [Finding(rule="price", severity="warning", expected=str(least), found=text, message=message)], price
    return [] if is_sound or price.not_computed else [_error(message, str(least), text)], price


@dataclass(frozen=True)
class _Part:
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


@dataclass(frozen=True, eq=False)
class _Found:
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


class _Bill:
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
        self._constants = index.constants
        self._operators = conversion_operators_of(backend)
        converting = dict.fromkeys(filter(self._converts, index.nodes))
        self.charges = {node: cost for node, cost in charges.items() if node not in converting}
        known = backend.devices()
        copies = transferred(index.model, self._constants) if known else ()
        self._transfers = [(value, a, b) for value, a, b in copies if a in known and b in known]
        self._devices = [backend.at(device) for device in backend.devices()] or [backend]
        self.contradictions: list[str] = []
        """The differences between the conversions that the report lists and the nodes that it names for them."""
        self.is_missing = False
        """Whether the report names a node that the model does not have."""
        listed, charged = (report.conversions, report.charges) if report is not None else ((), ())
        self._conversions = list(self._looked_up(converting, listed, charged))
        if report is not None:
            self._compare_transfers(report.transfers)

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
        if any(WRITTEN_FOR_KEY in node.metadata_props for node in self._index.noted):
            return "some are written out in others, and counted as noted there (`relayout.node_cost`)"
        if any(map(charges_for_orders, self._devices)):
            return "the backend charges for orders of axes (`order_cost`)"
        return ""

    def part(self, part: str) -> _Part:
        """A part of the account: its count, bytes and cost."""
        if part == "transfers":
            sizes = [bytes_of(value, self._extent_of) for value, _, _ in self._transfers]
            ends = [(source, target) for _, source, target in self._transfers]
            cost = 0
            if self.in_bytes:
                cost = sum(transfer_cost_of(self._backend, n, *pair) for n, pair in zip(sizes, ends, strict=True))
            return _Part(len(sizes), sum(sizes), cost, cost)
        own = [each for each in self._conversions if each.is_in(part)]
        size = sum(each.size(part) for each in own)
        count = sum(each.passes for each in own) if part == "transposes" else len(own)
        if not self.in_bytes:
            # A conversion that pads and transposes counts as a transpose. Only a report says which pads do.
            alone = [each for each in own if not each.passes]
            if part == "pads":
                return _Part(count, size, sum(each.listed is not None for each in alone), len(alone))
            return _Part(count, size, count, count)
        if part == "pads":
            return _Part(count, size, size, size)
        prices = [self._prices[each] for each in own]
        least, most = sum(min(known, default=0) for known in prices), sum(max(known, default=0) for known in prices)
        unpriced = _without_names([each for each in own if not self._prices[each]])
        return _Part(count, size, least, most, unpriced)

    def first_other(self, part: str) -> str:
        """The first contradiction, or else a conversion of this part, for the end of a message."""
        if part == "transfers":
            return "".join(f"; one is of {value.name} from {a} to {b}" for value, a, b in self._transfers[:1])
        own = [f"the first is {node_label(e.nodes[0])}" for e in self._conversions if e.is_in(part)]
        return "".join(f"; {text}" for text in [*self.contradictions, *own][:1])

    def _converts(self, node: ir.Node) -> bool:
        domain, operator = node.domain, node.op_type
        may_convert = (domain, operator) in self._operators or (
            node in self._index.noted and CONVERSION_KEY in node.metadata_props
        )
        if not may_convert and operator == "Transpose":
            may_convert = domain in _ONNX and moves_axes(node)
        read = node.inputs[0] if may_convert and node.inputs else None
        return read is not None and read not in self._constants

    def _looked_up(
        self, left: dict[ir.Node, None], listed: Sequence[Conversion], charged: Sequence[Charge]
    ) -> Iterator[_Found]:
        """The conversions of the report by the nodes that it names, then each of the nodes `left` by itself."""
        present = [each for each in charged if each.kind in ("reorder", "pad")]
        every: list[Conversion | Charge] = [*listed, *present]
        of_name: dict[str, list[ir.Node]] = {name: [] for each in every for name in each.nodes or ()}
        for node in self._index.nodes if of_name else ():
            if node.outputs[0].name in of_name:
                of_name[node.outputs[0].name].append(node)

        def claimed(names: Sequence[str]) -> tuple[list[ir.Node], list[ir.Node]]:
            """The nodes of these names, and those of them that convert and that no other entry has."""
            named = []
            for name in names:
                # The branches of an If may use the same name.
                named += [*[node for node in of_name[name] if node in left], *of_name[name]][:1]
                if not of_name[name]:
                    self.is_missing = True
                    self.contradictions.append(f"the model has no node that makes {name}, which the report names")
            own = [node for node in named if node in left]
            for node in own:
                del left[node]
            return named, own

        for each in listed:
            if each.nodes is None:
                continue
            named, own = claimed(each.nodes)
            found = self._of(own, named, each) if own else None
            if found is not None:
                yield found
            if not (found.is_as(each) if found is not None else each.kind in ("folded", "reshape")):
                about = f"the {each.kind} of {each.value} from {each.from_} to {each.to} ({each.bytes} bytes)"
                nodes = ", ".join(map(node_label, own)) or "no node"
                size = found.bytes if found is not None else 0
                self.contradictions.append(f"{about} is {nodes} ({size} bytes) in the model")
        for charge in present:
            named, own = claimed(charge.nodes or ())
            yield from [self._of([node], named) for node in own]
        names_all = all(each.nodes is not None for each in every)
        for node in left:
            found = self._of([node])
            if names_all:
                self.contradictions.append(f"the report does not list {node_label(node)} ({found.bytes} bytes)")
            yield found

    def _compare_transfers(self, listed: Sequence[Transfer]) -> None:
        made, claimed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for value, source, target in self._transfers:
            made[source, target] += bytes_of(value, self._extent_of)
        for each in listed:
            claimed[each.from_, each.to] += each.bytes
        for a, b in sorted({*made, *claimed}):
            if made[a, b] != claimed[a, b]:
                text = f"the transfers from {a} to {b} move {made[a, b]} bytes, and the report lists {claimed[a, b]}"
                self.contradictions.append(text)

    def _of(
        self, nodes: Sequence[ir.Node], named: Collection[ir.Node] = (), listed: Conversion | None = None
    ) -> _Found:
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
        return _Found(tuple(nodes), source, transposed, padded, reordered, listed)

    @cached_property
    def _prices(self) -> dict[_Found, tuple[int, ...]]:
        return {each: self._priced(each) for each in self._conversions}

    def _priced(self, found: _Found) -> tuple[int, ...]:
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


def _without_names(found: Sequence[_Found]) -> str:
    if not found:
        return ""
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    first = node_label(found[0].nodes[0])
    return f"the backend states prices, and the layouts of {first}{others} have no names here"


def _words(entry: Entry) -> str:
    return f"{entry.count} with {entry.bytes} bytes at a cost of {entry.cost}"


def _error(message: str, expected: str, found: str) -> Finding:
    return Finding(rule="price", expected=expected, found=found, message=message)
