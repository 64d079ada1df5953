"""What ONNX files hold beside the network: metadata, weights stored as integers, and a kit beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from typing import Any

import onnx

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.onnx.graph import opset_of
from senseapp.networks.onnx.metadata import CLASSES, LONGEST_NAMES, ORIGINAL_THRESHOLD, PREPARATION, THRESHOLD
from senseapp.runtimes.base import QuantizedWeights, Runtime
from senseapp.runtimes.onnxruntime.integer_weights import with_quantized_weights


class OnnxFormat(Runtime):
    """Runtimes whose files are ONNX."""

    def format_version(self, content: bytes) -> int:
        """Check the file by ONNX's own checker, and return its operator set."""
        model = onnx.load_from_string(content)
        onnx.checker.check_model(model)
        return opset_of(model)

    def described(
        self,
        content: bytes,
        *,
        preprocessing: Preprocessing | None,
        class_names: Sequence[str],
        thresholds: tuple[float, float] | None = None,
    ) -> bytes:
        """Return the file with what a program needs to run it on pictures in its metadata, as far as it is given.

        Keys are ``senseapp.preparation`` (JSON of input_shape, mean, std, crop_pct, interpolation, channel_order, fit),
        ``senseapp.classes`` (JSON list, by output), and ``senseapp.score_threshold`` and
        ``senseapp.original_score_threshold``: the scores from which answers count in this file and in the original.
        """
        found: dict[str, str] = {}
        if preprocessing is not None:
            told = {name: getattr(preprocessing, name) for name in Preprocessing.__slots__}
            found[PREPARATION] = json.dumps(told, allow_nan=False)
        names = json.dumps(list(class_names))
        if class_names and len(names) <= LONGEST_NAMES:
            found[CLASSES] = names
        if thresholds is not None:
            found |= dict(zip((THRESHOLD, ORIGINAL_THRESHOLD), map(repr, thresholds), strict=True))
        model = onnx.load_from_string(content)
        others = [entry for entry in model.metadata_props if entry.key not in found]
        del model.metadata_props[:]
        model.metadata_props.extend(others)
        for key, value in found.items():
            model.metadata_props.add(key=key, value=value)
        return bytes(model.SerializeToString())

    def class_names(self, content: bytes) -> tuple[str, ...]:
        """Return the class names in the file's metadata."""
        found = {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}
        return tuple(json.loads(found.get(CLASSES, "[]")))

    def kit(self, name: str) -> dict[str, str]:
        """Return a script and a notebook that run a file of :meth:`described`."""
        script = resources.files("senseapp.runtimes.onnxruntime.kit").joinpath("predict.py").read_text("utf-8")
        return {"predict.py": script, "predict.ipynb": json.dumps(_notebook(name, self.description.name), indent=1)}

    def with_quantized_weights(
        self, content: bytes, nodes: Collection[str], integers: Mapping[str, IntegerWeight]
    ) -> QuantizedWeights:
        """Return the file with weights in 4 bits in onnxruntime's operator for them, others as integers."""
        return with_quantized_weights(content, nodes, integers)


def _notebook(name: str, runtime: str) -> dict[str, Any]:
    call = f'predict("{name}", "picture.jpg", "{runtime}")  # path of a picture of yours'
    about = f"# {name}\n\nRuns the network on a picture. Put this beside `{name}` and `predict.py`."
    code = {"install": f"%pip install --quiet {runtime} numpy pillow",
            "predict": f"from predict import predict\n\n{call}"}  # fmt: skip
    cells: list[dict[str, Any]] = [{"id": "about", "cell_type": "markdown", "metadata": {}, "source": about}]
    shared: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells += [{"id": each, "source": source, **shared} for each, source in code.items()]
    return {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
