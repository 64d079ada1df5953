"""Detection: boxes with a class and a score. Layers are ranked by all boxes before non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput
from senseapp.metrics.detection import DETECTION_METRICS, MAP, OBJECTS, TASK, annotated, object_counts
from senseapp.metrics.detection.rows import BOX, FOUND, NUM_FIXED, SURE_SCORE, RowKind, blocks, overlaps, scores
from senseapp.metrics.predictions import Columns, Predictions
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.base import AnswerChanges, Task, refuse_output
from senseapp.tasks.class_numbers import Background
from senseapp.tasks.detection.annotations import BOXES
from senseapp.tasks.reading import OutputReader

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.tasks.directions import ScanDirections


@dataclass(frozen=True, kw_only=True)
class Detection(Task):
    """Where objects are in an image, and of which class."""

    def readers(
        self, model_output: object, size: tuple[int, int], num_classes: int = 0, *, every: bool = False
    ) -> Sequence[OutputReader]:
        """Return what decodes outputs by each layout that this one may have."""
        from senseapp.tasks.detection.heads import head_readers

        return head_readers(model_output, size, num_classes, every=every)

    def reader_of(self, key: str) -> OutputReader:
        """Return what decodes outputs by a layout that a setting names."""
        from senseapp.tasks.detection.heads.layout import HeadLayout

        return HeadLayout.from_key(key)

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what :func:`~senseapp.tasks.detection.heads.read_heads` does not recognise."""
        rows = self.output(model_output)
        if len(rows) != num_images:
            raise refuse_output(f"boxes of {num_images} images", rows, self.name)

    def output(self, model_output: object) -> Tensor:
        """Return the rows, (N, R, 6 + K), of all boxes; see :mod:`senseapp.metrics.detection.rows`."""
        from senseapp.tasks.detection.heads import read_heads

        return read_heads(model_output)[0]

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return the rows, at most ``most_bytes`` of each image, and the candidates for detections."""
        from senseapp.metrics.detection.matching import candidates_of
        from senseapp.tasks.detection.heads import read_heads

        rows, class_boxes = read_heads(model_output)
        kept = _kept_rows(rows, most_bytes)
        return Columns(
            parts={
                "rows": rows if kept is None else rows[:, kept],
                "num_rows": rows.new_full((len(rows),), rows.shape[1]),
                "candidates": candidates_of(rows, class_boxes),
            }
        )

    def score_threshold(self, predictions: Predictions, targets: Any, original: Predictions | None = None) -> float:
        """Return the score from which detections have the best F1."""
        from senseapp.metrics.detection.matching import best_threshold, detections_of, objects_of, sure_detections

        if targets is not None:
            objects = [annotated(each) for each in targets]
        elif original is not None:
            objects = [objects_of(sure_detections(each), 0.0) for each in original]
        else:
            return SURE_SCORE
        found = (detections_of(each) for each in predictions.parts["candidates"])  # type: ignore[union-attr]
        return best_threshold(zip(found, objects, strict=True))

    def at_threshold(self, predictions: Predictions, threshold: float) -> Predictions:
        """Return predictions with their own threshold of sure detections."""
        import torch

        return Columns(parts={**predictions.parts, "sure_score": torch.full((len(predictions),), threshold)})  # type: ignore[union-attr]

    def predictions_note(self, model_output: object, *, most_bytes: int | None = None) -> str:
        """Return the note on the number of boxes in the divergence, if it is not all."""
        rows = self.output(model_output)
        kept = _kept_rows(rows, most_bytes)
        return "" if kept is None else f"The divergence is of {len(kept):,} of {rows.shape[1]:,} boxes of each image."

    def baseline_note(self, predictions: Predictions) -> str:
        """Return a note if no object is found at all."""
        found = predictions.parts["candidates"]  # type: ignore[union-attr]
        if any(len(each) and float(each[:, 0].max()) >= SURE_SCORE for each in found):
            return ""
        return (
            f"The uncompressed model finds no object with a score of at least {SURE_SCORE:g} in these images, so none "
            "can be lost. Check how its images are prepared, or take others."
        )

    def mirror_agreement(self, output: object, mirrored: object, width: int) -> list[float]:
        """Return the share of sure boxes that are found in both, as F1; 0 for images without any."""
        rows, turned = self.output(output), self.output(mirrored).clone()
        turned[..., [0, 2]] = width - turned[..., BOX][..., [2, 0]]
        before, after = (self.predictions({"rows": each}) for each in (rows, turned))
        found = []
        for at in range(len(rows)):
            there, new, same = object_counts(OBJECTS.moments(before[at : at + 1], after[at : at + 1], None))
            found.append(2 * same / (there + new) if there + new else 0.0)
        return found

    def confusion(self, predictions: Any, targets: Any, num_outputs: int) -> Tensor:
        """Return the classes of the sure boxes that overlap each object most."""
        import torch

        table = torch.zeros(num_outputs, num_outputs)
        for found, target in zip(map(self.answer, predictions), targets, strict=True):
            if not len(found["labels"]) or not len(target["labels"]):
                continue
            overlap, nearest = overlaps(target["boxes"].double()[:, None], found["boxes"][None]).max(dim=1)
            hit = overlap >= FOUND
            pairs = target["labels"][hit], found["labels"][nearest[hit]]
            table.index_put_(pairs, torch.ones(()), accumulate=True)
        return table

    def num_outputs(self, output: Tensor) -> int:
        """Return the number of classes, a background included."""
        return int(output.shape[2]) - NUM_FIXED

    def directions(self, output: Tensor, targets: Any, signs: Tensor, most: int) -> ScanDirections:
        """Return a direction of classes and one of boxes."""
        from senseapp.tasks.directions import box_directions

        return box_directions(output, signs)

    def output_parts(self, output: Tensor) -> Sequence[Tensor]:
        """Return a direction of the boxes of each feature map."""
        from senseapp.tasks.directions import directions_of_maps

        return directions_of_maps(output)

    def check_targets(self, targets: PerImage, num_images: int, num_outputs: int) -> None:
        """Refuse annotations of other images, or of classes that the model does not know."""
        if len(targets) != num_images:
            raise InvalidInput(f"{num_images} images need as many lists of boxes, got {len(targets)}.")
        highest = max((int(each["labels"].max()) for each in targets if len(each["labels"])), default=0)
        if highest >= num_outputs:
            raise InvalidInput(f"Boxes must be of classes below {num_outputs}, got {highest}.")

    def background(self, output: Tensor) -> Background:
        """Return the background's place among the classes, by the kinds of the rows."""
        kinds = {kind for kind, _ in blocks(output)} - {RowKind.ANCHOR}
        if kinds & {RowKind.SOFTMAX, RowKind.PROPOSAL}:
            return "first"
        return "last" if RowKind.SOFTMAX_LAST in kinds else "none" if kinds else "unknown"

    def score(self, output: Tensor) -> Tensor:
        """Return the sum of each image's highest score."""
        return _best_scores(output).amax(dim=1).sum()

    def loss(self, output: Tensor, targets: Any) -> Tensor:
        """Return, summed over the objects, how far the score of the box that overlaps each most is below 1."""
        import torch

        best, parts = _best_scores(output), [output.sum() * 0.0]
        for rows, score, target in zip(output, best, targets, strict=True):
            if len(target["boxes"]):
                boxes = target["boxes"].to(rows)
                nearest = overlaps(boxes[:, None], rows[None, :, BOX].detach()).argmax(dim=1)
                parts.append((1 - score[nearest]).sum())
        return torch.stack(parts).sum()

    def answer(self, output: Any) -> dict[str, Tensor]:
        """Return ``boxes`` and ``labels`` of the sure detections."""
        import torch

        from senseapp.metrics.detection.matching import sure_detections

        found = torch.from_numpy(sure_detections(output))
        return {"boxes": found[:, 2:], "labels": found[:, 1].long()}

    def target_text(self, target: Any, names: Sequence[str]) -> str:
        """Return the classes of the annotated objects."""
        labels = target["labels"].tolist()
        counts = {label: labels.count(label) for label in sorted(set(labels))}
        return ", ".join(f"{count} × {self.output_name(label, names)}" for label, count in counts.items()) or "nothing"

    def answer_changes(self, before: Any, after: Any, targets: Any) -> AnswerChanges:
        """Return which objects are lost, moved or new; see :meth:`Task.answer_changes`."""
        from senseapp.tasks.display import object_changes

        return object_changes(before, after, targets)

    def drawn_target(self, picture: NDArray[np.uint8], target: Any) -> NDArray[np.uint8]:
        """Return the picture with the annotated boxes."""
        from senseapp.tasks.display import boxes_drawn

        return boxes_drawn(picture, target["boxes"].double().numpy(), target["labels"].tolist())

    def legend(self, outputs: Sequence[Any], names: Sequence[str]) -> bytes:
        """Return the colours of the classes that are detected."""
        from senseapp.tasks.display import colour_of, legend

        found = {label for each in outputs for label in self.answer(each)["labels"].tolist()}
        return legend([(label, self.output_name(label, names)) for label in sorted(found)], colour_of)


