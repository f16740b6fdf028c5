"""Layout strings (Glow, TVM, XLA), memory formats, and conversions between formats.

Pure values: this package knows no graph, no operator and no backend.
"""
