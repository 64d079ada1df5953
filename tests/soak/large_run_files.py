"""Run files of as many layers and levels as are taken, in which each layer's curve has a shape of its own."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

_SOUND = Path(__file__).parents[1] / "fixtures" / "main_2026_11" / "sparsity_quick.senserun.zip"


def large_run_file(layers: int, levels: int, *, alike: bool = True, seed: int = 0) -> bytes:
    """Return a run file of ``layers`` times ``levels`` estimates; ``alike`` ones make a solver's work hardest."""
    with zipfile.ZipFile(_SOUND) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    result = json.loads(members["result.json"])
    data, chance = result["data"], random.Random(seed)
    amounts = [round((1 + level) / (1 + levels), 6) for level in range(levels)]
    layer, estimate = data["profile"]["layers"][1], data["estimates"][0]
    names = [f"blocks.{number}.conv" for number in range(layers)]
    data["profile"]["layers"] = [layer | {"name": name, "order": place} for place, name in enumerate(names)]
    data["profile"]["num_params"] = layers * layer["num_params"]
    data["profile"]["macs"] = layers * layer["macs"]
    data["spec"]["sensitivity"] |= {"levels": amounts, "layers": []}
    data["estimates"] = [
        _estimate(estimate, name, amount, scale, layer)
        for name in names
        for scale in [1.0 if alike else chance.lognormvariate(0, 2)]
        for amount in amounts
    ]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (members | {"result.json": json.dumps(result).encode()}).items():
            archive.writestr(name, content)
    return file.getvalue()


def _estimate(
    estimate: dict[str, Any], name: str, amount: float, scale: float, layer: dict[str, Any]
) -> dict[str, Any]:
    damage = 0.001 * scale * amount**3
    changes = [
        change | {"value": damage, "delta": damage, "ci_low": 0.0, "ci_high": 2 * damage}
        for change in estimate["changes"]
    ]
    removed = {key: int(amount * layer[of]) for key, of in (("removed_params", "num_params"), ("removed_macs", "macs"))}
    return estimate | {"layer": name, "members": [name], "level": amount, "changes": changes, **removed}
