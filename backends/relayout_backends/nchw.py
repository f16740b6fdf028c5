"""`nchw`: channels first: data NCW, NCHW, NCDHW, kernels OIW, OIHW, OIDHW (IOHW if transposed)."""

from __future__ import annotations

from relayout_backends.channels import Channels


class Nchw(Channels):
    """Channels first: convolutions on NCHW data with OIHW kernels, and pools, norms and resizes on NCHW data."""

    name = "nchw"
    is_pure = True
    data, kernel, transposed_kernel = "NCS", "OIS", "IOS"
