"""Semantic segmentation: class scores of each pixel, (N, classes, H, W), and masks with the class of each pixel.

A network with one map z for each image, (N, 1, H, W), has two classes, with the scores 0 and z, as one of
classification with one output has. Networks that end in a softmax or sigmoid return probabilities, which are all
between 0 and 1; their logarithms (or logits) are the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import UnsupportedModel
from senseapp.metrics.predictions import Columns, Predictions
from senseapp.metrics.segmentation import (
    ACCURACY,
    AGREEMENT,
    DIVERGENCE,
    MIOU,
    MIOU_AGREEMENT,
    VOID,
    check_masks,
    grid_of,
    masks_like,
    predictions_of,
)
from senseapp.tasks.base import AnswerChanges, Task, refuse_output
from senseapp.tasks.reading import OutputReader
from senseapp.tasks.segmentation.maps import MapLayout, main_map, map_readers
from senseapp.tasks.segmentation.masks import MASKS

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.tasks.directions import ScanDirections

_LEAST_PROBABILITY = 1e-6  # whose logarithm is taken: float16 stores none below 6e-8


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Which of several classes each pixel belongs to."""

    check_targets = staticmethod(check_masks)

    def readers(
        self, model_output: object, size: tuple[int, int], num_classes: int = 0, *, every: bool = False
    ) -> Sequence[OutputReader]:
        """Return what brings maps to class scores, by each layout that this one may have."""
        return tuple(map_readers(model_output, size, num_classes))

    def reader_of(self, key: str) -> OutputReader:
        """Return what brings maps of a layout that a setting names to class scores."""
        return MapLayout.from_key(key)

    def output(self, model_output: object) -> Tensor:
        """Return class scores, (N, classes, H, W); of one map the scores of two classes."""
        return scores_of(main_map(model_output))

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what has no map of class scores; see :meth:`Task.check_output`."""
        shape = tuple(getattr(main_map(model_output), "shape", ()))
        if len(shape) != 4 or shape[0] != num_images or 0 in shape or min(shape[2:]) < 2:
            raise refuse_output(
                f"class scores of each pixel, shape ({num_images}, classes, H, W)", model_output, self.name
            )
        if shape[1] > VOID:
            raise UnsupportedModel(f"Segmentation networks may have up to {VOID} classes; this one has {shape[1]:,}.")

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return the class of each pixel, and probabilities on a grid; see :mod:`senseapp.metrics.segmentation`."""
        return predictions_of(self.output(model_output), most_bytes)

    def predictions_note(self, model_output: object, *, most_bytes: int | None = None) -> str:
        """Return the note on the number of pixels whose probabilities are compared."""
        shape = tuple(self.output(model_output).shape[1:])
        rows, columns = grid_of(shape, most_bytes)
        pixels, kept = shape[1] * shape[2], len(rows) * len(columns)
        if kept == pixels:
            return ""
        return (
            f"Harm is compared at {kept:,} of {pixels:,} pixels of each image, on an even grid; shares of "
            "pixels and IoU count all of them."
        )

    def baseline_note(self, predictions: Predictions) -> str:
        """Return a note if all pixels of all images are of one class."""
        found = predictions.parts["classes"].unique()  # type: ignore[union-attr]
        if len(found) > 1:
            return ""
        return (
            f"The uncompressed model gives every pixel of these images the same class ({int(found[0])}), so no other "
            "can be lost. Check how its images are prepared, or take others."
        )

    def mirror_agreement(self, output: object, mirrored: object, width: int) -> list[float]:
        """Return Cohen's kappa of the classes of pixels, by the shares of the classes in all images."""
        before, after = self.output(output).argmax(1), self.output(mirrored).argmax(1).flip(2)
        shares = before.flatten().bincount().double() / before.numel()
        chance = float((shares**2).sum())
        return [
            (float((a == b).double().mean()) - chance) / max(1e-9, 1 - chance)
            for a, b in zip(before, after, strict=True)
        ]

    def confusion(self, predictions: Any, targets: Tensor, num_outputs: int) -> Tensor:
        """Return the classes of pixels by those of the masks."""
        found: Tensor = predictions.parts["classes"].long()
        masks = masks_like(targets, found).long()
        places = (masks * num_outputs + found)[masks < num_outputs]
        return places.bincount(minlength=num_outputs**2).reshape(num_outputs, num_outputs).float()

    # ---- the quick scan and histograms

    def directions(self, output: Tensor, targets: Tensor | None, signs: Tensor, most: int) -> ScanDirections:
        """Return random directions that the divergence of all pixels adds up in; see :meth:`Task.directions`.

        Signs of each pixel and class are independent, so for two pixels E[v vᵀ] is 0, and one inner product over all
        positions of an image, squared, estimates the sum of their divergences. Signs of further directions are the same
        ones, turned around by rows and classes: any two differ at random.
        """
        from senseapp.tasks.directions import RandomDirections, fisher_probe

        probability = output.detach().float().softmax(1)
        vectors = [fisher_probe(probability, signs.roll((at, 7 * at), dims=(1, 3)), dim=1) for at in range(most)]
        factor = 1 / (2 * output[0, 0].numel())
        return RandomDirections(vectors=tuple(vectors), metric=DIVERGENCE.name, factor=factor)

    def largest_divergence(self, output: Any) -> Tensor:
        """Return the mean divergence of each image's pixels from the surest pixel of all; see :class:`Task`."""
        from senseapp.tasks.directions import largest_divergence

        log_probabilities = output.parts["log_probabilities"]
        step = -(-log_probabilities.shape[1] // 512)  # a mean over so many pixels will do
        kept = log_probabilities[:, ::step]
        return largest_divergence(kept.flatten(0, 1)).reshape(kept.shape[:2]).mean(1)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of each image's mean cross-entropy over the pixels whose class is known."""
        import torch.nn.functional as F

        masks = masks_like(targets, output[:, 0]).long()
        entropy = F.cross_entropy(output, masks, ignore_index=VOID, reduction="none")
        total: Tensor = (entropy.sum(dim=(1, 2)) / (masks != VOID).sum(dim=(1, 2)).clamp_min(1)).sum()
        return total

    # ---- what people are shown

    def answer(self, output: Mapping[str, Tensor]) -> Tensor:
        """Return the class of each pixel."""
        return output["classes"]

    def target_text(self, target: Tensor, names: Sequence[str]) -> str:
        """Return the classes with the most pixels and their shares."""
        counts = target.flatten().long().bincount(minlength=VOID + 1)[:VOID]
        total = max(1, int(counts.sum()))
        largest = counts.topk(3)
        found = [
            f"{self.output_name(index, names)} {100 * count / total:.0f} %"
            for count, index in zip(largest.values.tolist(), largest.indices.tolist(), strict=True)
            if count >= 0.005 * total
        ]
        return ", ".join(found) or "no class"

    def drawn_target(self, picture: NDArray[np.uint8], target: Tensor) -> NDArray[np.uint8]:
        """Return a picture under the colours of its mask; see :meth:`Task.drawn`."""
        from senseapp.tasks.display import overlaid

        return overlaid(picture, target.cpu().numpy())

    def legend(self, outputs: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> bytes:
        """Return the colours of the classes that some predictions name; see :meth:`Task.legend`."""
        from senseapp.tasks.display import legend, palette

        found = {int(number) for each in outputs for number in each["classes"].flatten().bincount().nonzero()} - {VOID}
        return legend(
            [(number, self.output_name(number, names)) for number in sorted(found)],
            lambda number: tuple(palette()[number].tolist()),
        )

    def answer_changes(self, before: Columns, after: Columns, targets: Tensor | None) -> AnswerChanges:
        """Return how many pixels of each image get another class; see :meth:`Task.answer_changes`.

        Drops of classes are of their IoU with the masks, or without any with what ``before`` finds.
        """
        old, new = before.parts["classes"], after.parts["classes"]
        changed = (old != new).flatten(1).count_nonzero(1).double() / old[0].numel()
        metric, kept = MIOU_AGREEMENT if targets is None else MIOU, 1 - changed
        return AnswerChanges(
            changed=changed > 0,
            damage=changed,
            said=(
                f"Of 100 pixels, {_of_hundred(float(kept.mean()))} keep their class; in the picture that changes "
                f"most, {_of_hundred(float(kept.min()))}."
            ),
            captions=[f"{_of_hundred(share)} of 100 pixels keep their class" for share in kept.tolist()],
            class_drops=partial(metric.of_classes, metric.moments(before, after, targets)),
            measure="IoU with the original's classes" if targets is None else "IoU with the masks",
        )

    def baseline_warning(self, baseline: Mapping[str, float], num_images: int, num_outputs: int) -> str:
        """Return a warning if the classes of pixels are no better than chance."""
        accuracy = baseline.get(ACCURACY.name, math.nan)
        if not accuracy <= 1 / max(1, num_outputs):
            return ""
        return (
            f"The uncompressed model gets {100 * accuracy:.0f} % of the pixels of {num_images:,} images right, near "
            f"chance ({100 / num_outputs:.2g} % for {num_outputs:,} classes): check the preprocessing and the class "
            "numbers of the masks. Sensitivities below mean little."
        )


def _of_hundred(share: float) -> str:
    """Return a share as pixels of a hundred; only all of them are 100."""
    text = f"{100 * share:.1f}"
    return "more than 99.9" if share < 1 and text == "100.0" else text.removesuffix(".0")


def scores_of(maps: Any) -> Tensor:
    """Return class scores, (N, classes, H, W), of scores, probabilities, or one map of either, (N, C, H, W)."""
    import torch

    values: Tensor = maps
    if values.shape[1] == 1:
        if _within_unit(values):
            values = values.float().clamp(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY).logit()
        return torch.cat([torch.zeros_like(values), values], dim=1)
    if _within_unit(values) and bool(((values.sum(1) - 1).abs() <= 0.1).all()):  # in few bits
        return values.float().clamp_min(_LEAST_PROBABILITY).log()
    return values


def _within_unit(values: Tensor) -> bool:
    if values.is_meta:
        return False
    for part in (values.detach()[..., :1, :], values.detach()):  # one row of scores leaves that range already
        low, high = part.aminmax()
        if not (bool(low >= 0) and bool(high <= 1)):
            return False
    return True


SEGMENTATION = Segmentation(
    name="segmentation",
    label="Segmentation: one class per pixel",
    output_title="Classes per pixel",
    label_words=("class", "classes"),
    label_places="Masks beside the pictures",
    usual_side=512,  # crops of Pascal VOC, ADE20K and Cityscapes in mmsegmentation's configurations
    label_help="A PNG of class numbers for each picture, with its name, in folders images and masks; or Pascal VOC, "
    "Cityscapes, or a COCO JSON file.",
    score_label="Highest score",
    shown_metric=MIOU.name,
    extra_metrics=(MIOU, ACCURACY, DIVERGENCE, AGREEMENT, MIOU_AGREEMENT),
    one_output="The network returns one map, taken as the logit of the second of two classes, or as its probability "
    "where all values are between 0 and 1.",
    one_tensor=False,
    annotations=MASKS,
    not_compared="A segmentation network answers each pixel, so two files are not compared by their answers to whole "
    "pictures. Results and Schedule show the pictures that change most, with both masks.",
)
