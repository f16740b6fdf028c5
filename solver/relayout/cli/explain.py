"""The verb `explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relayout.cli.exit_status import DONE
from relayout.cli.inspect import TOP
from relayout.cli.job import STEPS, backend_of, legalize_file
from relayout.cli.model_files import check_no_folder
from relayout.cli.options import Model, ReportFiles, ReportFormat, Request, with_options
from relayout.cli.output_files import STDOUT, check_files, report_formats, write_report
from relayout.cli.progress import Bar
from relayout.cli.terminal import print_result, print_status
from relayout.report.text_table import aligned, how_many

if TYPE_CHECKING:
    from relayout.report.schema import BoundaryValue, Conversion, Reason, Report, Saving, SharedReason

__all__ = ["boundary_lines", "explain"]

_MOST_REASONS = 8
_MOST_NAMES = 4


@with_options("explain")
def explain(
    model: Model,
    request: Request,
    report: ReportFiles = [],
    format: ReportFormat = None,
    top: Annotated[
        int,
        typer.Option(
            "--top",
            metavar="N",
            min=1,
            help="Print at most N conversions, the dearest first, and N kinds of requirements.",
        ),
    ] = TOP,
) -> int:
    """Print the reasons for each conversion.

    The reasons are the requirements behind a conversion of the legal model, each with the saving without it, found by
    solving the problem again."""
    check_no_folder(model, f"name one model: relayout explain {model / 'NAME.onnx'}")
    backend = backend_of(request)
    reports = report_formats(report, format)
    check_files([("--report", path) for path in report or reports], reads=[model])
    with Bar(STEPS, request.options.time_limit) as bar:
        done = legalize_file(
            model, request, backend, bar, time_for_search=bar.time_for_search, improved=bar.improved
        ).report
    write_report(reports, done, model, DONE)
    show = print_status if STDOUT in reports else print_result
    show(_explanation(done, top))
    return DONE


def _explanation(report: Report, top: int) -> str:
    """Each conversion (similar ones grouped) with its reasons, then the reasons by kind, and the sum.

    At most `top` of the groups, those that move the most bytes, and of the kinds.
    """
    from relayout.report.conversion_list import factors_explained

    groups = _alike(report.conversions)
    blocks = [_block(alike) for alike in groups[:top]]
    if left := sum(map(len, groups[top:])):
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


def _charged(report: Report, top: int) -> str:
    """The operators that cost more than their best alternative."""
    from relayout.report.conversion_list import charge_entries

    entries = charge_entries(report.charges)
    cells = [("operator", "costs")]
    cells += [(f"{each.count} {each.text}".lstrip(), f"{each.size} bytes") for each in entries[:top]]
    more = [f"{how_many(len(entries) - top, 'more row')}: --top"] if len(entries) > top else []
    return "\n".join([*aligned(cells), *more])


def _sum(report: Report) -> str:
    """The parts of the cost, the total, and what is proved of the total."""
    from relayout.report.schema import Account

    account, unit = report.account or Account(), "bytes" if report.objective == "bytes" else "conversions"
    entries = {name: getattr(account, name) for name in account.__struct_fields__}
    parts = [f"{how_many(each.count, name[:-1])} ({each.cost})" for name, each in entries.items() if each.cost]
    total = f"cost {report.cost} {unit} for the backend {report.backend}{': ' * bool(parts)}{', '.join(parts)}"
    return f"{total}\n{report.status}: {report.proof}"


def boundary_lines(boundary: Sequence[BoundaryValue]) -> Iterator[str]:
    """The layout of each input and output that differs from the source's, or was set or freed."""
    for value in boundary:
        if value.order is None and not value.transform and value.wanted is None:
            continue
        extents = None if value.shape is None else ",".join("?" if d is None else str(d) for d in value.shape)
        shape = "" if extents is None else f"shape [{extents}]"
        order = "" if value.order is None else f"the source's axes in the order {','.join(map(str, value.order))}"
        named = [value.layout] if value.layout else []
        if value.transform:
            steps = value.back or value.transform
            order = f"{'read back' if value.back else 'fed'} by {', then '.join(map(_step, steps))}"
        layout = ", ".join([*named, *[shape] * bool(shape), order or "as in the source"])
        coupled = f", coupled with {', '.join(value.coupled_with)}" if value.coupled_with else ""
        yield f"{value.side} {value.name}: {layout}{coupled}"


def _step(step: Mapping[str, Any]) -> str:
    """One step of a transform as text."""
    numbers = step.get("perm") or step.get("pads") or step["shape"]
    return f"{step['op']} {','.join(map(str, numbers))}"


def _alike(conversions: Sequence[Conversion]) -> list[list[tuple[int, Conversion]]]:
    """The conversions, grouped if they differ in names only, those that move the most bytes first; each is numbered."""
    from relayout.report.conversion_list import operand_text

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
    from relayout.report.conversion_list import operand_text

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


def _by_kind(shared: Sequence[SharedReason], top: int) -> str:
    rows = [("requirement", "layout", "count", "conversions", "without all")]
    kinds = [each for each in shared if each.saved.cost > 0] or shared
    for each in kinds[:top]:
        part = ", all of it" if each.part == "node" else ""
        part = f", {_part(each)} {each.operand}" if each.operand is not None else part
        counts = str(each.requirements), str(each.conversions)
        rows.append((f"{each.operator}{part}", each.layout, *counts, _saves(each.saved)))
    more = [f"{how_many(len(kinds) - top, 'more kind')}: --top"] if len(kinds) > top else []
    return "\n".join([*aligned(rows, right={2, 3}), *more])
