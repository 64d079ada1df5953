"""What files that onnxruntime runs do: ``python -m benchmarks.deploy``."""
