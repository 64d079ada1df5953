"""Is a layer of an ONNX file as fragile as that of its module? ``python -m benchmarks.onnx_layers [--only NAME ...]``.

Each architecture is measured as the module that its library builds, with norms as training leaves them, and as the
network that is read from its export: sparsity, quantization and pruning, each at two levels, on the same images.
Exporters fold batch normalisation into weights, which is another network to a compression that orders weights by size:
the file is compared with the module whose norms are folded in the same way, and the module as it is with that. A third
export keeps the norms. Float32 rounds differences of two nearly equal outputs up to more than 1e-4 of a figure, so
everything is measured in float64 too. Layers are matched by weights, and their names compared. Rows are kept in
``--rows``; a second run goes on with those that are missing there.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.onnx_folded import folded, train_norms
from benchmarks.onnx_in import TIMM, TORCHVISION, network_of
from benchmarks.onnx_in import exported as usual_export
from benchmarks.results import machine, write_section
from senseapp.core.errors import SenseError, first_line_of
from senseapp.data.images import TensorImages
from senseapp.descriptions import get
from senseapp.measure.sweep import Sweep
from senseapp.metrics import MetricChange
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.profile import compressible_weights
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

ROWS = Path(__file__).with_name("onnx_layers.jsonl")
TITLE = "Layers of ONNX files beside those of modules (`python -m benchmarks.onnx_layers`)"
NAMES = (
    *("test_resnet", "test_efficientnet", "test_byobnet", "test_convnext", "test_vit", "mobilenetv3_small_050"),
    *("regnety_002", "shufflenet_v2_x0_5", "squeezenet1_1", "densenet121", "swin_tiny_patch4_window7_224"),
    *("levit_128s", "repvgg_a0", "ghostnet_050", "efficientnet_lite0", "poolformer_s12", "test_mambaout"),
)
EXPORTERS = ("older", "newer", "norms kept")
_SHORTER: dict[str, dict[str, Any]] = {
    "densenet121": {"block_config": (2, 3, 3, 2)},
    "swin_tiny_patch4_window7_224": {"img_size": 112, "depths": (2, 2, 2, 1)},
    "levit_128s": {"depth": (1, 2, 2)},
}
LEVELS = {"sparsity": (50.0, 80.0), "quantization": (8.0, 4.0), "pruning": (25.0, 50.0)}
_IMAGES = 8
_INTRO = (
    "*older* and *newer* are torch's two exporters, which fold norms into weights in float32: the figures of the file "
    "are compared with those of the module with its norms folded by the same formula. *norms kept* is the newer "
    "one with `optimize=False`, compared with the module as it is. The last column but one is the "
    "module as it is beside the module with its norms folded: another network to whatever orders weights by size, "
    "since each output channel is multiplied by another factor. densenet121, levit_128s and Swin have "
    "fewer equal blocks than the library's."
)
_WANTED = 1e-4
_PRECISIONS = ("float64", "float32")
_SMALLEST = {"kl": 1e-6}  # nats; less is what rounding of float32 does to an uncompressed network
_NOTHING = 1e-3  # factors that make a layer do next to nothing, of which the figures would be rounding
_SPREAD = 3.0  # of the outputs over classes, as those of trained networks

Measured = Mapping[tuple[str, float], LayerMeasurement]


def measured(network: nn.Module, images: Tensor, kind: str) -> Measured:
    """Return what each level of one compression does to each layer of ``network``, on ``images`` (N, C, H, W)."""
    config = get(kind).config()
    levels = tuple(config.scale.from_shown(level) for level in LEVELS[kind])
    spec = SensitivitySpec(compression=config, levels=levels, device="cpu", num_samples=len(images))
    images = images.to(next(network.parameters()).dtype)
    sweep = Sweep.open(network, TensorImages(images), spec, task=CLASSIFICATION)
    return {(each.layer, each.level): each for each in sweep.measure()}


def same_layers(module: nn.Module, network: nn.Module) -> dict[str, str]:
    """Return the layer of ``network`` that holds the weights of each layer of ``module``, by name.

    Exporters fold batch normalisation into convolutions, which multiplies each output channel by a number. Layers with
    the same weights up to that are matched in order.
    """
    left = [(name, each.weight.detach()) for name, each, _ in compressible_weights(network)]
    found: dict[str, str] = {}
    for name, layer, _ in compressible_weights(module):
        weight = layer.weight.detach()
        index = next((index for index, (_, each) in enumerate(left) if _holds(each, weight)), None)
        if index is not None:
            found[name] = left.pop(index)[0]
    return found


def _holds(stored: Tensor, weight: Tensor) -> bool:
    if stored.shape != weight.shape:
        return False
    alike = nn.functional.cosine_similarity(stored.flatten(1).double(), weight.flatten(1).double())
    return bool((alike.abs() > 1 - 1e-6).all())


def twins(
    ours: Measured, theirs: Measured, layers: Mapping[str, str]
) -> Iterator[tuple[str, float, MetricChange, MetricChange]]:
    """Yield layer, level and both figures of each metric that both have measured."""
    for (layer, level), one in ours.items():
        other = theirs.get((layers.get(layer, ""), level))
        if other is None or one.status is not Status.MEASURED or other.status is not Status.MEASURED:
            continue
        for change in one.changes:
            twin = other.change(change.metric)
            if twin is not None:
                yield layer, level, change, twin


def apart(ours: Measured, theirs: Measured, layers: Mapping[str, str]) -> Iterator[tuple[float, str, float, str]]:
    """Yield the relative difference of each figure of each layer and level that both have, and whose it is."""
    for layer, level, change, twin in twins(ours, theirs, layers):
        largest = max(abs(change.value), abs(twin.value), _SMALLEST.get(change.metric, 0.0))
        yield abs(change.value - twin.value) / largest if largest else 0.0, layer, level, change.metric


def largest_of(ours: Measured) -> dict[str, float]:
    """Return the largest change of each metric over all layers and levels."""
    found: dict[str, float] = {}
    for each in ours.values():
        for change in each.changes if each.status is Status.MEASURED else ():
            found[change.metric] = max(found.get(change.metric, 0.0), abs(change.value))
    return found


def apart_of_largest(ours: Measured, theirs: Measured, layers: Mapping[str, str]) -> float:
    """Return the largest difference of a figure, as a share of the largest figure of its metric."""
    found, scale = 0.0, largest_of(ours)
    for _layer, _level, change, twin in twins(ours, theirs, layers):
        if scale[change.metric]:
            found = max(found, abs(change.value - twin.value) / scale[change.metric])
    return found


def unequal(ours: Measured, theirs: Measured, layers: Mapping[str, str]) -> list[str]:
    """Return the layers that only one of both measures, or of which they remove different amounts."""
    found = []
    seen = set()
    for (layer, level), one in ours.items():
        key = layers.get(layer, ""), level
        seen.add(key)
        other = theirs.get(key)
        if other is None or (one.status, one.removed_params, len(one.members)) != (
            other.status,
            other.removed_params,
            len(other.members),
        ):
            found.append(layer)
    return list(dict.fromkeys([*found, *(layer for layer, level in theirs if (layer, level) not in seen)]))


def _awaken(module: nn.Module, images: Tensor) -> None:
    """Set factors of norms and layers that begin at nearly zero to one, and let outputs differ as trained ones do."""
    *_, (_, last, _) = compressible_weights(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("weight", "gamma")) and parameter.ndim == 1 and parameter.abs().max() < _NOTHING:
                parameter.fill_(1.0)
        last.weight *= _SPREAD / module(images).std(1).mean()


def architecture(name: str) -> tuple[nn.Module, int]:
    """Return an untrained network, with fewer equal blocks where that is quicker, and the side of its images."""
    if name not in _SHORTER:
        return network_of(name)
    torch.manual_seed(0)
    settings = _SHORTER[name]
    module = timm.create_model(name, pretrained=False, num_classes=10, **settings).eval()
    return module, settings.get("img_size", TIMM[name])


def exported(module: nn.Module, side: int, exporter: str) -> bytes:
    """Return ``module`` as ONNX for any number of images, by one of ``EXPORTERS``."""
    if exporter != "norms kept":
        return usual_export(module, side, dynamo=exporter == "newer", free=True)
    written = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, (torch.rand(2, 3, side, side),), dynamo=True, optimize=False, verbose=False,
            dynamic_shapes=({0: torch.export.Dim("images", min=1, max=64)},),
        )  # fmt: skip
    assert program is not None
    program.save(written)
    return written.getvalue()


def row(name: str, *, exporter: str) -> dict[str, Any]:
    """Return how far the figures of one architecture's export are from those of its module."""
    found: dict[str, Any] = {"name": name, "exporter": exporter}
    module, side = architecture(name)
    images = torch.randn(_IMAGES, 3, side, side, generator=torch.Generator().manual_seed(0))
    train_norms(module, images)
    _awaken(module, images)
    try:
        opened = open_onnx(exported(module, side, exporter))
    except SenseError as error:
        return {**found, "result": "refused", "why": str(error)}
    except Exception as error:
        return {**found, "result": "not exported", "why": first_line_of(error)}
    layers = same_layers(module, opened.network)
    stored = {mine: opened.network.get_submodule(theirs).weight.detach() for mine, theirs in layers.items()}
    alike, equal = folded(module, images, stored)
    found |= {
        "side": side,
        "layers": len(list(compressible_weights(module))),
        "matched": len(layers),
        "same name": sum(mine == theirs for mine, theirs in layers.items()),
        "same weight": equal,
        "batch": opened.batch,
    }
    same = {name: name for name in layers}
    for kind in LEVELS:
        own = {}
        for precision in _PRECISIONS:
            pair = (each.to(getattr(torch, precision)) for each in (alike, opened.network))
            own[precision], theirs = (measured(each, images, kind) for each in pair)
            found.setdefault(kind, {})[precision] = _compared(own[precision], theirs, layers)
        found[kind]["rounding"] = _compared(own["float64"], own["float32"], same)
        found[kind]["folding"] = _compared(own["float64"], measured(module.double(), images, kind), same)
    return {**found, "result": "measured"}


