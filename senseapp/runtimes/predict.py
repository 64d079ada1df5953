"""Run a file that senseapp wrote on a picture: ``python predict.py model.onnx picture.jpg [openvino]``.

Needs onnxruntime or openvino, or ai-edge-litert for a ``.tflite`` file, numpy and pillow, and nothing of senseapp:
preprocessing and class names are in the file.
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_TOP = 5  # most probable classes that are printed
_KEYS = (
    "senseapp.preparation", "senseapp.classes", "senseapp.score_threshold", "senseapp.original_score_threshold"
)  # fmt: skip


Run = Callable[[NDArray[np.float32]], list[tuple[str, NDArray[Any]]]]


def in_onnxruntime(model: str) -> tuple[dict[str, str], Run]:
    """Return the metadata of a file, and a function from an input to its named outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    taken, outputs = session.get_inputs()[0], [each.name for each in session.get_outputs()]

    def run(images: NDArray[np.float32]) -> list[tuple[str, NDArray[Any]]]:
        found = session.run(None, {taken.name: as_taken(images, taken.shape, taken.type)})
        return list(zip(outputs, found, strict=True))

    return dict(session.get_modelmeta().custom_metadata_map), run


def as_taken(images: NDArray[np.float32], shape: list[Any], kind: str) -> NDArray[Any]:
    """Return images as a file takes them that another program wrote: channels last, several, in other numbers."""
    if shape[1] != images.shape[1] == shape[3]:
        images = images.transpose(0, 2, 3, 1)
    number = kind.removeprefix("tensor(").removesuffix(")")
    wanted = np.dtype({"float": "float32", "double": "float64"}.get(number, number))
    batch = shape[0] if isinstance(shape[0], int) else 1
    return (images.round() if wanted.kind in "iu" else images).astype(wanted).repeat(batch, axis=0)


def in_openvino(model: str) -> tuple[dict[str, str], Run]:
    """Return the same of OpenVINO, which is compiled for the input's shape and computes in float32, not in 16 bits."""
    import openvino

    core = openvino.Core()
    network = core.read_model(model)

    def run(images: NDArray[np.float32]) -> list[tuple[str, NDArray[Any]]]:
        network.reshape({0: images.shape})
        compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled([images])
        return [(each.get_any_name(), found[each]) for each in compiled.outputs]

    stored = {key: ["framework", key] for key in _KEYS}
    return {key: network.get_rt_info(at).astype(str) for key, at in stored.items() if network.has_rt_info(at)}, run


def in_litert(model: str) -> tuple[dict[str, str], Run]:
    """Return the same of LiteRT, whose files take one picture a call."""
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.interpreter import Interpreter

    held = schema.ModelT.InitFromPackedBuf(Path(model).read_bytes(), 0)
    texts = {each.name.decode(): held.buffers[each.buffer].data for each in held.metadata or ()}
    network = Interpreter(model).get_signature_runner()
    ((name, taken),) = network.get_input_details().items()
    metadata = {key: bytes(text).decode() for key, text in texts.items() if key in _KEYS and text is not None}

    def scale_of(end: dict[str, Any]) -> tuple[float, int]:
        held = end["quantization_parameters"]
        return (held["scales"][0], held["zero_points"][0]) if len(held["scales"]) else (0, 0)  # 0: it is float32

    def run(images: NDArray[np.float32]) -> list[tuple[str, NDArray[Any]]]:
        scale, zero = scale_of(taken)
        fed = np.clip(np.round(images / scale) + zero, -128, 127).astype(taken["dtype"]) if scale else images
        ends = {each: scale_of(end) for each, end in network.get_output_details().items()}
        found = network(**{name: fed})
        return [
            (each, (found[each].astype(np.float32) - at[1]) * at[0] if at[0] else found[each])
            for each, at in ends.items()
        ]

    return metadata, run


RUNTIMES = {"onnxruntime": in_onnxruntime, "openvino": in_openvino, "litert": in_litert}


def prepare(picture: Image.Image, preparation: dict[str, Any]) -> NDArray[np.float32]:
    """Return a picture as an input, (1, C, H, W): resized, cropped to its middle, scaled and normalised."""
    channels, height, width = preparation["input_shape"]
    picture = picture.convert("L" if channels == 1 else "RGB")
    scaled = [math.floor(side / preparation["crop_pct"]) for side in (height, width)]
    ratio = min(picture.height / scaled[0], picture.width / scaled[1])
    fit = preparation.get("fit", "crop")
    if fit == "stretch":
        size = [width, height]
    elif fit in ("letterbox", "corner"):
        ratio = max(picture.height / height, picture.width / width)
        size = [max(1, round(side / ratio)) for side in picture.size]
    elif scaled[0] == scaled[1]:  # the shorter side gets this length
        shorter = min(picture.size)
        size = [scaled[0] if side == shorter else int(scaled[0] * side / shorter) for side in picture.size]
    else:
        size = [round(side / ratio) for side in picture.size]
    picture = picture.resize((size[0], size[1]), Image.Resampling[preparation["interpolation"].upper()])
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    left, top = (0, 0) if fit == "corner" else (left, top)
    canvas = Image.new(picture.mode, (width, height), "#727272" if fit in ("letterbox", "corner") else "black")
    canvas.paste(picture, (-left, -top))
    pixels = np.asarray(canvas, dtype=np.float32).reshape(height, width, channels) / 255
    if preparation["channel_order"] == "bgr":
        pixels = pixels[:, :, ::-1]
    normalised = (pixels - np.float32(preparation["mean"])) / np.float32(preparation["std"])
    return np.ascontiguousarray(normalised.transpose(2, 0, 1)[None], dtype=np.float32)


def predict(model: str, picture: str, runtime: str = "") -> list[tuple[str, float]]:
    """Return the best classes of a picture file with their probabilities, the likeliest first."""
    metadata, run = RUNTIMES[runtime or ("litert" if model.endswith(".tflite") else "onnxruntime")](model)
    classes = json.loads(metadata.get(_KEYS[1], "[]"))
    if _KEYS[0] not in metadata:
        raise SystemExit("The file does not say how a picture becomes its input: make it again.")
    with Image.open(picture) as opened:
        # How a picture becomes an input: input_shape, mean, std, crop_pct, interpolation, channel_order, fit.
        images = prepare(opened, json.loads(metadata[_KEYS[0]]))
    outputs = run(images)
    if len(outputs) != 1 or outputs[0][1][0].squeeze().ndim > 1:
        listed = ", ".join(f"{printable(name)} {array.shape}" for name, array in outputs)
        own, original = (metadata.get(key) for key in _KEYS[2:])
        told = f" Detections count from a score of {own} on, those of the original from {original}." if own else ""
        raise SystemExit(
            f"This network returns no class scores of a picture but {listed}: read them as it needs.{told}"
        )
    scores = outputs[0][1][0].astype(np.float64).ravel()
    are_shares = scores.min() >= 0 and math.isclose(scores.sum(), 1, abs_tol=0.01)  # of a file that ends in a softmax
    shares = scores if are_shares else np.exp(scores - scores.max())
    shares /= shares.sum()
    order = np.argsort(-shares)[:_TOP]
    return [(classes[index] if index < len(classes) else f"class {index}", float(shares[index])) for index in order]


def printable(name: str) -> str:
    """Return a name for a terminal, without characters that it would act on."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], *([each] for each in RUNTIMES)):
        sys.exit(f"usage: python predict.py model.onnx picture.jpg [{'|'.join(RUNTIMES)}]")
    for name, share in predict(*sys.argv[1:]):
        sys.stdout.write(f"{100 * share:5.1f} %  {printable(name)}\n")
