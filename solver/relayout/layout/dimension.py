"""One dimension of a layout: a name and extensions."""

from __future__ import annotations

from dataclasses import dataclass, field

from relayout.layout.extensions import ALIGNMENT, Extension, extension_of
from relayout.layout.grammar_faults import extension_fault, name_fault, number


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension: its name, and its extensions in order, each as the text between its brackets.

    Two are equal if their names and extensions mean the same: `a=032` is `a=32`. Raises LayoutSyntaxError if the name
    is not a letter, `*` or the number of an axis, and if an extension could not be parsed.

    >>> Dim("N", ("a=32", "acme:x")).alignment
    32
    """

    name: str
    extensions: tuple[str, ...] = field(default=(), compare=False)
    _meaning: tuple[tuple[str, str | int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extensions", tuple(self.extensions))
        fault = name_fault(self.name)
        if fault is not None:
            raise fault.error(self.name, fault.place)
        start = 2
        for index, extension in enumerate(self.extensions):
            fault = extension_fault(extension, self.extensions[:index])
            if fault is not None:
                raise fault.error(str(self), start + fault.place)
            start += len(extension) + 2
        object.__setattr__(self, "_meaning", tuple([_meaning(extension) for extension in self.extensions]))

    def __str__(self) -> str:
        return self.name + "".join([f"[{extension}]" for extension in self.extensions])

    @property
    def alignment(self) -> int:
        """The alignment of the dimension's stride in bytes; 1 if it has none."""
        return self.value(ALIGNMENT) or 1

    def value(self, extension: Extension) -> int | None:
        """The number of an extension of this dimension, or None."""
        return next((int(value) for key, value in self._meaning if key == extension.prefix), None)

    @property
    def boxes(self) -> tuple[tuple[str, str], ...]:
        """(namespace, data) of every namespaced extension, verbatim and in order."""
        pairs = [text.partition(":") for text in self.extensions if not text.startswith(ALIGNMENT.prefix)]
        return tuple([(namespace, data) for namespace, _, data in pairs])

    def attribute(self, namespace: str) -> str | None:
        """The data of the first extension in `namespace`, or None."""
        return next((data for name, data in self.boxes if name == namespace), None)

    def replacing(self, prefix: str, value: str) -> Dim:
        """This dimension with `prefix + value` as the last extension, in place of all that start with `prefix`."""
        kept = [extension for extension in self.extensions if not extension.startswith(prefix)]
        return Dim(self.name, (*kept, prefix + value))


def _meaning(extension: str) -> tuple[str, str | int]:
    row = extension_of(extension)
    if row is not None:
        return row.prefix, number(extension[len(row.prefix) :])
    namespace, _, data = extension.partition(":")
    return namespace, data
