"""Layouts such as `N[a=32]HWC`, in Glow's language, which backends use. `grammar` has the grammar.

A lower-case letter beside its upper-case one is the inner part of that dimension and carries its size in the namespace
`tile`: `NCHWc[tile:16]` is TVM's `NCHW16c`. A lower-case letter without its upper-case one is a dimension of its own.

A layout may be of numbers in place of names: XLA's `{1,3,2,0}`, minor to major, where a number is the place of an axis
in the tensor as the source graph has it. Such a one needs no operator that names axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout.dimension import Dim
from relayout.layout.extensions import ALIGNMENT, EXTENSIONS, TILE, Extension
from relayout.layout.grammar import read, read_tvm
from relayout.layout.grammar_faults import dims_fault, name_fault, namespace_fault

__all__ = ["CANONICAL", "COMMON", "Dim", "Layout", "default_layout"]


@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """The order of a tensor's dimensions, outermost first, each with its extensions. Immutable and hashable.

    `names` has one letter a dimension, without extensions. `numbers` has each extension that is no black box: the index
    of its dimension, its row in `EXTENSIONS` and its number. Raises LayoutSyntaxError on more than 8 dimensions, a
    letter that names two, and the inner part of a blocked dimension without its size.

    >>> layout = Layout.parse("N[a=32][acme:x] HWC")
    >>> str(layout), layout.names, layout.alignment(0), layout.attribute(0, "acme")
    ('N[a=32][acme:x]HWC', 'NHWC', 32, 'x')
    """

    dims: tuple[Dim, ...]
    names: str = field(init=False, compare=False)
    numbers: tuple[tuple[int, Extension, int], ...] = field(init=False, compare=False)
    _text: str = field(init=False, compare=False)
    _hash: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(self.dims))
        parts = [str(dim) for dim in self.dims]
        fault = dims_fault([(dim.name, dim.extensions) for dim in self.dims])
        if fault is not None:
            raise fault.error("".join(parts), sum(map(len, parts[: fault.place])))
        names = "".join([dim.name for dim in self.dims])
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_text", f"{{{','.join(reversed(names))}}}" if names.isdecimal() else "".join(parts))
        object.__setattr__(self, "_hash", hash(self.dims))
        found = [(i, row, dim.value(row)) for i, dim in enumerate(self.dims) for row in EXTENSIONS if dim.extensions]
        is_asked = [n is not None and (row is not TILE or self.outer(i) is not None) for i, row, n in found]
        object.__setattr__(self, "numbers", tuple(compress(found, is_asked)))

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Layout.parse({self._text!r})"

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # By its text: hashes of strings differ between processes, so the stored hash must not travel.
        return _parse, (self._text,)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout that `text` writes. Raises LayoutSyntaxError, with the column, if it writes none."""
        return _cached(text) if len(text) <= 200 else _parse(text)

    @classmethod
    def any(cls, rank: int) -> Layout:
        """The layout that asks nothing of `rank` dimensions: `****` for 4."""
        return cls.parse("*" * rank)

    @classmethod
    def from_names(cls, names: str) -> Layout:
        """The layout with these names and no extensions; unlike in `parse`, a bracket or blank is an error. Numbers of
        axes are names too: `20` is `{0,2}` outermost first."""
        if names.isdecimal():
            return cls(tuple([Dim(name) for name in names]))
        for place, name in enumerate(names):
            fault = name_fault(name)
            if fault is not None:
                raise fault.error(names, place)
        return cls.parse(names)

    @classmethod
    def from_tvm(cls, text: str) -> Layout:
        """The layout that TVM writes as `text`: `NCHW16c` is `NCHWc[tile:16]`. Raises LayoutSyntaxError.

        TVM's undefined layout, which it writes as the empty string or `__undef__`, is an error too: it is not the
        layout of a scalar, which is what the empty string means here.
        """
        return cls(tuple(Dim(name, extensions) for name, extensions in read_tvm(text)))

    def to_tvm(self) -> str:
        """This layout as TVM writes it. Raises InputError where TVM has no word: `*`, extensions, a scalar.

        >>> Layout.parse("NCHWc[tile:16]").to_tvm()
        'NCHW16c'
        """
        words = []
        for index, dim in enumerate(self.dims):
            size = self.tile(index)
            if not dim.name.isupper() and size is None:
                raise self._not_tvm(f", dimension {index}", f"'{dim.name}'")
            if len(dim.extensions) > (size is not None):
                raise self._not_tvm(f", dimension {index}", f"the extensions of '{dim}'")
            words.append(f"{size}{dim.name}" if size else dim.name)
        if not words:
            raise self._not_tvm("", "the layout of a scalar, whose word TVM reads as 'undefined'")
        return "".join(words)

    @classmethod
    def from_minor_to_major(cls, text: str, axes: str | None = None) -> Layout:
        """The layout that XLA writes as `text`, innermost axis first; in names where `axes` has one for each axis.

        >>> Layout.from_minor_to_major("{0,1}"), Layout.from_minor_to_major("{1,3,2,0}", "NCHW")
        (Layout.parse('{0,1}'), Layout.parse('NHWC'))
        """
        layout = cls.parse(text)
        if not layout.is_numbered and text.strip(" \t")[:1] != "{":
            raise LayoutSyntaxError(
                text, 1, expected="'{', as in XLA's {1,0}", found=repr(text[:1]) if text else "none"
            )
        return layout if axes is None else layout.with_names(axes)

    def to_minor_to_major(self, axes: str | None = None) -> str:
        """This layout as XLA writes it, innermost axis first; `axes` are the names of the tensor's axes as the source
        graph has them. Raises InputError where XLA has no word: `*`, extensions, inner parts, other names.

        >>> Layout.parse("NHWC").to_minor_to_major("NCHW")
        '{1,3,2,0}'
        """
        if self.is_numbered or not self.dims:
            return self._text or "{}"
        if axes is None or sorted(axes) != sorted(self.names) or self._text != self.names or "*" in self.names:
            raise InputError(
                "XLA has no word for this layout",
                where=f"layout '{self}'",
                expected="the names of the tensor's axes" if axes is None else f"the names {axes}, each once",
                found="none" if axes is None else f"'{self}'",
            )
        return f"{{{','.join([str(axes.index(name)) for name in reversed(self.names)])}}}"

    @property
    def is_numbered(self) -> bool:
        """Whether dimensions go by the numbers of axes, as in `{1,0}`."""
        return self.names.isdecimal()

    def with_names(self, axes: str) -> Layout:
        """This layout with the names of the axes for their numbers; one of names already is as it is.

        >>> Layout.parse("{1,3,2,0}").with_names("NCHW")
        Layout.parse('NHWC')
        """
        if not self.is_numbered:
            return self
        if len(axes) != self.rank:
            expected, found = f"names for {self.rank} axes", f"'{axes}'"
            raise InputError(
                "the names do not fit the layout", where=f"layout '{self}'", expected=expected, found=found
            )
        return Layout.from_names("".join([axes[int(number)] for number in self.names]))

    def _not_tvm(self, where: str, found: str) -> InputError:
        expected = "upper-case letters, and their inner parts with a tile size and no other extension"
        problem = "TVM has no word for this layout"
        return InputError(problem, where=f"layout '{self}'{where}", expected=expected, found=found)

    @property
    def rank(self) -> int:
        """The number of dimensions, an inner part counted as one."""
        return len(self.dims)

    @property
    def is_any(self) -> bool:
        """Whether nothing is asked: every name is `*`, without extensions. True of rank 0."""
        return all(dim.name == "*" and not dim.extensions for dim in self.dims)

    def same_names(self, other: Layout) -> bool:
        """Whether the names are the same, whatever the extensions."""
        return self.names == other.names

    def alignment(self, index: int) -> int:
        """The alignment, in bytes, of the stride of dimension `index`; 1 where none is asked for."""
        return self.dims[index].alignment

    def with_alignment(self, index: int, alignment: int) -> Layout:
        """This layout with dimension `index` aligned to `alignment` bytes, written as its last extension.

        >>> str(Layout.parse("N[a=16][answer:42]HWC").with_alignment(0, 32))
        'N[answer:42][a=32]HWC'
        """
        return self._replacing(index, ALIGNMENT.prefix, str(alignment))

    def attribute(self, index: int, namespace: str) -> str | None:
        """The data that dimension `index` carries in `namespace`, verbatim, or None (data may be empty)."""
        return self.dims[index].attribute(namespace)

    def with_attribute(self, index: int, namespace: str, data: str) -> Layout:
        """This layout with `[namespace:data]` as the last extension of dimension `index`, replacing any it had.

        >>> str(Layout.parse("NCHWc[tile:8]").with_attribute(4, "tile", "16"))
        'NCHWc[tile:16]'
        """
        fault = namespace_fault(namespace)
        if fault is not None:
            raise fault.error(namespace, fault.place)
        return self._replacing(index, f"{namespace}:", data)

    def with_boxes(self, index: int, boxes: Iterable[tuple[str, str]]) -> Layout:
        """This layout with these black boxes, (namespace, data), behind the extensions of dimension `index`.

        >>> str(Layout.parse("NCHW").with_boxes(1, [("acme", "x"), ("acme", "y")]))
        'NC[acme:x][acme:y]HW'
        """
        dims = list(self.dims)
        own = dims[index]
        dims[index] = Dim(own.name, (*own.extensions, *(f"{namespace}:{data}" for namespace, data in boxes)))
        return Layout(tuple(dims))

    def _replacing(self, index: int, prefix: str, value: str) -> Layout:
        dims = list(self.dims)
        dims[index] = dims[index].replacing(prefix, value)
        return Layout(tuple(dims))

    def boxes(self, index: int) -> tuple[tuple[str, str], ...]:
        """(namespace, data) of the black boxes on dimension `index`, in order; the size of an inner part is none."""
        boxes = self.dims[index].boxes
        return boxes if self.outer(index) is None else tuple([box for box in boxes if box[0] != "tile"])

    def outer(self, index: int) -> int | None:
        """The dimension whose inner part dimension `index` is (1 for the c of NCHWc), or None."""
        name = self.names[index]
        place = self.names.find(name.upper()) if name.islower() else -1
        return place if place >= 0 else None

    def tile(self, index: int) -> int | None:
        """The size of dimension `index` in elements if it is the inner part of another, else None."""
        return self.dims[index].value(TILE) if self.outer(index) is not None else None


def _parse(text: str) -> Layout:
    return Layout(tuple(Dim(name, extensions) for name, extensions in read(text)))


# Parsed again and again: the words of backends. Long texts come from outside and would only fill the memory.
_cached = lru_cache(maxsize=4096)(_parse)

COMMON = tuple(_parse(text) for text in ("", "N", "**", "***", "****", "*****", "******"))
"""Glow's layouts by rank, 0 to 6, of a tensor of which nothing is known."""

CANONICAL = (*COMMON[:4], _parse("NHWC"), *COMMON[5:])
"""The same for Glow's canonical backend: rank 4 is NHWC."""


def default_layout(rank: int, *, canonical: bool = False) -> Layout:
    """Glow's layout of a tensor of `rank` dimensions of which nothing is known; `*` throughout above rank 6."""
    table = CANONICAL if canonical else COMMON
    return table[rank] if rank < len(table) else Layout.any(rank)
