"""`nhwc`: channels last, as TVM's ConvertLayout has it: data NWC, NHWC, NDHWC, kernels WIO, HWIO, DHWIO.

A depthwise kernel is HWIO too: where TVM writes HWOI for it, one of O and I has extent 1, so the memory is the same.
"""

from __future__ import annotations

from relayout_backends.channels import Channels


class Nhwc(Channels):
    """Channels last: convolutions on NHWC data with HWIO kernels, and pools, norms and resizes on NHWC data."""

    name = "nhwc"
    is_pure = True
    data, kernel, transposed_kernel = "NSC", "SIO", "SIO"
