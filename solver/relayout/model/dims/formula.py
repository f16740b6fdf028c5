"""Formulas of symbolic dims, such as `2*height` or `(w - 1)//2 + 1`.

onnx_ir computes them with sympy, whose import takes longer than most models do. Here are the operators and functions
that exporters and onnxruntime's symbolic shape inference write, in exact fractions; the others are left to onnx_ir.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Any

import onnx_ir as ir

from relayout.layout.terms import NAME

LONGEST_FORMULA = 160
"""A longer formula says nothing to a reader: a generated name stays."""

_LONGEST = 1000
"""Letters. Python's parser needs a stack for nested parentheses."""

_LARGEST = (1 << 63) - 1
"""An extent is an int64."""

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"floor": floor} | dict.fromkeys(("max", "Max"), max)
_FUNCTIONS |= dict.fromkeys(("min", "Min"), min) | dict.fromkeys(("mod", "Mod"), operator.mod)
_NAME_OR_CALL = re.compile(rf"{NAME.pattern}(?P<call>\s*\()?")


class _UnknownError(Exception):
    """The formula has something that is left to onnx_ir."""


def symbols_of(dim: ir.SymbolicDim) -> frozenset[str]:
    """The names in the formula of a dim. Raises errors of several types where its text is no formula."""
    try:
        return frozenset(_parsed(dim.value or "")[1].values())
    except _UnknownError:
        return dim.free_symbols()


def evaluated(dim: ir.SymbolicDim, sizes: Mapping[str, int]) -> int | None:
    """The extent that the formula of a dim gives where its names have these sizes, or None where it gives none: its
    value is no integer, or none of 64 bits.

    Raises errors of several types where its text is no formula.
    """
    try:
        tree, names = _parsed(dim.value or "")
    except _UnknownError:
        found = dim.evaluate(sizes)
        return found if isinstance(found, int) else None
    try:
        number = _number(tree, {short: Fraction(sizes[name]) for short, name in names.items()})
    except ZeroDivisionError:
        return None
    return int(number) if number.denominator == 1 and abs(number) <= _LARGEST else None


def formula_names(text: str) -> frozenset[str] | None:
    """The names in a formula; None for a text that is none: exporters write any text into a dim's name."""
    try:
        return symbols_of(ir.SymbolicDim(text))
    except Exception:  # parsers raise errors of several types
        return None


def formula_size(text: str, sizes: Mapping[str, int], unknown: int | None = None) -> int | None:
    """The value of a formula such as `2*height`, where names without a size have the size `unknown`. None where a name
    has none, or the value is no integer, and for a text that is no formula."""
    names = formula_names(text)
    if names is None:
        return None
    known = {name: size for name in names if (size := sizes.get(name, unknown)) is not None}
    try:
        return evaluated(ir.SymbolicDim(text), known) if len(known) == len(names) else None
    except Exception:  # see `formula_names`
        return None


@lru_cache(1024)
def _parsed(text: str) -> tuple[ast.expr, dict[str, str]]:
    """The syntax tree of a formula, in which each name is a short one, and the names by short name."""
    short: dict[str, str] = {}

    def shorten(found: re.Match[str]) -> str:
        name = found.group()
        return name if found["call"] else f" {short.setdefault(name, f'v{len(short)}')} "

    try:
        if len(text) > _LONGEST:
            raise _UnknownError
        tree = ast.parse(_NAME_OR_CALL.sub(shorten, text).strip(), mode="eval").body
        _number(tree, dict.fromkeys(short.values(), Fraction(1)))
    except ZeroDivisionError:
        pass
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise _UnknownError from error
    return tree, {each: name for name, each in short.items()}


def _number(tree: ast.expr, values: Mapping[str, Fraction]) -> Fraction:
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return Fraction(number)
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return Fraction(_OPERATORS[type(op)](_number(left, values), _number(right, values)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return Fraction(_FUNCTIONS[name](*[_number(each, values) for each in args]))
    raise _UnknownError