def _compared(ours: Measured, theirs: Measured, layers: Mapping[str, str]) -> dict[str, Any]:
    differences = sorted(apart(ours, theirs, layers), reverse=True)
    others = unequal(ours, theirs, layers)
    return {
        "figures": len(differences),
        "largest": differences[0] if differences else None,
        "above": sum(each[0] > _WANTED for each in differences),
        "of largest": apart_of_largest(ours, theirs, layers),
        "unequal": len(others),
        "first unequal": others[:3],
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line of Markdown for each file."""
    lines = [
        "| network | exporter | layers, matched, of the same name, of the same weight to the bit | figures | largest "
        "relative difference, above 1e-4: in float64 | in float32 | of the module's own figures, float32 from float64 "
        "| largest difference in float32, as a share of the metric's largest figure | figures above 1e-4 where only "
        "folding differs: sparsity, bits, channels | layers that only one has or that lose another amount: sparsity, "
        "bits, channels |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in sorted(rows, key=lambda each: EXPORTERS.index(each["exporter"])):
        which = f"| {each['name']} | {each['exporter']} "
        if each["result"] != "measured":
            lines.append(f"{which}| {each['result']}: {each['why']} | | | | | | | |")
            continue
        unlike = ", ".join(str(each[kind]["float64"]["unequal"]) for kind in LEVELS)
        moved = ", ".join(str(each[kind]["folding"]["above"]) for kind in LEVELS)
        figures = sum(each[kind]["float64"]["figures"] for kind in LEVELS)
        compared = (*_PRECISIONS, "rounding")
        cells = " | ".join(_differences([each[kind][how] for kind in LEVELS]) for how in compared)
        share = max(each[kind]["float32"]["of largest"] for kind in LEVELS)
        counts = ", ".join(str(each[what]) for what in ("layers", "matched", "same name", "same weight"))
        lines.append(f"{which}| {counts} | {figures} | {cells} | {share:.1e} | {moved} | {unlike} |")
    return lines


def _differences(kinds: Sequence[Mapping[str, Any]]) -> str:
    largest = max((kind["largest"][0] for kind in kinds if kind["largest"]), default=0.0, key=_or_infinite)
    return f"{_or_infinite(largest):.1e}, {sum(kind['above'] for kind in kinds)}"


def _or_infinite(difference: float) -> float:
    """Return a difference; infinite where one figure is (noise that float32 rounds to none) and the other is not."""
    return math.inf if math.isnan(difference) else difference


def main() -> None:
    """Add the rows that are missing, and write the section of the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[*TIMM, *TORCHVISION], default=NAMES)
    parser.add_argument("--exporters", nargs="*", choices=EXPORTERS, default=EXPORTERS)
    parser.add_argument("--rows", type=Path, default=ROWS)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    there = {(each["name"], each["exporter"]) for each in _rows(asked.rows)}
    for exporter in asked.exporters:
        for name in asked.only:
            if (name, exporter) not in there:
                found = row(name, exporter=exporter)
                with asked.rows.open("a") as file:
                    file.write(json.dumps(found) + "\n")
    write_section(TITLE, [_INTRO, "", *table(_rows(asked.rows)), "", machine()])


if __name__ == "__main__":
    main()
