"""Plain text: tables, and numbers of things."""

from __future__ import annotations

from collections.abc import Sequence, Set


def how_many(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def padded(rows: Sequence[Sequence[str]], right: Set[int] = frozenset()) -> list[list[str]]:
    """The cells, each as wide as the widest of its column. The columns in `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            f"{cell:>{width}}" if n in right else f"{cell:<{width}}"
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def aligned(rows: Sequence[Sequence[str]], right: Set[int] = frozenset()) -> list[str]:
    """The rows as lines.

    >>> aligned([("model", "transposes"), ("resnet50.onnx", "2")], right={1})
    ['model          transposes', 'resnet50.onnx           2']
    """
    return ["  ".join(cells).rstrip() for cells in padded(rows, right)]
