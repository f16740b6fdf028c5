"""ONNX files and graph JSON to and from one normalized `onnx_ir.Model`.

It also computes shapes, constants and tensor sizes before the run.
"""
