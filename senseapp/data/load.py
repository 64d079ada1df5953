"""Load the images of a :class:`DataSpec`, one loader per kind; the demo's are 1,797 handwritten digits."""

import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset, InvalidSpec
from senseapp.core.files import SITE
from senseapp.data.demo_pictures import load_photographs, load_shapes
from senseapp.data.images import ImageSet, PreparedImages, TensorImages, draw, effective_preprocessing
from senseapp.data.pictures import ImageRequest, load_pictures
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.demo import DEMO_PREPROCESSING
from senseapp.records.spec import MOST_RANDOM_INPUTS, SHAPE_NAMES, WITHOUT_LABELS, DataSpec
from senseapp.tasks import Task

Split: TypeAlias = Literal["train", "heldout"]

_CLASS_NAMES = tuple("0123456789")


@cache
def _digits() -> Mapping[str, npt.NDArray[Any]]:
    """Return ``images`` uint8 (N, 8, 8), ``labels`` (N,), and which of them the network was trained on, ``train``."""
    with np.load(SITE / "assets" / "digits.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@cache
def _indices(split: Split) -> npt.NDArray[np.int64]:
    """Return which of the 1,797 digits are in ``split``, ascending; classes are in proportion."""
    train = _digits()["train"]
    return np.flatnonzero(train if split == "train" else ~train)


@cache
def demo_pictures(split: Split = "heldout") -> npt.NDArray[np.uint8]:
    """Return the pictures of ``split`` at the network's size, grey values uint8 (N, 32, 32), not writable.

    The network was trained on ``train`` (900 digits) and never saw ``heldout`` (897).
    """
    size = DEMO_PREPROCESSING.input_shape[1:]
    # the digits count inked pixels of 4 x 4 blocks: 0 to 16
    digits = np.rint(_digits()["images"][_indices(split)] * (255.0 / 16.0)).astype(np.uint8)  # (N, 8, 8)
    pictures = np.stack([np.asarray(Image.fromarray(d).resize(size, Image.Resampling.BILINEAR)) for d in digits])
    pictures.flags.writeable = False
    return pictures


def load_demo_images(split: Split = "heldout") -> TensorImages:
    """Return the digits of ``split`` with labels, normalised as the demo network expects, (N, 1, 32, 32)."""
    (mean,), (std,) = DEMO_PREPROCESSING.mean, DEMO_PREPROCESSING.std
    pixels = torch.from_numpy(demo_pictures(split).astype(np.float32) / 255.0)  # (N, H, W)
    return TensorImages(
        ((pixels - mean) / std).unsqueeze(1),
        torch.from_numpy(_digits()["labels"].astype(np.int64)[_indices(split)]),
        class_names=_CLASS_NAMES,
        names=_names(split),
    )


def write_demo_zip(file: Path | IO[bytes], split: Split = "heldout") -> None:
    """Write the pictures of ``split`` to ``file`` as a zip of PNG files in class folders, ``3/digit-0013.png``."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, picture in zip(_names(split), demo_pictures(split), strict=True):
            png = io.BytesIO()
            Image.fromarray(picture).save(png, format="PNG")
            # fixed, so that the same pictures give the same bytes
            archive.writestr(zipfile.ZipInfo(name, date_time=(2000, 1, 1, 0, 0, 0)), png.getvalue())


def _names(split: Split) -> tuple[str, ...]:
    indices = _indices(split)
    labels = _digits()["labels"][indices]
    return tuple(f"{label}/digit-{index:04d}.png" for index, label in zip(indices, labels, strict=True))


def load_images(
    spec: DataSpec, preprocessing: Preprocessing, *, with_labels: bool = True, **request_fields: Any
) -> ImageSet:
    """Load the images of ``spec``, prepared as the model wants them: by its ``preprocessing``, and what ``spec`` sets.

    Further arguments are fields of :class:`ImageRequest`. Without ``with_labels`` no labels are read, for a model whose
    classifier knows no classes. Raises InvalidDataset where the images cannot be read, trusted or matched to the
    classes, and InvalidSpec where more random inputs are wanted than are drawn.
    """
    request = ImageRequest(
        spec=spec if with_labels else replace(spec, labels=WITHOUT_LABELS, class_map=()),
        preprocessing=effective_preprocessing(spec, preprocessing),
        **request_fields,
    )
    images = draw(_LOADERS[spec.kind](request), request.num_samples, request.seed)
    if request.names is None:
        return images
    return images.subset([place for place, name in enumerate(images.names) if name in request.names])


def images_for(
    model: LoadedModel, spec: DataSpec, *, task: Task, with_labels: bool = True, **request_fields: Any
) -> ImageSet:
    """Load the images of ``spec`` for ``model``; see :func:`load_images`. A random classifier needs no labels."""
    return load_images(
        spec,
        model.preprocessing,
        task=task,
        num_classes=model.num_classes,
        class_names=model.class_names,
        background=model.background,
        with_labels=with_labels and not model.fresh_head,
        **request_fields,
    )


def _demo(request: ImageRequest) -> ImageSet:
    digits, shape = load_demo_images("heldout"), request.preprocessing.input_shape
    pictures = torch.tensor(demo_pictures("heldout")).unsqueeze(1)  # (N, 1, H, W)
    task, too_few = request.task, request.num_classes < len(digits.class_names)
    if shape != pictures.shape[1:] or (too_few and task.uses_labels):
        raise InvalidDataset(
            f"The demo digits are images of shape {tuple(pictures.shape[1:])} with 10 classes, and this model takes "
            f"{shape} with {request.num_classes}. Bring your own images, or choose the demo model."
        )
    _refuse_overrides(request.spec, "crop_pct", reason="The demo digits have the network's size and are not cropped.")
    labels = digits.labels if task.annotations is None and task.uses_labels else None
    return PreparedImages(pictures, request.preprocessing, labels, class_names=digits.class_names, names=digits.names)


def _shapes(request: ImageRequest) -> ImageSet:
    known = request.task.annotations is not None and request.class_names == SHAPE_NAMES
    with_boxes = known and request.spec.labels != WITHOUT_LABELS
    return load_shapes(request.preprocessing, request.num_samples, with_boxes=with_boxes)


def _random(request: ImageRequest) -> ImageSet:
    overrides = ("mean", "std", "crop_pct", "fit", "channel_order", "upright")
    _refuse_overrides(request.spec, *overrides, reason="Random inputs are drawn as the network sees them.")
    generator = torch.Generator().manual_seed(request.seed)
    # noise says little, so that more would not be surer of the real loss
    count = request.num_samples or 128
    if count > MOST_RANDOM_INPUTS:
        raise InvalidSpec(f"Random inputs are at most {MOST_RANDOM_INPUTS:,}, got {count:,}. Choose fewer.")
    return TensorImages(
        torch.randn(count, *request.preprocessing.input_shape, generator=generator),
        notes=("There are no images: inputs are random noise, so every figure is indicative only.",),
        indicative=True,
    )


def _refuse_overrides(spec: DataSpec, *names: str, reason: str) -> None:
    """Refuse settings that would have no effect."""
    overridden = [name for name in names if getattr(spec, name) not in ((), None, "", "rgb", False)]
    if overridden:
        raise InvalidSpec(f"{reason} Leave out {', '.join(overridden)}.")


_LOADERS: dict[str, Callable[[ImageRequest], ImageSet]] = {
    "demo": _demo,
    "photographs": lambda request: load_photographs(request.preprocessing, request.num_samples),
    "shapes": _shapes,
    "random": _random,
    "folder": load_pictures,
    "archive": load_pictures,
    "torchvision": load_pictures,
}
