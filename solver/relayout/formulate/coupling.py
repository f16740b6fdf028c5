"""Items that couple the choices of a node: a region op with its region edges, operands with orders of their own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain, combinations
from operator import eq
from typing import TypeVar

from relayout.candidates.alternatives import FreeLowering, Lowering, NodePorts
from relayout.candidates.requirements import Requirements
from relayout.layout.conversion import are_nested, cuts_of, flat
from relayout.ops import Axes, Free
from relayout.solve.problem import Item, Use


def coupling_items(requirements: Requirements) -> Iterator[Item]:
    """Items that couple the choices of one node: all of them with one device and implementation, and those of two
    operands with tiles that nest in the axes that both have. Then each axis has all tiles in all operands: those of one
    that has fewer are split, which moves nothing."""
    for node, choices in requirements.coupled().items():
        every = [requirements.choices[c] for c in choices]
        ways = [[(a.device, a.implementation_index) for a in choice.alternatives] for choice in every]
        yield from _fitting(f"{node.name or ''} implementation", choices, ways, eq)
        rule = requirements.tensors.rules.get(node)
        if not isinstance(rule, Free):
            continue
        for one, other in combinations([c for c in choices if requirements.choices[c].ports], 2):
            axes = [_axes_of(requirements.choices[c], rule) for c in (one, other)]
            common = {*axes[0]} & {*axes[1]}
            cuts = [
                [frozenset(cut for cut in _cuts(a.lowering, own) if cut[0] in common) for a in choice.alternatives]
                for choice, own in zip((requirements.choices[one], requirements.choices[other]), axes, strict=True)
            ]
            yield from _fitting(f"{node.name or ''} tiles", [one, other], cuts, are_nested)


def _axes_of(choice: NodePorts, rule: Free) -> Axes:
    """The axes of an operand, which has a choice of its own, in the iteration space of its node."""
    return choice.ports[0].entry(rule.inputs, rule.outputs) or ()


def _cuts(lowering: Lowering, axes: Axes) -> Iterator[tuple[int, int]]:
    """The ends of the tiles of an operand, each with its axis of the iteration space."""
    assert isinstance(lowering, FreeLowering)
    for axis, end in cuts_of(flat(lowering.dims)):
        yield axes[axis], end


Key = TypeVar("Key", bound=Hashable)


def _fitting(
    name: str, choices: Sequence[int], keys: Sequence[Sequence[Key]], fit: Callable[[Key, Key], bool]
) -> Iterator[Item]:
    """An item that allows only alternatives of the first choice and of each other whose keys fit; none where all are
    equal. `keys`: by choice, one for each of its alternatives."""
    known = list(dict.fromkeys(chain.from_iterable(keys)))
    if len(known) > 1 and len(choices) > 1:
        table = tuple(tuple(0 if fit(p, q) else None for q in known) for p in known)
        uses = [Use(c, tuple([known.index(key) for key in own])) for c, own in zip(choices, keys, strict=True)]
        yield Item(name, uses[0], tuple(uses[1:]), table)
