"""NNCF's post-training quantization as it comes, in an environment of its own (nncf, openvino): NETWORK, IMAGES, OUT.

NETWORK is an ONNX file, IMAGES an array (N, C, H, W) of calibration images in a .npy file, OUT the .xml file that is
written in OpenVINO's own format.
"""

from __future__ import annotations

import sys

sys.modules["openvino_telemetry"] = None  # nobody is told

import nncf  # noqa: E402
import numpy as np  # noqa: E402
import openvino  # noqa: E402

network, images, out = sys.argv[1:]
batch = np.load(images)
model = openvino.Core().read_model(network)
quantized = nncf.quantize(model, nncf.Dataset([each[None] for each in batch]), subset_size=len(batch))
openvino.save_model(quantized, out, compress_to_fp16=False)
