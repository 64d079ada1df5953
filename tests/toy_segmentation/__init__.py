"""A task and a source of networks from outside: a class for each pixel. Everything that an engineer writes for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.descriptions import ModelSource
from senseapp.metrics.predictions import Predictions
from senseapp.tasks import ScanDirections, Targets, Task, WrittenLabels, refuse_output
from tests.toy_segmentation.metrics import (
    AGREEMENT,
    DIVERGENCE,
    IGNORED,
    MIOU,
    directions_of,
    kept_pixels,
    predictions_of,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Which class each pixel belongs to."""

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what is not class scores of pixels."""
        shape = tuple(getattr(model_output, "shape", ()))
        if len(shape) != 4 or shape[0] != num_images:
            raise refuse_output("class scores of pixels, (N, classes, H, W)", model_output, self.model_kind)

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return the class of each pixel, and the scores of some."""
        return predictions_of(self.output(model_output), most_bytes)

    def predictions_note(self, model_output: object, *, most_bytes: int | None = None) -> str:
        """Say of how many pixels scores are kept."""
        scores = self.output(model_output)
        pixels = scores[0, 0].numel()
        kept = kept_pixels(scores.shape[1], pixels, most_bytes)
        return f"KL divergence over {kept:,} of {pixels:,} pixels of each image." if kept < pixels else ""

    def targets(self, written: WrittenLabels, confirmed: Sequence[tuple[str, int]] = ()) -> Targets:
        """Return none: masks are annotations, not written labels."""
        return Targets(values=None)

    def directions(self, output: Tensor, targets: Any, signs: Tensor, most: int) -> ScanDirections:
        """Return two random directions."""
        return directions_of(output, signs)

    def score(self, output: Tensor) -> Tensor:
        """Return the sum over images of the mean of their pixels' highest scores."""
        return output.amax(1).flatten(1).mean(1).sum()

    def loss(self, output: Tensor, targets: Any) -> Tensor:
        """Return the sum over images of the mean cross-entropy of labelled pixels."""
        import torch.nn.functional as F

        found = F.cross_entropy(output, targets.long(), ignore_index=IGNORED, reduction="none")
        return found.flatten(1).mean(1).sum()

    def output_text(self, output: Any, names: Sequence[str]) -> str:
        """Return the classes that occur."""
        return self._listed(output["classes"], names)

    def target_text(self, target: Any, names: Sequence[str]) -> str:
        """Return the classes that occur."""
        return self._listed(target, names)

    def _listed(self, classes: Tensor, names: Sequence[str]) -> str:
        return ", ".join(self.output_name(each, names) for each in classes.unique().tolist() if each != IGNORED)


SEGMENTATION = Segmentation(
    name="toy-segmentation",
    label="Toy segmentation",
    model_kind="segmentation",
    output_title="Classes",
    label_words=("class", "classes"),
    label_places="Masks beside the pictures",
    label_help="A PNG of class numbers for each picture, in a folder masks.",
    score_label="Mean highest score",
    shown_metric=MIOU.name,
    extra_metrics=(MIOU, DIVERGENCE, AGREEMENT),
    one_tensor=False,
)
SOURCE = ModelSource(
    name="toy-segmentation",
    label="Toy segmentation",
    loader="tests.toy_segmentation.network:load",
    names=("colours",),
    help="A network of a test.",
)
