"""What goes with an ONNX file: class names and preprocessing in its metadata, a script, a notebook, a readme."""
