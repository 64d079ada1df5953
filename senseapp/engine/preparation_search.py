"""Which preparation of the images suits a model, found on a few dozen of them.

A checkpoint does not say how its pictures were prepared, and architectures with the same names and shapes of weights
differ in padding, strides and preparation. Each candidate, an architecture with an image size, a normalisation and a
channel order, is run on the same images; the architecture's own preparation is left only for one that is clearly
better (:mod:`senseapp.metrics.paired_tests`).

The first images are shown to all candidates, the rest to those that are not clearly worse there. What that may take
is counted in multiply-accumulates, so that a search comes out alike on every machine. Without labels there is less to
go by, so fewer candidates are tried and the outcome is called a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.core.wording import plural
from senseapp.data.images import ImageSet, PreparedImages, effective_preprocessing
from senseapp.data.load import load_images
from senseapp.metrics.intervals import proportion_interval
from senseapp.metrics.paired_tests import Answers, Array, clearly_better
from senseapp.models.catalogue import find_entry
from senseapp.models.fitting import look_alikes
from senseapp.models.libraries import channel_statistics
from senseapp.models.load import load_model
from senseapp.models.loaded import LoadedModel, Preprocessing
from senseapp.records.preparation import PreparationChoice, PreparationTrial
from senseapp.records.spec import ChannelOrder, DataSpec, ModelSpec, RunSpec
from senseapp.tasks import task_named

_MOST_IMAGES = 64
_FIRST_IMAGES = 12
_SECOND_IMAGES = 28
_FINALISTS = 8
_FEWEST = 8
_NOT_SEARCHED = (
    "The images are prepared as the architecture's own are: other preprocessing is not searched for with this task."
)
_BATCH = 16
_MOST_ARCHITECTURES = 6
_GOOD_ENOUGH = 0.95  # of the images right: nothing else is tried
_SIGNIFICANCE = 0.05  # for all candidates together
_HOPELESS = 0.01  # significance at which a candidate is not shown the rest of the images
_MACS = 2e11  # for the first images of all candidates together: seconds on a small machine
_LEAST_IMAGES = 24
_USUAL_MACS = 4e9
_LARGEST_SIDE = 512
_SMALLEST_SIDE = 16
_SIDE_STEP = 32

_RAW = "values from 0 to 255"
"""Not tried without labels: inputs a hundred times too large make any answer look sure."""
_NORMALISATIONS = {
    "mean and std 0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "mean and std of ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "values from 0 to 1": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    _RAW: ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}


@dataclass(slots=True, eq=False)
class _Candidate:
    """One way to run the checkpoint, and what it answered so far, float64 (n, C) for each round."""

    model: ModelSpec
    data: DataSpec
    words: tuple[str, ...] = ()
    scores: list[Array] = field(default_factory=list)


def choose_preparation(
    spec: RunSpec,
    *,
    data_roots: Sequence[Path] = (),
    progress: Callable[[str], None] = lambda sentence: None,
) -> PreparationChoice:
    """Return the settings of ``spec`` with everything about the images' preparation chosen.

    What ``spec`` sets is kept: mean and std, the crop, the image size, an architecture by name. Where there is nothing
    to choose by (no class scores, random inputs, a random classifier, fewer than a handful of pictures) the
    architecture's own is taken.

    Raises:
        InvalidInput: no architecture that looks alike can be loaded, or the images cannot be read.
    """
    given = replace(spec, data=replace(spec.data, preparation="given"))
    if spec.data.kind not in ("folder", "archive", "torchvision"):
        return PreparationChoice(spec=given)
    if not task_named(spec.model.task).prepared_by_answers:
        notes = (*given.data.chosen_by, _NOT_SEARCHED)
        return PreparationChoice(spec=replace(given, data=replace(given.data, chosen_by=notes)))
    progress("Choosing the preprocessing")
    models, recognition = look_alikes(spec.model) if spec.model.library == "auto" else ((spec.model,), ())
    given = replace(given, model=models[0])
    if len(models) > 1:  # the images choose
        models, recognition = models[:_MOST_ARCHITECTURES], ()
    return _Search(given, models, tuple(data_roots), recognition).choose()


@dataclass(slots=True, eq=False)
class _Search:
    """The candidates for ``_spec``, run on one draw of its images."""

    _spec: RunSpec
    _models: Sequence[ModelSpec]
    _data_roots: tuple[Path, ...]
    _recognition: tuple[str, ...]
    _loaded: tuple[ModelSpec, LoadedModel] | None = None
    _crops: dict[Preprocessing, PreparedImages] = field(default_factory=dict)
    _labels: npt.NDArray[np.int64] | None = None
    _num_tried: int = 1
    _num_left_out: int = 0

    def choose(self) -> PreparationChoice:
        own, images = self._first()
        if self._load(own.model).fresh_head or not isinstance(images, PreparedImages):
            return PreparationChoice(spec=replace(self._spec, model=own.model))
        self._labels = None if images.labels is None else images.labels.numpy()
        self._run(own, slice(None))
        seen = self._answers(own)
        is_good = seen.num_correct is not None and seen.num_correct >= _GOOD_ENOUGH * len(seen.loss)
        others = [] if is_good else self._affordable(self._others(own, images))
        finalists = self._shown_all(others)
        finalists += self._shown_all(self._elsewhere(finalists, (own, *others)))
        return self._decide(own, finalists)

    def _first(self) -> tuple[_Candidate, ImageSet]:
        """Return the first architecture that loads, with its own preparation, and the images in that."""
        refusal: InvalidCheckpoint | None = None
        for model in self._models:
            own = _Candidate(model, self._spec.data)
            try:
                self._load(model)
            except InvalidCheckpoint as error:  # order and shapes fit, but not the numbers
                refusal = refusal or error
                continue
            return own, self._prepared(own)
        assert refusal is not None
        raise refusal

    def _affordable(self, others: Sequence[_Candidate]) -> list[_Candidate]:
        """Return those that can be shown the first images without taking long."""
        left = _MACS
        found: list[_Candidate] = []
        for item in others:
            cost = _FIRST_IMAGES * _macs(item.model)
            if cost <= left or len(found) < _FEWEST:
                found.append(item)
                left -= cost
        self._num_left_out = len(others) - len(found)
        return found

    def _shown_all(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Show the first images to all candidates and more to those that do best there; return who has seen all."""
        left = self._run_all(candidates, slice(0, _FIRST_IMAGES))
        self._num_tried += len(left)
        for part in (slice(_FIRST_IMAGES, _SECOND_IMAGES), slice(_SECOND_IMAGES, None)):
            left = self._run_all(self._promising(left), part)
        return left

    def _promising(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the few that did best so far, without those that are clearly worse than the first of them."""
        judged = sorted(((item, self._answers(item)) for item in candidates), key=lambda item: item[1].mean_loss)
        hopeful = [item for item, by in judged if not clearly_better(judged[0][1], by, significance=_HOPELESS)]
        return hopeful[:_FINALISTS]

    def _run_all(self, candidates: Sequence[_Candidate], part: slice) -> list[_Candidate]:
        by_network = sorted(candidates, key=lambda item: (item.model.title, item.model.img_size or 0))
        ran = {id(item) for item in by_network if self._run(item, part)}
        return [item for item in candidates if id(item) in ran]

    def _elsewhere(self, finalists: Sequence[_Candidate], tried: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the best finalist's preparation for the other architectures, where it was not tried with them."""
        if not finalists:
            return []
        best = min(finalists, key=lambda item: self._answers(item).mean_loss)
        done = {(item.model, item.data) for item in tried}
        found: list[_Candidate] = []
        for model in self._models:
            item = _Candidate(replace(model, img_size=best.model.img_size), best.data, best.words)
            if (item.model, item.data) not in done and self._differs_from_own(item):
                found.append(item)
        return found

    def _differs_from_own(self, candidate: _Candidate) -> bool:
        """Return whether the preparation is another than the architecture's own, which was tried anyway."""
        try:
            own = self._load(candidate.model).preprocessing
        except (InvalidSpec, InvalidCheckpoint):
            return False
        wanted = effective_preprocessing(candidate.data, own)
        return wanted != own or candidate.model.img_size is not None

    def _others(self, own: _Candidate, images: PreparedImages) -> list[_Candidate]:
        """Return all other candidates, those first that depart from an architecture's own preparation the least."""
        found = [
            _Candidate(
                model,
                replace(data, mean=mean, std=std, channel_order=order),
                tuple(word for word in (*words, normalised, "BGR" if order == "bgr" else "") if word),
            )
            for model, data, words in self._geometries(images)
            for normalised, mean, std in self._normalisations(model)
            for order in self._channel_orders(images)
        ]
        found = [item for item in found if (item.model, item.data) != (own.model, own.data)]
        return sorted(found, key=self._num_departures)

    def _geometries(self, images: PreparedImages) -> Iterator[tuple[ModelSpec, DataSpec, tuple[str, ...]]]:
        data = self._spec.data
        whole = replace(data, crop_pct=1.0) if data.crop_pct is None else data
        for model in self._models:
            yield model, data, ()
            if data.crop_pct is None:
                yield model, whole, ("no crop",)
            for side in self._native_sides(images) if model.img_size is None else ():
                yield replace(model, img_size=side), whole, (f"{side} × {side} px",)

    def _native_sides(self, images: PreparedImages) -> list[int]:
        side, own = min(images.picture_size or (0, 0)), images.pixels.shape[-1]
        sides = dict.fromkeys((side, -(-side // _SIDE_STEP) * _SIDE_STEP))
        return [item for item in sides if _SMALLEST_SIDE <= item <= min(_LARGEST_SIDE, 2 * own) and item != own]

    def _normalisations(self, model: ModelSpec) -> list[tuple[str, tuple[float, ...], tuple[float, ...]]]:
        """Return words, mean and std of each; first what is given, else the architecture's own, without words."""
        data = self._spec.data
        found = [("", data.mean, data.std)]
        if data.mean or data.std:
            return found
        try:
            own = self._load(model).preprocessing
        except (InvalidSpec, InvalidCheckpoint):
            return []
        channels = own.input_shape[0]
        for words, values in _NORMALISATIONS.items():
            mean, std = (channel_statistics(value, channels) for value in values)
            if (self._labels is not None or words != _RAW) and (mean, std) != (own.mean, own.std):
                found.append((words, mean, std))
        return found

    def _channel_orders(self, images: PreparedImages) -> tuple[ChannelOrder, ...]:
        is_grey = bool((images.pixels == images.pixels[:, :1]).all())
        is_colour = images.pixels.shape[1] == 3
        if self._labels is None or is_grey or not is_colour or self._spec.data.channel_order == "bgr":
            return (self._spec.data.channel_order,)
        return "rgb", "bgr"

    def _load(self, model: ModelSpec) -> LoadedModel:
        if self._loaded is None or self._loaded[0] != model:
            self._loaded = None  # before there are two networks in memory
            self._loaded = model, load_model(model)
        return self._loaded[1]

    def _prepared(self, candidate: _Candidate) -> ImageSet:
        """Return the images as ``candidate`` sees them; pictures are cropped once for all that crop alike."""
        model = self._load(candidate.model)
        wanted = effective_preprocessing(candidate.data, model.preprocessing)
        crop = replace(wanted, mean=(), std=(), channel_order="rgb")
        if crop not in self._crops:
            images = self._some_images(candidate.data, model)
            if not isinstance(images, PreparedImages):
                return images
            self._crops[crop] = images
        return self._crops[crop].normalised_as(wanted)

    def _some_images(self, data: DataSpec, model: LoadedModel) -> ImageSet:
        load = partial(
            load_images,
            data,
            model.preprocessing,
            num_classes=model.num_classes,
            task=task_named(self._spec.model.task),
            seed=self._spec.sensitivity.seed,
            data_roots=self._data_roots,
            class_names=model.class_names,
            with_labels=not model.fresh_head,
        )
        try:
            return load(num_samples=min(_MOST_IMAGES, max(int(_MACS / 2 / _macs(self._models[0])), _LEAST_IMAGES)))
        except InvalidSpec:  # there are fewer
            return load()

    def _run(self, candidate: _Candidate, part: slice) -> bool:
        """Add the model's answers to a part of the images; False where the model does not take such images."""
        try:
            model, images = self._load(candidate.model), self._prepared(candidate)
        except (InvalidSpec, InvalidCheckpoint):
            return False
        start, stop, _ = part.indices(len(images))
        task = task_named(candidate.model.task)
        with torch.inference_mode():
            for first in range(start, stop, _BATCH):
                scores = task.output(model.module(images.batch(first, min(first + _BATCH, stop))))
                candidate.scores.append(scores.double().numpy())
        return True

    def _answers(self, candidate: _Candidate) -> Answers:
        scores = np.concatenate(candidate.scores)
        return Answers.of(scores, None if self._labels is None else self._labels[: len(scores)])

    def _decide(self, own: _Candidate, finalists: Sequence[_Candidate]) -> PreparationChoice:
        judged = [(item, self._answers(item)) for item in (own, *finalists)]
        judged.sort(key=lambda item: round(item[1].mean_loss, 4))  # ties stay in order
        by_own = next(answers for item, answers in judged if item is own)
        significance = _SIGNIFICANCE / self._num_tried
        better = [(item, by) for item, by in judged if clearly_better(by, by_own, significance=significance)]
        chosen = self._plainest(better) if better else own
        trials = {id(item): self._trial(item, answers) for item, answers in judged}
        taken = trials[id(chosen)]
        choice = PreparationChoice(
            spec=taken.spec,
            chosen=taken,
            trials=tuple(trials.values()),
            guess=self._labels is None,
            verdict=_verdict(taken, trials[id(own)], self._num_tried),
            caveats=tuple(self._caveats()),
        )
        settled = replace(taken.spec, data=replace(taken.spec.data, chosen_by=(*self._recognition, *choice.notes)))
        return replace(choice, spec=settled)

    def _plainest(self, judged: Sequence[tuple[_Candidate, Answers]]) -> _Candidate:
        """Return who departs the least from an architecture's own, of the first and those as good as the first."""
        _, best = judged[0]
        alike = [item for item, by in judged if not clearly_better(best, by, significance=_SIGNIFICANCE)]
        return min(alike, key=self._num_departures)

    def _num_departures(self, candidate: _Candidate) -> int:
        return len(candidate.words) + (candidate.model.title != self._models[0].title)

    def _trial(self, candidate: _Candidate, answers: Answers) -> PreparationTrial:
        titles = (candidate.model.title,) if len(self._models) > 1 else ()
        words = candidate.words or (("its own preprocessing",) if titles else ("the architecture's own",))
        return PreparationTrial(
            title=", ".join((*titles, *words)),
            spec=replace(self._spec, model=candidate.model, data=candidate.data),
            num_images=len(answers.loss),
            correct=answers.num_correct,
            score=answers.mean_loss if answers.correct is not None else -answers.mean_loss,
        )

    def _caveats(self) -> Iterator[str]:
        if self._labels is None:
            yield (
                "There are no labels, so the preprocessing is a guess, by the file's name and by how much the answers "
                "tell: more, where they are surer and vary more. A few dozen labelled images would decide."
            )
        if self._num_left_out:
            ways = plural(self._num_left_out, "more way")
            yield f"{ways} to prepare the images were not tried: they would take too long."


def _macs(model: ModelSpec) -> float:
    """Return the multiply-accumulates of one image, about; those of a usual network where they are not known."""
    entry = find_entry(model.library, model.name)
    if entry is None or entry.macs is None:
        return _USUAL_MACS
    return entry.macs * ((model.img_size or entry.input_shape[-1]) / entry.input_shape[-1]) ** 2


def _verdict(chosen: PreparationTrial, own: PreparationTrial, num_tried: int) -> str:
    images = plural(own.num_images, "image" if own.correct is None else "labelled image")
    if chosen != own:
        return (
            f"Preprocessing chosen by {images}: {chosen.title}: {_with_interval(chosen)}; {own.title}: {own.result}. "
            f"{num_tried} ways to prepare them were tried."
        )
    found = f"Preprocessing: {own.title}: {_with_interval(own)}"
    if num_tried == 1:
        return f"{found}; that is good enough to try no other."
    others = "1 other way to prepare the images is not" if num_tried == 2 else f"none of {num_tried - 1} other ways is"
    return f"{found}; {others} clearly better."


def _with_interval(trial: PreparationTrial) -> str:
    if trial.correct is None:
        return trial.result
    low, high = proportion_interval(trial.correct, trial.num_images)
    return f"{trial.result} ({100 * low:.0f} to {100 * high:.0f} %)"
