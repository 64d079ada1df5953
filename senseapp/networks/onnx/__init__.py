"""ONNX files as torch networks: read, normalised, built from an operator table, and compared with onnxruntime."""
