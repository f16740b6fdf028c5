"""Convolutions and sampling operators: data, kernel and result each have their own layout."""

from __future__ import annotations

from relayout.ops.named_axes import letters_of, native_letters
from relayout.ops.node_reader import NoRuleError, Reading
from relayout.ops.registry import row
from relayout.ops.rule import Fixed, Shared


def _convolution(node: Reading, kernel: int, data: tuple[int, ...], native_kernel: str) -> Fixed:
    rank = node.rank(0)
    axis_names = letters_of(node, rank)
    native = native_letters(rank)
    native_weight = native_kernel + native[2:]
    weight = letters_of(node, rank, "kernel_layout", native_weight)
    result = letters_of(node, rank, "out_layout", native) if node.attribute("out_layout") is not None else axis_names

    def names(index: int, data_letters: str, weight_letters: str) -> str | None:
        if not node.has(index):
            return None
        return weight_letters if index == kernel else data_letters if index in data else None

    count = range(len(node.node.inputs))
    return Fixed(
        tuple(names(i, axis_names, weight) for i in count),
        (result,),
        tuple(names(i, native, native_weight) for i in count),
        (native,),
        kernel=kernel,
        permutable_within=_mixed_channels(node, kernel, axis_names, weight, result),
    )


def _mixed_channels(node: Reading, kernel: int, axis_names: str, weight: str, result: str) -> tuple[Shared, ...]:
    """The channels that may be permuted, if they are permuted alike in the kernel and the bias."""
    if node.node.op_type not in ("Conv", "ConvTranspose"):
        return ()
    inward, outward = (False, 0, axis_names.index("C")), (True, 0, result.index("C"))
    bias: Shared = ((False, 2, 0),) if node.has(2) else ()
    if node.integer("group", 1) == 1:
        return (
            (inward, (False, kernel, weight.index("I"))),
            (outward, (False, kernel, weight.index("O")), *bias),
        )
    # A depthwise kernel: its channels are permuted with those of the data and the result.
    own = (False, kernel, weight.index("I" if node.node.op_type == "ConvTranspose" else "O"))
    kernels = node.extents(kernel)
    deep = kernels[weight.index("O" if node.node.op_type == "ConvTranspose" else "I")]
    is_depthwise = deep == 1 and node.integer("group", 1) == kernels[own[2]]
    return ((inward, own, outward, *bias),) if is_depthwise else ()


@row("fixed", "Conv")
@row("fixed", "ConvInteger", since=10)
def convolution(node: Reading) -> Fixed:
    return _convolution(node, 1, (0,), "OI")


@row("fixed", "ConvTranspose")
def transposed_convolution(node: Reading) -> Fixed:
    return _convolution(node, 1, (0,), "IO")


@row("fixed", "QLinearConv", since=10)
def quantised_convolution(node: Reading) -> Fixed:
    return _convolution(node, 3, (0,), "OI")


@row("fixed", "DeformConv", since=19)
def deformable_convolution(node: Reading) -> Fixed:
    if node.rank() != 4:
        raise NoRuleError
    return _convolution(node, 1, (0, 2, 4), "OI")


@row("fixed", "RoiAlign", since=10)
@row("fixed", "MaxRoiPool")
@row("fixed", "GridSample", since=16)
def sampling(node: Reading) -> Fixed:
    """Boxes and grids keep their own layout."""
    rank = node.rank(0)
    axis_names, native = letters_of(node, rank), native_letters(rank)
    rest = (None,) * (len(node.node.inputs) - 1)
    return Fixed((axis_names, *rest), (axis_names,), (native, *rest), (native,))
