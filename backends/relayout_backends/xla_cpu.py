"""`xla-cpu`: a constant that only dots read is column-major, and custom calls constrain the layouts of their operands.

After XLA's CPU backend, which makes a constant column-major when all of its users are dots, and its GPU backend, which
constrains the operands of a custom call (see `relayout_backends.column_major` for the dots).

    calls = {"com.acme::Convolve": {"operands": ["{1,3,2,0}", "{0,1,3,2}"], "result": "{1,3,2,0}"}}
    load_backend("xla-cpu", options={"custom_calls": calls})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation, rank_of
from relayout.errors import LayoutSyntaxError, UsageError
from relayout.layout.layout import Layout
from relayout_backends.channels import Unpacked
from relayout_backends.column_major import turn_constants, write_dots

if TYPE_CHECKING:
    import onnx_ir as ir

    from relayout.backend import Writing

CONSTRAINTS = "operand_layout_constraints"


class XlaCpu(Unpacked):
    """Constants that only dots read are column-major; all other operands keep ONNX's layout.

    `custom_calls` constrains operators (`domain::Name`, of one result, without a body in the model): the layouts of
    their `operands` and of their `result`, minor to major. Such a call gets the attribute
    `operand_layout_constraints`.
    """

    name = "xla-cpu"
    is_pure = True

    def __init__(
        self,
        context: Backend | None = None,
        *,
        custom_calls: Mapping[str, Mapping[str, str | Sequence[str]]] | None = None,
    ) -> None:
        """`custom_calls`: by operator (`domain::Name`), a table of its `operands` and its `result`, minor to major."""
        super().__init__(context)
        self._calls = {name: CustomCall.read(name, layouts) for name, layouts in (custom_calls or {}).items()}

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        call = self._calls.get(f"{node.domain}::{node.op_type}")
        if call is not None and CONSTRAINTS not in node.attributes:
            return (call.implementation(node),)
        return super().implementations(node)

    def prepare(self, model: ir.Model) -> bool:
        return write_dots(model)

    def finish(self, model: ir.Model, device: str = "") -> bool:
        """Transpose the constants after all layouts are decided: a constant costs nothing in any order."""
        return turn_constants(model, device)


@dataclass(frozen=True, slots=True)
class CustomCall:
    """The layouts of the operands and of the result of one custom operator; a result of None is as in the source."""

    operands: tuple[Layout, ...]
    result: Layout | None

    @classmethod
    def read(cls, name: str, layouts: Mapping[str, str | Sequence[str]]) -> CustomCall:
        """The constraints of an option. Raises UsageError."""
        where = f"custom call {name}"
        unknown = sorted({*layouts} - {"operands", "result"})
        if unknown:
            raise UsageError("an unknown key", where=where, expected="operands or result", found=unknown[0])
        operands, result = layouts.get("operands", ()), layouts.get("result")
        if isinstance(operands, str) or not isinstance(result, str | None):
            expected, found = "a list of operands' layouts, and the result's", f"{operands!r} and {result!r}"
            raise UsageError("not the layouts of a call", where=where, expected=expected, found=found)
        return cls(tuple(_read(text, where) for text in operands), None if result is None else _read(result, where))

    def implementation(self, node: ir.Node) -> Implementation:
        """`node` with its operands in the required layouts."""
        given = zip_longest(self.operands[: len(node.inputs)], _any(node.inputs))
        results = _any(node.outputs) if self.result is None else (self.result,)
        return Implementation(tuple(required or usual for required, usual in given), results, rewrite=self._write)

    def _write(self, writing: Writing) -> None:
        node = writing.node
        operands = [writing.read(n) if value is not None else None for n, value in enumerate(node.inputs)]
        attributes = {**node.attributes, CONSTRAINTS: [str(layout) for layout in self.operands]}
        if self.result is not None:
            attributes["result_layout"] = str(self.result)
        version = node.graph.opset_imports.get(node.domain, 1) if node.graph is not None else 1
        made = writing.emit(
            node.op_type,
            operands,
            attributes,
            shape=writing.shape_of(0, is_result=True),
            domain=node.domain,
            version=version,
            like=node.outputs[0],
        )
        writing.set_result(0, made)


def _read(text: str, where: str) -> Layout:
    """A layout of numbers. Raises UsageError."""
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        found = f"{error.found} in {text!r}, column {error.column}"
        raise UsageError("not a layout", where=where, expected=error.expected, found=found) from error
    if not layout.is_numbered:
        expected = "numbers of axes, minor to major, as in {1,3,2,0}"
        raise UsageError("a custom operator's axes have no names", where=where, expected=expected, found=text)
    return layout


def _any(values: Sequence[ir.Value | None]) -> tuple[Layout, ...]:
    return tuple(Layout.any(rank_of(value)) for value in values)
