"""Operators that do not mind how the index of an axis is scrambled, as long as all operands that share it follow.

A convolution sums over its input channels in any order if the kernel has them in the same one; a matrix product over
its contracted axis. So a channel shuffle before it, or a Flatten of channels-last data, is nothing but other constants.
"""

from __future__ import annotations

from relayout.candidates.alternatives import FixedLowering, NodeAlternatives, Port
from relayout.candidates.backend_requirements import Wish
from relayout.candidates.propagation import Spaces
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Atom, MemoryFormat, is_padded
from relayout.ops import Shared, extents_of

__all__ = ["Mixing"]

_MOST_FORMS = 64

_Where = tuple[bool, int, int]


class Mixing:
    """One node's alternatives with scrambled axes, found as formats of its operands come under consideration."""

    def __init__(self, choice: NodeAlternatives, shared: tuple[Shared, ...], spaces: Spaces) -> None:
        self._choice = choice
        self._spaces = spaces
        self._shared = {member: members for members in shared if self._alike(members) for member in members}
        self._forms: list[tuple[Wish, FixedLowering]] = []
        if self._shared:
            for place, port in enumerate(choice.ports):
                spaces.listen(port.operand.tensor, lambda format_, place=place: self._hear(place, format_))  # type: ignore[misc]

    def add_base(self, wish: Wish, form: FixedLowering) -> None:
        """Enter an alternative whose axes may be scrambled."""
        self._forms.append((wish, form))

    def _alike(self, members: Shared) -> bool:
        """Whether the axis has one known extent in all the operands that share it."""
        assert self._choice.node is not None
        found = set()
        for is_result, index, axis in members:
            values = self._choice.node.outputs if is_result else self._choice.node.inputs
            value = values[index] if index < len(values) else None
            extents = extents_of(value) if value is not None else None
            found.add(extents[axis] if extents is not None and axis < len(extents) else None)
        return len(found) == 1 and isinstance(next(iter(found)), int)

    def _hear(self, place: int, format_: MemoryFormat) -> None:
        port = self._choice.ports[place]
        own = port.operand.view.from_base(format_)
        if own is None or all(a.is_whole for a in own) or is_padded(own, port.operand.view.extents):
            return
        for wish, form in list(self._forms):
            scrambled = self._scrambled(port, own, form)
            if scrambled is not None:
                self._enter(wish, scrambled)

    def _scrambled(self, port: Port, own: MemoryFormat, form: FixedLowering) -> FixedLowering | None:
        """The form with the factors of `own` in each dimension; None where its axes stand in another order."""
        side = form.outputs if port.is_result else form.inputs
        laid = side[port.index] if port.index < len(side) else None
        if laid is None:
            laid = _natural(self._choice, (port.is_result, port.index, 0))
        if any(len({a.axis for a in group}) != 1 for group in laid):
            return None
        rest = list(own)
        changes: dict[int, MemoryFormat] = {}
        for group in laid:
            axis = group[0].axis
            if port.operand.view.extents[axis] == 1:
                continue
            found: list[Atom] = []
            while rest and rest[0].axis == axis:
                found.append(rest.pop(0))
            if not found:
                return None
            if tuple(found) != group:
                changes[axis] = tuple(found)
        if rest or not changes:
            return None
        inputs, outputs = list(form.inputs), list(form.outputs)
        for axis, factors in changes.items():
            members = self._shared.get((port.is_result, port.index, axis))
            if members is None:
                return None
            for member in members:
                laid_side = outputs if member[0] else inputs
                dims = laid_side[member[1]] or _natural(self._choice, member)
                if sum(group[0].axis == member[2] for group in dims) != 1:
                    return None  # in pieces that the layout asks for, side by side or not
                laid_side[member[1]] = _replaced(dims, member[2], factors)
        return FixedLowering(tuple(inputs), tuple(outputs), form.pick)

    def _enter(self, wish: Wish, form: FixedLowering) -> None:
        formats: list[MemoryFormat] = []
        for port in self._choice.ports:
            format_ = port.format_in((form.outputs if port.is_result else form.inputs)[port.index])
            if format_ is None:
                return
            formats.append(format_)
        if (wish, form) in self._forms:
            return
        tensors = [port.operand.tensor for port in self._choice.ports]
        if len(self._forms) >= _MOST_FORMS:
            self._spaces.capped.update(dict.fromkeys(tensors))
            return
        self._forms.append((wish, form))
        for tensor, format_ in zip(tensors, formats, strict=True):
            self._spaces.add_format(tensor, format_, is_asked=False)
        implementation = wish.implementation
        self._choice.add(formats, form, implementation.cost, wish.shown, implementation.device)


def _natural(choice: NodeAlternatives, member: _Where) -> Dims:
    assert choice.node is not None
    value = (choice.node.outputs if member[0] else choice.node.inputs)[member[1]]
    extents = extents_of(value) if value is not None else None
    assert extents is not None
    return tuple((Atom(axis),) for axis in range(len(extents)))


def _replaced(dims: Dims, axis: int, factors: MemoryFormat) -> Dims:
    """The dimensions with the factors of `axis` as given, in this operand's numbering."""
    own = tuple(Atom(axis, factor.inner, factor.outer) for factor in factors)
    return tuple(own if group[0].axis == axis else group for group in dims)
