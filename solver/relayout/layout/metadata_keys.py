"""The keys of the metadata that relayout reads and writes on nodes, values and constants.

They are part of the file format and must not change: files of earlier versions have them.
"""

from __future__ import annotations

LAYOUT_KEY = "relayout.layout"
"""On a value: its layout, with black boxes."""

ORDER_KEY = "relayout.order"
"""On a value that is permuted: the source's axes in the value's order, `0,2,3,1`."""

OPERAND_ORDERS_KEY = "relayout.operand_orders"
"""On a node of which an implementation has layouts by numbers: the order of each input and then of each result,
`;0,2,3,1`, in the axes that it has in the source, where these are not in the source's order. The order noted on a value
is another: readers behind different Transposes share a value. By names that the graph does not determine: the names,
`W,H,N,C`."""

ATOMS_KEY = "relayout.atoms"
"""On a value whose dimensions are not whole axes: the atoms of each dimension."""

BOUNDARY_LAYOUT_KEY = "relayout.boundary_layout"
"""On an input or output of the graph: the layout that the caller requires, or `any`."""

EXTENTS_KEY = "relayout.extents"
"""On an output of a legal model with dims that values inside have under other names: the extents of these dims as
formulas of the inputs' dims, an empty text where nothing tells them, and null for the other dims, in JSON. Inference
does not know the results of operators of a backend's own."""

SOURCE_KEY = "relayout.source"
"""On a constant that exists in several layouts: its name in the source."""

TRANSFORM_KEY = "relayout.transform"
"""On a constant that was converted: the steps from the source's data to its own, in JSON. On one without data, the
owner of the data must apply them."""

DEVICE_KEY = "relayout.device"
"""On a node, an input or an output, if the backend has several devices: its device."""

WRITTEN_FOR_KEY = "relayout.written_for"
"""On a node that was written, perhaps with others, in place of an operator of the source: that operator."""

WRITTEN_KEY = "relayout.written_at"
"""On a node that was rewritten for a device: that device."""

BACKEND_KEY = "relayout.backend"
"""On a legal model: the name of the backend that it is legal for."""

BACKEND_OPTIONS_KEY = "relayout.backend_options"
"""On a legal model: the options of that backend, in JSON; absent where it has none."""

BLOCK_KEY = "relayout.block"
"""On an operator of onnxruntime's blocked layout: the number of channels of a block."""

CHANNELS_KEY = "relayout.channels"
"""On an operator of onnxruntime's blocked layout: the number of channels of the source, without padding."""

NODE_COST_KEY = "relayout.node_cost"
"""On a node that a backend's rewrite wrote: the cost that was charged for it, with the operator and the
shapes that the cost is for (see `relayout.backend.noted_costs`)."""

CONVERSION_KEY = "relayout.conversion"
"""On a Pad or Slice that a conversion between formats added: `pad` or `crop`."""

VERSION_KEY = "relayout.version"
"""On a legal model: the version of relayout that made it."""

OBJECTIVE_KEY = "relayout.objective"
"""On a legal model: the objective that was minimized."""

COST_KEY = "relayout.cost"
"""On a legal model: its cost, in the objective's unit."""

BOUND_KEY = "relayout.bound"
"""On a legal model: no legal model over the formats in reach costs less."""

INLINED_KEY = "relayout.inlined"
"""On a legal model without functions, whose bodies stand in place of the operators: `true`."""

SOURCE_HASH_KEY = "relayout.source_sha256"
"""On a legal model: the SHA-256 of the source's ONNX file, or of what a source in memory would be written as, without
external data. A source that was an onnx_ir.Model has none."""
