"""Class names and preprocessing in the metadata of an ONNX file, and the files that go with it in a zip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import onnx

from senseapp.networks.loaded import Preprocessing
from senseapp.networks.onnx.metadata import LONGEST_NAMES

"""Characters of all class names together that a file carries."""


def with_metadata(network: bytes, *, preprocessing: Preprocessing | None, class_names: Sequence[str]) -> bytes:
    """Return ``network`` with what a program needs to run it on pictures; without ``preprocessing``, class names only.

    Keys are ``senseapp.preparation`` (JSON of input_shape, mean, std, crop_pct, interpolation, channel_order, fit) and
    ``senseapp.classes`` (JSON list, by output).
    """
    model = onnx.load_from_string(network)
    found: dict[str, str] = {}
    if preprocessing is not None:
        found["senseapp.preparation"] = json.dumps(
            {name: getattr(preprocessing, name) for name in Preprocessing.__slots__}, allow_nan=False
        )
    names = json.dumps(list(class_names))
    if class_names and len(names) <= LONGEST_NAMES:
        found["senseapp.classes"] = names
    kept = [entry for entry in model.metadata_props if entry.key not in found]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    for key, value in found.items():
        model.metadata_props.add(key=key, value=value)
    return bytes(model.SerializeToString())


def class_names_of(network: bytes) -> tuple[str, ...]:
    """Return the class names that an ONNX file of :func:`with_metadata` carries; empty where it has none."""
    model = onnx.load_from_string(network)
    found = {entry.key: entry.value for entry in model.metadata_props}
    return tuple(json.loads(found.get("senseapp.classes", "[]")))


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
