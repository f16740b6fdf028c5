"""The numbers of random graphs: each value twice, the second time with the noise that another order of sums may add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "BLOWN_UP", "EXACT", "HIGHEST", "JUMPING", "LARGEST", "NOISE", "NORMALIZING", "SUMMING", "Rejected", "Val",
    "is_near", "tolerance",
]  # fmt: skip

LARGEST = 6000
HIGHEST = 2000.0
F, F16, D, I64, I32, I8, U8, B = np.float32, np.float16, np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_
NOISE = {np.dtype(F16): 4e-3, np.dtype(F): 2e-6, np.dtype(D): 1e-13}
# Operators that only move, compare or choose numbers: they add no rounding of their own.
EXACT = frozenset(
    "Abs And ArgMax ArgMin BitShift Ceil Clip Compress Concat DepthToSpace Dropout Expand Flatten Floor Gather "
    "GatherElements GatherND Identity If LeakyRelu Max MaxPool MaxUnpool Min Neg Not OneHot Or Pad ReduceMax ReduceMin "
    "Relu Reshape ReverseSequence Round Scatter ScatterElements ScatterND Shape Sign Size Slice SpaceToDepth Split "
    "Squeeze ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor EyeLike Constant "
    "SequenceConstruct SequenceAt GlobalMaxPool MaxRoiPool Unique NonZero ConstantOfShape CenterCropPad".split()
)
# So many times the noise may come out of a node.
BLOWN_UP = 200
# They sum up what may cancel out: what is lost goes by the sizes of what is summed, not by that of the sum.
SUMMING = frozenset(
    "AveragePool Conv ConvTranspose CumSum Einsum Gemm GlobalAveragePool MatMul ReduceMean ReduceSum".split()
)
# They divide by how far numbers are apart, and where these are equal by next to nothing: what is lost of their mean is
# blown up, however exact the numbers are.
NORMALIZING = frozenset("GroupNormalization InstanceNormalization LayerNormalization MeanVarianceNormalization".split())
# Their results jump, as do those that are no real numbers: which side an operand is on must not hang on its rounding.
JUMPING = frozenset("Ceil Floor Hardmax Mod Round Shrink Sign ThresholdedRelu".split())


class Rejected(Exception):  # noqa: N818
    """This node cannot be, or would make the comparison meaningless; nothing was added."""


@dataclass(frozen=True, eq=False)
class Val:
    """A value of the graph with its numbers, clean and with noise."""

    name: str
    array: np.ndarray
    noisy: np.ndarray
    exact: bool
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        return int(self.array.ndim)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def disturbed(self, seed: int) -> np.ndarray:
        """The numbers with noise, also where they are exact."""
        if not self.exact or self.dtype not in NOISE:
            return self.noisy
        sign = np.random.default_rng(seed).choice((-1.0, 1.0), self.shape)
        return np.asarray(self.array.astype(D) * (1 + sign * NOISE[self.dtype])).astype(self.dtype)

    @property
    def mirrored(self) -> np.ndarray:
        """The numbers with the opposite noise."""
        if self.dtype.kind != "f":
            return self.array
        return np.asarray(2 * self.array.astype(D) - self.noisy.astype(D)).astype(self.dtype)


def tolerance(value: Val) -> float:
    if value.dtype.kind != "f" or value.array.size == 0:
        return 0.0
    spread = float(np.abs(value.noisy.astype(D) - value.array.astype(D)).max())
    return 6 * spread + 4 * NOISE[value.dtype] * max(1e-3, float(np.abs(value.array.astype(D)).max()))


def is_near(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two results are the same but for what noise makes of them."""
    if one.shape != other.shape or one.dtype.kind != "f":
        return np.array_equal(one, other)
    scale = float(np.abs(one.astype(D)).max(initial=0.0))
    apart = float(np.abs(one.astype(D) - other.astype(D)).max(initial=0.0))
    return apart <= BLOWN_UP * NOISE.get(one.dtype, 0.0) * scale
