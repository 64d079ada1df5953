"""What a set of images holds and how the model sees it, told before anything is measured."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from senseapp.results.preparation import PreparationChoice
from senseapp.results.resolution import near_chance
from senseapp.service.engine import load_engine
from senseapp.spec import RunSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from senseapp.data import ImageSet
    from senseapp.models.loaded import LoadedModel


_SHOWN = 12
_MOST_SCORED = 256
_SCORING_SECONDS = 8.0
_BATCH = 32
_SMALLEST_SIDE = 96  # of a thumbnail; smaller inputs are enlarged without smoothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPicture:
    """One picture as the network sees it.

    Attributes:
        name: of its file.
        png: the cropped picture, as a PNG file.
        label: name of its class; empty without labels.
        prediction: name of the class that the model gives it.
    """

    name: str
    png: bytes
    label: str
    prediction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewReport:
    """Some pictures and the uncompressed model's figures on them.

    Attributes:
        pictures: at most twelve, spread evenly over the set.
        num_scored: images that ``top1`` was measured on, drawn at random.
        top1: share of them that the model gets right; None without labels.
        warning: one sentence where that is no better than chance; else empty.
        notes: sentences on files left out, and on how others were read.
        choice: how the preprocessing was chosen that the pictures are shown with; None where it was given.
    """

    pictures: tuple[SeenPicture, ...]
    num_scored: int
    top1: float | None
    warning: str
    notes: tuple[str, ...]
    choice: PreparationChoice | None = None


def sample_zip() -> bytes:
    """Return the demo's pictures in class folders, as a zip file: what images for this app look like."""
    load_engine()
    from senseapp.data.demo import write_demo_zip  # torch loads on first use, not when the app starts

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.zip"
        write_demo_zip(path)
        return path.read_bytes()


def preview_images(spec: RunSpec, *, num_images: int | None, data_roots: tuple[Path, ...] = ()) -> PreviewReport:
    """Load the model and some images of ``spec``, and run the one on the other; takes seconds.

    Where their preparation is to be chosen, it is, and everything is shown with what was chosen.

    Args:
        spec: with the model and the images.
        num_images: how many images there are; None where that is not known beforehand.
        data_roots: folders that images may be read from; empty allows any.

    Raises:
        InvalidInput: the model or the images cannot be used.
    """
    load_engine()
    from senseapp.data import load_images  # torch loads on first use, not when the app starts
    from senseapp.evaluate.preparation_search import choose_preparation
    from senseapp.models.load import load_model

    choice = None
    if spec.data.preparation == "auto":
        choice = choose_preparation(spec, data_roots=data_roots)
        spec = choice.spec
    model = load_model(spec.model)
    images = load_images(
        spec.data,
        model.preprocessing,
        num_classes=model.num_classes,
        num_samples=_MOST_SCORED if num_images is not None and num_images > 2 * _MOST_SCORED else None,
        seed=spec.sensitivity.seed,
        data_roots=data_roots,
        class_names=model.class_names,
        with_labels=not model.fresh_head,
    )
    scored, top1 = _top1(model, images)
    correct = 0 if top1 is None else round(top1 * scored)
    return PreviewReport(
        pictures=_seen(spec, model, images),
        num_scored=scored,
        top1=top1,
        warning="" if top1 is None else chance_warning(correct, scored, model.num_classes),
        notes=images.notes,
        choice=choice,
    )


def chance_warning(correct: int, scored: int, num_classes: int) -> str:
    """Return a sentence if ``correct`` of ``scored`` is no more than guessing among the classes would give.

    So few images that even all of them right would prove nothing get no warning.
    """
    if not near_chance(correct, scored, num_classes):
        return ""
    return (
        f"The model gets {correct} of {scored} images right, which is no better than guessing among {num_classes:,} "
        "classes: labels and outputs probably do not line up. Check which class each folder means, or measure "
        "without labels."
    )


def _seen(spec: RunSpec, model: LoadedModel, images: ImageSet) -> tuple[SeenPicture, ...]:
    from senseapp.data import effective_preprocessing, preview

    chosen = preview(images, effective_preprocessing(spec.data, model.preprocessing), count=_SHOWN)
    predicted = _predictions(model, images.subset(chosen.indices).batch(0, len(chosen.indices)))
    names = model.class_names or images.class_names
    return tuple(
        SeenPicture(
            name=images.names[index],
            png=_png(picture),
            label="" if images.labels is None else _named(names, int(images.labels[index])),
            prediction=_named(names, prediction),
        )
        for index, picture, prediction in zip(chosen.indices, chosen.pictures, predicted.tolist(), strict=True)
    )


def _named(names: Sequence[str], index: int) -> str:
    return names[index].split(",")[0] if index < len(names) else f"class {index}"


def _top1(model: LoadedModel, images: ImageSet) -> tuple[int, float | None]:
    """Return how many images were scored, in random order until the time is up, and the share that is right."""
    if images.labels is None:
        return 0, None
    from senseapp.data import draw

    chosen = draw(images, min(_MOST_SCORED, len(images)), seed=0)
    order = _shuffled(len(chosen))
    end, correct, scored = time.monotonic() + _SCORING_SECONDS, 0, 0
    while scored < len(order) and time.monotonic() < end:
        batch = chosen.subset(order[scored : scored + _BATCH])
        assert batch.labels is not None
        correct += int((_predictions(model, batch.batch(0, len(batch))) == batch.labels).sum())
        scored += len(batch)
    return scored, correct / scored


def _shuffled(count: int) -> list[int]:
    import torch

    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return order


def _predictions(model: LoadedModel, batch: Tensor) -> Tensor:
    import torch

    with torch.inference_mode():
        scores: Any = model.module(batch)  # (n, classes)
    predicted: Tensor = scores.argmax(dim=1)
    return predicted


def _png(picture: npt.NDArray[np.uint8]) -> bytes:
    from PIL import Image

    image = Image.fromarray(picture)
    factor = -(-_SMALLEST_SIDE // min(image.size))
    if factor > 1:
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()
