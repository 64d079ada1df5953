"""Class names and preprocessing in the metadata of an ONNX file, and the files that go with it in a zip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import onnx
from onnx import StringStringEntryProto

from senseapp.networks.loaded import Preprocessing
from senseapp.networks.onnx.metadata import (
    CLASSES,
    LONGEST_NAMES,
    ORIGINAL_THRESHOLD,
    PREPARATION,
    THRESHOLD,
)


def with_metadata(
    network: bytes,
    *,
    preprocessing: Preprocessing | None,
    class_names: Sequence[str],
    thresholds: tuple[float, float] | None = None,
) -> bytes:
    """Return ``network`` with what a program needs to run it on pictures, as far as it is given.

    Keys are ``senseapp.preparation`` (JSON of input_shape, mean, std, crop_pct, interpolation, channel_order, fit),
    ``senseapp.classes`` (JSON list, by output), and ``senseapp.score_threshold`` and
    ``senseapp.original_score_threshold``: the scores from which answers count in this file and in the original.
    """
    found: dict[str, str] = {}
    if preprocessing is not None:
        found[PREPARATION] = json.dumps(
            {name: getattr(preprocessing, name) for name in Preprocessing.__slots__}, allow_nan=False
        )
    names = json.dumps(list(class_names))
    if class_names and len(names) <= LONGEST_NAMES:
        found[CLASSES] = names
    if thresholds is not None:
        found |= dict(zip((THRESHOLD, ORIGINAL_THRESHOLD), map(repr, thresholds), strict=True))

    model = onnx.load_from_string(network)
    others = [entry for entry in model.metadata_props if entry.key not in found]
    new = [StringStringEntryProto(key=key, value=value) for key, value in found.items()]
    del model.metadata_props[:]
    model.metadata_props.extend([*others, *new])
    return bytes(model.SerializeToString())


def class_names_of(network: bytes) -> tuple[str, ...]:
    """Return the class names that an ONNX file of :func:`with_metadata` carries; empty where it has none."""
    model = onnx.load_from_string(network)
    found = {entry.key: entry.value for entry in model.metadata_props}
    return tuple(json.loads(found.get(CLASSES, "[]")))


def kit_files(name: str, *, runtime: str = "onnxruntime") -> dict[str, str]:
    """Return the script and the notebook that run the file called ``name`` on a picture, by their names.

    ``runtime`` is both the name of the package that runs it and the one that the script knows it by.
    """
    script = resources.files(__package__).joinpath("predict.py").read_text("utf-8")
    return {"predict.py": script, "predict.ipynb": json.dumps(_notebook(name, runtime), indent=1)}


def _notebook(name: str, runtime: str) -> dict[str, Any]:
    call = f'predict("{name}", "picture.jpg", "{runtime}")  # path of a picture of yours'
    cells = [
        _cell("about", f"# {name}\n\nRuns the network on a picture. Put this beside `{name}` and `predict.py`."),
        _cell("install", f"%pip install --quiet {runtime} numpy pillow"),
        _cell("predict", f"from predict import predict\n\n{call}"),
    ]
    return {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}


def _cell(name: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"id": name, "metadata": {}, "source": source}
    if name == "about":
        return cell | {"cell_type": "markdown"}
    return cell | {"cell_type": "code", "execution_count": None, "outputs": []}
