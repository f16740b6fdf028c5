"""The report's own arithmetic: its totals against the models, its conversions against its totals, its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import onnx_ir as ir

from relayout.layout.metadata_keys import INLINED_KEY
from relayout.model.dims.formula import formula_size
from relayout.report.schema import Finding, Report, Severity
from relayout.verification.counting import count, determined_sizes

_PART_OF_CHARGE = {"operator": "operators", "decomposition": "operators", "reorder": "reorders", "pad": "pads"}


def check_report(
    report: Report,
    model: ir.Model | None,
    original: ir.Model | None,
    dims: Mapping[str, int] | None,
    conversion_operators: Set[tuple[str, str]],
) -> Iterator[Finding]:
    """Yield a finding for each number of `report` that contradicts others, or the models if these are given.

    The bodies of inlined operators have other conversions than those charged: then these are not compared with totals.
    """
    is_inlined = model is not None and INLINED_KEY in model.metadata_props
    for side, counted_in, claimed in (("before", original, report.before), ("after", model, report.after)):
        counted = count(counted_in, dims or {}, conversion_operators) if counted_in is not None else claimed
        if counted != claimed:
            yield _unaccounted(f"{side}: the graph has other totals", str(counted), str(claimed))
    yield from _check_account(report, is_inlined=is_inlined)
    moving = [conversion for conversion in report.conversions if conversion.kind == "transpose"]
    if report.status in ("optimal", "feasible") and not is_inlined:
        listed = sum(conversion.passes for conversion in moving)
        if listed > report.after.transposes:
            expected = f"at most the {report.after.transposes} of the totals"
            yield _unaccounted("more transposes are listed than counted", expected, str(listed))
        spent = sum(conversion.bytes - conversion.padding for conversion in moving)
        if spent > report.after.bytes:
            expected = f"at most the {report.after.bytes} of the totals"
            yield _unaccounted("the listed conversions move more bytes than were counted", expected, str(spent))
    for conversion in report.conversions:
        if conversion.kind in ("reshape", "folded") and conversion.bytes:
            yield _unaccounted(f"a {conversion.kind} of {conversion.value} costs bytes", "0", str(conversion.bytes))
    yield from _check_status(report)


def _check_account(report: Report, *, is_inlined: bool) -> Iterator[Finding]:
    """The parts of the cost add up to it, and the graph has at least the conversions that are charged."""
    account, after = report.account, report.after
    if account is None:
        if report.cost is not None:
            yield _unaccounted("a cost has parts", "an account", "none")
        return
    parts = {"transposes": account.transposes, "reorders": account.reorders, "pads": account.pads}
    charged = [*(each.cost for each in parts.values()), account.operators.cost, account.transfers.cost]
    if sum(charged) != report.cost:
        yield _unaccounted("the parts of the cost do not add up to it", str(report.cost), str(sum(charged)))
    counted = {
        "transposes": (after.transposes, after.bytes),
        "reorders": (after.reorders, after.reorder_bytes),
        "pads": (after.pads, after.pad_bytes),
    }
    for name, entry in parts.items():
        count, size = counted[name]
        # Several conversions may need one node, such as a pad of two axes; bytes are the same.
        is_more = entry.bytes > size or (name != "pads" and entry.count > count)
        if is_more and not is_inlined:
            found = f"{entry.count} with {entry.bytes} bytes"
            yield _unaccounted(f"more {name} are charged than counted", f"at most {count} with {size} bytes", found)
    listed = {
        "transposes": sum(each.bytes - each.padding for each in report.conversions if each.kind != "reorder"),
        "reorders": sum(each.bytes for each in report.conversions if each.kind == "reorder"),
        "pads": sum(each.padding for each in report.conversions),
        "operators": 0,
    }
    numbers = {
        "reorders": sum(each.kind == "reorder" for each in report.conversions),
        "pads": sum(each.padding > 0 for each in report.conversions),
        "operators": 0,
    }
    for charge in report.charges:
        part = _PART_OF_CHARGE[charge.kind]
        listed[part] += charge.bytes
        numbers[part] += 1
        if part == "operators" and charge.cost != charge.bytes:
            message = f"the cost of {charge.node} is other than its bytes"
            yield _unaccounted(message, str(charge.bytes), str(charge.cost))
    for name, entry in {**parts, "operators": account.operators}.items():
        if entry.bytes != listed[name]:
            found = f"{entry.bytes} bytes"
            yield _unaccounted(f"the {name} charged are not those listed", f"{listed[name]} bytes", found)
        if entry.count != numbers.get(name, entry.count):
            message = f"another number of {name} is charged than listed"
            yield _unaccounted(message, str(numbers[name]), str(entry.count))
    copied = (
        len(report.transfers),
        sum(each.bytes for each in report.transfers),
        sum(each.cost for each in report.transfers),
    )
    transfers = account.transfers
    stated = transfers.count, transfers.bytes, transfers.cost if report.objective == "bytes" else copied[2]
    if copied != stated:
        yield _unaccounted("the transfers are not those of the account", str(stated), str(copied))


def _check_status(report: Report) -> Iterator[Finding]:
    cost, bound = report.cost, report.bound
    if report.status not in ("optimal", "feasible"):
        message = "the report is of no solution: its boundary and its cost are not compared with the model"
        yield _off(message, "optimal or feasible", report.status).model_copy(update={"severity": "warning"})
    if report.status in ("optimal", "feasible") and cost is None:
        yield _off("a solution has a cost", "a number", "none")
    if cost is None or bound is None:
        if report.status == "optimal":
            yield _off("a proof of optimality has a bound", "a number", "none")
        return
    if bound > cost:
        yield _off("no cost is below the bound", f"at most {cost}", str(bound))
    if report.status == "optimal" and bound != cost:
        yield _off("the cost of an optimal solution equals the bound", str(cost), str(bound))
    gap = (cost - bound) / cost if cost else 0.0
    if report.gap is None or abs(report.gap - gap) > 1e-9:
        yield _off("the gap is (cost - bound) / cost", f"{gap:.6g}", str(report.gap))


def _unaccounted(message: str, expected: str, found: str) -> Finding:
    return Finding(rule="cost-accounting", expected=expected, found=found, message=message)


def _off(message: str, expected: str, found: str) -> Finding:
    return Finding(rule="status", expected=expected, found=found, message=message)


def sizes_of(report: Report, dims: Mapping[str, int] | None) -> dict[str, int]:
    """The sizes with which a report is checked: those that it states, and `dims` for names that it does not have."""
    return {**(dims or {}), **report.sizes}


def check_sizes(report: Report, model: ir.Model) -> Iterator[Finding]:
    """Yield a finding for each size of `report`, of a dim whose extent is not known before the run, that is none, that
    another size contradicts, that is assumed to be another, or that is not the only one with which the model runs.

    The totals and prices of a report are those at these sizes, so the verifier counts with them too: the caller may
    have given some, and a model that is read anew may show others. A size with which the model does not run is allowed,
    as it is an assumption, and said.
    """
    for name, size in report.assumed.items():
        if report.sizes.get(name, size) != size:
            yield _finding("error", name, f"{report.sizes[name]}, among its sizes", size)
    known = determined_sizes(model.graph.inputs, list(model.graph.all_nodes()))
    for name, size in report.sizes.items():
        if size < 0:
            yield _finding("error", name, "at least 0", size)
        elif (result := formula_size(name, report.sizes)) is not None and result >= 0 and result != size:
            yield _finding("error", name, f"{result}, by the sizes of its names", size)
        elif known.get(name, size) != size:
            yield _finding("warning", name, f"{known[name]}, the only size with which the model runs", size)


def _finding(severity: Severity, name: str, expected: str, size: int) -> Finding:
    message = f"the report counts with another size of {name}"
    return Finding(rule="cost-accounting", severity=severity, expected=expected, found=str(size), message=message)
