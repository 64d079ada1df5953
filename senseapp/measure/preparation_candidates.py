"""Candidate preprocessings for :mod:`senseapp.measure.preparation_search`, and their descriptions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, PreparedImages, effective_preprocessing
from senseapp.data.load import images_for
from senseapp.metrics.intervals import proportion_interval
from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD, LoadedModel, Preprocessing, channel_statistics
from senseapp.networks.profile import watched_pass
from senseapp.networks.sources.catalogue import find_entry
from senseapp.records.inputs import PreparationTrial
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.tasks import Task
from senseapp.tasks.reading import ChannelOrder, Fit

RAW = "values from 0 to 255"
CAFFE = f"{RAW}, less the mean of ImageNet"
"""As networks of Caffe and many of MMDetection take them."""
NORMALISATIONS = {
    "values from −1 to 1": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "mean and spread of ImageNet": (IMAGENET_MEAN, IMAGENET_STD),
    "values from 0 to 1": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    RAW: ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
    CAFFE: (IMAGENET_MEAN, (1 / 255, 1 / 255, 1 / 255)),
}
"""Mean and std of common ranges of values, by what they are called."""


def usual_ranges(channels: int) -> dict[tuple[tuple[float, ...], tuple[float, ...]], str]:
    """Return what common ranges of values are called, by mean and std of ``channels`` channels."""
    return {
        (channel_statistics(mean, channels), channel_statistics(std, channels)): words
        for words, (mean, std) in NORMALISATIONS.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class PreparationCandidate:
    """One way to run the checkpoint; ``order`` is the index among the class orders that fit the labels."""

    model: ModelSpec
    data: DataSpec
    words: tuple[str, ...] = ()
    order: int = 0

    @property
    def key(self) -> tuple[ModelSpec, DataSpec]:
        """The settings that the model's scores depend on; the class order only permutes the labels."""
        return self.model, self.data

    @property
    def values(self) -> tuple[object, ...]:
        """The network and the values of its pixels, however pictures are brought to size."""
        return self.model.library, self.model.name, self.data.mean, self.data.std, self.data.channel_order


def other_preparations(
    data: DataSpec,
    models: Sequence[ModelSpec],
    images: PreparedImages,
    own_of: Callable[[ModelSpec], Preprocessing | None],
) -> list[PreparationCandidate]:
    """Return preprocessings of ``images``, and each of ``models``, in the order of models, geometries, normalisations.

    ``data`` holds the user's settings, which are kept. ``own_of`` returns an architecture's own preprocessing, or None
    if it cannot be loaded.
    """
    return [
        PreparationCandidate(
            model,
            replace(geometry, mean=mean, std=std, channel_order=order),
            tuple(word for word in (words, normalised, "BGR" if order == "bgr" else "") if word),
        )
        for each in models
        for own in (own_of(each),)
        for model, geometry, words in _geometries(data, each, images, own)
        for normalised, mean, std in _normalisations(data, own, is_labelled=images.labels is not None)
        for order in _channel_orders(data, images)
    ]


