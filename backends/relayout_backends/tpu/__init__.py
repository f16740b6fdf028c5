"""TensorFlow's TPUs: channels last, and the first convolution over blocks of its image."""

from relayout_backends.tpu.backend import Tpu

__all__ = ["Tpu"]
