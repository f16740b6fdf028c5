"""Operators that change how memory is described and not what lies in it: the node becomes a view and disappears."""

from __future__ import annotations

from relayout.memory_format import Atom, Extent, Order
from relayout.rules.reading import NoRuleError, Reading, normal_axis
from relayout.rules.registry import row
from relayout.rules.rule import Relabel


@row("relabel", "Transpose")
def transpose(node: Reading) -> Relabel:
    rank = node.rank()
    perm = node.ints("perm") or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise NoRuleError
    return Relabel(tuple((Atom(axis),) for axis in perm))


@row("relabel", "Identity")
def identity(node: Reading) -> Relabel:
    return Relabel(tuple((Atom(axis),) for axis in range(node.rank())))


@row("relabel", "Dropout")
def dropout(node: Reading) -> Relabel:
    """In inference Dropout is the identity; with a mask that is read or in training it is not."""
    if node.used(1) or (node.opset >= 12 and node.has(2) and node.constant(2).any()):
        raise NoRuleError
    return identity(node)


@row("relabel", "Squeeze")
def squeeze(node: Reading) -> Relabel:
    extents = node.extents(0)
    rank = len(extents)
    axes = node.axes(1, rank)
    if axes is None:
        if not all(isinstance(e, int) for e in extents):
            raise NoRuleError
        axes = tuple(a for a in range(rank) if extents[a] == 1)
    if any(extents[a] != 1 for a in axes):
        raise NoRuleError
    return Relabel(tuple((Atom(a),) for a in range(rank) if a not in axes))


@row("relabel", "Unsqueeze")
def unsqueeze(node: Reading) -> Relabel:
    rank = node.rank()
    given = node.ints("axes")
    if given is None:
        given = node.integers(1)
    total = rank + len(given)
    axes = {normal_axis(a, total) for a in given}
    if len(axes) != len(given):
        raise NoRuleError
    kept = iter(range(rank))
    return Relabel(tuple(() if a in axes else (Atom(next(kept)),) for a in range(total)))


@row("relabel", "Reshape", "Flatten")
def reshape(node: Reading) -> Relabel:
    """Axes that map one to one, unit axes that come and go, axes that merge or split where the factors nest."""
    atoms = factor(node.extents(0), node.result_extents())
    if atoms is None:
        raise NoRuleError
    return Relabel(atoms)


def factor(source: tuple[Extent, ...], target: tuple[Extent, ...]) -> tuple[Order, ...] | None:
    """The target's axes as factors of the source's, or None where that is not certain.

    Both are read from the innermost axis outwards; an axis is cut where the other side ends. Symbolic extents match
    their own name only; one pair of outermost leftovers need no match, since the totals are equal.
    """
    left = [[axis, extent, 1] for axis, extent in enumerate(source) if extent != 1]
    right = [[axis, extent] for axis, extent in enumerate(target) if extent != 1]
    found: list[list[Atom]] = [[] for _ in target]
    if 0 in source or 0 in target:
        return None
    while left and right:
        axis, extent, inner = left[-1]
        goal, wanted = right[-1]
        last_pair = len(left) == 1 and len(right) == 1
        numbers = isinstance(extent, int) and isinstance(wanted, int)
        if (extent == wanted and extent is not None) or (last_pair and not numbers):
            left.pop()
            right.pop()
            found[goal].append(Atom(axis, inner))
        elif not numbers:
            # An unknown outermost axis may still be cut by a known number, or take up what is left.
            if isinstance(wanted, int) and len(left) == 1 and _divides_rest(right, source, target):
                found[goal].append(Atom(axis, inner, inner * wanted))
                left[-1] = [axis, None, inner * wanted]
                right.pop()
            elif isinstance(extent, int) and len(right) == 1:
                found[goal].append(Atom(axis, inner))
                left.pop()
            else:
                return None
        elif extent > wanted and extent % wanted == 0:
            found[goal].append(Atom(axis, inner, inner * wanted))
            left[-1] = [axis, extent // wanted, inner * wanted]
            right.pop()
        elif wanted > extent and wanted % extent == 0:
            found[goal].append(Atom(axis, inner))
            right[-1] = [goal, wanted // extent]
            left.pop()
        else:
            return None
    if left or right:
        return None
    return tuple(tuple(reversed(atoms)) for atoms in found)


def _divides_rest(right: list, source: tuple[Extent, ...], target: tuple[Extent, ...]) -> bool:
    """An unknown axis that alone makes up all the target axes left is divided by each of the known ones."""
    return sum(not isinstance(extent, int) for _, extent in right) <= 1
