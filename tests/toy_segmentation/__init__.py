"""A task from outside whose pictures have masks: the reader of its annotations, and how labels and outputs are said."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.descriptions import ModelSource
from senseapp.metrics import Metric, powers
from senseapp.metrics.predictions import Columns
from senseapp.records.spec import ModelSpec
from senseapp.tasks import Task
from senseapp.tasks.annotations import AnnotationFiles, AnnotationReader, Listing, PictureGeometry, pairs_by_stem
from senseapp.tasks.base import refuse_output
from tests.toy_rectangles import CLASSES, SIDE, loaded, scene

if TYPE_CHECKING:
    from torch import Tensor, nn

    from senseapp.metrics.predictions import Predictions
    from senseapp.networks.loaded import LoadedModel

IGNORED = 255
"""Class number of pixels that no class is known of, padding among them."""


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
        """Return the class of each pixel, (N, H, W)."""
        return Columns(parts={"classes": self.output(model_output).argmax(1)})

    def output_text(self, output: Any, names: Sequence[str]) -> str:
        """Return the share of pixels of each class."""
        return self.target_text(output["classes"], names)

    def target_text(self, target: Tensor, names: Sequence[str]) -> str:
        """Return the share of pixels of each class."""
        shares = [(self.output_name(number, names), float((target == number).float().mean())) for number in range(3)]
        return ", ".join(f"{name} {share:.0%}" for name, share in shares if share)


@dataclass(frozen=True, kw_only=True)
class PixelAgreement(Metric):
    """The share of pixels that keep their class, a mean over images."""

    def terms(self, baseline_output: Columns, output: Columns, targets: Any) -> tuple[Tensor, ...]:
        same = (baseline_output.parts["classes"] == output.parts["classes"]).double().flatten(1).mean(1)  # type: ignore[union-attr]
        return powers(same.new_ones(same.shape), 1 - same)


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
MASKS = MaskReader(words=("mask", "masks"), label_images=True, dense=True)
SEGMENTATION = Segmentation(
    name="toy_segmentation",
    label="Toy segmentation",
    output_title="Classes per pixel",
    label_words=("mask", "masks"),
    label_places="Masks in a folder beside the pictures",
    label_help="A PNG of class numbers for each picture, with its name, in a folder masks.",
    score_label="Highest score",
    extra_metrics=(AGREEMENT,),
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
