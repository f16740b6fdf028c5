"""Layouts such as `N[a=32]HWC`, in Glow's notation. Backends state layouts in it; `grammar` has the grammar.

If a layout has a letter in both cases, the lower-case one is the inner part of that dimension and has its size in the
namespace `tile`: `NCHWc[tile:16]` is TVM's `NCHW16c`. A lower-case letter alone is a dimension of its own.

A layout may have numbers in place of names: XLA's `{1,3,2,0}`, minor to major, where a number is the index of an axis
of the source graph's tensor. It applies to every operator, even if the operator's axes have no names.
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


@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """The order of a tensor's dimensions, outermost first, each with its extensions. Immutable and hashable.

    `names` has one letter for each dimension, without extensions. `numbers` has every extension except black boxes: the
    index of its dimension, its row in `EXTENSIONS` and its number. Raises LayoutSyntaxError on more than 8 dimensions,
    on a letter that names two of them, and on an inner part without its size.

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
        # Pickled as text: hashes of strings differ between processes, so the stored hash must not be copied.
        return _parse, (self._text,)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Parse a layout string. Raises LayoutSyntaxError with the column of the fault."""
        return _cached(text) if len(text) <= 200 else _parse(text)

    @classmethod
    def any(cls, rank: int) -> Layout:
        """The layout without requirements for `rank` dimensions: `****` for 4."""
        return cls.parse("*" * rank)

    @classmethod
    def from_names(cls, names: str) -> Layout:
        """The layout with these names, outermost first, and no extensions. Numbers of axes are names too.

        Raises LayoutSyntaxError, also on brackets and blanks, which `parse` accepts.

        >>> str(Layout.from_names("0231"))
        '{1,3,2,0}'
        """
        if names.isdecimal():
            return _of_numbers(names)
        for index, name in enumerate(names):
            fault = name_fault(name)
            if fault is not None:
                raise fault.error(names, index)
        return cls.parse(names)

    @classmethod
    def from_tvm(cls, text: str) -> Layout:
        """Parse TVM's notation: `NCHW16c` is `NCHWc[tile:16]`. Raises LayoutSyntaxError.

        TVM's undefined layout, the empty string or `__undef__`, is an error: in `parse` the empty string is the layout
        of a scalar.
        """
        return cls(tuple(Dim(name, extensions) for name, extensions in read_tvm(text)))

    def to_tvm(self) -> str:
        """This layout in TVM's notation. Raises InputError if TVM cannot express it: `*`, extensions, a scalar.

        >>> Layout.parse("NCHWc[tile:16]").to_tvm()
        'NCHW16c'
        """
        dims = []
        for index, dim in enumerate(self.dims):
            size = self.tile(index)
            if not dim.name.isupper() and size is None:
                raise self._not_tvm(f", dimension {index}", f"'{dim.name}'")
            if len(dim.extensions) > (size is not None):
                raise self._not_tvm(f", dimension {index}", f"the extensions of '{dim}'")
            dims.append(f"{size}{dim.name}" if size else dim.name)
        if not dims:
            raise self._not_tvm("", "the layout of a scalar, whose empty string TVM reads as 'undefined'")
        return "".join(dims)

    @classmethod
    def from_minor_to_major(cls, text: str, axes: str | None = None) -> Layout:
        """Parse XLA's notation, innermost axis first. If `axes` has the axis names, they replace the numbers.

        Raises LayoutSyntaxError.

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
        """This layout in XLA's notation, innermost axis first; `axes` has the axis names in the source graph's order.

        Raises InputError if XLA cannot express it: `*`, extensions, inner parts, names that are not in `axes`.

        >>> Layout.parse("NHWC").to_minor_to_major("NCHW")
        '{1,3,2,0}'
        """
        if self.is_numbered or not self.dims:
            return self._text or "{}"
        if axes is None or sorted(axes) != sorted(self.names) or self._text != self.names or "*" in self.names:
            raise InputError(
                "XLA cannot express this layout",
                where=f"layout '{self}'",
                expected="the names of the tensor's axes" if axes is None else f"the names {axes}, each once",
                found="none" if axes is None else f"'{self}'",
            )
        return f"{{{','.join([str(axes.index(name)) for name in reversed(self.names)])}}}"

    @property
    def is_numbered(self) -> bool:
        """Whether the dimensions are named by the numbers of axes, as in `{1,0}`."""
        return self.names.isdecimal()

    def with_names(self, axes: str) -> Layout:
        """This layout with axis names in place of numbers; unchanged if it has names. Raises InputError.

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
        expected = "upper-case letters, and inner parts with a tile size and no other extension"
        problem = "TVM cannot express this layout"
        return InputError(problem, where=f"layout '{self}'{where}", expected=expected, found=found)

    @property
    def rank(self) -> int:
        """The number of dimensions, an inner part counted as one."""
        return len(self.dims)

    @property
    def is_any(self) -> bool:
        """Whether the layout has no requirement: every name is `*`, without extensions. True for rank 0."""
        return all(dim.name == "*" and not dim.extensions for dim in self.dims)

    def same_names(self, other: Layout) -> bool:
        """Whether the names are the same; extensions are ignored."""
        return self.names == other.names

    def alignment(self, index: int) -> int:
        """The alignment, in bytes, of the stride of dimension `index`; 1 if it has none."""
        return self.dims[index].alignment

    def with_alignment(self, index: int, alignment: int) -> Layout:
        """This layout with dimension `index` aligned to `alignment` bytes, written as its last extension.

        >>> str(Layout.parse("N[a=16][answer:42]HWC").with_alignment(0, 32))
        'N[answer:42][a=32]HWC'
        """
        return self._replacing(index, ALIGNMENT.prefix, str(alignment))

    def attribute(self, index: int, namespace: str) -> str | None:
        """The data of dimension `index` in `namespace`, verbatim, or None (data may be empty)."""
        return self.dims[index].attribute(namespace)

    def with_attribute(self, index: int, namespace: str, data: str) -> Layout:
        """This layout with `[namespace:data]` as the last extension of dimension `index`, in place of any others there.

        >>> str(Layout.parse("NCHWc[tile:8]").with_attribute(4, "tile", "16"))
        'NCHWc[tile:16]'
        """
        fault = namespace_fault(namespace)
        if fault is not None:
            raise fault.error(namespace, fault.place)
        return self._replacing(index, f"{namespace}:", data)

    def with_boxes(self, index: int, boxes: Iterable[tuple[str, str]]) -> Layout:
        """This layout with black boxes, each (namespace, data), appended to the extensions of dimension `index`.

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
        """(namespace, data) of the black boxes of dimension `index`, in order, without the size of an inner part."""
        boxes = self.dims[index].boxes
        return boxes if self.outer(index) is None else tuple([box for box in boxes if box[0] != "tile"])

    def outer(self, index: int) -> int | None:
        """The outer dimension if dimension `index` is an inner part (1 for the c of NCHWc), else None."""
        name = self.names[index]
        found = self.names.find(name.upper()) if name.islower() else -1
        return found if found >= 0 else None

    def tile(self, index: int) -> int | None:
        """The size of dimension `index` in elements if it is the inner part of another, else None."""
        return self.dims[index].value(TILE) if self.outer(index) is not None else None


def _parse(text: str) -> Layout:
    return Layout(tuple(Dim(name, extensions) for name, extensions in read(text)))


# Backends state the same layouts again and again. Long texts are not cached, because they come from untrusted input.
_cached = lru_cache(maxsize=4096)(_parse)


@lru_cache(maxsize=4096)
def _of_numbers(names: str) -> Layout:
    return Layout(tuple([Dim(name) for name in names]))


COMMON = tuple(_parse(text) for text in ("", "N", "**", "***", "****", "*****", "******"))
"""Glow's default layouts by rank, 0 to 6."""

CANONICAL = (*COMMON[:4], _parse("NHWC"), *COMMON[5:])
"""The same for Glow's canonical backend: rank 4 is NHWC."""


def default_layout(rank: int, *, canonical: bool = False) -> Layout:
    """Glow's default layout of `rank` dimensions; only `*` above rank 6."""
    table = CANONICAL if canonical else COMMON
    return table[rank] if rank < len(table) else Layout.any(rank)
