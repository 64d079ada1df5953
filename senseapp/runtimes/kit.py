"""Deployment kit of a file: a script and a notebook that run it on a picture without senseapp."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def kit_of(name: str, runtime: str, package: str) -> dict[str, str]:
    """Return the files of a kit by name, for a file called ``name`` that ``runtime`` of a ``package`` runs."""
    script = resources.files("senseapp.runtimes").joinpath("predict.py").read_text("utf-8")
    return {"predict.py": script, "predict.ipynb": json.dumps(_notebook(name, runtime, package), indent=1)}


def _notebook(name: str, runtime: str, package: str) -> dict[str, Any]:
    call = f'predict("{name}", "picture.jpg", "{runtime}")  # path of a picture of yours'
    about = f"# {name}\n\nRuns the network on a picture. Put this beside `{name}` and `predict.py`."
    code = {"install": f"%pip install --quiet {package} numpy pillow",
            "predict": f"from predict import predict\n\n{call}"}  # fmt: skip
    cells: list[dict[str, Any]] = [{"id": "about", "cell_type": "markdown", "metadata": {}, "source": about}]
    shared: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells += [{"id": each, "source": source, **shared} for each, source in code.items()]
    return {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
