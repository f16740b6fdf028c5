"""The facts of a model, and the difference of two, for a person. Repeated blocks are one row; names are never split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from relayout.errors import shortened
from relayout.report.grouping import counted, grouped
from relayout.report.inspection.schema import Difference, Inspection, TransposeFacts, ValueFacts
from relayout.report.text_table import aligned

__all__ = ["difference_text", "inspection_text"]


def inspection_text(inspection: Inspection, top: int, *, values: bool) -> str:
    """The operators, the conversions and the layouts of values, at most `top` rows each; with `values` all values."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items())
    written = f", written by {inspection.producer}" if inspection.producer else ""
    totals = inspection.totals
    head = [
        f"{inspection.model}: IR version {inspection.ir_version}, opsets {opsets}{written}",
        f"{_counted(totals.nodes, 'node')}, {_counted(totals.transposes, 'transpose')} of data, "
        f"{totals.bytes} bytes read and written by them",
    ]
    counts = [("operator", "nodes"), *((each.operator, str(each.count)) for each in inspection.operators)]
    blocks = ["\n".join(head), "\n".join(_table(counts, right={1}))]
    constant = sum(each.is_constant for each in inspection.transposes)
    running = [each for each in inspection.transposes if not each.is_constant]
    if running:
        blocks.append("\n".join(_transposes(running, top)))
    if constant:
        blocks.append(f"{constant} further of constants, which do not run")
    shown = list(_layouts(inspection.values, None if values else top))
    if shown:
        blocks.append("\n".join(shown))
    blocks += [f"note: {warning}" for warning in inspection.warnings]
    return "\n\n".join(blocks)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def difference_text(found: Difference, top: int) -> str:
    """The difference of two models, at most `top` rows a table."""
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
            blocks.append("\n".join([f"{word}:", *_transposes(transposes, top)]))
    if found.layouts:
        groups = grouped(([each.value], (each.before, each.after), each) for each in found.layouts)
        changes = [("", "value", "before", "after")]
        changes += [(counted(g), g.names[0], g.items[0].before, g.items[0].after) for g in groups[:top]]
        blocks.append("\n".join([*_table(changes), *_more(len(groups) - top)]))
    same = not (found.operators or found.removed or found.added or found.layouts)
    return "\n\n".join([*blocks, *["no difference in operators, conversions and layouts"] * same])


def _transposes(transposes: Sequence[TransposeFacts], top: int) -> Iterator[str]:
    groups = grouped(
        (
            [each.name, each.producer or "", *each.readers, each.origin or ""],
            (each.operator, each.perm, each.from_, each.to, each.bytes),
            each,
        )
        for each in transposes
    )
    rows = [("", "conversion", "layouts", "bytes", "from", "to", "origin")]
    for group in groups[:top]:
        first, (name, producer, *readers, origin) = group.items[0], group.names
        perm = ",".join(map(str, first.perm))
        named = f"{first.from_} -> {first.to}" if first.from_ and first.to else ""
        operator = "" if first.operator == "Transpose" else f"{first.operator} "
        rows.append(
            (
                counted(group), f"{operator}{name}", f"{named} ({perm})" if named and perm else named or perm,
                str(first.bytes), producer, ", ".join(readers), origin,
            )
        )  # fmt: skip
    yield from _table(rows, right={3})
    yield from _more(len(groups) - top)


def _layouts(values: Sequence[ValueFacts], top: int | None) -> Iterator[str]:
    groups = grouped(
        ([each.name, each.producer or ""], (each.dtype, each.shape, each.layout), each)
        for each in values
        if top is None or (each.layout is not None and len(each.shape or ()) > 2)
    )
    if not groups:
        return
    rows = [("", "value", "layout", "shape", "type", "from")]
    for group in groups[:top]:
        first, (name, producer) = group.items[0], group.names
        shape = "?" if first.shape is None else ",".join("?" if dim is None else str(dim) for dim in first.shape)
        rows.append((counted(group), name, first.layout or "-", shape, first.dtype or "?", producer))
    yield from _table(rows)
    if top is not None:
        yield from _more(len(groups) - top)


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"and {count} more: --top has more of them, --json all"


def _table(rows: Sequence[tuple[str, ...]], right: Set[int] = frozenset()) -> list[str]:
    """The rows as lines; an empty column is left out."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])] or [0]
    cells = [[shortened(row[column]) for column in kept] for row in rows]
    return aligned(cells, {kept.index(c) for c in right & {*kept}})
