"""The residual network of a search, and the map from its states back to those of the original network."""

from __future__ import annotations

from collections.abc import Callable

from relayout.solve.deadline import Deadline
from relayout.solve.eliminate import Eliminated, Size, back_substitute, eliminate, elimination_size
from relayout.solve.network import FORBIDDEN, Network
from relayout.solve.reparametrize import Relaxation, apply_shifts, assignment_cost, restrict, states_within

States = dict[int, int]


class Residual:
    """A network with the variables `remaining`, and a lower bound on the cost of everything that was removed.

    A bound of FORBIDDEN means that no remaining assignment is cheap enough.
    """

    def __init__(self, network: Network, deadline: Deadline) -> None:
        self.network = network
        self.remaining = set(range(len(network.unary)))
        self.bound = 0
        self._deadline = deadline
        self._substitutions: list[Callable[[States], States]] = []
        self._numbers = {x: list(range(len(unary))) for x, unary in enumerate(network.unary)}

    def raise_bound(self, amount: int) -> None:
        """Add `amount` to the lower bound; FORBIDDEN stays FORBIDDEN."""
        # Rounded duals may add up to less than 0.
        self.bound = FORBIDDEN if max(amount, self.bound) >= FORBIDDEN else self.bound + amount

    def eliminate(self, cells: int, *, by_size: bool = False) -> list[Eliminated]:
        """Eliminate variables while each takes at most `cells` sums, or has two neighbours; return them in order."""
        size = len(self.network.unary)
        eliminated, constant = eliminate(self.network, self.remaining, cells, by_size=by_size, deadline=self._deadline)
        self.raise_bound(constant)

        def back(states: States) -> States:
            every = [0] * size
            for x, state in states.items():
                every[x] = state
            back_substitute(eliminated, every)
            return {**states, **{one.variable: every[one.variable] for one in eliminated}}

        self._substitutions.append(back)
        return eliminated

    def fits(self, largest: int, total: int) -> bool:
        """Whether all variables can be eliminated with at most `total` sums, and `largest` entries of a new table."""
        size = self.elimination_size()
        return size.largest <= largest and size.sums <= total

    def elimination_size(self, *, by_size: bool = False) -> Size:
        """The size of the elimination of all variables."""
        return elimination_size(self.network, self.remaining, by_size=by_size)

    def finish(self, largest: int, total: int) -> bool:
        """Eliminate every variable if that fits, else none. Returns whether it did."""
        is_done = self.fits(largest, total)
        if is_done:
            self.eliminate(total)
        return is_done

    def reparametrize(self, relaxation: Relaxation) -> None:
        """Apply the dual solution, which raises the lower bound."""
        self.raise_bound(apply_shifts(self.network, self.remaining, relaxation.shifts))

    def drop_states(self, spare: int) -> bool:
        """Drop states by reduced-cost fixing: those in no assignment of `spare` or less above the bound.

        Repeats until nothing changes. Returns whether at least a tenth of the states was dropped.
        """
        before = states = self.states()
        while True:
            self._deadline.check()
            left = states_within(self.network, self.remaining, spare)
            if not all(left.values()):
                self.bound = FORBIDDEN
                return True
            self.keep(left, spare)
            if self.states() == states:
                return states < 0.9 * before
            states = self.states()

    def keep(self, left: dict[int, list[int]], most: int = FORBIDDEN - 1) -> None:
        """Keep only these states of each variable, and table entries of at most `most`."""
        self.network = restrict(self.network, left, most)
        self._numbers.update({x: [self._numbers[x][state] for state in some] for x, some in left.items()})
        self._substitutions.append(
            lambda states: {x: left[x][state] if x in left else state for x, state in states.items()}
        )

    def states(self) -> int:
        """The number of states of all remaining variables."""
        return sum([len(self.network.unary[x]) for x in self.remaining])

    def cells(self) -> list[int]:
        """The number of entries of each table."""
        return [self.network.tables[scope].size for scope in self.network.scopes_of(self.remaining)]

    def price(self, states: States) -> int:
        """The total cost of an assignment of the remaining variables; FORBIDDEN or more: infeasible."""
        return self.bound + assignment_cost(self.network, self.remaining, states)

    def back_substituted(self, states: States) -> States:
        """States of the original network from those of the remaining variables."""
        for back in reversed(self._substitutions):
            states = back(states)
        return states

    def renumbered(self, states: States) -> States:
        """States of the original network as numbers of the residual's states; dropped states are left out."""
        return {
            x: self._numbers[x].index(states[x])
            for x in sorted(self.remaining)
            if x in states and states[x] in self._numbers[x]
        }
