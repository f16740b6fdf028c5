"""onnxruntime's blocked layout: N, C/block, H, W, block in memory, with the shape [N, C, H, W] for its operators.

The block is as wide as the machine's vectors, 16 floats with AVX-512 and 8 with AVX2 and below, and the operators do
not check the block of their kernel. So the installed onnxruntime is probed for the size, and every node that is written
has it in its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from relayout.backend import Extents, Implementation, Rewrite, Writing, rank_of
from relayout.errors import BackendError
from relayout.layout.layout import Layout
from relayout.layout.metadata_keys import BLOCK_KEY, CHANNELS_KEY
from relayout.model.runtime import import_onnxruntime

if TYPE_CHECKING:
    import onnx_ir as ir

DOMAIN = "com.microsoft.nchwc"
SIZES = (8, 16)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of `size` channels."""

    size: int

    @property
    def layout(self) -> Layout:
        """The layout of a blocked value.

        >>> str(Blocks(16).layout)
        'NCHWc[tile:16]'
        """
        return Layout.parse(f"NCHWc[tile:{self.size}]")

    def is_blocked(self, layout: Layout) -> bool:
        """Whether this is the layout of a value in these blocks, padded or not."""
        return layout.names == "NCHWc" and layout.tile(4) == self.size

    def padded(self, channels: int) -> int:
        """The channels in memory: `channels` rounded up to whole blocks.

        >>> Blocks(16).padded(24)
        32
        """
        return -(-channels // self.size) * self.size

    @staticmethod
    def hidden(extents: Extents) -> tuple[int | str | None, ...]:
        """[N, C/block, H, W, block] as the operators see it: [N, C, H, W]."""
        batch, blocks, height, width, block = extents
        assert isinstance(blocks, int)
        assert isinstance(block, int)
        return batch, blocks * block, height, width

    def read(self, writing: Writing, index: int = 0) -> ir.Value:
        """Input `index`, which is blocked, with the shape [N, C, H, W] that the operators see."""
        return writing.read(index, shape=self.hidden(writing.shape_of(index)))

    def write(
        self,
        writing: Writing,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        channels: int,
        shape: Extents | None = None,
    ) -> None:
        """Define the blocked result 0 by `operator`; the node's metadata has the block's size and the `channels` in
        use.

        `shape` is that of the operators, where the result's own dimensions do not determine it.
        """
        shape = shape or self.hidden(writing.shape_of(0, is_result=True))
        result = writing.emit(operator, inputs, attributes, shape=shape, domain=DOMAIN)
        self.note(result, channels)
        writing.set_result(0, result)

    def note(self, made: ir.Value, channels: int) -> None:
        """Write the block's size, and the number of channels in use, to the metadata of a value's producer."""
        node = made.producer()
        assert node is not None
        node.metadata_props.update({BLOCK_KEY: str(self.size), CHANNELS_KEY: str(channels)})


def block_of(node: ir.Node) -> int | None:
    """The block's size of a blocked operator of this backend; None for any other operator, such as a blocked one that
    onnxruntime wrote: its file does not say the size."""
    text = node.metadata_props.get(BLOCK_KEY, "") if node.domain == DOMAIN else ""
    return int(text) if text.isdecimal() else None


def blocked_way(node: ir.Node, blocks: Blocks, rewrite: Rewrite) -> Implementation:
    """The implementation of `node` with its first input and its first result in blocks, and all else as it is."""
    return Implementation(
        (blocks.layout, *[Layout.any(rank_of(value)) for value in node.inputs[1:]]),
        (blocks.layout, *[Layout.any(rank_of(value)) for value in node.outputs[1:]]),
        rewrite=rewrite,
        pads=True,
    )


def zeros_after(writing: Writing, value: ir.Value, shape: Extents, axis: int, count: int) -> ir.Value:
    """`value` with `count` zeros after it along `axis`, so that it has this shape, when the model runs."""
    import numpy as np

    pads = [0] * (2 * len(shape))
    pads[len(shape) + axis] = count
    if writing.opset < 11:
        return writing.emit("Pad", [value], {"pads": pads}, shape=shape)
    return writing.emit("Pad", [value, writing.constant("pads", np.array(pads, np.int64))], shape=shape)


@cache
def probe() -> int:
    """The block size of the installed onnxruntime on this machine. Raises BackendError if there is none that loads."""
    try:
        onnxruntime = import_onnxruntime()
    except ImportError as error:
        is_missing = find_spec("onnxruntime") is None
        state = "is not installed" if is_missing else "cannot be imported"
        raise BackendError(
            f"the size of onnxruntime's channel blocks depends on the machine, and onnxruntime {state}",
            where="backend x86-nchwc, option block",
            expected=" or ".join(map(str, SIZES)),
            found="no onnxruntime" if is_missing else f"{type(error).__name__}: {error}",
            hint="give the option: 16 for a target with AVX-512, 8 for any other x86-64; "
            f"or {'install' if is_missing else 'repair'} onnxruntime",
        ) from error
    import numpy as np
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (blocked,) = session.run(None, {"x": np.zeros((1, 4, 1, 1), np.float32)})
    except Exception as error:  # onnxruntime has exceptions of its own
        raise BackendError(
            "this onnxruntime has no blocked operators",
            where="backend x86-nchwc",
            expected=f"a build for x86-64 with the operators of {DOMAIN}",
            found=next(iter(str(error).splitlines()), type(error).__name__),
            hint="give the option block to write a model for another machine",
        ) from error
    return int(blocked.shape[1])
