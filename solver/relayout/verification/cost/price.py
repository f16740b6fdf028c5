"""The price of the answer, computed again from the legal model and the backend's answers.

Found in the model are each Transpose of data, each Pad and Slice that a conversion added, each conversion operator of
the backend's own, and each copy from one device to another, with the bytes that it reads and writes. That is the price
of a conversion unless the backend states another: then it is asked again, about the tensor that was found and the
layouts that the report lists for it. The cost of a node's implementation is asked while requirements are checked.

The report names the nodes that each conversion became. They are looked up: each node that converts must belong to one
conversion, and each conversion must be its nodes, by kind and bytes. A report of an earlier version names none, and the
sums are compared alone. Several Transposes of one conversion are priced by the numbers of their axes: the layouts
between them have no names here, so that another price is not refused, but said not to be computed.

The model does not show what it costs to decompose an operator into others: that counts as its writer has noted it, and
`Price.noted` is the sum. Nor does it show what it costs to run an operator in another order, or sizes that are known
only when it runs. `Price.not_computed` says which part was not computed for such a reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from relayout.backend.interface import Backend
from relayout.layout.metadata_keys import BACKEND_KEY, BOUND_KEY, COST_KEY, OBJECTIVE_KEY
from relayout.report.schema import Entry, Finding, Price, Report, Severity
from relayout.verification.cost.bill import Bill
from relayout.verification.model_index import ModelIndex
from relayout.verification.requirements import Charges, node_label

_OBJECTIVES = ("bytes", "transposes")
_PARTS = ("transposes", "reorders", "pads", "transfers")
_NOT_BY_TYPE = "the backend may charge by more than a node's operator (`answers_by_type` is not set)"

_DECOMPOSED = (
    "operators that are decomposed into others may cost more than the model's metadata notes (`relayout.node_cost`)"
)


def check_price(
    report: Report, index: ModelIndex, backend: Backend, charges: Charges, dims: Mapping[str, int] | None
) -> tuple[list[Finding], Price | None]:
    """A finding for each part of the report's account that the model and the backend contradict, and the price as far
    as it can be computed again. `charges` are the costs of implementations (see `check_requirements`)."""
    account = report.account
    if report.status not in ("optimal", "feasible") or account is None:
        return [], None
    bill = Bill(index, backend, charges, dims or {}, report.objective, report)
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
            stated = f"{claimed.count} with {claimed.bytes} bytes at a cost of {claimed.cost}"
            findings.append(_error(message, str(found), stated))
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
    price = Price(claimed=account.cost, computed=computed, noted=bill.noted, not_computed=tuple(unknown))
    return findings, price


def _check_operators(bill: Bill, claimed: Entry) -> tuple[Finding | None, str]:
    """A finding about the cost of operators, or else the reason why it is not known in whole."""
    least, most = bill.charged
    if claimed.cost != (claimed.bytes if bill.in_bytes else 0):
        message = "the operators do not cost what is charged for them"
        return _error(message, f"{claimed.bytes if bill.in_bytes else 0}", str(claimed.cost)), ""
    is_sound, unseen = least <= claimed.bytes <= most, bill.unseen
    if not unseen and not is_sound and bill.noted is not None:
        unseen = _DECOMPOSED
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
    index: ModelIndex, backend: Backend, charges: Charges, dims: Mapping[str, int] | None
) -> tuple[list[Finding], Price | None]:
    """A finding if the model costs other than it records for this backend, and the price as far as it is known."""
    facts = index.model.metadata_props
    text, bound = facts.get(COST_KEY, ""), facts.get(BOUND_KEY, "0")
    if COST_KEY in facts and not (text.isdecimal() and bound.isdecimal()):
        return [_error("the model records no cost with a bound", "whole numbers of bytes", f"{text}, {bound}")], None
    if not text or facts.get(BACKEND_KEY) != backend.name:
        return [], None
    objective = facts.get(OBJECTIVE_KEY, "bytes")
    if objective not in _OBJECTIVES:
        return [_error("the model records no objective", " or ".join(_OBJECTIVES), objective)], None
    recorded = int(text)
    bill = Bill(index, backend, charges, dims or {}, objective)
    found = [bill.part(part) for part in _PARTS]
    own = bill.charged if bill.in_bytes else (0, 0)
    least, most = sum(each.least for each in found) + own[0], sum(each.most for each in found) + own[1]
    unknown = [f"the price of conversions: {each.unpriced}" for each in found if each.unpriced]
    is_sound = least <= recorded <= most
    # An objective that counts conversions has no cost of operators.
    unseen = bill.unseen or (_DECOMPOSED if not is_sound and not unknown and bill.noted is not None else "")
    unknown += [f"the cost of operators: {unseen}"] if unseen and bill.in_bytes else []
    if is_sound and least < most and not bill.in_bytes:
        unknown.append("the number of conversions: a pad may be a part of one with a Transpose")
    if not is_sound and not unknown:
        reason = bill.is_elsewhere or bill.is_unnamed("reorders")
        unknown += [reason or ("" if bill.is_by_type else _NOT_BY_TYPE)]
    computed, reasons = min(max(least, recorded), most), tuple(filter(None, unknown))
    price = Price(claimed=recorded, computed=computed, noted=bill.noted, not_computed=reasons)
    message = "the model costs other than it records"
    if is_sound and int(bound) > recorded:
        return [_error("the model records a bound above its cost", f"at most {text}", bound)], price
    if not is_sound and price.not_computed and not (bill.is_elsewhere or any(each.unpriced for each in found)):
        text += f"; not computed: {'; '.join(price.not_computed)}"
        severity: Severity = "warning" if recorded < least else "note"
        message = message if recorded < least else "the cost that the model records is not confirmed in whole"
        return [Finding(rule="price", severity=severity, expected=str(least), found=text, message=message)], price
    return [] if is_sound or price.not_computed else [_error(message, str(least), text)], price


def _error(message: str, expected: str, found: str) -> Finding:
    return Finding(rule="price", expected=expected, found=found, message=message)
