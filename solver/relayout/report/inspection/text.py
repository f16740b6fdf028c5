"""The facts of a model, and the difference of two, for a person. Repeated blocks are one entry; no name is split."""

from __future__ import annotations

from collections.abc import Sequence, Set

from relayout.errors import shortened
from relayout.report.conversion_list import ListEntry, dearest_first, details_of, listed
from relayout.report.grouping import Group, counted, grouped
from relayout.report.inspection.schema import Difference, Inspection, TransposeFacts, ValueFacts
from relayout.report.text_table import aligned, how_many


def inspection_text(inspection: Inspection, top: int, *, values: bool) -> str:
    """The operators, at most `top` conversions, and the layouts of at most `top` values; with `values` of all."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items())
    written = f", written by {inspection.producer}" if inspection.producer else ""
    totals = inspection.totals
    head = [
        f"{inspection.model}: IR version {inspection.ir_version}, opsets {opsets}{written}",
        f"{how_many(totals.nodes, 'node')}, {how_many(totals.transposes, 'transpose')} of data, "
        f"{totals.bytes} bytes read and written by them",
    ]
    counts = [("operator", "nodes"), *((each.operator, str(each.count)) for each in inspection.operators)]
    blocks = ["\n".join(head), "\n".join(_table(counts, right={1}))]
    constant = sum(each.is_constant for each in inspection.transposes)
    running = [each for each in inspection.transposes if not each.is_constant]
    if running:
        blocks.append(_conversions("conversions", running, top))
    if constant:
        blocks.append(f"{constant} further of constants, which do not run")
    if shown := _layouts(inspection.values, None if values else top):
        blocks.append(shown)
    blocks += [f"note: {warning}" for warning in inspection.warnings]
    return "\n\n".join(blocks)


def difference_text(found: Difference, top: int) -> str:
    """The difference of two models, at most `top` entries a list."""
    before, after = found.before, found.after
    rows = [("", found.first, found.second)]
    for name in ("nodes", "transposes", "bytes", "reorders"):
        one, other = getattr(before, name), getattr(after, name)
        if one or other:
            rows.append((name, str(one), str(other)))
    blocks = ["\n".join(_table(rows, right={1, 2}))]
    if found.operators:
        counts = [("operator", "before", "after")]
        counts += [(each.operator, str(each.before), str(each.count)) for each in found.operators]
        blocks.append("\n".join(_table(counts, right={1, 2})))
    for word, transposes in (("removed", found.removed), ("added", found.added)):
        if transposes:
            blocks.append(_conversions(f"{word} conversions", transposes, top))
    if found.layouts:
        groups = grouped(([each.value], (each.before, each.after), each) for each in found.layouts)
        firsts = [(group, group.items[0]) for group in groups]
        changes = [
            ListEntry(counted(group), f"{shortened(group.names[0])}: {first.before} -> {first.after}")
            for group, first in firsts
        ]
        blocks.append("\n".join(listed("values in another layout", changes, top)))
    same = not (found.operators or found.removed or found.added or found.layouts)
    return "\n\n".join([*blocks, *["no difference in operators, conversions and layouts"] * same])


def _conversions(title: str, transposes: Sequence[TransposeFacts], top: int) -> str:
    groups = grouped(
        (
            [each.name, each.producer or "", *each.readers, each.origin or ""],
            (each.operator, each.perm, each.from_, each.to, each.bytes),
            each,
        )
        for each in transposes
    )
    entries = dearest_first([_conversion(group) for group in groups])
    return "\n".join(listed(title, entries, top))


def _conversion(group: Group[TransposeFacts]) -> ListEntry:
    first, (name, producer, *readers, origin) = group.items[0], map(shortened, group.names)
    perm = ",".join(map(str, first.perm))
    named = f"{first.from_} -> {first.to}" if first.from_ and first.to else ""
    change = f"{named} ({perm})" if named and perm else named or perm
    operator = "" if first.operator == "Transpose" else f"{first.operator} "
    places = (("from", producer), ("at", origin))
    before, after = ([(label, place)] if place else [] for label, place in places)
    details = (*before, *details_of("to", [(reader,) for reader in readers]), *after)
    text = f"{operator}{name}: {change}" if change else f"{operator}{name}"
    return ListEntry(counted(group), text, details, sum(each.bytes for each in group.items))


def _layouts(values: Sequence[ValueFacts], top: int | None) -> str:
    groups = grouped(
        ([each.name, each.producer or ""], (each.dtype, each.shape, each.layout), each)
        for each in values
        if top is None or (each.layout is not None and len(each.shape or ()) > 2)
    )
    entries = []
    for group in groups:
        first, (name, producer) = group.items[0], map(shortened, group.names)
        shape = "?" if first.shape is None else ",".join("?" if dim is None else str(dim) for dim in first.shape)
        facts = " ".join(filter(None, [first.layout, f"[{shape}]", first.dtype or "?"]))
        entries.append(ListEntry(counted(group), f"{name}: {facts}", (("from", producer),) if producer else ()))
    return "\n".join(listed("values", entries, top)) if entries else ""


def _table(rows: Sequence[tuple[str, ...]], right: Set[int] = frozenset()) -> list[str]:
    """The rows as lines; an empty column is left out."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])] or [0]
    cells = [[shortened(row[column]) for column in kept] for row in rows]
    return aligned(cells, {kept.index(c) for c in right & {*kept}})
