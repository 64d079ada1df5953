"""How long the histogram of a layer takes, beside the bare passes of PyTorch that its gradients need.

    python -m benchmarks.histograms [EVERY]

Every layer of a ResNet-50, or every EVERY-th, weights and input activations in turn: 8 bits, 64 images. In one process
and layer by layer in turn with the bare passes, which count nothing.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import images_of, model_of
from benchmarks.results import machine, write_section
from senseapp.core.process import become_measuring
from senseapp.data.images import TensorImages
from senseapp.measure.histograms import quantization_histogram
from senseapp.networks.profile import profile_model
from senseapp.records.profile import LayerProfile
from senseapp.records.spec import HistogramSpec, HistogramTensor
from senseapp.tasks import CLASSIFICATION

TITLE = "Histograms: resnet50"
NUM_IMAGES = 64
BATCH_SIZE = 8
WANTED_SECONDS = 5.0


@dataclass(frozen=True)
class Row:
    """Seconds of one layer's histogram, and of the passes alone."""

    layer: str
    tensor: HistogramTensor
    ours: float
    bare: float

    def __str__(self) -> str:
        return f"| {self.layer} | {self.tensor} | {self.ours:.2f} | {self.bare:.2f} | {self.ours / self.bare:.2f} |"


def bare_passes(model: nn.Module, layer: LayerProfile, tensor: HistogramTensor, images: Tensor) -> None:
    """Go forward, and back to one tensor of ``layer``, batch by batch."""
    inputs: list[Tensor] = []

    def begin_here(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs.append(args[0].detach().clone().requires_grad_())
        return (inputs[-1], *args[1:])

    weight = model.get_parameter(layer.parameter).requires_grad_(tensor == "weights")
    hooks = [model.get_submodule(layer.name).register_forward_pre_hook(begin_here)] if tensor == "activations" else []
    for batch in images.split(BATCH_SIZE):
        scores = model(batch.to(memory_format=torch.channels_last))
        torch.autograd.grad(scores.amax(dim=1).sum(), inputs.pop() if hooks else weight)
    for hook in hooks:
        hook.remove()
    weight.requires_grad_(False)


def rows(every: int = 1) -> list[Row]:
    """Return one row for each layer looked at."""
    model = model_of("resnet50").to(memory_format=torch.channels_last).requires_grad_(False)
    pixels, labels = images_of(NUM_IMAGES)
    images = TensorImages(pixels, labels)
    profile = profile_model(model, pixels[:1], title="resnet50")
    tensors: Sequence[HistogramTensor] = ("weights", "activations")
    bare_passes(model, profile.layers[0], "weights", pixels)  # whose memory the others take over
    found = []
    for layer, tensor in zip(profile.layers[::every], cycle(tensors)):
        spec = HistogramSpec(layer=layer.name, tensor=tensor, num_images=NUM_IMAGES)
        ours = seconds(lambda: quantization_histogram(model, images, layer, spec, task=CLASSIFICATION))  # noqa: B023 (called at once)
        bare = seconds(lambda: bare_passes(model, layer, tensor, pixels))  # noqa: B023
        found.append(Row(layer.name, tensor, ours, bare))
        print(found[-1], flush=True)
    return found


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def table(found: Sequence[Row]) -> list[str]:
    """Return the rows as lines of Markdown, with what they come to above."""
    ours = [row.ours for row in found]
    within = sum(taken < WANTED_SECONDS for taken in ours)
    return [
        machine(),
        "",
        f"8 bits, {NUM_IMAGES} images of 224 pixels, gradients of the highest score.",
        f"Median {statistics.median(ours):.1f} s, from {min(ours):.1f} to {max(ours):.1f} s; {within} of {len(found)} "
        f"layers in less than {WANTED_SECONDS:g} s. Beside PyTorch's bare passes, without any counting: "
        f"{statistics.median(row.ours / row.bare for row in found):.2f} times their time, the median.",
        "",
        "| layer | tensor | histogram s | bare passes s | ratio |",
        "|---|---|---|---|---|",
        *map(str, found),
    ]


def main() -> None:
    """Print the table, and write it if every layer is in it."""
    every = int(sys.argv[1]) if sys.argv[1:] else 1
    lines = table(rows(every))
    print("\n".join(lines))
    if every == 1:
        write_section(TITLE, lines)


if __name__ == "__main__":
    become_measuring()
    main()
