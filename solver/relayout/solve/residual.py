"""A network on its way down: what has left it, and how to get from its states to those of the network at first."""

from __future__ import annotations

from collections.abc import Callable

from relayout.solve.deadline import Clock
from relayout.solve.eliminate import eliminate, walk_back
from relayout.solve.network import FORBIDDEN, Network
from relayout.solve.reparametrize import Relaxation, price_of, restrict, shift, worthwhile

__all__ = ["Kernel", "States"]

States = dict[int, int]


class Kernel:
    """The variables in `alive` are left, `paid` is what all else costs.

    FORBIDDEN says that nothing is left that costs as little as was asked for.
    """

    def __init__(self, network: Network, clock: Clock) -> None:
        self.network = network
        self.alive = set(range(len(network.unary)))
        self.paid = 0
        self._clock = clock
        self._way_back: list[Callable[[States], States]] = []
        self._numbers = {x: list(range(len(unary))) for x, unary in enumerate(network.unary)}

    def pay(self, amount: int) -> None:
        # Rounded duals may add up to less than 0, and FORBIDDEN must not become a little less than itself.
        self.paid = FORBIDDEN if max(amount, self.paid) >= FORBIDDEN else self.paid + amount

    def eliminate(self, cells: int) -> None:
        """Eliminate what makes no table larger than that."""
        size = len(self.network.unary)
        gone, constant = eliminate(self.network, self.alive, cells, clock=self._clock)
        self.pay(constant)

        def back(states: States) -> States:
            every = [0] * size
            for x, state in states.items():
                every[x] = state
            walk_back(gone, every)
            return {**states, **{one.variable: every[one.variable] for one in gone}}

        self._way_back.append(back)

    def finish(self, cells: int) -> bool:
        """Eliminate everything, or nothing."""
        network, alive, paid = self.network.copy(), set(self.alive), self.paid
        self.eliminate(cells)
        if not self.alive:
            return True
        self.network, self.alive, self.paid = network, alive, paid
        self._way_back.pop()
        return False

    def settle(self, relaxation: Relaxation) -> None:
        """Pay what the relaxation says must be paid whatever happens."""
        self.pay(shift(self.network, self.alive, relaxation.shifts))

    def thin(self, spare: int) -> bool:
        """Drop the states that no solution has which costs `spare` or less from here; answers whether those were many.

        What is dropped may show that more can be, so this is repeated.
        """
        before = states = self.states()
        while True:
            self._clock.check()
            left = worthwhile(self.network, self.alive, spare)
            if not all(left.values()):
                self.paid = FORBIDDEN
                return True
            self.network = restrict(self.network, left, spare)
            self._numbers.update({x: [self._numbers[x][state] for state in some] for x, some in left.items()})
            self._way_back.append(_renumbering(left))
            if self.states() == states:
                return states < 0.9 * before
            states = self.states()

    def states(self) -> int:
        """How many states are left, all in all."""
        return sum([len(self.network.unary[x]) for x in self.alive])

    def price(self, states: States) -> int:
        """What an assignment of what is left costs, all in all; FORBIDDEN or more: it is not allowed."""
        return self.paid + price_of(self.network, self.alive, states)

    def restored(self, states: States) -> States:
        """The states of the network at first, from those of what is left."""
        for back in reversed(self._way_back):
            states = back(states)
        return states

    def numbered(self, states: States) -> States:
        """States of the network at first by their numbers now, as far as they are left."""
        return {
            x: self._numbers[x].index(states[x])
            for x in sorted(self.alive)
            if x in states and states[x] in self._numbers[x]
        }


def _renumbering(left: dict[int, list[int]]) -> Callable[[States], States]:
    return lambda states: {x: left[x][state] if x in left else state for x, state in states.items()}
