"""A task and a source of networks from outside: boxes. Everything that an engineer writes for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from senseapp.descriptions import ModelSource
from senseapp.metrics.predictions import Predictions
from senseapp.tasks import ScanDirections, Targets, Task, WrittenLabels, refuse_output
from tests.toy_detection.metrics import AP, DIVERGENCE, directions_of, predictions_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Detection(Task):
    """Where rectangles are."""

    def output(self, model_output: object) -> Tensor:
        """Return boxes and logits of all images, (N, 16, 6)."""
        import torch

        images = cast("list[dict[str, Tensor]]", model_output)
        return torch.stack([torch.cat([each["boxes"], each["logits"]], 1) for each in images])

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what is not a dictionary of boxes and logits for each image."""
        fits = isinstance(model_output, list) and len(model_output) == num_images
        if not fits or not all({"boxes", "logits"} <= set(each) for each in cast("list[Any]", model_output)):
            raise refuse_output("boxes and logits of each image", model_output, self.model_kind)

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return boxes, logits and the detections of each image."""
        return predictions_of(self.output(model_output))

    def num_outputs(self, output: Tensor) -> int:
        """Return the number of classes."""
        return int(output.shape[2]) - 4

    def targets(self, written: WrittenLabels, confirmed: Sequence[tuple[str, int]] = ()) -> Targets:
        """Return none: boxes are annotations, not written labels."""
        return Targets(values=None)

    def directions(self, output: Tensor, targets: Any, signs: Tensor, most: int) -> ScanDirections:
        """Return two random directions."""
        return directions_of(output, signs)

    def score(self, output: Tensor) -> Tensor:
        """Return the sum of each image's highest logit."""
        return output[..., 4:].flatten(1).amax(1).sum()

    def loss(self, output: Tensor, targets: Any) -> Tensor:
        """Return the sum over images of how far the highest logits are from as many rectangles."""
        import torch

        counts = torch.tensor([len(each) for each in targets], dtype=output.dtype, device=output.device)
        return (output[..., 4:].sigmoid().flatten(1).sum(1) - counts).abs().sum()

    def output_text(self, output: Any, names: Sequence[str]) -> str:
        """Return what was found."""
        return self._listed(output["detections"][:, 1], names)

    def target_text(self, target: Any, names: Sequence[str]) -> str:
        """Return what is there."""
        return self._listed(target[:, 0], names)

    def _listed(self, classes: Tensor, names: Sequence[str]) -> str:
        return ", ".join(self.output_name(int(each), names) for each in classes) or "nothing"


DETECTION = Detection(
    name="toy-detection",
    label="Toy detection",
    model_kind="detection",
    output_title="Boxes",
    label_words=("class", "classes"),
    label_places="Boxes beside the pictures",
    label_help="A JSON of boxes.",
    score_label="Highest logit",
    shown_metric=AP.name,
    extra_metrics=(AP, DIVERGENCE),
    one_tensor=False,
)
SOURCE = ModelSource(
    name="toy-detection",
    label="Toy detection",
    loader="tests.toy_detection.network:load",
    names=("rectangles",),
    help="A network of a test.",
)
