"""Run an ONNX file that senseapp wrote on a picture: ``python predict.py model.onnx picture.jpg``.

Needs onnxruntime, numpy and pillow, and nothing of senseapp: preprocessing and class names are in the file.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

_TOP = 5


def preparation_of(session: Any) -> dict[str, Any]:
    """Return how a picture becomes an input: input_shape, mean, std, crop_pct, interpolation, channel_order, fit."""
    found: dict[str, Any] = json.loads(session.get_modelmeta().custom_metadata_map["senseapp.preparation"])
    return found


def prepare(picture: Image.Image, preparation: dict[str, Any]) -> NDArray[np.float32]:
    """Return a picture as an input, (1, C, H, W): resized, cropped to its middle, scaled and normalised."""
    channels, height, width = preparation["input_shape"]
    picture = picture.convert("L" if channels == 1 else "RGB")
    scaled = [math.floor(side / preparation["crop_pct"]) for side in (height, width)]
    ratio = min(picture.height / scaled[0], picture.width / scaled[1])
    fit = preparation.get("fit", "crop")
    if fit == "stretch":
        size = [width, height]
    elif fit == "letterbox":
        ratio = max(picture.height / height, picture.width / width)
        size = [max(1, round(side / ratio)) for side in picture.size]
    elif scaled[0] == scaled[1]:  # the shorter side gets this length
        shorter = min(picture.size)
        size = [scaled[0] if side == shorter else int(scaled[0] * side / shorter) for side in picture.size]
    else:
        size = [round(side / ratio) for side in picture.size]
    picture = picture.resize((size[0], size[1]), Image.Resampling[preparation["interpolation"].upper()])
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    picture = picture.crop((left, top, left + width, top + height))
    pixels = np.asarray(picture, dtype=np.float32).reshape(height, width, channels) / 255
    if preparation["channel_order"] == "bgr":
        pixels = pixels[:, :, ::-1]
    normalised = (pixels - np.float32(preparation["mean"])) / np.float32(preparation["std"])
    return np.ascontiguousarray(normalised.transpose(2, 0, 1)[None], dtype=np.float32)


def predict(model: str, picture: str) -> list[tuple[str, float]]:
    """Return the best classes of a picture file with their probabilities, the likeliest first."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    classes = json.loads(session.get_modelmeta().custom_metadata_map.get("senseapp.classes", "[]"))
    with Image.open(picture) as opened:
        images = prepare(opened, preparation_of(session))
    outputs = session.run(None, {session.get_inputs()[0].name: images})
    if len(outputs) != 1 or outputs[0].ndim != 2:
        listed = ", ".join(
            f"{each.name} {array.shape}" for each, array in zip(session.get_outputs(), outputs, strict=True)
        )
        raise SystemExit(f"This network returns no class scores of a picture but {listed}: read them as it needs.")
    scores = outputs[0][0].astype(np.float64)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    order = np.argsort(-shares)[:_TOP]
    return [(classes[index] if index < len(classes) else f"class {index}", float(shares[index])) for index in order]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python predict.py model.onnx picture.jpg")
    for name, share in predict(*sys.argv[1:]):
        sys.stdout.write(f"{100 * share:5.1f} %  {name}\n")