def _best_scores(rows: Tensor) -> Tensor:
    import torch

    return torch.cat([scores(rows[:, place], kind) for kind, place in blocks(rows)], dim=1)


def _kept_rows(rows: Tensor, most_bytes: int | None) -> Tensor | None:
    """Return the places of the rows that fit, always the same for as many; None for all, as of chosen regions."""
    import torch

    number, each = rows.shape[1], 4 * rows.shape[2]
    if most_bytes is None or number * each <= most_bytes:
        return None
    generator = torch.Generator().manual_seed(0)  # so that the same output gives the same directions
    return torch.randperm(number, generator=generator)[: max(1, most_bytes // each)].sort().values


DETECTION = Detection(
    name=TASK,
    label="Detection: boxes with a class",
    output_title="Classes",
    label_words=("class", "classes"),
    label_places="COCO JSON, YOLO text files or Pascal VOC XML",
    usual_side=640,  # of YOLOv5 to v11 and YOLOX
    label_help="A JSON file of boxes as COCO writes it, a text file for each picture as YOLO, or an XML file as Pascal "
    "VOC.",
    score_label="Highest score",
    shown_metric=MAP.name,
    extra_metrics=DETECTION_METRICS,
    one_tensor=False,
    has_score_threshold=True,
    annotations=BOXES,
    not_compared="A detector answers with boxes, so two files are not compared by their answers to whole pictures. "
    "Results and Schedule show the pictures that change most, with the boxes of both.",
)
