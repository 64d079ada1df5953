"""Measuring on a graphics card beside the plain loop, fasterai and the processor: ``python -m benchmarks.gpu``.

One card, at most 8 minutes. Each large network is swept exactly and scanned quickly on the card; a plain loop measures
the same there, and so does fasterai where it is installed. Some layers are measured on the processor too: their figures
are equal within the rounding of float32. Then small networks of several kinds are measured with each compression, on
the card and on the processor: of timm, an ONNX file, one that segments and one that detects. ``--tiny`` takes small
networks and few images, to try it on the processor. A case that fails is printed with its error, the others go
on, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import timm
import torch
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.session import Session
from senseapp.measure.sweep import Sweep
from senseapp.networks.sources.demo import DETECTOR
from senseapp.networks.sources.load import load_model
from senseapp.records.measurement import LayerMeasurement
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION, SEGMENTATION
from tests.onnx_files import exported
from tests.plain_loop import with_own_statistics
from tests.toy_rectangles import scene

LEVEL = 0.5
_LARGE = (("resnet50", 224, 256), ("vit_base_patch16_224", 224, 128))
_TINY = (("test_resnet", 64, 8), ("test_vit", 160, 8))
_KINDS = ("test_resnet", "test_vit", "test_efficientnet", "test_convnext", "test_mambaout")
_COMPARED = 4  # layers whose figures the processor finds too, on so many images:
_COMPARED_IMAGES = 16
_LEAST_SHARE = 1e-3  # of the largest figure of a case: smaller ones are rounding on both sides
_LOOP_LAYERS = 8  # of the plain loop, spread over the network; the rest is extrapolated
_FASTERAI = "fasterai"
_FoundT = TypeVar("_FoundT")
Figures = dict[tuple[str, float], LayerMeasurement]


def clock(device: torch.device) -> Callable[[], float]:
    """Return the seconds now, read once ``device`` has done what it was asked for."""

    def now() -> float:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter()

    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found of one network.

    Attributes:
        seconds: by what was done; of the plain loop and fasterai for all layers.
        farthest: the largest relative difference of a figure from the processor's.
        peak_bytes: most memory of the card that the exact sweep held; 0 on the processor.
        notes: of the exact sweep.
    """

    network: str
    layers: int
    images: int
    seconds: dict[str, float]
    farthest: float
    peak_bytes: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as a line of Markdown."""
        times = ", ".join(f"{what} {spent:.2f} s" for what, spent in self.seconds.items())
        return (
            f"| {self.network}, {self.layers} layers, {self.images} images | {times} | "
            f"{self.seconds['plain loop'] / self.seconds['exact sweep']:.1f} | {self.farthest:.1e} | "
            f"{self.peak_bytes / 1e9:.2f} GB | {' '.join(self.notes)} |"
        )


def measured(name: str, side: int, count: int, device: str) -> Row:
    """Measure one network on ``device``."""
    network, images = _case(name, side, count)
    names = _layers(network, images)
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(LEVEL,), device=device)
    now, seconds = clock(torch.device(device)), dict[str, float]()

    def timed(what: str, act: Callable[[], _FoundT]) -> _FoundT:
        started = now()
        found = act()
        seconds[what] = now() - started
        return found

    _sweep(network, images, replace(spec, layers=_spread(names, 1)))  # prepares kernels and memory
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    exact, _ = timed("exact sweep", lambda: _sweep(network, images, spec))
    peak = torch.cuda.max_memory_allocated() if device != "cpu" else 0
    timed("quick scan", lambda: _sweep(network, images, replace(spec, mode="quick")))
    looped = names[:: max(1, len(names) // _LOOP_LAYERS)]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        timed("plain loop", lambda: _plain_loop(network, images.images, looped, device))
    seconds["plain loop"] *= len(names) / len(looped)
    notes = list(exact.notes)
    if importlib.util.find_spec(_FASTERAI):
        try:
            timed(_FASTERAI, lambda: _fasterai(network, images.images, device))
        except Exception as error:  # of its own environment; ours is still measured
            notes.append(f"fasterai failed: {type(error).__name__}: {error}")
    few = images.subset(range(min(_COMPARED_IMAGES, count)))
    return Row(
        network=name,
        layers=len(names),
        images=count,
        seconds=seconds,
        farthest=max(_differences(network, few, replace(spec, layers=_spread(names, _COMPARED))), default=math.nan),
        peak_bytes=peak,
        notes=tuple(dict.fromkeys(notes)),
    )


def agreement(name: str, side: int, count: int, spec: SensitivitySpec) -> str:
    """Return a line of Markdown: how far the figures of ``spec`` on its device are from the processor's."""
    network, images = _case(name, side, count)
    started = time.perf_counter()
    return _agreement_row(name, spec, _differences(network, images, spec), started)


