"""What the toy segmentation compares: class scores of pixels, (N, classes, H, W), and masks, (N, H, W)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.metrics import Metric, powers
from senseapp.metrics.predictions import Columns
from senseapp.metrics.records import Record, RecordMetric

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = 255
"""Class number of pixels that no class is known of, padding among them."""


def predictions_of(scores: Tensor, most_bytes: int | None) -> Columns:
    """Return the class of each pixel, and the class scores of as many pixels, evenly spread, as there is room for."""
    import torch

    num_classes, num_pixels = scores.shape[1], scores[0, 0].numel()
    kept = kept_pixels(num_classes, num_pixels, most_bytes)
    places = torch.linspace(0, num_pixels - 1, kept, device=scores.device).round().long()
    return Columns(
        parts={
            "classes": scores.argmax(1).to(torch.uint8),  # (N, H, W)
            "scores": scores.flatten(2)[:, :, places].transpose(1, 2).float(),  # (N, kept, classes)
        }
    )


def kept_pixels(num_classes: int, num_pixels: int, most_bytes: int | None) -> int:
    """Return of how many pixels of an image scores are kept."""
    if most_bytes is None:
        return num_pixels
    return max(1, min(num_pixels, (most_bytes - num_pixels) // (4 * num_classes)))


@dataclass(frozen=True, kw_only=True)
class PixelDivergence(Metric):
    """The mean KL divergence over kept pixels."""

    least_loss: float = 0.0

    def terms(self, baseline_output: Columns, output: Columns, targets: Any) -> tuple[Tensor, ...]:
        before, after = (each.parts["scores"].log_softmax(2) for each in (baseline_output, output))  # type: ignore[union-attr]
        divergence = (before.exp() * (before - after)).sum(2).mean(1).clamp_min(0)
        return powers(divergence.new_zeros(divergence.shape), divergence)


@dataclass(frozen=True, kw_only=True)
class PixelAgreement(Metric):
    """The share of pixels that keep their class, a mean over images."""

    def terms(self, baseline_output: Columns, output: Columns, targets: Any) -> tuple[Tensor, ...]:
        same = (baseline_output.parts["classes"] == output.parts["classes"]).double().flatten(1).mean(1)  # type: ignore[union-attr]
        return powers(same.new_ones(same.shape), 1 - same)


@dataclass(frozen=True, kw_only=True)
class MeanIntersectionOverUnion(RecordMetric):
    """The intersection over union of each class over all pixels of all images, a mean over classes that occur."""

    num_classes: int

    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        found, true = predictions.parts["classes"][index], targets[index]
        seen = true != IGNORED
        pairs = [((found == each) & seen, (true == each) & seen) for each in range(self.num_classes)]
        return [float(number) for one, other in pairs for number in ((one & other).sum(), (one | other).sum())]

    def value_of(self, records: Sequence[Record]) -> float:
        sums = [sum(column) for column in zip(*records, strict=True)]
        shares = [inter / union for inter, union in zip(sums[::2], sums[1::2], strict=True) if union]
        return sum(shares) / len(shares) if shares else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelDirections:
    """Two random directions whose squares estimate the divergence of all pixels."""

    vectors: tuple[Tensor, ...]
    num_pixels: int

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        return {DIVERGENCE.name: products.double().square().mean(1) / 2 / self.num_pixels}


def directions_of(scores: Tensor, signs: Tensor) -> PixelDirections:
    """Return v = √p ε − p Σ √p ε for random signs ε, so that the mean of (v·δz)² is δzᵀ (diag p − p pᵀ) δz."""
    probability = scores.double().softmax(1)
    root = probability.sqrt()
    vectors = []
    for each in (signs, signs.roll(1, dims=3)):
        vectors.append((root * each - probability * (root * each).sum(1, keepdim=True)).float())
    return PixelDirections(vectors=tuple(vectors), num_pixels=scores[0, 0].numel())


DIVERGENCE = PixelDivergence(
    name="toy_pixel_kl",
    task="toy_segmentation",
    label="KL divergence per pixel",
    change_title="KL divergence per pixel",
    help="How far the class probabilities of pixels move, on average. Needs no labels.",
    change_unit="nats",
    value_unit="nats",
    notable=0.01,
    higher_is_better=False,
    divergence=True,
)
AGREEMENT = PixelAgreement(
    name="toy_pixel_agreement",
    task="toy_segmentation",
    label="Pixels that agree",
    change_title="Drop in pixels that agree",
    help="Share of pixels that keep their class. Needs no labels.",
    value_unit="%",
    change_unit="points",
    notable=0.01,
    primary=True,
)
MIOU = MeanIntersectionOverUnion(
    name="toy_miou",
    num_classes=3,
    task="toy_segmentation",
    label="Mean IoU",
    change_title="Drop in mean IoU",
    help="Intersection over union of found and true pixels of each class, a mean over classes.",
    value_unit="%",
    change_unit="points",
    notable=0.01,
    needs_labels=True,
    primary=True,
)
