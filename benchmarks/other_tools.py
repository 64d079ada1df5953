"""ONNX files of other programs, made in an environment of their own: TOOL NETWORK OUT [IMAGES].

The environment has onnx, onnxruntime, nncf and onnxsim. TOOL is ``onnxsim`` or ``nncf``; IMAGES, for NNCF, is an
array (N, C, H, W) of calibration images in a .npy file.
"""

from __future__ import annotations

import sys

sys.modules["openvino_telemetry"] = None  # nobody is told

import numpy as np  # noqa: E402
import onnx  # noqa: E402

tool, network, out, *images = sys.argv[1:]
model = onnx.load(network)
if tool == "onnxsim":
    import onnxsim

    made, _ = onnxsim.simplify(model)
else:
    import nncf

    batch = np.load(images[0])
    name = model.graph.input[0].name
    dataset = nncf.Dataset([{name: each[None]} for each in batch])
    made = nncf.quantize(model, dataset, subset_size=len(batch))
onnx.save(made, out)