def _agreement_row(name: str, spec: SensitivitySpec, differences: list[float], started: float) -> str:
    what = f"{spec.compression.kind}, {'adapted' if spec.adapted else spec.mode}, {spec.precision}"
    return (
        f"| {name} | {what} | {len(differences)} figures | median {statistics.median(differences):.1e}, farthest "
        f"{max(differences):.1e} | {time.perf_counter() - started:.1f} s |"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A network that a run opens as the app does, and its images."""

    title: str
    open_run: Callable[[SensitivitySpec], tuple[Sweep, list[LayerMeasurement]]]

    def agreement(self, spec: SensitivitySpec) -> str:
        """Return a line of Markdown: how far the figures of ``spec`` on its device are from the processor's."""
        started = time.perf_counter()

        def measured_by(given: SensitivitySpec) -> tuple[Sweep, Figures]:
            sweep, found = self.open_run(given)
            return sweep, {measurement.key: measurement for measurement in found}

        return _agreement_row(self.title, spec, _farness(measured_by, spec), started)


def brought(folder: Path) -> list[Brought]:
    """Return an ONNX file, the shipped detector and a network that segments."""
    path = folder / "network.onnx"
    path.write_bytes(exported(timm.create_model("test_efficientnet"), side=160))
    onnx = ModelSpec(library="onnx", checkpoint=str(path), task="classification")
    detector = ModelSpec(library="demo", name=DETECTOR, task="detection")
    return [
        Brought(title="ONNX file of test_efficientnet", open_run=partial(_run, onnx, DataSpec(kind="random"))),
        Brought(title="detector of shapes", open_run=partial(_run, detector, DataSpec(kind="shapes"))),
        Brought(title="LR-ASPP", open_run=_segmenting),
    ]


def _run(model: ModelSpec, data: DataSpec, spec: SensitivitySpec) -> tuple[Sweep, list[LayerMeasurement]]:
    spec = replace(spec, num_samples=_COMPARED_IMAGES)
    sweep = Session.open(RunSpec(model=model, data=data, sensitivity=spec)).sweep
    return sweep, _measured(sweep)


def scenes(count: int) -> tuple[Tensor, Tensor]:
    """Return pictures, float32 (N, 3, H, W), and their masks, uint8 (N, H, W)."""
    found = [scene(number, (64, 64)) for number in range(count)]
    pictures = torch.stack([torch.from_numpy(each.picture) for each in found]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (pictures - mean) / std, torch.stack([torch.from_numpy(each.mask) for each in found])


def _segmenting(spec: SensitivitySpec) -> tuple[Sweep, list[LayerMeasurement]]:
    torch.manual_seed(0)
    images, masks = scenes(_COMPARED_IMAGES)
    name = "lraspp_mobilenet_v3_large"
    model = ModelSpec(library="torchvision", name=name, num_classes=3, task=SEGMENTATION.name)
    network = with_own_statistics(load_model(model).module, images).requires_grad_(False)
    sweep = Sweep.open(network, TensorImages(images, masks), spec, task=SEGMENTATION)
    return sweep, _measured(sweep)


def _settings(device: str) -> list[SensitivitySpec]:
    """Return what is measured of each small network."""
    removed, bits = ((LEVEL,), (4,))
    pairs = ((SparsityConfig(), removed), (PruningConfig(), removed), (QuantizationConfig(), bits))
    plain = [SensitivitySpec(compression=config, levels=levels, device=device) for config, levels in pairs]
    quick = [replace(spec, mode="quick") for spec in plain]
    adapted = [replace(spec, adapted=True) for spec in plain if not spec.compression.description.removes_channels]
    return [*plain, *quick, *adapted, replace(plain[0], precision="bf16")]


def _case(name: str, side: int, count: int) -> tuple[nn.Module, TensorImages]:
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=1000).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(count, 3, side, side, generator=generator)
    return network, TensorImages(pixels, torch.randint(1000, (count,), generator=generator))


def _sweep(network: nn.Module, images: TensorImages, spec: SensitivitySpec) -> tuple[Sweep, Figures]:
    sweep = Sweep.open(network, images, spec, task=CLASSIFICATION)
    return sweep, {measurement.key: measurement for measurement in _measured(sweep)}


def _measured(sweep: Sweep) -> list[LayerMeasurement]:
    return list(quick_scan(sweep) if sweep.spec.mode == "quick" else sweep.measure())


def _layers(network: nn.Module, images: TensorImages) -> list[str]:
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(LEVEL,), device="cpu", mode="quick")
    sweep = Sweep.open(network, images.subset(range(1)), spec, task=CLASSIFICATION)
    return [layer.name for layer in sweep.context.profile.layers if layer.runs]


