"""All that is peculiar to onnxruntime: files, int8, times, kits."""
