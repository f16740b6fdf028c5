"""ONNX files and graph JSON to and from one normalized `onnx_ir.Model`.

It also has what is known of a model before it runs: shapes, constants and tensor sizes.
"""
