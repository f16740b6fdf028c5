"""The price of the answer, computed again from the legal model alone.

A Transpose of data reads and writes its operand, 2 bytes of memory traffic a byte, unless it moves axes of extent 1
alone; stored constants are turned before the run. The answer cannot cost less than that: a cost model that priced
conversions at nothing would show here. What is not in the graph is not computed: what backends charge for conversions
of their own, for implementations and for transfers. Dims without a known size count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.report.schema import Finding, Report
from relayout.verification.axis_names import walk
from relayout.verification.constants import constants_of

__all__ = ["check_price"]


def check_price(report: Report, model: ir.Model, backend: Backend, dims: Mapping[str, int] | None) -> Iterator[Finding]:
    """Yield a finding if the model's Transposes cost more than `report` says that all conversions together do."""
    if report.status not in ("optimal", "feasible") or report.cost is None or _has_own_prices(backend):
        return
    constants = constants_of(model.graph)
    sizes = [
        _traffic(node, dims or {})
        for node in walk(model.graph)
        if _is_transpose(node) and node.inputs[0] not in constants
    ]
    moving = [size for size in sizes if size]
    price, unit = (len(moving), "Transposes") if report.objective == "transposes" else (sum(moving), "bytes")
    if price > report.cost:
        message = "the Transposes of the model cost more than the report says of all conversions"
        yield Finding(rule="price", expected=f"at most {report.cost} {unit}", found=f"{price} {unit}", message=message)


def _has_own_prices(backend: Backend) -> bool:
    """Whether the backend, or one of a device, states what its conversions cost."""
    each = [backend, *(backend.at(device) for device in backend.devices())]
    own = ("conversion_cost", "conversion")
    return any(getattr(type(one), name) is not getattr(Backend, name) for one in each for name in own)


def _is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and node.domain in ("", "ai.onnx") and node.inputs[0] is not None


def _traffic(node: ir.Node, dims: Mapping[str, int]) -> int:
    """The bytes that a Transpose reads and writes; 0 if it moves nothing or its size is not known."""
    value = node.inputs[0]
    if value is None or value.shape is None or value.dtype is None or value.dtype == ir.DataType.STRING:
        return 0
    extents = [extent if isinstance(extent, int) else dims.get(str(extent.value), 0) for extent in value.shape]
    perm = node.attributes.get_ints("perm", tuple(reversed(range(len(extents))))) or ()
    long = [axis for axis in perm if extents[axis] != 1]
    return 0 if long == sorted(long) else 2 * math.ceil(math.prod(extents) * value.dtype.bitwidth / 8)
