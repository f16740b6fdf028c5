"""An explanation as text: each conversion with its reasons, the reasons by kind, and the sum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from relayout.report.boundary import boundary_lines
from relayout.report.conversion_list import charge_entries, factors_explained, operand_text
from relayout.report.schema import Account, Conversion, Reason, Report, Saving, SharedReason
from relayout.report.text_table import aligned, how_many

_MOST_REASONS = 8
_MOST_NAMES = 4


def explanation_text(report: Report, top: int | None = None) -> str:
    """Each conversion (similar ones grouped) with its reasons, then the reasons by kind, and the sum.

    At most `top` of the groups, those that move the most bytes, and of the kinds; None: all.
    """
    groups = _alike(report.conversions)
    blocks = [_block(alike) for alike in groups[:top]]
    if top is not None and (left := sum(map(len, groups[top:]))):
        blocks.append(f"{how_many(left, 'more conversion')}: --top")
    if report.charges:
        blocks.append(_charged(report, top))
    explanation = report.explanation
    if explanation is not None and explanation.shared:
        blocks.append(_by_kind(explanation.shared, top))
    if boundary := list(boundary_lines(report.boundary)):
        blocks.append("\n".join(boundary))
    if explanation is not None and explanation.unsolved:
        left, limit = explanation.unsolved, explanation.limit
        reached = explanation.solved >= limit
        why = f"--limit {limit} was reached" if reached else "the time limit was reached"
        blocks.append(f"{how_many(left, 'requirement')} and sets of them were not dropped: {why}")
    if line := factors_explained(report):
        blocks.append(line)
    blocks.append(_sum(report))
    return "\n\n".join(blocks)


def _charged(report: Report, top: int | None) -> str:
    """The operators that cost more than their best alternative."""
    entries = charge_entries(report.charges)
    cells = [("operator", "costs")]
    cells += [(f"{each.count} {each.text}".lstrip(), f"{each.size} bytes") for each in entries[:top]]
    more = [f"{how_many(len(entries) - top, 'more row')}: --top"] if top is not None and len(entries) > top else []
    return "\n".join([*aligned(cells), *more])


def _sum(report: Report) -> str:
    """The parts of the cost, the total, and what is proved of the total."""
    account, unit = report.account or Account(), "bytes" if report.objective == "bytes" else "conversions"
    entries = {name: getattr(account, name) for name in account.__struct_fields__}
    parts = [f"{how_many(each.count, name[:-1])} ({each.cost})" for name, each in entries.items() if each.cost]
    total = f"cost {report.cost} {unit} for the backend {report.backend}{': ' * bool(parts)}{', '.join(parts)}"
    return f"{total}\n{report.status}: {report.proof}"


def _alike(conversions: Sequence[Conversion]) -> list[list[tuple[int, Conversion]]]:
    """The conversions, grouped if they differ in names only, those that move the most bytes first; each is numbered."""
    groups: dict[object, list[Conversion]] = {}
    for conversion in conversions:
        readers = tuple((_operator(by.node), operand_text(by), by.layout) for by in conversion.required_by)
        reasons = tuple((_operator(r.node), r.part, r.operand, r.layout, r.saved) for r in _first_reasons(conversion))
        change = conversion.from_, conversion.to, conversion.kind, conversion.bytes
        key = (change, _operator(conversion.producer or ""), readers, conversion.saved, reasons)
        groups.setdefault(key, []).append(conversion)
    numbers = count(1)
    dearest_first = sorted(groups.values(), key=lambda alike: -sum(each.bytes for each in alike))
    return [[(next(numbers), each) for each in alike] for alike in dearest_first]


def _operator(label: str) -> str:
    """The operator of a node; `input` or `output` for a graph input or output."""
    return label.partition(" '")[0] if " '" in label else label.partition(" ")[0]


def _block(alike: Sequence[tuple[int, Conversion]]) -> str:
    number, conversion = alike[0]
    change = f"{conversion.from_} -> {conversion.to}, {conversion.kind}, {conversion.bytes} bytes"
    lines = [f"{number}. {conversion.value}: {change}"]
    if len(alike) > 1:
        others = [f"{number}. {other.value}" for number, other in alike[1:]]
        shown = ", ".join([*others[:_MOST_NAMES], *["..."] * (len(others) > _MOST_NAMES)])
        lines.append(f"   and {len(others)} alike: {shown}")
    rows = [("produced by", conversion.producer or "", conversion.from_, "")]
    rows += [("required by", f"{by.node}{operand_text(by)}", by.layout, "") for by in conversion.required_by]
    for reason in _first_reasons(conversion):
        rows.append(("caused by", _dropped(reason), reason.layout, f"without it: {_saves(reason.saved)}"))
    lines += [f"   {line}" for line in aligned(rows)]
    saved = conversion.saved
    if saved is not None and saved.cost > max((reason.saved.cost for reason in _first_reasons(conversion)), default=0):
        lines.append(f"   without all of these: {_saves(saved)}")
    omitted = len(conversion.reasons) - len(_first_reasons(conversion))
    if omitted:
        lines.append(f"   and {how_many(omitted, 'requirement')} that {'save' if omitted > 1 else 'saves'} no more")
    return "\n".join(lines)


def _first_reasons(conversion: Conversion) -> Sequence[Reason]:
    """The first reasons with a saving; if none has one, the first two."""
    saving = [reason for reason in conversion.reasons if reason.saved.cost > 0]
    return (saving or conversion.reasons[:2])[:_MOST_REASONS]


def _dropped(reason: Reason) -> str:
    if reason.part == "node":
        return f"{reason.node}, all of it"
    return reason.node if reason.operand is None else f"{reason.node}, {_part(reason)} {reason.operand}"


def _part(reason: Reason | SharedReason) -> str:
    return "result" if reason.part == "result" else "input"


def _saves(saved: Saving) -> str:
    if saved.cost == 0:
        return "saves nothing"
    moved = [how_many(saved.transposes, "transpose")] if saved.transposes else []
    moved += [f"{saved.bytes} bytes"] if saved.bytes else []
    own = f" (cost {saved.cost})" if saved.cost not in (saved.transposes, saved.bytes) else ""
    return f"saves {'' if saved.exact else 'at least '}{', '.join(moved) or 'cost'}{own}"


def _by_kind(shared: Sequence[SharedReason], top: int | None) -> str:
    rows = [("requirement", "layout", "count", "conversions", "without all")]
    kinds = [each for each in shared if each.saved.cost > 0] or shared
    for each in kinds[:top]:
        part = ", all of it" if each.part == "node" else ""
        part = f", {_part(each)} {each.operand}" if each.operand is not None else part
        counts = str(each.requirements), str(each.conversions)
        rows.append((f"{each.operator}{part}", each.layout, *counts, _saves(each.saved)))
    more = [f"{how_many(len(kinds) - top, 'more kind')}: --top"] if top is not None and len(kinds) > top else []
    return "\n".join([*aligned(rows, right={2, 3}), *more])
