"""Values of random graphs: each has exact numbers, and numbers with the noise of another order of summation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 6000
HIGHEST = 2000.0
F, F16, D, I64, I32, I8, U8, B = np.float32, np.float16, np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_
NOISE = {np.dtype(F16): 4e-3, np.dtype(F): 2e-6, np.dtype(D): 1e-13}
# Operators that only move, compare or select numbers: they do not round.
EXACT = frozenset(
    "Abs And ArgMax ArgMin BitShift Ceil Clip Compress Concat DepthToSpace Dropout Expand Flatten Floor Gather "
    "GatherElements GatherND Identity If LeakyRelu Max MaxPool MaxUnpool Min Neg Not OneHot Or Pad ReduceMax ReduceMin "
    "Relu Reshape ReverseSequence Round Scatter ScatterElements ScatterND Shape Sign Size Slice SpaceToDepth Split "
    "Squeeze ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor EyeLike Constant "
    "SequenceConstruct SequenceAt GlobalMaxPool MaxRoiPool Unique NonZero ConstantOfShape CenterCropPad".split()
)
# The largest factor by which a node may amplify the noise.
BLOWN_UP = 200
# Sums may cancel, so their rounding error depends on the size of the summands, not of the sum.
SUMMING = frozenset(
    "AveragePool Conv ConvTranspose CumSum Einsum FusedMatMul Gemm GlobalAveragePool MatMul MatMulIntegerToFloat "
    "ReduceMean ReduceSum".split()
)
# Normalizations divide by the deviation, which is nearly 0 for equal numbers. This amplifies the rounding error of the
# mean, however exact the numbers are.
NORMALIZING = frozenset(
    "GroupNormalization InstanceNormalization LayerNormalization MeanVarianceNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization".split()
)
# Discontinuous operators, like those with integer or Boolean results: rounding must not flip them.
JUMPING = frozenset("Ceil DynamicQuantizeMatMul Floor Hardmax Mod Round Shrink Sign ThresholdedRelu".split())


class Rejected(Exception):  # noqa: N818
    """The node is invalid, or would make the comparison meaningless. Nothing was added."""


@dataclass(frozen=True, eq=False)
class Val:
    """A value of the graph with its numbers, without and with noise."""

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
        """The numbers with noise, even if they are exact."""
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
    """Whether two results differ by noise only."""
    if one.shape != other.shape or one.dtype.kind != "f":
        return np.array_equal(one, other)
    scale = float(np.abs(one.astype(D)).max(initial=0.0))
    apart = float(np.abs(one.astype(D) - other.astype(D)).max(initial=0.0))
    return apart <= BLOWN_UP * NOISE.get(one.dtype, 0.0) * scale
