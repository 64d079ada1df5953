"""What schedules keep, on images that no curve has seen: ``make bench-schedule``.

Three small networks are trained on the digits that ship with senseapp (weights are kept in ``.cache``). For each case
the curves are measured on one half of the held-out digits, and every schedule on the other half: uniform, the classic
gamma rule and the optimal one, at equal true cost, without and with repair. No training follows compression.

    python -m benchmarks.schedules [NETWORK ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from torch import nn

from senseapp.data import TensorImages
from senseapp.data.demo import load_demo_images
from senseapp.errors import SenseError
from senseapp.models.demo import DEMO_PREPROCESSING
from senseapp.models.loaded import LoadedModel
from senseapp.results import ResourceBudget, Schedule, SensitivityResult, latest
from senseapp.results.schedule import BudgetKind
from senseapp.schedule import make_schedule, with_true_size
from senseapp.sensitivity import Sweep
from senseapp.spec import (
    CompressionConfig,
    PruningConfig,
    QuantizationConfig,
    RunSpec,
    SensitivitySpec,
    SparsityConfig,
)
from senseapp.validation import ProofImages, TestBench, prove
from senseapp.validation.uniform import true_figure

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench-schedule"
EPOCHS = {"resnet": 25, "mobilenet": 60, "vit": 60}
GAMMAS = (1.0, 1.5)
ROUNDS = 3


def resnet() -> nn.Module:
    """ResNet-18 at half its width: 2.8 million weights, eight residual blocks."""
    return timm.create_model("resnet18", in_chans=1, num_classes=10, channels=(32, 64, 128, 256))


def mobilenet() -> nn.Module:
    """MobileNetV3-Small with a stem for small pictures."""
    network = timm.create_model("mobilenetv3_small_100", in_chans=1, num_classes=10)
    network.conv_stem.stride = (1, 1)
    return network


def vit() -> nn.Module:
    """A ViT of six blocks over 64 patches."""
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=4,
        embed_dim=96,
        depth=6,
        num_heads=4,
        in_chans=1,
        num_classes=10,
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"resnet": resnet, "mobilenet": mobilenet, "vit": vit}


@dataclass(frozen=True)
class Case:
    network: str
    config: CompressionConfig
    levels: tuple[float, ...]
    kind: BudgetKind
    targets: tuple[float, ...]
    demand: str


SPARSE = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
PRUNED = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
BITS = (8.0, 6.0, 5.0, 4.0, 3.0, 2.0)
CASES = (
    Case(
        "resnet", SparsityConfig(), SPARSE, "params", (0.8, 0.95), "80 %: −0.03, repaired −0.01; 95 %: repaired −0.02"
    ),
    Case("resnet", QuantizationConfig(), BITS, "bits", (4.0,), "−0.01"),
    Case("resnet", PruningConfig(), PRUNED, "macs", (0.5,), "uniform + 0.10, or −0.01"),
    Case("mobilenet", SparsityConfig(), SPARSE, "params", (0.7,), "repaired −0.02"),
    Case("mobilenet", QuantizationConfig(), BITS, "bits", (4.0,), "−0.01"),
    Case("mobilenet", PruningConfig(), PRUNED, "macs", (0.5,), "uniform + 0.10, or −0.01"),
    Case("vit", SparsityConfig(), SPARSE, "params", (0.5,), "never worse than uniform or gamma"),
    Case("vit", QuantizationConfig(), BITS, "bits", (4.0,), "−0.01"),
    Case("vit", PruningConfig(), PRUNED, "macs", (0.5,), "uniform + 0.10, or −0.01"),
)


def trained(name: str) -> nn.Module:
    """Return the network, trained on first use."""
    torch.manual_seed(0)
    network, weights = NETWORKS[name](), CACHE / f"{name}.safetensors"
    if weights.is_file():
        network.load_state_dict(safetensors.torch.load_file(weights))
        return network.eval()
    train = load_demo_images("train")
    images, labels, epochs = train.images, train.labels, EPOCHS[name]
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * (len(images) // 60)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    generator, started = torch.Generator().manual_seed(0), time.monotonic()
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).view(-1, 60):
            shift = torch.randint(-3, 4, (2,), generator=generator).tolist()
            pictures = torch.roll(images[batch], shift, (2, 3))
            F.cross_entropy(network.train()(pictures), labels[batch], label_smoothing=0.05).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    CACHE.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(network.state_dict(), weights)
    print(f"trained {name} in {time.monotonic() - started:.0f} s", flush=True)
    return network.eval()


def halves() -> tuple[TensorImages, TensorImages]:
    """Return the held-out digits in two halves: for curves, and for proofs."""
    held_out = load_demo_images("heldout")
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0)).tolist()
    return held_out.subset(sorted(order[: len(order) // 2])), held_out.subset(sorted(order[len(order) // 2 :]))


def bench_of(case: Case, network: nn.Module) -> TestBench:
    """Measure the curves, and return what schedules are proven on."""
    curves, proof = halves()
    spec = SensitivitySpec(compression=case.config, levels=case.levels)
    sweep = Sweep.open(network, curves, spec)
    result = SensitivityResult(
        spec=RunSpec(sensitivity=spec),
        profile=replace(sweep.bench.profile, title=case.network),
        metric=sweep.metric,
        baseline=sweep.yardstick.values(),
        measurements=latest(sweep.measure()),
        num_samples=len(curves),
    )
    model = LoadedModel(
        module=network, title=case.network, preprocessing=DEMO_PREPROCESSING, num_classes=10, pretrained=True
    )
    return TestBench.open(result, model=model, images=ProofImages(curves=curves, proof=proof, note="other half"))


def solved(bench: TestBench, case: Case, target: float, **how: object) -> Schedule | None:
    """Return a schedule that truly meets the target, or None where the method has none."""

    def make(asked: float) -> Schedule:
        return make_schedule(bench.result, budget=ResourceBudget(kind=case.kind, target=asked), **how)

    try:
        if not isinstance(case.config, PruningConfig):
            return make(target)
        return with_true_size(make, lambda tried: true_figure(bench, bench.apply(tried), case.kind), target)
    except SenseError:
        return None


def accuracies(bench: TestBench, schedule: Schedule | None) -> str:
    """Return top-1 without and with repair."""
    if schedule is None:
        return "–"
    applied = bench.apply(schedule)
    plain = top1(bench.measure(applied))
    bench.repair(applied)
    return f"{plain} → {top1(bench.measure(applied))}"


def top1(changes: tuple) -> str:
    return next(f"{change.value:.3f}" for change in changes if change.metric == "top1")


def report(case: Case, network: nn.Module) -> None:
    """Print a row for each target of ``case``."""
    started = time.monotonic()
    bench = bench_of(case, network)
    measured = time.monotonic() - started
    for target in case.targets:
        uniform = accuracies(bench, solved(bench, case, target, method="uniform"))
        gammas = [accuracies(bench, solved(bench, case, target, method="gamma", gamma=g)) for g in GAMMAS]
        optimal = solved(bench, case, target)
        row = f"| {case.network} | {case.config.kind} {case.kind} {target:g} | "
        if optimal is None:
            print(row + "no schedule |", flush=True)
            continue
        plain, repaired = (prove(bench, optimal, repair=repair, rounds=ROUNDS).result for repair in (False, True))
        dense = next(change for change in plain.changes if change.metric == "top1")
        low, high = (f"{dense.baseline - end:.3f}" for end in (dense.ci_high, dense.ci_low))
        cost = true_figure(bench, bench.apply(plain.schedule), case.kind)
        print(
            f"{row}{dense.baseline:.3f} | {uniform} | {max(gammas)} | {accuracies(bench, optimal)} | "
            f"{top1(plain.changes)} ({low} to {high}; {plain.rounds} rounds) → {top1(repaired.repaired)} "
            f"({repaired.rounds} rounds) | {cost:.3f} | {case.demand} | {measured:.0f} s |",
            flush=True,
        )


def main() -> None:
    """Print the table of the networks named, or of all."""
    names = sys.argv[1:] or list(NETWORKS)
    print("top-1 without → with repair, on digits that no curve has seen\n")
    print(
        "| network | budget | dense | uniform | gamma (best) | optimal | solved again | true cost | demand | curves |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        network = trained(name)
        for case in CASES:
            if case.network == name:
                report(case, network)


if __name__ == "__main__":
    main()
