"""What compiling the rest of a network costs, beside the passes it would speed up.

    python -m benchmarks.compiled_suffix [--device cuda] [--mode reduce-overhead] [--pixels 64] [--micro-batch 16]

Compiles the suffix of ResNet-18 from the start of each stage on, as a sweep would have to for each place that it
resumes from (it resumes from 21, these are 5 of them), and times passes of it as they are and compiled. Mode
``reduce-overhead`` records CUDA graphs. Writes a section of ``benchmarks/RESULTS.md``: the decision is in
``docs/adr/0008-levels-together-and-no-compiled-suffix.md``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch
import torch._inductor.config
from torch import Tensor, nn

from benchmarks.cases import clock
from benchmarks.results import machine, write_section

STAGES = ("layer1", "layer2", "layer3", "layer4", "global_pool")
PASSES = 50
COLUMNS = (
    "suffix from",
    "ms a pass",
    "compiled ms",
    "first call s",
    "second weight s",
    "passes to pay",
    "largest error",
)


@dataclass(frozen=True)
class Row:
    """One suffix: seconds of a pass as it is and compiled, of compiling, and of the first pass with other weights."""

    stage: str
    plain: float
    compiled: float
    first: float
    swapped: float
    error: float

    @property
    def passes_to_pay(self) -> float:
        gain = self.plain - self.compiled
        return (self.first + self.swapped) / gain if gain > 0 else float("inf")

    def __str__(self) -> str:
        cells = [self.stage, f"{1000 * self.plain:.2f}", f"{1000 * self.compiled:.2f}", f"{self.first:.1f}"]
        cells += [f"{self.swapped:.2f}", f"{self.passes_to_pay:,.0f}", f"{self.error:.0e}"]
        return f"| {' | '.join(cells)} |"


def suffixes(model: nn.Module, images: Tensor) -> dict[str, tuple[nn.Module, Tensor]]:
    """Return the part of a ResNet from each stage on, and what flows into it."""
    parts = [model.get_submodule(name) for name in (*STAGES, "fc")]
    found, flowing = {}, model.maxpool(model.act1(model.bn1(model.conv1(images))))
    for place, stage in enumerate(STAGES):
        found[stage] = (nn.Sequential(*parts[place:]), flowing)
        flowing = parts[place](flowing)
    return found


def seconds_of(run: Callable[[], object], now: Callable[[], float]) -> float:
    """Return the time of one call."""
    started = now()
    run()
    return now() - started


def row(stage: str, suffix: nn.Module, flowing: Tensor, mode: str) -> Row:
    """Time one suffix; the compiled one also after its first weight was swapped, as a sweep does."""
    now = clock(flowing.device)
    expected = suffix(flowing)
    torch.compiler.reset()
    compiled = torch.compile(suffix, mode=mode)
    first = seconds_of(lambda: compiled(flowing), now)
    error = float((compiled(flowing) - expected).abs().max())
    weight = next(suffix.parameters())
    original = weight.data
    weight.data = original * 0.5
    swapped = seconds_of(lambda: compiled(flowing), now)
    error = max(error, float((compiled(flowing) - suffix(flowing)).abs().max()))
    weight.data = original
    plain, fast = [], []
    for _ in range(PASSES):  # in turn, so that a slow moment of the machine hits both
        plain.append(seconds_of(lambda: suffix(flowing), now))
        fast.append(seconds_of(lambda: compiled(flowing), now))
    usual, quick = statistics.median(plain), statistics.median(fast)
    return Row(stage, usual, quick, first - quick, max(0.0, swapped - quick), error)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled_suffix", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=16)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch._inductor.config.force_disable_caches = True  # a network that nobody has compiled here before
    torch.manual_seed(0)
    model = timm.create_model("resnet18").eval().requires_grad_(False).to(device)
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(options.micro_batch, 3, options.pixels, options.pixels, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    lines = [
        machine(device),
        "",
        f"ResNet-18, {options.micro_batch} images of {options.pixels} pixels, {options.mode}.",
    ]
    lines += ["", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    with torch.no_grad():
        for stage, (suffix, flowing) in suffixes(model, images).items():
            lines.append(str(row(stage, suffix, flowing, options.mode)))
            print(lines[-1], flush=True)
    write_section(f"Compiled suffix, {options.device}", lines)


if __name__ == "__main__":
    main()
