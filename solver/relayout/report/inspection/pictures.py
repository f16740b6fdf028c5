"""Pictures of the neighbourhood of conversions: Graphviz's DOT, and SVG with a layout of our own in layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from relayout.report.inspection.schema import Inspection

MOST_NODES = 120
_CHARACTER, _LINE, _PADDING, _GAP_X, _GAP_Y = 7, 16, 8, 24, 64


@dataclass(frozen=True, slots=True)
class Box:
    """A node, input or output of the graph: its lines of text, and whether it is a conversion."""

    lines: tuple[str, ...]
    is_conversion: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """A value from one box to another, both by number, with its layout."""

    tail: int
    head: int
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes in the graph's order, so that every arrow leads to a later box; `omitted` conversions are not shown."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    omitted: int = 0


def neighbourhood(inspection: Inspection, hops: int) -> Picture:
    """The conversions with all nodes up to `hops` steps before and after them: the neighbourhood of the first, which is
    the largest, and of others while all are at most `MOST_NODES` nodes."""
    producer_of = {name: number for number, node in enumerate(inspection.nodes) for name in node.outputs}
    readers_of: dict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(inspection.nodes):
        for name in dict.fromkeys(node.inputs):
            readers_of[name].append(number)
    number_of = {name: number for name, number in producer_of.items() if name}
    wanted = [number_of[each.output] for each in inspection.transposes if not each.is_constant]
    shown: set[int] = set()
    omitted = 0
    for start in wanted:
        near = _near(start, hops, inspection, producer_of, readers_of) | shown
        if len(near) > MOST_NODES and shown:
            omitted += 1
            continue
        shown = near
    return _drawn(inspection, sorted(shown), omitted)


def _near(
    start: int,
    hops: int,
    inspection: Inspection,
    producer_of: Mapping[str, int],
    readers_of: Mapping[str, Sequence[int]],
) -> set[int]:
    found = level = {start}
    for _ in range(hops):
        before = {producer_of[name] for n in level for name in inspection.nodes[n].inputs if name in producer_of}
        after = {reader for n in level for name in inspection.nodes[n].outputs for reader in readers_of[name]}
        level = (before | after) - found
        found = found | level
    return found


def _drawn(inspection: Inspection, shown: Sequence[int], omitted: int) -> Picture:
    """The picture of these nodes. Constants are not drawn; values from or to other nodes end in a box with dots."""
    layout_of = {value.name: value for value in inspection.values}
    bytes_of = {each.output: each for each in inspection.transposes}
    produced = {name for n in shown for name in inspection.nodes[n].outputs}
    boxes: list[Box] = []
    source_of: dict[str, int] = {}
    arrows: list[Arrow] = []

    def text(name: str) -> str:
        value = layout_of[name]
        shape = "x".join("?" if dim is None else str(dim) for dim in value.shape or ())
        return " ".join(filter(None, [value.layout, shape]))

    for n in shown:
        for name in inspection.nodes[n].inputs:
            if name in layout_of and name not in produced and name not in source_of:
                given = layout_of[name].producer or ""
                source_of[name] = len(boxes)
                boxes.append(Box((given if given.startswith("input ") else f"... {name}",)))
    for n in shown:
        node = inspection.nodes[n]
        number = len(boxes)
        fact = bytes_of.get(node.outputs[0]) if node.outputs else None
        about = [f"perm {','.join(map(str, fact.perm))}" if fact.perm else "", f"{fact.bytes} bytes"] if fact else []
        boxes.append(Box(tuple(filter(None, [node.operator, node.name, *about])), node.is_conversion))
        source_of.update((name, number) for name in node.outputs)
    for n in shown:
        node = inspection.nodes[n]
        head = source_of[node.outputs[0]] if node.outputs else None
        data = [name for name in dict.fromkeys(node.inputs) if name in source_of and name in layout_of]
        arrows += [Arrow(source_of[name], head, text(name)) for name in data if head is not None]
    for name in sorted(produced & layout_of.keys()):
        readers = layout_of[name].readers
        inside = {arrow.tail for arrow in arrows}
        ends = [reader for reader in readers if reader.startswith("output ")]
        if ends or (readers and source_of[name] not in inside):
            arrows.append(Arrow(source_of[name], len(boxes), text(name)))
            boxes.append(Box((ends[0] if ends else "...",)))
    return Picture(inspection.model, tuple(boxes), tuple(arrows), omitted)


def to_dot(picture: Picture) -> str:
    """The picture as a graph of Graphviz."""
    lines = [
        "digraph conversions {",
        f"  label={_quoted(_caption(picture))};",
        "  node [shape=box, fontname=monospace];",
    ]
    for number, box in enumerate(picture.boxes):
        style = ", style=filled, fillcolor=lightsalmon" if box.is_conversion else ""
        label = "\\n".join(_quoted(line)[1:-1] for line in box.lines)
        lines.append(f'  n{number} [label="{label}"{style}];')
    lines += [f"  n{arrow.tail} -> n{arrow.head} [label={_quoted(arrow.text)}];" for arrow in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(picture: Picture) -> str:
    """The picture as SVG: a box lies in the layer after the last of the boxes that lead to it."""
    place, width, height = _placed(picture)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        f"<title>{escape(_caption(picture))}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    labels: set[tuple[int, str]] = set()
    for arrow in picture.arrows:
        (x, y, w, h), (to_x, to_y, to_w, _) = place[arrow.tail], place[arrow.head]
        start, end = x + w // 2, to_x + to_w // 2
        bend = (y + h + to_y) // 2
        parts.append(
            f'<path d="M{start},{y + h} C{start},{bend} {end},{bend} {end},{to_y}" fill="none" stroke="dimgray" '
            'marker-end="url(#tip)"/>'
        )
        # Several readers of one value have one label.
        if (arrow.tail, arrow.text) not in labels:
            labels.add((arrow.tail, arrow.text))
            at = f'x="{(start + end) // 2 + 4}" y="{bend}"'
            parts.append(f'<text {at} fill="dimgray">{escape(arrow.text)}</text>')
    for box, (x, y, w, h) in zip(picture.boxes, place, strict=True):
        fill = "lightsalmon" if box.is_conversion else "whitesmoke"
        parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}" stroke="black"/>')
        parts += [
            f'<text x="{x + w // 2}" y="{y + _PADDING + _LINE * row + 10}" text-anchor="middle">{escape(line)}</text>'
            for row, line in enumerate(box.lines)
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _placed(picture: Picture) -> tuple[list[tuple[int, int, int, int]], int, int]:
    """For each box its left, top, width and height in pixels, and the size of the picture."""
    layer = [0] * len(picture.boxes)
    for arrow in sorted(picture.arrows, key=lambda each: each.tail):
        layer[arrow.head] = max(layer[arrow.head], layer[arrow.tail] + 1)
    rows: dict[int, list[int]] = defaultdict(list)
    centre = [0] * len(picture.boxes)
    place = [(0, 0, 0, 0)] * len(picture.boxes)
    tails: dict[int, list[int]] = defaultdict(list)
    for arrow in picture.arrows:
        tails[arrow.head].append(arrow.tail)
    for number, at in enumerate(layer):
        rows[at].append(number)
    right, top = 0, _PADDING
    for at in sorted(rows):
        # Boxes below the boxes that lead to them, from left to right without overlaps.
        left = _PADDING
        wanted = {n: sum(centre[t] for t in tails[n]) // len(tails[n]) if tails[n] else 0 for n in rows[at]}
        for number in sorted(rows[at], key=lambda n: (wanted[n], n)):
            lines = picture.boxes[number].lines
            w = _CHARACTER * max(map(len, lines)) + 2 * _PADDING + 8
            h = _LINE * len(lines) + _PADDING
            x = max(left, wanted[number] - w // 2)
            place[number], centre[number] = (x, top, w, h), x + w // 2
            left = x + w + _GAP_X
            right = max(right, x + w)
        top += max(place[number][3] for number in rows[at]) + _GAP_Y
    texts = max((centre[arrow.head] + _CHARACTER * len(arrow.text) + 8 for arrow in picture.arrows), default=0)
    return place, max(right, texts) + _PADDING, top


def _caption(picture: Picture) -> str:
    more = f" ({picture.omitted} more conversions are not shown)" if picture.omitted else ""
    return f"conversions of {picture.title}{more}" if picture.boxes else f"{picture.title} has no conversions"


def _quoted(text: str) -> str:
    kept = "".join(c if c.isprintable() else "?" for c in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'
