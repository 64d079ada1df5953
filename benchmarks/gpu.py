"""Measuring on a graphics card beside the plain loop, fasterai and the processor: ``python -m benchmarks.gpu``.

One card, at most 8 minutes. Each network is swept exactly and scanned quickly on the card; a plain loop measures the
same there, and so does fasterai where it is installed. Some layers are measured on the processor too: their figures are
equal within the rounding of float32. ``--tiny`` takes small networks and few images, as the tests do on the processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import timm
import torch
from torch import Tensor, nn

from benchmarks.cases import clock
from senseapp.compressions import SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.measure.adapted import AdaptedCompressor
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import LayerMeasurement
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

LEVEL = 0.5
_LARGE = (("resnet50", 224, 256), ("vit_base_patch16_224", 224, 128))
_TINY = (("test_resnet", 64, 8), ("test_vit", 160, 8))
_COMPARED = 4  # layers whose figures the processor finds too, on so many images:
_COMPARED_IMAGES = 16
_TOLERANCE = 2e-3  # of a figure: sums of float32 in another order, and TF32 is off
_LOOP_LAYERS = 8  # of the plain loop, spread over the network; the rest is extrapolated
_FASTERAI = "fasterai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found of one network.

    Attributes:
        seconds: by what was done; of the plain loop and fasterai for all layers.
        farthest: the largest relative difference of a figure from the processor's.
        peak_bytes: most memory of the card that the exact sweep held; 0 on the processor.
    """

    network: str
    layers: int
    images: int
    seconds: dict[str, float]
    farthest: float
    peak_bytes: int

    def __str__(self) -> str:
        """Return it as a line of Markdown."""
        times = ", ".join(f"{what} {spent:.2f} s" for what, spent in self.seconds.items())
        return (
            f"| {self.network}, {self.layers} layers, {self.images} images | {times} | "
            f"{self.seconds['plain loop'] / self.seconds['exact sweep']:.1f} | {self.farthest:.1e} | "
            f"{self.peak_bytes / 1e9:.2f} GB |"
        )


def measured(name: str, side: int, count: int, device: str) -> Row:
    """Measure one network on ``device``; AssertionError where a figure is not the processor's."""
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=1000).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(count, 3, side, side, generator=generator)
    images = TensorImages(pixels, torch.randint(1000, (count,), generator=generator))
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(LEVEL,), device=device)
    now, seconds = clock(torch.device(device)), dict[str, float]()

    def timed(what: str, act: Callable[[], object]) -> object:
        started = now()
        found = act()
        seconds[what] = now() - started
        return found

    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    sweep = Sweep.open(network, images, spec, task=CLASSIFICATION)
    timed("exact sweep", lambda: list(sweep.measure()))
    peak = torch.cuda.max_memory_allocated() if device != "cpu" else 0
    scanned = Sweep.open(network, images, replace(spec, mode="quick"), task=CLASSIFICATION)
    timed("quick scan", lambda: list(quick_scan(scanned)))
    adapted = Sweep.open(network, images, replace(spec, adapted=True, layers=_spread(sweep, 1)), task=CLASSIFICATION)
    assert isinstance(adapted.compressor, AdaptedCompressor)
    timed("one layer with adapted weights", lambda: list(adapted.measure()))
    names = [layer.name for layer in sweep.context.profile.layers]
    some = names[:: max(1, len(names) // _LOOP_LAYERS)]
    timed("plain loop", lambda: _plain_loop(network, pixels, some, device))
    seconds["plain loop"] *= len(names) / len(some)
    if importlib.util.find_spec(_FASTERAI):
        timed(_FASTERAI, lambda: _fasterai(network, pixels, device))
    return Row(
        network=name,
        layers=len(names),
        images=count,
        seconds=seconds,
        farthest=_farthest(network, images, spec, _spread(sweep, _COMPARED)),
        peak_bytes=peak,
    )


def _spread(sweep: Sweep, count: int) -> tuple[str, ...]:
    names = [layer.name for layer in sweep.context.profile.layers]
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


def _farthest(network: nn.Module, images: TensorImages, spec: SensitivitySpec, layers: tuple[str, ...]) -> float:
    """Return the largest relative difference between what the device and the processor find of some layers."""
    few = images.subset(range(min(_COMPARED_IMAGES, len(images))))
    found = [
        list(Sweep.open(network, few, replace(spec, layers=layers, device=place), task=CLASSIFICATION).measure())
        for place in (spec.device, "cpu")
    ]
    farthest = max(_differences(*found), default=0.0)
    assert farthest <= _TOLERANCE, f"a figure is {farthest:.1e} of itself away from the processor's"
    return farthest


def _differences(here: list[LayerMeasurement], there: list[LayerMeasurement]) -> Iterator[float]:
    for one, other in zip(here, there, strict=True):
        assert one.key == other.key
        mine, theirs = (each.change("kl") for each in (one, other))
        if mine is None or theirs is None:
            assert mine is theirs, f"{one.layer} has a figure in one place only"
        else:
            yield abs(mine.delta - theirs.delta) / max(abs(theirs.delta), math.ulp(1.0))


def main(arguments: list[str]) -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    if given.device == "cpu" and not given.tiny:
        parser.error("there is no graphics card here; --tiny runs on the processor")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    started = time.perf_counter()
    print("| network | seconds | plain loop to exact | farthest from the processor | memory |\n|---|---|---|---|---|")
    for name, side, count in _TINY if given.tiny else _LARGE:
        print(measured(name, side, count, given.device), flush=True)
    print(f"\n{torch.cuda.get_device_name() if given.device != 'cpu' else 'processor'}, "
          f"{time.perf_counter() - started:.0f} s in all")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
