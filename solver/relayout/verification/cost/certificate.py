"""A checker of optimality: the least cost of a written-out problem, derived again from the problem alone.

A certificate is JSON:

    {"version": 1,
     "choices": [[cost, ...], ...],                 a decision each, with the own cost of every alternative
     "items": [{"producer": [choice, [format, ...]],       the format that each alternative of the choice produces
                "consumers": [[choice, [format, ...]], ...],  and the format that each alternative requires
                "conversion": [[cost or null, ...], ...],     from (row) to (column); null: impossible
                "reuses_copies": true or false}, ...],        whether a copy may be made from another copy
     "assignment": [alternative, ...],              the answer
     "cost": cost,                                  what it costs
     "bound": cost,                                 what no assignment undercuts, as claimed,
     "most": count or null,                         among those with at most so many conversions of cost above 0
     "unit": [weight, divisor]}                     in the objective's unit a cost is cost // weight * divisor

    cost = sum of costs[alternative] over choices
         + for each item, the sum of conversion[produced][required] over the different formats required,
           or if copies are reused, the least cost at which these are made one by one, each from any that is there

The checker shares no code with the solver. It writes an item as a variable of its own, whose states are the sets of
formats required, and eliminates one variable after the other, always the one that leaves the smallest table (bucket
elimination, Dechter 1999). Where a table would grow too large it branches on a variable instead. All sums are of
integers below 2**62. A limit on conversions becomes a price of each (Lagrangian relaxation): the least cost with the
price, less the price of the conversions allowed, is a bound. Where the steps are used up, or no price closes the gap,
the rest is taken on trust, and the verdict says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

Table = np.ndarray[Any, Any]
Tables = dict[tuple[int, ...], Table]
"""Costs by the variables that they depend on, in ascending order, one axis each."""

_NEVER = 1 << 60
_LARGEST_TABLE = 1 << 16
_MOST_BRANCHES = 2000
_MOST_REUSED = 16


@dataclass(frozen=True)
class Verdict:
    """`fault` contradicts the certificate; else the answer costs `cost`, and no other one less than `bound`.

    `on_trust` is the part of the claimed bound that was not derived again: 0 where the optimum is proved.
    """

    cost: int
    bound: int
    on_trust: int
    fault: str | None = None


def check(certificate: Mapping[str, Any]) -> Verdict:
    """Derive the cost and the bound again.

    Raises KeyError, TypeError, ValueError or IndexError for what is no certificate.
    """
    cost, count = _cost(certificate)
    claimed_cost, claimed = int(certificate["cost"]), int(certificate["bound"])
    most = None if certificate.get("most") is None else int(certificate["most"])
    if most is not None and any(item.get("reuses_copies") for item in certificate["items"]):
        return Verdict(cost, 0, 0, "conversions of copies are not counted one by one, and a limit on them is claimed")
    if cost != claimed_cost:
        return Verdict(cost, 0, 0, f"the answer costs {cost}, and {claimed_cost} is claimed")
    if most is not None and count > most:
        return Verdict(cost, 0, 0, f"the answer has {count} conversions, and {most} are allowed")
    steps = _Steps(_MOST_BRANCHES)
    bound = _bound(certificate, claimed, 0, most or 0, steps)
    if bound is None:
        return Verdict(cost, 0, claimed, "the costs are too large to be added exactly")
    low, high = 0, claimed if most is not None else 0
    while bound < claimed and low < high:
        # The bound is concave in the price: it is highest where it stops growing.
        price = (low + high) // 2
        here, after = (_bound(certificate, claimed, each, most or 0, steps) for each in (price, price + 1))
        bound = max(bound, here or 0, after or 0)
        low, high = (price + 1, high) if here is not None and after is not None and after > here else (low, price)
    if cost < claimed:
        return Verdict(cost, min(bound, cost), 0, f"the answer costs {cost}, below the claimed bound {claimed}")
    return Verdict(cost, min(bound, claimed), max(0, claimed - bound))


def _bound(certificate: Mapping[str, Any], claimed: int, price: int, most: int, steps: _Steps) -> int | None:
    """A lower bound on assignments with at most `most` conversions, by a price of each; None: the sums overflow."""
    tables, sizes = _tables(certificate, price)
    if sum(int(table[table < _NEVER].max(initial=0)) for table in tables.values()) >= _NEVER:
        return None
    # It is enough to show that nothing costs less than the claim.
    return _Search(sizes, claimed + price * most, steps).bound(tables) - price * most


def _cost(certificate: Mapping[str, Any]) -> tuple[int, int]:
    """The cost of the answer, by the definition above, and its conversions of cost above 0."""
    chosen, count = certificate["assignment"], 0
    total = sum(int(costs[a]) for costs, a in zip(certificate["choices"], chosen, strict=True))
    for item in certificate["items"]:
        choice, formats = item["producer"]
        produced = formats[chosen[choice]]
        required = frozenset(formats[chosen[choice]] for choice, formats in item["consumers"])
        row = item["conversion"][produced]
        total += _price(bool(item.get("reuses_copies")), item["conversion"], produced, required)
        count += sum(row[each] != 0 for each in required - {produced})
    return total, count


def _tables(certificate: Mapping[str, Any], extra: int) -> tuple[Tables, list[int]]:
    """The problem as tables: one for each choice, and for each item one for each of its uses. The sizes of variables
    are those of the choices, then those of the items' sets. A conversion of cost above 0 costs `extra` more."""
    sizes = [len(costs) for costs in certificate["choices"]]
    tables: Tables = {}
    for choice, costs in enumerate(certificate["choices"]):
        _add(tables, {choice: 0}, np.array([int(cost) for cost in costs], np.int64))
    shared: dict[object, int] = {}
    for item in certificate["items"]:
        required: dict[int, list[frozenset[int]]] = {}
        for choice, formats in item["consumers"]:
            before = required.get(choice, [frozenset[int]()] * len(formats))
            required[choice] = [one | {each} for one, each in zip(before, formats, strict=True)]
        sets = {frozenset[int]()}
        for each in required.values():
            sets = {one | other for one in sets for other in each}
        states = sorted(sets, key=sorted)
        # Items with the same consumers share their variable.
        key = repr(sorted((choice, [sorted(one) for one in each]) for choice, each in required.items()))
        if key not in shared:
            shared[key] = len(sizes)
            sizes.append(len(states))
            for choice, each in required.items():
                rows = [[0 if one <= state else _NEVER for state in states] for one in each]
                _add(tables, {choice: 0, shared[key]: 1}, np.array(rows, np.int64))
        choice, formats = item["producer"]
        prices = [
            [None if each is None else int(each) + extra * (each != 0) for each in row] for row in item["conversion"]
        ]
        reuses = bool(item.get("reuses_copies"))
        rows = [[_price(reuses, prices, produced, state) for state in states] for produced in formats]
        _add(tables, {choice: 0, shared[key]: 1}, np.array(rows, np.int64))
    return tables, sizes


