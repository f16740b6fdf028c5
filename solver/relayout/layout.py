"""Layout strings such as `N[a=32]HWC`: Glow's language, which backends speak.

    layout    := ( blank | dim )*            at most 8 dims; blank = space or tab, outside brackets only
    dim       := name blank* ( '[' extension ']' blank* )*
    name      := A-Z | a-z | '*'             case-sensitive; a letter names one dimension, `*` any
    extension := 'a=' digits                 alignment in bytes of that dimension's stride, 1 to 2^63-1
               | namespace ':' data          a black box, kept verbatim; data is anything but ']'
    namespace := letters, digits, '_', '.', '-'; the first is no digit

A lower-case letter beside its upper-case one is the inner part of that dimension and must carry its size in the
namespace `tile`: `NCHWc[tile:16]` is TVM's `NCHW16c`. A lower-case letter alone is a dimension of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from relayout.errors import InputError, LayoutSyntaxError

__all__ = ["CANONICAL", "COMMON", "MAX_ALIGNMENT", "MAX_RANK", "Dim", "Layout", "default_layout"]

MAX_RANK = 8
MAX_ALIGNMENT = 2**63 - 1

_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*")
_NAMESPACE = re.compile(r"(?:[A-Za-z_.\-][A-Za-z0-9_.\-]*)?")
_DIGITS = re.compile(r"[0-9]*")
_TVM_AXIS = re.compile(r"([0-9]*)([A-Za-z]?)")


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension: its name, and its extensions as they are written between the brackets, in order.

    Two are equal when name and extensions mean the same: `a=032` is `a=32`. Raises LayoutSyntaxError on a name that is
    not one letter or `*`, and on an extension that could not be parsed back.

    >>> Dim("N", ("a=32", "acme:x")).alignment
    32
    """

    name: str
    extensions: tuple[str, ...] = field(default=(), compare=False)
    _meaning: tuple[tuple[str, str | int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extensions", tuple(self.extensions))
        if self.name not in _NAMES:
            raise _bad_name(self.name, 0)
        place = len(self.name)
        for index, extension in enumerate(self.extensions):
            fault = _extension_fault(extension, self.extensions[:index])
            if fault is not None:
                raise fault.error(str(self), place + 1 + fault.place)
            place += len(extension) + 2
        object.__setattr__(self, "_meaning", tuple(_meaning(extension) for extension in self.extensions))

    def __str__(self) -> str:
        return self.name + "".join([f"[{extension}]" for extension in self.extensions])

    @property
    def alignment(self) -> int:
        """The alignment of the dimension's stride in bytes; 1 where none is asked for."""
        return next((int(value) for key, value in self._meaning if key == "a="), 1)

    @property
    def boxes(self) -> tuple[tuple[str, str], ...]:
        """(namespace, data) of every namespaced extension, in order."""
        pairs = (extension.partition(":") for extension in self.extensions if not extension.startswith("a="))
        return tuple((namespace, data) for namespace, _, data in pairs)

    def attribute(self, namespace: str) -> str | None:
        """The data of the first extension in `namespace`, or None."""
        return next((data for name, data in self.boxes if name == namespace), None)

    def replacing(self, prefix: str, value: str) -> Dim:
        """This dimension without the extensions that start with `prefix`, and with `prefix + value` as the last."""
        kept = tuple(extension for extension in self.extensions if not extension.startswith(prefix))
        return Dim(self.name, (*kept, prefix + value))


@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """The order of a tensor's dimensions, outermost first, each with its extensions. Immutable and hashable.

    `names` has one letter a dimension, without extensions. Raises LayoutSyntaxError on more than 8 dimensions, a letter
    that names two, or the inner part of a blocked dimension without its size.

    >>> layout = Layout.parse("N[a=32][acme:x] HWC")
    >>> str(layout), layout.names, layout.alignment(0), layout.attribute(0, "acme")
    ('N[a=32][acme:x]HWC', 'NHWC', 32, 'x')
    """

    dims: tuple[Dim, ...]
    names: str = field(init=False, compare=False)
    _text: str = field(init=False, compare=False)
    _hash: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(self.dims))
        parts = [str(dim) for dim in self.dims]
        fault = _dims_fault(self.dims)
        if fault is not None:
            raise fault.error("".join(parts), sum(map(len, parts[: fault.place])))
        object.__setattr__(self, "names", "".join([dim.name for dim in self.dims]))
        object.__setattr__(self, "_text", "".join(parts))
        object.__setattr__(self, "_hash", hash(self.dims))

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
        return _parse(text)

    @classmethod
    def any(cls, rank: int) -> Layout:
        """The layout that asks nothing of `rank` dimensions: `****` for 4."""
        return _parse("*" * rank)

    @classmethod
    def from_names(cls, names: str) -> Layout:
        """The layout with these names and no extensions; unlike `parse`, brackets and blanks are errors."""
        for place, name in enumerate(names):
            if name not in _NAMES:
                raise _bad_name(names, place)
        return _parse(names)

    @classmethod
    def from_tvm(cls, text: str) -> Layout:
        """The layout that TVM writes as `text`: `NCHW16c` is `NCHWc[tile:16]`. Raises LayoutSyntaxError.

        TVM's undefined layout, which it writes as the empty string or `__undef__`, is an error too: it is not the
        layout of a scalar, which is what the empty string means here.
        """
        return _parse_tvm(text)

    def to_tvm(self) -> str:
        """This layout as TVM writes it. Raises InputError where TVM has no word: `*`, extensions, a scalar.

        >>> Layout.parse("NCHWc[tile:16]").to_tvm()
        'NCHW16c'
        """
        if not self.dims:
            raise self._not_tvm("", "the layout of a scalar, which TVM reads as undefined")
        words = []
        for index, dim in enumerate(self.dims):
            size = self.tile(index)
            if dim.name == "*" or (dim.name.islower() and size is None):
                raise self._not_tvm(f", dimension {index}", f"'{dim.name}'")
            if len(dim.extensions) > (size is not None):
                raise self._not_tvm(f", dimension {index}", f"the extensions of '{dim}'")
            words.append(f"{size}{dim.name}" if size is not None else dim.name)
        return "".join(words)

    def _not_tvm(self, where: str, found: str) -> InputError:
        expected = "upper-case letters, and their inner parts with a tile size and no other extension"
        return InputError(
            "TVM cannot write this layout", where=f"layout '{self}'{where}", expected=expected, found=found
        )

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
        return self._replacing(index, "a=", str(alignment))

    def attribute(self, index: int, namespace: str) -> str | None:
        """The data that dimension `index` carries in `namespace`, verbatim, or None (data may be empty)."""
        return self.dims[index].attribute(namespace)

    def with_attribute(self, index: int, namespace: str, data: str) -> Layout:
        """This layout with `[namespace:data]` as the last extension of dimension `index`, replacing any it had.

        >>> str(Layout.parse("NCHWc[tile:8]").with_attribute(4, "tile", "16"))
        'NCHWc[tile:16]'
        """
        if not namespace or _NAMESPACE.fullmatch(namespace) is None:
            fault = _namespace_fault(namespace)
            raise fault.error(namespace, fault.place)
        return self._replacing(index, f"{namespace}:", data)

    def boxes(self, index: int) -> tuple[tuple[str, str], ...]:
        """(namespace, data) of the black boxes on dimension `index`, in order; the size of an inner part is none."""
        boxes = self.dims[index].boxes
        return boxes if self.outer(index) is None else tuple(box for box in boxes if box[0] != "tile")

    def outer(self, index: int) -> int | None:
        """The dimension of which dimension `index` is the inner part (1 for the c of NCHWc), or None."""
        name = self.names[index]
        place = self.names.find(name.upper()) if name.islower() else -1
        return place if place >= 0 else None

    def tile(self, index: int) -> int | None:
        """The size of dimension `index` in elements if it is the inner part of another, else None."""
        data = self.attribute(index, "tile")
        return int(data) if data is not None and self.outer(index) is not None else None

    def _replacing(self, index: int, prefix: str, value: str) -> Layout:
        dims = list(self.dims)
        dims[index] = dims[index].replacing(prefix, value)
        return Layout(tuple(dims))


class _Fault(NamedTuple):
    """What is wrong at `place`: an offset into the text at hand, or a dimension's index."""

    place: int
    expected: str
    found: str
    hint: str = ""

    def error(self, text: str, place: int) -> LayoutSyntaxError:
        return LayoutSyntaxError(text, place + 1, expected=self.expected, found=self.found, hint=self.hint)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Layout:
    names: list[str] = []
    places: list[int] = []
    extensions: list[list[str]] = []
    place = 0
    # One dimension too many is enough to know that there are too many.
    while place < len(text) and len(names) <= MAX_RANK:
        character = text[place]
        if character in _NAMES:
            names.append(character)
            places.append(place)
            extensions.append([])
        elif character == "[":
            extension = _read_extension(text, place, extensions)
            extensions[-1].append(extension)
            place += len(extension) + 1
        elif character not in " \t":
            raise _bad_name(text, place)
        place += 1
    dims = tuple(Dim(name, tuple(known)) for name, known in zip(names, extensions, strict=True))
    fault = _dims_fault(dims)
    if fault is not None:
        raise fault.error(text, places[fault.place])
    return Layout(dims)


def _read_extension(text: str, bracket: int, extensions: list[list[str]]) -> str:
    if not extensions:
        raise _Fault(0, "a dimension before its extensions", "'['").error(text, bracket)
    end = text.find("]", bracket)
    body = text[bracket + 1 : end if end >= 0 else len(text)]
    fault = _extension_fault(body, tuple(extensions[-1]), closed=end >= 0)
    if fault is not None:
        raise fault.error(text, bracket + 1 + fault.place)
    if end < 0:
        hint = f"the bracket in column {bracket + 1} is open"
        raise _Fault(0, "']'", _END, hint).error(text, len(text))
    return body


def _bad_name(text: str, place: int) -> LayoutSyntaxError:
    found = _quote(text[place : place + 1]) if place < len(text) else _END
    hint = "TVM's NCHW16c is written NCHWc[tile:16] here" if found[1:2].isdigit() else ""
    return _Fault(0, "a letter, '*' or, after one of them, '['", found, hint).error(text, place)


def _extension_fault(body: str, before: tuple[str, ...], *, closed: bool = True) -> _Fault | None:
    """What is wrong with an extension, given those before it on the same dimension, if anything."""
    if body.startswith("a="):
        if any(other.startswith("a=") for other in before):
            return _Fault(0, "one alignment a dimension", f"a second one, {_quote(body)}")
        return _number_fault(body, 2, "bytes", closed)
    namespace = _NAMESPACE.match(body)[0]  # type: ignore[index]  # the pattern matches the empty string too
    if not namespace or body[len(namespace) : len(namespace) + 1] != ":":
        return _namespace_fault(body, closed)
    if "]" in body:
        return _Fault(body.index("]"), "data without ']'", _quote(body))
    if namespace != "tile":
        return None
    if any(other.startswith("tile:") for other in before):
        return _Fault(0, "one tile size a dimension", f"a second one, {_quote(body)}")
    return _number_fault(body, len("tile:"), "elements", closed)


def _number_fault(body: str, start: int, unit: str, closed: bool = True) -> _Fault | None:
    digits = _DIGITS.match(body, start)[0]  # type: ignore[index]  # the pattern matches the empty string too
    end = start + len(digits)
    if end < len(body) or not digits:
        expected = "']' after the number" if digits else f"a number of {unit} (decimal digits)"
        ending = "']'" if closed else _END
        return _Fault(end, expected, _quote(body[end]) if end < len(body) else ending)
    significant = digits.lstrip("0")
    # Python refuses to convert thousands of digits, so the length is looked at first.
    if not significant or len(significant) > 19 or int(significant) > MAX_ALIGNMENT:
        return _Fault(start, f"a number of {unit} from 1 to {MAX_ALIGNMENT}", _quote(digits))
    return None


def _namespace_fault(body: str, closed: bool = True) -> _Fault:
    if ":" not in body:
        found = _quote(body) if body else "']'" if closed else _END
        return _Fault(0, "'a=BYTES' or 'namespace:data'", found)
    place = _NAMESPACE.match(body).end()  # type: ignore[union-attr]  # the pattern matches the empty string too
    expected = "a namespace before ':' (letters, digits, '_', '.', '-'; the first is no digit)"
    return _Fault(place, expected, _quote(body[place]))


def _meaning(extension: str) -> tuple[str, str | int]:
    if extension.startswith("a="):
        return "a=", int(extension[2:])
    namespace, _, data = extension.partition(":")
    return namespace, int(data) if namespace == "tile" else data


def _dims_fault(dims: tuple[Dim, ...]) -> _Fault | None:
    """What is wrong with dimensions that are each right, if anything; `place` is an index into them."""
    if len(dims) > MAX_RANK:
        return _Fault(MAX_RANK, f"at most {MAX_RANK} dimensions", f"one more, '{dims[MAX_RANK].name}'")
    names = [dim.name for dim in dims]
    for index, dim in enumerate(dims):
        name = dim.name
        if name != "*" and name in names[:index]:
            hint = "a letter names one dimension; '*' may stand for several"
            return _Fault(index, "another letter", f"'{name}', which names dimension {names.index(name)}", hint)
        if name.islower() and name.upper() in names and dim.attribute("tile") is None:
            expected = f"'{name}[tile:SIZE]', since '{name}' beside '{name.upper()}' is its inner part"
            return _Fault(index, expected, f"'{dim}' without a size")
    return None


def _parse_tvm(text: str) -> Layout:
    dims: list[Dim] = []
    places: list[int] = []
    place = 0
    while place < len(text) and len(dims) <= MAX_RANK:
        match = _TVM_AXIS.match(text, place)
        size, letter = match.groups()  # type: ignore[union-attr]  # the pattern matches the empty string too
        end = place + len(size) + len(letter)
        fault = _tvm_fault(size, letter, text[end : end + 1])
        if fault is not None:
            raise fault.error(text, place + fault.place)
        dims.append(Dim(letter, (f"tile:{int(size)}",) if size else ()))
        places.append(place + len(size))
        place = end
    fault = _dims_fault(tuple(dims)) or _tvm_names_fault([dim.name for dim in dims])
    if fault is not None:
        raise fault.error(text, places[fault.place] if places else 0)
    return Layout(tuple(dims))


def _tvm_fault(size: str, letter: str, following: str) -> _Fault | None:
    if not letter:
        expected = "a lower-case letter after the size" if size else "a letter, or a size and a lower-case letter"
        return _Fault(len(size), expected, _quote(following) if following else _END)
    if letter.isupper():
        expected = "a lower-case letter after a size: an upper-case one has none"
        return _Fault(len(size), expected, f"'{letter}'") if size else None
    if not size:
        return _Fault(0, f"a size before '{letter}', as in 16{letter}", f"'{letter}' without one")
    return _number_fault(size, 0, "elements")


def _tvm_names_fault(names: list[str]) -> _Fault | None:
    if not names:
        hint = "TVM's undefined layout says nothing; for that, use '*' for each dimension"
        return _Fault(0, "at least one dimension", _END, hint)
    for index, name in enumerate(names):
        if name.upper() not in names:
            return _Fault(index, f"'{name.upper()}', of which '{name}' is the inner part, in the layout", "none")
    return None


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


_END = "the end of the layout"

COMMON = tuple(_parse(text) for text in ("", "N", "**", "***", "****", "*****", "******"))
"""Glow's layouts by rank, 0 to 6, of a tensor of which nothing is known."""

CANONICAL = (*COMMON[:4], _parse("NHWC"), *COMMON[5:])
"""The same for Glow's canonical backend: rank 4 is NHWC."""


def default_layout(rank: int, *, canonical: bool = False) -> Layout:
    """Glow's layout of a tensor of `rank` dimensions of which nothing is known; `*` throughout above rank 6."""
    table = CANONICAL if canonical else COMMON
    return table[rank] if rank < len(table) else Layout.any(rank)
