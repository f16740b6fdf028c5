"""Graph JSON to and from ONNX."""
