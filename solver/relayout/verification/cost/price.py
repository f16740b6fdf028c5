"""The price of the answer, computed again from the legal model and the backend's answers.

Found in the model are each Transpose of data, each Pad and Slice that a conversion added, each conversion operator of
the backend's own, and each copy from one device to another, with the bytes that it reads and writes. That is the price
of a conversion unless the backend states another: then it is asked again, about the tensor that was found and the
layouts that the report lists for it. The cost of a node's implementation is asked while requirements are checked.

The model does not show what it costs to write an operator out in others, which counts as its writer has noted it, or to
run it in another order, nor sizes that are known only when it runs. `Price.not_computed` says which part was not
computed for such a reason.
"""

from __future__ import annotations

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
    CONVERSION_KEY,
    COST_KEY,
    DEVICE_KEY,
    INLINED_KEY,
    OBJECTIVE_KEY,
    WRITTEN_FOR_KEY,
)
from relayout.report.schema import Conversion, Entry, Finding, Price, Report
from relayout.verification.cost.stated_prices import charges_for_orders, prices_conversions, stated_prices
from relayout.verification.counting import bytes_of, extent_counter, moved_bytes, moves_axes
from relayout.verification.devices import transferred
from relayout.verification.model_index import ModelIndex
from relayout.verification.requirements import Charges, node_label

__all__ = ["check_price", "check_recorded_price"]

_ONNX = ("", "ai.onnx")
_PARTS = ("transposes", "reorders", "pads", "transfers")
_NOT_BY_TYPE = "the backend may charge by more than a node's operator (`answers_by_type` is not set)"


