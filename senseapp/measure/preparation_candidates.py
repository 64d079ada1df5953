"""Candidate preprocessings for :mod:`senseapp.measure.preparation_search`, and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, PreparedImages
from senseapp.data.load import images_for
from senseapp.metrics.intervals import proportion_interval
from senseapp.networks.loaded import IMAGENET_MEAN, IMAGENET_STD, LoadedModel, Preprocessing
from senseapp.networks.sources.building import channel_statistics
from senseapp.networks.sources.catalogue import find_entry
from senseapp.records.inputs import PreparationTrial
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.tasks import Task
from senseapp.tasks.reading import ChannelOrder

_RAW = "values from 0 to 255"
CAFFE = f"{_RAW}, less the mean of ImageNet"
"""As networks of Caffe and many of MMDetection take them."""
NORMALISATIONS = {
    "mean and std 0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "mean and std of ImageNet": (IMAGENET_MEAN, IMAGENET_STD),
    "values from 0 to 1": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    _RAW: ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
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


@dataclass(frozen=True, slots=True, eq=False)
class Preparations:
    """Preprocessings of ``images`` other than an architecture's own, for each of ``models``.

    ``data`` holds the user's settings, which are kept. ``own_of`` returns an architecture's own preprocessing, or None
    if it cannot be loaded.
    """

    data: DataSpec
    models: Sequence[ModelSpec]
    images: PreparedImages
    own_of: Callable[[ModelSpec], Preprocessing | None]

    def candidates(self, own: PreparationCandidate) -> list[PreparationCandidate]:
        """Return all but ``own``, in the order of their models, geometries and normalisations."""
        found = [
            PreparationCandidate(
                model,
                replace(data, mean=mean, std=std, channel_order=order),
                tuple(word for word in (*words, normalised, "BGR" if order == "bgr" else "") if word),
            )
            for model, data, words in self._geometries()
            for normalised, mean, std in self._normalisations(model)
            for order in self._channel_orders()
        ]
        return [item for item in found if item.key != own.key]

    def _geometries(self) -> Iterator[tuple[ModelSpec, DataSpec, tuple[str, ...]]]:
        data = self.data
        whole = replace(data, crop_pct=1.0) if data.crop_pct is None else data
        for model in self.models:
            yield model, data, ()
            if data.crop_pct is None:
                yield model, whole, ("no crop",)
            for side in self._native_sides() if model.img_size is None else ():
                yield replace(model, img_size=side), whole, (f"{side} × {side} px",)

    def _native_sides(self) -> list[int]:
        side, own = min(self.images.picture_size or (0, 0)), self.images.pixels.shape[-1]
        sides = dict.fromkeys((side, -(-side // 32) * 32))  # networks halve an image five times
        return [item for item in sides if 16 <= item <= min(512, 2 * own) and item != own]

    def _normalisations(self, model: ModelSpec) -> list[tuple[str, tuple[float, ...], tuple[float, ...]]]:
        """Return description, mean and std of each; the first is the user's or the architecture's own, undescribed."""
        found = [("", self.data.mean, self.data.std)]
        if self.data.mean or self.data.std:
            return found
        own = self.own_of(model)
        if own is None:
            return []
        for (mean, std), words in usual_ranges(own.input_shape[0]).items():
            # Without labels, inputs a hundred times too large make any prediction look confident.
            fits = self.images.labels is not None or not words.startswith(_RAW)
            if fits and (mean, std) != (own.mean, own.std):
                found.append((words, mean, std))
        return found

    def _channel_orders(self) -> tuple[ChannelOrder, ...]:
        is_grey = bool((self.images.pixels == self.images.pixels[:, :1]).all())
        is_colour = self.images.pixels.shape[1] == 3
        if self.images.labels is None or is_grey or not is_colour or self.data.channel_order:
            return (self.data.channel_order,)
        return "", "bgr"


def macs_of(model: ModelSpec) -> float:
    """Return the approximate multiply-accumulates of one image; a typical number if the model's is not known."""
    entry = find_entry(model.library, model.name)
    if entry is None or entry.macs is None:
        return 4e9  # those of ResNet-50 at 224 pixels
    return entry.macs * ((model.img_size or entry.input_shape[-1]) / entry.input_shape[-1]) ** 2


def some_images(
    model: LoadedModel, data: DataSpec, task: Task, most: int, *, seed: int, data_roots: Sequence[Path]
) -> ImageSet:
    """Return at most so many of the images, prepared as ``data`` says."""
    load = partial(images_for, model, data, task=task, seed=seed, data_roots=data_roots)
    try:
        return load(num_samples=most)
    except InvalidSpec:  # there are fewer
        return load()


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
    found = f"{subject}: {own.title}: {_with_interval(own)}"
    if num_tried == 1:
        return f"{found}; that is good enough to try no other."
    return f"{found}; no other of {num_tried} ways is clearly better."


def _with_interval(trial: PreparationTrial) -> str:
    if trial.correct is None:
        return trial.result
    low, high = proportion_interval(trial.correct, trial.num_images)
    return f"{trial.result} ({100 * low:.0f} to {100 * high:.0f} %)"