def _geometries(
    data: DataSpec, model: ModelSpec, images: PreparedImages, own: Preprocessing | None
) -> Iterator[tuple[ModelSpec, DataSpec, str]]:
    (width, height), (rows, columns) = images.picture_size or (0, 0), images.pixels.shape[2:]
    side = min(width, height)
    sides = dict.fromkeys((side, -(-side // 32) * 32))  # networks halve an image five times
    yield model, data, ""
    is_free = own is not None and own.fit == "crop" and data.crop_pct is None
    if own is not None and is_free and data.fit in ("", "crop"):
        other = replace(own, crop_pct=1.0 if own.crop_pct < 1 else own.USUAL_CROP)
        yield model, replace(data, crop_pct=other.crop_pct), other.fit_words
    for each in sides if model.img_size is None else ():
        if 16 <= each <= min(512, 2 * columns) and each != columns:
            whole = replace(data, crop_pct=1.0) if data.crop_pct is None else data
            yield replace(model, img_size=each), whole, f"{each} × {each} px"
    fits: tuple[Fit, ...] = ("stretch", "letterbox")
    for fit in fits if is_free and not data.fit and width * rows != height * columns else ():
        yield model, replace(data, fit=fit), fit


def _normalisations(
    data: DataSpec, own: Preprocessing | None, *, is_labelled: bool
) -> Iterator[tuple[str, tuple[float, ...], tuple[float, ...]]]:
    """Yield description, mean and std of each; the first is the user's or the architecture's own, undescribed."""
    if data.mean or data.std or own is not None:
        yield "", data.mean, data.std
    if data.mean or data.std or own is None:
        return
    for (mean, std), words in usual_ranges(own.input_shape[0]).items():
        # Without labels, inputs a hundred times too large make any prediction look confident.
        if (is_labelled or not words.startswith(RAW)) and (mean, std) != (own.mean, own.std):
            yield words, mean, std


def _channel_orders(data: DataSpec, images: PreparedImages) -> tuple[ChannelOrder, ...]:
    is_grey = bool((images.pixels == images.pixels[:, :1]).all())
    if images.labels is None or is_grey or images.pixels.shape[1] != 3 or data.channel_order:
        return (data.channel_order,)
    return "", "bgr"


def macs_of(model: ModelSpec, counted: float) -> float:
    """Return the approximate multiply-accumulates of one image; those ``counted`` where no catalogue has the model."""
    if (entry := find_entry(model.library, model.name)) is None or entry.macs is None:
        return counted
    return entry.macs * ((model.img_size or entry.input_shape[-1]) / entry.input_shape[-1]) ** 2


def counted_macs(loaded: LoadedModel) -> float:
    """Return the multiply-accumulates of one image, counted in a pass of a file; a typical number for others."""
    if loaded.onnx is None or loaded.onnx.network.in_runtime:  # what onnxruntime computes is not counted
        return 4e9  # those of ResNet-50 at 224 pixels
    trace = watched_pass(loaded.module, torch.zeros(1, *loaded.preprocessing.input_shape))
    return trace.macs // trace.batch_size


@dataclass(slots=True, kw_only=True)
class SomeImages:
    """At most ``most`` images of a run in several preparations; equal crops with equal labels are read once."""

    most: int
    task: Task
    seed: int
    data_roots: Sequence[Path]
    _read: dict[tuple[object, ...], PreparedImages] = field(default_factory=dict)

    def prepared(self, model: LoadedModel, data: DataSpec) -> ImageSet:
        """Return the images as ``data`` says, with labels for the outputs of ``model``."""
        wanted = effective_preprocessing(data, model.preprocessing)
        key = replace(wanted, mean=(), std=(), channel_order="rgb"), model.num_classes, model.background
        if key not in self._read:
            images = images_for(
                model, data, task=self.task, num_samples=self.most, seed=self.seed, data_roots=self.data_roots
            )
            if not isinstance(images, PreparedImages):
                return images
            self._read[key] = images
        return replace(self._read[key], preprocessing=wanted)


def subject_of(tried: Sequence[PreparationCandidate]) -> str:
    """Return what is chosen between, as a noun."""
    if len({each.order for each in tried}) == 1:
        return "Preprocessing"
    return "Class order" if len({each.key for each in tried}) == 1 else "Preprocessing and class order"


def verdict(subject: str, chosen: PreparationTrial, own: PreparationTrial, num_tried: int) -> str:
    """Return one sentence on the choice, the number of images and the number of alternatives."""
    if chosen != own:
        images = plural(own.num_images, "image" if own.correct is None else "labelled image")
        return (
            f"{subject} chosen by {images}: {chosen.title}: {_with_interval(chosen)}; {own.title}: {own.result}. "
            f"{num_tried} ways were tried."
        )
    if own.correct is None and num_tried > 1:
        images = plural(own.num_images, "image")
        return f"{subject}: {own.title}, only assumed: {images} without labels do not decide between {num_tried} ways."
    other = (
        f"no other of {num_tried} ways is clearly better" if num_tried > 1 else "that is good enough to try no other"
    )
    return f"{subject}: {own.title}: {_with_interval(own)}; {other}."


def _with_interval(trial: PreparationTrial) -> str:
    if trial.correct is None:
        return trial.result
    low, high = proportion_interval(trial.correct, trial.num_images)
    return f"{trial.result} ({100 * low:.0f} to {100 * high:.0f} %)"
