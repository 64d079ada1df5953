"""A task from outside: semantic segmentation, one class for each pixel. Everything that an engineer writes for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.core.errors import InvalidInput
from senseapp.descriptions import ModelSource
from senseapp.records.spec import ModelSpec
from senseapp.tasks import Task
from senseapp.tasks.annotations import AnnotationFiles, AnnotationReader, Listing, PictureGeometry, pairs_by_stem
from senseapp.tasks.base import refuse_output
from tests.toy_rectangles import CLASSES, SIDE, loaded, scene
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
    from torch import Tensor, nn

    from senseapp.metrics.predictions import Predictions
    from senseapp.networks.loaded import LoadedModel
    from senseapp.tasks.directions import ScanDirections


@dataclass(frozen=True, kw_only=True)
class MaskReader(AnnotationReader):
    """Label images with the name of their picture, in a folder of masks beside the pictures."""

    def find(self, listing: Listing) -> AnnotationFiles:
        """Return the pictures with a mask."""
        pairs, masks = pairs_by_stem(listing.pictures, listing.pictures)
        return AnnotationFiles(files=pairs, no_pictures=masks, names=CLASSES)

    def place(self, annotation: Any, geometry: PictureGeometry) -> Any:
        """Return the class of each pixel of the network's input, uint8 (H, W)."""
        return geometry.mask(annotation, fill=IGNORED)


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """The class of each pixel: scores (N, C, H, W), masks uint8 (N, H, W)."""

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what is not one map of scores for each class."""
        shape = tuple(getattr(model_output, "shape", ()))
        if len(shape) != 4 or shape[0] != num_images:
            raise refuse_output(f"scores of each pixel, shape ({num_images}, classes, H, W)", model_output, self.name)

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return the class of each pixel, and the scores of some."""
        return predictions_of(self.output(model_output), most_bytes)

    def predictions_note(self, model_output: object, *, most_bytes: int | None = None) -> str:
        """Say of how many pixels scores are kept."""
        scores = self.output(model_output)
        pixels = scores[0, 0].numel()
        kept = kept_pixels(scores.shape[1], pixels, most_bytes)
        return f"KL divergence over {kept:,} of {pixels:,} pixels of each image." if kept < pixels else ""

    def directions(self, output: Tensor, targets: Any, signs: Tensor, most: int) -> ScanDirections:
        """Return two random directions."""
        return directions_of(output, signs)

    def check_targets(self, targets: Tensor, num_images: int, num_outputs: int) -> None:
        """Refuse class numbers that the model has no scores for."""
        if len(targets) != num_images:
            raise InvalidInput(f"{num_images} images need as many masks, got {len(targets)}.")
        known = targets[targets != IGNORED]
        if known.numel() and int(known.max()) >= num_outputs:
            raise InvalidInput(f"Masks must hold class numbers below {num_outputs}, got {int(known.max())}.")

    def score(self, output: Tensor) -> Tensor:
        """Return the sum of the highest score of each pixel, averaged over pixels."""
        return output.amax(dim=1).mean(dim=(1, 2)).sum()

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of each image's mean cross-entropy over the pixels whose class is known."""
        import torch.nn.functional as F

        known = targets != IGNORED
        entropy = F.cross_entropy(output, targets.long(), ignore_index=IGNORED, reduction="none")
        return (entropy.sum(dim=(1, 2)) / known.sum(dim=(1, 2)).clamp_min(1)).sum()

    def output_text(self, output: Any, names: Sequence[str]) -> str:
        """Return the share of pixels of each class."""
        return self.target_text(output["classes"], names)

    def target_text(self, target: Tensor, names: Sequence[str]) -> str:
        """Return the share of pixels of each class."""
        shares = [(self.output_name(number, names), float((target == number).float().mean())) for number in range(3)]
        return ", ".join(f"{name} {share:.0%}" for name, share in shares if share)


MASKS = MaskReader(words=("mask", "masks"), label_images=True, dense=True)
SEGMENTATION = Segmentation(
    name="toy_segmentation",
    label="Toy segmentation",
    output_title="Classes per pixel",
    label_words=("mask", "masks"),
    label_places="Masks in a folder beside the pictures",
    label_help="A PNG of class numbers for each picture, with its name, in a folder masks.",
    score_label="Highest score",
    shown_metric=MIOU.name,
    extra_metrics=(MIOU, DIVERGENCE, AGREEMENT),
    one_tensor=False,
    annotations=MASKS,
)
SOURCE = ModelSource(
    name="toy_segmenters",
    label="Toy segmentation networks",
    loader="tests.toy_segmentation:load",
    names=("rectangles",),
    help="A network of a test.",
)


def network(seed: int = 0) -> nn.Module:
    """Return three convolutions that find red and green, made by hand, with some noise in their weights."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    module = nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(3, 8, 3, padding=1),
            relu=nn.ReLU(),
            second=nn.Conv2d(8, 8, 3, padding=1),
            relu2=nn.ReLU(),
            head=nn.Conv2d(8, len(CLASSES), 1),
        )
    )
    colours = torch.tensor([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5]])  # red and green against the rest
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.1)
        module.first.weight[:2] += colours[:, :, None, None] / 9
        module.second.weight[range(2), range(2), 1, 1] += 1.0
        module.head.weight[[1, 2], [0, 1], 0, 0] += 4.0
        module.head.bias[0] += 1.5
    return module.eval()


def load(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return the network; see :class:`ModelSource`."""
    return loaded(spec, network(), report)


def picture_files(count: int = 8, size: tuple[int, int] = (SIDE, SIDE)) -> dict[str, bytes]:
    """Return pictures and their masks, ``images/003.png`` and ``masks/003.png``."""
    from PIL import Image

    from tests.pictures import encoded  # imports torch, which a task does not need to be named

    files = {}
    for number in range(count):
        found = scene(number, size)
        files[f"images/{number:03d}.png"] = encoded(Image.fromarray(found.picture))
        files[f"masks/{number:03d}.png"] = encoded(Image.fromarray(found.mask))
    return files
