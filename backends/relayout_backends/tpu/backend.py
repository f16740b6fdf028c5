"""`tpu`: channels last as `nhwc` has it, and a strided convolution of few channels over blocks of its image.

A matrix unit contracts 128 channels at a time; the first convolution of an image model has 3. TensorFlow's automatic
space-to-depth makes channels of the positions within a block, so that a 7x7 kernel over 3 channels becomes a 4x4 one
over 12. Here that is one more implementation of the convolution, with data in `NHWh[tile:2]w[tile:2]C`: where an input
is free the caller feeds it so, elsewhere one transpose makes it together with any other permutation.

    load_backend("tpu", options={"max_batch": 32})
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation
from relayout.errors import UsageError
from relayout_backends.nhwc import Nhwc
from relayout_backends.tpu.blocked_convolution import over, over_blocks
from relayout_backends.tpu.strided_convolution import strided_convolution

if TYPE_CHECKING:
    import onnx_ir as ir


class Tpu(Nhwc):
    """Channels last; convolutions of few channels over blocks of their image where that is cheaper.

    Such a convolution is offered for at most `max_channels` channels and a batch of at most `max_batch` (8 each, as in
    TensorFlow's pass; an unknown batch counts as 1), and only where less streams through the matrix unit than without.
    `space_to_depth=False` offers none.
    """

    name = "tpu"
    is_pure = True

    def __init__(
        self,
        context: Backend | None = None,
        *,
        space_to_depth: bool = True,
        max_batch: int = 8,
        max_channels: int = 8,
    ) -> None:
        """`space_to_depth`: whether convolutions are offered over blocks at all. `max_batch`: for batches of up to so
        many images. `max_channels`: for images of up to so many channels."""
        super().__init__(context)
        for name, most in (("max_batch", max_batch), ("max_channels", max_channels)):
            if most < 0:
                raise UsageError("a negative number", where=name, expected="0 or more", found=str(most))
        self._max_batch = max_batch if space_to_depth else -1
        self._max_channels = max_channels

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        (plain,) = super().implementations(node)
        convolution = strided_convolution(node)
        usual = over(convolution) if convolution is not None else None
        if convolution is None or usual is None:
            return (plain,)
        if convolution.batch > self._max_batch or convolution.channels > self._max_channels:
            return (plain,)
        blocked = [each for each in over_blocks(convolution) if each.bytes_streamed < usual.bytes_streamed]
        least = min(each.bytes_streamed for each in (usual, *blocked))
        return (
            replace(plain, cost=usual.bytes_streamed - least),
            *(each.implementation(plain, each.bytes_streamed - least) for each in blocked),
        )