def _price(reuses: bool, prices: Sequence[Sequence[int | None]], produced: int, required: frozenset[int]) -> int:
    """The cost of the formats required, from the one produced."""
    if reuses:
        place, least = _least(tuple(map(tuple, prices)), produced)
        return least[sum(1 << place[each] for each in required)] if required <= place.keys() else _NEVER
    row = [prices[produced][each] for each in required if each != produced]
    return _NEVER if None in row else sum(int(price) for price in row if price is not None)


@lru_cache(maxsize=1024)
def _least(prices: tuple[tuple[int | None, ...], ...], produced: int) -> tuple[dict[int, int], list[int]]:
    """The places of the formats that can be made, and for each set of these, one bit each, the least cost of having
    them: one after the other is made from any that is there, in every order."""
    found = [produced]
    for f in found:
        found += [g for g, price in enumerate(prices[f]) if price is not None and g not in found]
    place = {f: n for n, f in enumerate(found)}
    if len(place) > _MOST_REUSED:
        raise ValueError(f"copies of {len(place)} formats are reused, and at most {_MOST_REUSED} can be")
    count = len(place)
    # The price of each format from the cheapest one of each set.
    cheapest = np.full((1 << count, count), _NEVER, np.int64)
    for f, produces in enumerate(found):
        row = [_NEVER if (price := prices[produces][g]) is None else int(price) for g in found]
        cheapest[1 << f : 2 << f] = np.minimum(cheapest[: 1 << f], row)
    sets = np.arange(1 << count)
    lengths = sum(sets >> g & 1 for g in range(count))
    least = np.full(1 << count, _NEVER, np.int64)
    least[1] = 0
    for length in range(1, count):
        for g in range(count):
            made = sets[(lengths == length) & (sets >> g & 1 == 0)]
            more = made | 1 << g
            least[more] = np.minimum(least[more], least[made] + cheapest[made, g])
    for g in range(count):
        # More formats than these are no harm.
        lacking = sets[sets >> g & 1 == 0]
        least[lacking] = np.minimum(least[lacking], least[lacking | 1 << g])
    return place, np.minimum(least, _NEVER).tolist()


