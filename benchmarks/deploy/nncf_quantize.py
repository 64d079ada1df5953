"""NNCF in an environment of its own (nncf, openvino): NETWORK, IMAGES and OUT, and ``--accuracy-control``.

NETWORK is an ONNX file, IMAGES an array (N, C, H, W) of calibration images in a .npy file, OUT the .xml file that is
written in OpenVINO's own format. Without more it is post-training quantization as it comes. Accuracy control puts
layers back in float until at most 1 % of the answers on the same images differ from the float network's.
"""

from __future__ import annotations

import sys

sys.modules["openvino_telemetry"] = None  # nobody is told

import nncf  # noqa: E402
import numpy as np  # noqa: E402
import openvino  # noqa: E402

MOST_CHANGED = 0.01
network, images, out, *more = sys.argv[1:]
batch = np.load(images)
model = openvino.Core().read_model(network)
compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
answers = [int(compiled([each[None]])[0].argmax()) for each in batch]


def agreement(candidate, samples):
    """Return the share of answers that are the float network's, and of each image whether it is."""
    found = [float(candidate([image])[0].argmax() == answer) for image, answer in samples]
    return float(np.mean(found)), found


if "--accuracy-control" in more:
    samples = [(each[None], answer) for each, answer in zip(batch, answers, strict=True)]
    quantized = nncf.quantize_with_accuracy_control(
        model,
        calibration_dataset=nncf.Dataset(samples, lambda sample: sample[0]),
        validation_dataset=nncf.Dataset(samples),
        validation_fn=agreement,
        max_drop=MOST_CHANGED,
        drop_type=nncf.DropType.ABSOLUTE,
        subset_size=len(batch),
    )
else:
    quantized = nncf.quantize(model, nncf.Dataset([each[None] for each in batch]), subset_size=len(batch))
openvino.save_model(quantized, out, compress_to_fp16=False)