def check_price(
    report: Report, index: ModelIndex, backend: Backend, charges: Charges, dims: Mapping[str, int] | None = None
) -> tuple[list[Finding], Price | None]:
    """A finding for each part of the report's account that the model and the backend contradict, and the price as far
    as it can be computed again. `charges` are the costs of implementations (see `check_requirements`)."""
    account = report.account
    if report.status not in ("optimal", "feasible") or account is None:
        return [], None
    present = [each.node for each in report.charges if each.kind == "pad"]
    bill = _Bill(index, backend, charges, dims or {}, report.objective, report.conversions, present)
    findings, unknown, computed = [], [], 0
    for part in _PARTS:
        found, claimed = bill.part(part), getattr(account, part)
        is_counted = (found.count, found.bytes) == (claimed.count, claimed.bytes)
        is_priced = found.least <= claimed.cost <= found.most
        computed += min(max(found.least, claimed.cost), found.most)
        if not is_counted and (reason := bill.is_elsewhere or bill.is_unnamed(part)):
            unknown.append(f"the {part} of the model ({found}) may be others: {reason}")
        elif not is_counted or (not is_priced and not found.unpriced):
            message = f"the {part} are not those that the report charges{bill.first_other(part)}"
            findings.append(_error(message, str(found), _words(claimed)))
        elif found.unpriced:
            unknown.append(f"the price of the {part}: {found.unpriced}")
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
    text = facts.get(COST_KEY, "")
    if not text.isdecimal() or facts.get(BACKEND_KEY) != backend.name:
        return [], None
    recorded = int(text)
    bill = _Bill(index, backend, charges, dims or {}, facts.get(OBJECTIVE_KEY, "bytes"), ())
    found = [bill.part(part) for part in _PARTS]
    own = bill.charged if bill.in_bytes else (0, 0)
    least, most = sum(each.least for each in found) + own[0], sum(each.most for each in found) + own[1]
    unknown = [f"the price of conversions: {each.unpriced}" for each in found if each.unpriced]
    # An objective that counts conversions has no cost of operators.
    unknown += [f"the cost of operators: {bill.unseen}"] if bill.unseen and bill.in_bytes else []
    is_sound = least <= recorded <= most
    if not is_sound and not unknown:
        reason = bill.is_elsewhere or bill.is_unnamed("reorders")
        unknown += [reason or ("" if bill.is_by_type else _NOT_BY_TYPE)]
    price = Price(claimed=recorded, computed=min(max(least, recorded), most), not_computed=tuple(filter(None, unknown)))
    if is_sound or price.not_computed:
        return [], price
    return [_error("the model costs other than it records", str(least), text)], price


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
    """The nodes that convert one tensor, in order, from `source` to `result`, and their bytes by kind."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    transposed: int
    padded: int
    reordered: int

    @property
    def result(self) -> ir.Value:
        return self.nodes[-1].outputs[0]

    @property
    def passes(self) -> int:
        return sum(node.op_type == "Transpose" for node in self.nodes)

    @property
    def bytes(self) -> int:
        return self.reordered or self.transposed + self.padded

    def share(self, part: str, amount: int) -> int:
        """The share of a part in an amount for the whole conversion, by bytes."""
        padding = amount * self.padded // self.bytes if self.bytes and not self.reordered else 0
        shares = {"reorders": amount} if self.reordered else {"transposes": amount - padding, "pads": padding}
        return shares.get(part, 0)

    def is_in(self, part: str) -> bool:
        """Whether a part counts it; one of a tensor without elements is a transpose of 0 bytes."""
        return self.share(part, self.bytes) > 0 if self.bytes else part == "transposes"

    def may_be(self, listed: Conversion) -> bool:
        is_reorder = listed.kind == "reorder"
        return is_reorder == bool(self.reordered) and (self.bytes, self.share("pads", self.bytes)) == (
            listed.bytes,
            listed.padding,
        )


class _Bill:
    """The costs of the conversions, transfers and implementations of a legal model. `listed` are those of a report, and
    `present` its nodes that were in the source already, each a conversion of its own."""

    def __init__(
        self,
        index: ModelIndex,
        backend: Backend,
        charges: Charges,
        dims: Mapping[str, int],
        objective: str,
        listed: Sequence[Conversion],
        present: Collection[str] = (),
    ) -> None:
        self.in_bytes = objective == "bytes"
        self._index, self._backend, self._listed, self._present = index, backend, listed, frozenset(present)
        self._extent_of, self._constants = extent_counter(index.model, dims, index.nesting), index.constants
        self._operators = conversion_operators_of(backend)
        self._conversions = list(self._found())
        self.charges = {node: cost for node, cost in charges.items() if not self._converts(node)}
        known = backend.devices()
        copies = transferred(index.model, self._constants) if known else ()
        self._transfers = [(value, a, b) for value, a, b in copies if a in known and b in known]
        self._devices = [backend.at(device) for device in backend.devices()] or [backend]

    @property
    def charged(self) -> tuple[int, int]:
        """The least and the most bytes that the implementations of the nodes cost: operands may fit several."""
        return sum(least for least, _ in self.charges.values()), sum(most for _, most in self.charges.values())

    @property
    def is_elsewhere(self) -> str:
        """Why conversions in the model may be others than those charged, or of other sizes; "" if they are the same."""
        if INLINED_KEY in self._index.model.metadata_props:
            return "the bodies of operators are inlined, with Transposes of their own"
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
        if any(WRITTEN_FOR_KEY in node.metadata_props for node in self._index.nodes):
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
        size = sum(each.share(part, each.bytes) for each in own)
        count = sum(each.passes for each in own) if part == "transposes" else len(own)
        if not self.in_bytes:
            # A conversion that pads and transposes counts as a transpose.
            whole = sum(not each.passes for each in own) if part == "pads" else count
            return _Part(count, size, whole, whole)
        prices = [(each, self._prices[each]) for each in own]
        unpriced = [each for each, known in prices if not known]
        why = ""
        if unpriced:
            others = f" and {len(unpriced) - 1} more" if len(unpriced) > 1 else ""
            first = node_label(unpriced[0].nodes[0])
            why = f"the backend states prices, and the layouts between the steps of {first}{others} have no names"
        least = sum(each.share(part, min(known, default=0)) for each, known in prices)
        most = sum(each.share(part, max(known, default=0)) for each, known in prices)
        return _Part(count, size, least, most, why)

    def first_other(self, part: str) -> str:
        """The first conversion that only the report has, or only the model, for the end of a message."""
        if part == "transfers":
            return "".join(f"; one is of {value.name} from {a} to {b}" for value, a, b in self._transfers[:1])
        left = {id(each) for each in self._paired.values()}
        for listed in self._listed:
            if listed.kind not in ("folded", "reshape") and id(listed) not in left:
                way = f"from {listed.from_} to {listed.to} ({listed.bytes} bytes)"
                return f"; the model has no {listed.kind} of {listed.value} {way}"
        for each in self._conversions:
            if each not in self._paired:
                return f"; the report does not list {node_label(each.nodes[0])} ({each.bytes} bytes)"
        own = [each for each in self._conversions if each.is_in(part)]
        return f"; the first is {node_label(own[0].nodes[0])}" if own else ""

    def _found(self) -> Iterator[_Found]:
        begun: set[ir.Node] = set()
        for node in self._index.nodes:
            if node in begun or not self._converts(node):
                continue
            nodes = [node]
            while (after := self._next(nodes[-1])) is not None:
                nodes.append(after)
            begun.update(nodes)
            yield self._of(nodes)

    def _converts(self, node: ir.Node) -> bool:
        if not node.inputs or node.inputs[0] is None or node.inputs[0] in self._constants:
            return False
        if (node.domain, node.op_type) in self._operators:
            return True
        if node.op_type == "Transpose":
            return node.domain in _ONNX and moves_axes(node)
        return CONVERSION_KEY in node.metadata_props

    def _next(self, node: ir.Node) -> ir.Node | None:
        """The node that converts this one's result further and alone reads it, perhaps through a Reshape."""
        device = node.metadata_props.get(DEVICE_KEY)
        for _ in range(0 if self._is_present(node) else 2):
            (use, *others) = [*node.outputs[0].uses(), *[None] * node.outputs[0].is_graph_output()] or [None]
            if use is None or others or use.idx or use.node.metadata_props.get(DEVICE_KEY) != device:
                return None
            node = use.node
            if self._converts(node):
                return None if self._is_present(node) else node
            if node.op_type != "Reshape" or node.domain not in _ONNX:
                return None
        return None

    def _is_present(self, node: ir.Node) -> bool:
        return f"{node.op_type} '{node.name or node.outputs[0].name}'" in self._present

    def _of(self, nodes: Sequence[ir.Node]) -> _Found:
        source = nodes[0].inputs[0]
        assert source is not None
        sizes = {"transposed": 0, "padded": 0, "reordered": 0}
        for node in nodes:
            if (node.domain, node.op_type) in self._operators:
                sizes["reordered"] += self._through(node.inputs[0], node)
            elif node.op_type == "Transpose":
                sizes["transposed"] += 2 * moved_bytes(node, self._extent_of)
            else:
                sizes["padded"] += self._through(node.inputs[0], node)
        filler = source.producer()
        if sizes["reordered"] and filler is not None and not self._is_listed(source, sizes["reordered"]):
            # A backend may fill its operand up first, as a part of the conversion.
            whole = self._through(filler.inputs[0], nodes[-1]) if filler.op_type in ("Concat", "Pad") else 0
            if filler.inputs[0] is not None and self._is_listed(filler.inputs[0], whole):
                source, sizes["reordered"] = filler.inputs[0], whole
        return _Found(tuple(nodes), source, **sizes)

    def _is_listed(self, source: ir.Value, size: int) -> bool:
        """Whether the report lists a reorder of this value that reads and writes so many bytes."""
        own = [each for each in self._listed if each.kind == "reorder" and each.bytes == size]
        return any(_has_name(source.name or "", each) for each in own)

    def _through(self, read: ir.Value | None, node: ir.Node) -> int:
        return sum(bytes_of(value, self._extent_of) for value in (read, node.outputs[0]) if value is not None)

    @cached_property
    def _paired(self) -> dict[_Found, Conversion]:
        """The listed conversion that each one in the model is: of as many bytes, and of its name if one has it."""
        pairs: dict[_Found, Conversion] = {}
        left = [each for each in self._listed if each.kind not in ("folded", "reshape")]
        for by_name in (True, False):
            for each in self._conversions:
                fit = None
                if each not in pairs:
                    fitting = (one for one in left if each.may_be(one) and (not by_name or _is_named(each, one)))
                    fit = next(fitting, None)
                if fit is not None:
                    pairs[each] = fit
                    left = [one for one in left if one is not fit]
        return pairs

    @cached_property
    def _prices(self) -> dict[_Found, tuple[int, ...]]:
        return {each: self._priced(each) for each in self._conversions}

    def _priced(self, found: _Found) -> tuple[int, ...]:
        """The prices of a conversion, by named and by numbered axes; none if the backend cannot be asked."""
        device = found.nodes[0].metadata_props.get(DEVICE_KEY, "")
        backend = self._backend.at(device) if device in self._backend.devices() else self._backend
        if not prices_conversions(backend) or not (found.transposed or found.reordered):
            return (found.bytes,)
        if len(found.nodes) > 1:
            return ()
        stated = stated_prices(
            backend, found.nodes[0], found.source, found.result, self._paired.get(found), self._extent_of
        )
        return tuple(sorted({cost if cost is not None else found.bytes for cost in stated}))


def _is_named(found: _Found, listed: Conversion) -> bool:
    return any(_has_name(value.name or "", listed) for value in (found.source, found.result))


def _has_name(name: str, listed: Conversion) -> bool:
    return name == listed.value or name.startswith(f"{listed.value}_laid")


def _words(entry: Entry) -> str:
    return f"{entry.count} with {entry.bytes} bytes at a cost of {entry.cost}"


def _error(message: str, expected: str, found: str) -> Finding:
    return Finding(rule="price", expected=expected, found=found, message=message)