def _spread(names: list[str], count: int) -> tuple[str, ...]:
    return tuple(names[round(step * (len(names) - 1) / max(1, count - 1))] for step in range(count))


def _plain_loop(network: nn.Module, pixels: Tensor, layers: list[str], device: str) -> None:
    """Zero the smallest half of each weight, run everything and compare, as anybody would write it."""
    model, given = network.to(device), pixels.to(device)
    with torch.inference_mode():
        original = torch.cat([model(part) for part in given.split(32)]).log_softmax(1)
        for layer in layers:
            weight = model.get_submodule(layer).weight
            kept = weight.clone()
            weight[weight.abs() < weight.abs().flatten().kthvalue(weight.numel() // 2).values] = 0
            output = torch.cat([model(part) for part in given.split(32)]).log_softmax(1)
            (original.exp() * (original - output)).sum(1).mean().item()
            weight.copy_(kept)
    network.to("cpu")


def _fasterai(network: nn.Module, pixels: Tensor, device: str) -> None:
    from fasterai.analyze.sensitivity import SensitivityAnalyzer

    model, given = network.to(device), pixels.to(device)

    def score(tried: nn.Module) -> float:
        with torch.inference_mode():
            return float(torch.cat([tried(part) for part in given.split(32)]).log_softmax(1).max(1).values.mean())

    SensitivityAnalyzer(model, given[:1], score, higher_is_better=True, metric_name="score").analyze("sparsity", 50)
    network.to("cpu")


def _differences(network: nn.Module, images: TensorImages, spec: SensitivitySpec) -> list[float]:
    """Return how far each figure on the device of ``spec`` is from the processor's, as a share of it."""
    return _farness(partial(_sweep, network, images), spec)


def _farness(measured_by: Callable[[SensitivitySpec], tuple[Sweep, Figures]], spec: SensitivitySpec) -> list[float]:
    (sweep, here), (_, there) = (measured_by(replace(spec, device=place)) for place in (spec.device, "cpu"))
    assert here.keys() == there.keys(), f"other layers on {spec.device}: {sorted(here.keys() ^ there.keys())}"
    divergence = sweep.context.task.divergence
    assert divergence is not None
    pairs = []
    for key, measurement in here.items():
        mine, theirs = measurement.change(divergence), there[key].change(divergence)
        if mine is None or theirs is None:
            assert mine is theirs, f"{key} has a figure in one place only: {measurement.reason or there[key].reason}"
        else:
            pairs.append((mine.delta, theirs.delta))
    least = _LEAST_SHARE * max(abs(theirs) for _, theirs in pairs)
    return [abs(mine - theirs) / max(abs(theirs), least, math.ulp(0.0)) for mine, theirs in pairs]


def _attempted(line: Callable[[], object]) -> bool:
    """Print a line, or the error that came instead; return whether it was a line."""
    try:
        print(line(), flush=True)
    except Exception:  # the card is lent for minutes: what fails must not hide the rest
        print(f"FAILED\n{traceback.format_exc(limit=-6)}", flush=True)
        return False
    return True


def main(arguments: list[str]) -> int:
    """Print a line for each network and setting; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    if given.device == "cpu" and not given.tiny:
        parser.error("there is no graphics card here; --tiny runs on the processor")
    started = time.perf_counter()
    print(
        "| network | seconds | plain loop to exact | farthest from the processor | memory | notes |\n"
        + "|---" * 6
        + "|"
    )
    held = [_attempted(partial(measured, *case, given.device)) for case in (_TINY if given.tiny else _LARGE)]
    print("\n| network | measured | figures | difference from the processor | time |\n" + "|---" * 5 + "|")
    for name in _KINDS[: 1 if given.tiny else len(_KINDS)]:
        side, count = (64, 4) if given.tiny else (160, 16)
        held += [_attempted(partial(agreement, name, side, count, spec)) for spec in _settings(given.device)]
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(given.device)[: 1 if given.tiny else None]
        for each in brought(Path(folder)):
            held += [_attempted(partial(each.agreement, spec)) for spec in settings]
    print(f"\n{torch.cuda.get_device_name() if given.device != 'cpu' else 'processor'}, "
          f"{time.perf_counter() - started:.0f} s in all")  # fmt: skip
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