def _add(tables: Tables, axes: Mapping[int, int], table: Table) -> None:
    """Add the costs of a table, whose axis for a variable is `axes[variable]`."""
    scope = tuple(sorted(axes))
    turned = table.transpose([axes[variable] for variable in scope])
    tables[scope] = np.minimum(tables[scope] + turned, _NEVER) if scope in tables else np.minimum(turned, _NEVER)


@dataclass
class _Steps:
    """The branches that are left."""

    left: int


class _Search:
    """The least cost of tables, or at least `enough`; a lower bound on it where the branches are used up."""

    def __init__(self, sizes: Sequence[int], enough: int, steps: _Steps) -> None:
        self._sizes, self._enough, self._steps = sizes, enough, steps

    def bound(self, tables: Tables) -> int:
        """A lower bound on the least cost; the least cost itself if it is below `enough` and proved."""
        lowest = _NEVER
        # Depth first. The tables of a branch are made when its turn comes.
        pending: list[tuple[Tables, int, tuple[int, int] | None]] = [(tables, 0, None)]
        while pending:
            before, spent, branch = pending.pop()
            tables = dict(before) if branch is None else _fixed(before, *branch)
            spent += self._eliminate(tables)
            least = spent + sum(int(table.min()) for table in tables.values())
            if not tables or least >= self._enough or self._steps.left <= 0:
                lowest = min(lowest, least)
                continue
            uses: dict[int, int] = {}
            for scope in tables:
                for variable in scope:
                    uses[variable] = uses.get(variable, 0) + len(scope)
            chosen = max(sorted(uses), key=lambda variable: uses[variable])
            self._steps.left -= self._sizes[chosen]
            pending += [(tables, spent, (chosen, state)) for state in reversed(range(self._sizes[chosen]))]
        return lowest

    def _eliminate(self, tables: Tables) -> int:
        """Minimise over one variable after the other, smallest result first; the cost that depends on none left."""
        around: dict[int, set[int]] = {}
        of: dict[int, set[tuple[int, ...]]] = {}
        for scope in tables:
            for variable in scope:
                around.setdefault(variable, set()).update(scope)
                of.setdefault(variable, set()).add(scope)
        constant = int(tables.pop((), np.int64(0)))
        waiting = [(self._size(around[each]), each) for each in around]
        heapify(waiting)
        while waiting:
            size, variable = heappop(waiting)
            if variable not in around or size != self._size(around[variable]):
                continue  # it was eliminated, or is in the queue again with another size
            if size > _LARGEST_TABLE * self._sizes[variable]:
                break
            others = sorted(around.pop(variable) - {variable})
            axes = (*others, variable)
            total: Table = np.zeros([self._sizes[each] for each in axes], np.int64)
            for scope in of.pop(variable):
                total = np.minimum(total + _spread(tables.pop(scope), scope, axes), _NEVER)
                for each in scope:
                    if each != variable:
                        of[each].discard(scope)
            best = total.min(axis=-1)
            if not others:
                constant = min(constant + int(best), _NEVER)
                continue
            new = tuple(others)
            tables[new] = np.minimum(tables[new] + best, _NEVER) if new in tables else best
            for each in others:
                of[each].add(new)
                around[each].update(new)
                around[each].discard(variable)
                heappush(waiting, (self._size(around[each]), each))
        return constant

    def _size(self, variables: set[int]) -> int:
        return math.prod(self._sizes[each] for each in variables)


def _spread(table: Table, scope: Sequence[int], axes: Sequence[int]) -> Table:
    """The table over more variables, as NumPy broadcasts it."""
    order = [scope.index(variable) for variable in axes if variable in scope]
    kept = iter(table.transpose(order).shape)
    return table.transpose(order).reshape([next(kept) if variable in scope else 1 for variable in axes])


def _fixed(tables: Tables, variable: int, state: int) -> Tables:
    """The tables with one variable in one state."""
    found: Tables = {}
    for scope, table in tables.items():
        if variable in scope:
            place = scope.index(variable)
            scope, table = (*scope[:place], *scope[place + 1 :]), np.take(table, state, axis=place)
        found[scope] = np.minimum(found[scope] + table, _NEVER) if scope in found else table
    return found
