"""Search for the reading of outputs, images and class numbers that suits a network whose task has annotations.

Candidates are layouts that the outputs fit × preparations of the images × class numbers. With annotations each is
scored by the task's metric on some images, and the plainest of those that are not clearly worse than the best is taken.
Without, layouts and preparations are kept in which the network's answers to a picture and to its mirror image agree
most, where that is clear; otherwise a person is asked.

A pass of the network serves all layouts and class numbers of one preparation. The range of values is tried first, then
with the best one the order of channels, then the fit: the figures differ less by each.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from senseapp.core.errors import InvalidDataset, InvalidInput
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, PreparedImages, effective_preprocessing
from senseapp.measure.preparation_candidates import CAFFE, SomeImages, usual_ranges
from senseapp.measure.reading_evidence import (
    AS_FOUND,
    LEAST_IMAGES,
    ReadingCandidate,
    Scored,
    scored_as_found,
    scored_by_metric,
    scored_by_mirror,
)
from senseapp.measure.readings import ReadingChoices
from senseapp.metrics.predictions import Predictions, joined, stored
from senseapp.networks.loaded import FITS, LoadedModel
from senseapp.networks.onnx.modules import OnnxNetwork
from senseapp.networks.sources.load import load_model
from senseapp.records.inputs import PreparationChoice
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, RunSpec
from senseapp.tasks import task_named
from senseapp.tasks.class_numbers import OTHER_WAYS
from senseapp.tasks.reading import ChannelOrder, Evidence, Fit, OutputReader

_IMAGES, _FEW_IMAGES = 32, 16  # for inputs of up to a side, and for larger ones
_LARGE_SIDE = 320  # pixels
_BATCH = 8  # images of a pass
_LEAST_AGREEMENT = 0.4  # of answers to mirrored pictures, for these to be evidence
_NO_AGREEMENT = 0.05  # of these, below which they say that the reading is wrong
_DEPARTURES = attrgetter("candidate.departures")
_LEAST_VALUE = 0.02  # of the shown metric, below which almost nothing of what is labelled is found


def choose_reading(
    spec: RunSpec,
    *,
    model: LoadedModel | None = None,
    data_roots: Sequence[Path] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> PreparationChoice:
    """Return the settings of ``spec`` with layout, preparation and class numbers chosen by its images.

    What a person or the file says is kept. :attr:`PreparationChoice.question` says what is to be asked where nothing
    decides, or where even the best reading finds next to nothing of what is labelled.

    Raises InvalidInput if the network or the images cannot be read.
    """
    progress("Reading outputs and images")
    model = model or load_model(spec.model)
    task = task_named(spec.model.task)
    search = _ReadingSearch(
        spec=spec,
        model=model,
        task=task,
        images=SomeImages(
            most=_FEW_IMAGES if max(model.preprocessing.input_shape[1:]) > _LARGE_SIDE else _IMAGES,
            task=task,
            seed=spec.sensitivity.seed,
            data_roots=data_roots,
        ),
    )
    return search.choose()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadingSearch(ReadingChoices):
    images: SomeImages

    def choose(self) -> PreparationChoice:
        """Return the choice; see :func:`choose_reading`."""
        given = replace(self.spec, data=replace(self.spec.data, preparation="given"))
        images = self._some_images(given.data)
        if not isinstance(images, PreparedImages):
            return PreparationChoice(spec=given)
        labelled = images.labels is not None and bool(self.task.shown_metric)
        if self.model.preparation_evidence == "library" and not self.model.readers and len(images.label_orders) < 2:
            return PreparationChoice(spec=given)
        scored = self._scored(given.data, labelled=labelled)
        scored.sort(key=lambda each: -each.value)
        return self._by_labels(scored, len(images)) if labelled else self._by_answers(scored, len(images))

    # ---- candidates

    def _scored(self, own: DataSpec, *, labelled: bool) -> list[Scored]:
        """Return every candidate on the images; without labels those of several alone."""
        found = list(self._with_preparation(own, (), labelled=labelled))
        evidence = self.model.preparation_evidence  # a person, the file or its family says how images are prepared
        told = bool(own.std or own.mean) or evidence in ("file", "library") or (evidence == "family" and not labelled)
        if told and labelled and not own.std and (not found or _best(found).is_chance(_LEAST_VALUE)):
            told = False  # it fits no label
        if not (told or evidence == "graph"):
            for words, data in self._ranges(own, labelled=labelled):
                found += self._with_preparation(data, (words,), labelled=labelled)
        if not found:
            raise InvalidDataset(
                f"The classes of the labels fit no layout that outputs of {self.model.title} may have on these images. "
                f"Choose other outputs where the file has some. {OTHER_WAYS}"
            )
        steps: list[Callable[[DataSpec], Iterator[tuple[str, DataSpec]]]] = []
        if labelled and not told:
            steps = [self._other_order, self._other_fits]
        elif not labelled:  # nor does a person, the file or its family say in which order channels come
            usual = [each.usual_input for each in self.model.readers]
            by_family = bool(usual) and all(each is not None and each.channel_order for each in usual)
            is_known = bool(own.channel_order or own.std) or evidence in ("file", "library") or by_family
            steps = [] if is_known else [self._other_order]
        start = _best(found)
        for others in steps:
            for words, data in others(start.candidate.data):
                more = self._with_preparation(data, (*start.candidate.words, words), labelled=labelled)
                found += (each for each in more if labelled or each.candidate.layout == start.candidate.layout)
            best = _best(found)
            start = best if best.is_clearly_better(start.each, len(found)) else start
        return found

    def _ranges(self, own: DataSpec, *, labelled: bool) -> Iterator[tuple[str, DataSpec]]:
        """Yield other ranges of values; that of Caffe only with labels, as answers to values from 0 to 255 are near."""
        usual = self.model.preprocessing
        for (mean, std), words in usual_ranges(usual.input_shape[0]).items():
            if (mean, std) != (usual.mean, usual.std) and (labelled or words != CAFFE):
                yield words, replace(own, mean=mean, std=std)

    def _other_fits(self, best: DataSpec) -> Iterator[tuple[str, DataSpec]]:
        usual, images = effective_preprocessing(best, self.model.preprocessing), self._some_images(best)
        width, height = (images.picture_size if isinstance(images, PreparedImages) else None) or (1, 1)
        in_proportion = width * usual.input_shape[1] == height * usual.input_shape[2]
        if not in_proportion and not self.spec.data.fit and self.spec.data.crop_pct is None:
            fits: tuple[Fit, ...] = ("letterbox", "stretch", "crop", "corner")
            for fit in fits:
                if fit != usual.fit:
                    yield fit, replace(best, fit=fit)

    def _other_order(self, best: DataSpec) -> Iterator[tuple[str, DataSpec]]:
        usual = effective_preprocessing(best, self.model.preprocessing)
        if usual.input_shape[0] == 3 and not self.spec.data.channel_order:
            other: ChannelOrder = "rgb" if usual.channel_order == "bgr" else "bgr"
            mean = best.mean[::-1] if best.mean and max(usual.std) < 0.01 else best.mean  # Caffe's is of its channels
            yield other.upper(), replace(best, channel_order=other, mean=mean)

    def _with_preparation(self, data: DataSpec, words: tuple[str, ...], *, labelled: bool) -> Iterator[Scored]:
        """Yield the candidates of one preparation, from one pass of the network over the images."""
        images = self._some_images(data)
        if not isinstance(images, PreparedImages):
            return
        batches = self._batches(images, every=labelled)
        raws = [self._raw(batch) for batch in batches]
        mirrored = [] if labelled else [self._raw(batch.flip(3)) for batch in batches]
        unusual = sum(word not in FITS for word in words)  # no way to fit pictures is more usual than the others
        for place, reader in enumerate(self._readers(raws, every=labelled)):
            one = ReadingCandidate(data=data, reader=reader, words=words, departures=unusual + place)
            if not labelled:
                yield scored_by_mirror(self.task, one, raws, mirrored, batches[0].shape[3])
                continue
            read = [raw if reader is None else reader(raw) for raw in raws]
            outputs = joined([stored(self.task.predictions(each)) for each in read])
            with suppress(InvalidDataset):  # no class numbers fit as many outputs
                yield from self._in_every_order(one, outputs, cast("PreparedImages", self._images(data, reader)))

    def _batches(self, images: PreparedImages, *, every: bool) -> list[Tensor]:
        most = _BATCH if not every and max(images.preprocessing.input_shape[1:]) > _LARGE_SIDE else len(images)
        return [images.batch(at, min(at + _BATCH, most)) for at in range(0, most, _BATCH)]

    def _in_every_order(self, one: ReadingCandidate, outputs: Predictions, images: PreparedImages) -> Iterator[Scored]:
        """Yield a candidate with each order of the classes, and with that in which the network finds them."""
        orders = images.label_orders or (None,)
        found = [
            scored_by_metric(self.task, replace(one, order=order, departures=one.departures + place), outputs, images)
            for place, order in enumerate(orders)
        ]
        yield from found
        best = max(found, key=lambda each: each.value)
        width = (one.reader.num_classes if one.reader else 0) or self.model.num_classes
        as_found = scored_as_found(self.task, best, outputs, images, width)
        if as_found is not None:
            yield as_found

    def _readers(self, raws: Sequence[object], *, every: bool) -> Sequence[OutputReader | None]:
        """Return what may read the outputs of these images; of noise they may have looked otherwise."""
        if not self.model.readers or self.spec.model.layout:
            return self.model.readers or (None,)
        try:
            names = len(self.model.class_names) - bool(self.model.readers[0].background in ("first", "last"))
            return self.task.readers(raws[0], self.model.preprocessing.input_shape[1:], max(0, names), every=every)
        except InvalidInput:
            return self.model.readers

    def _raw(self, batch: Tensor) -> object:
        """Return outputs of the network before any layout."""
        module = self.model.module
        with torch.inference_mode():
            return module.unread(batch) if isinstance(module, OnnxNetwork) else module(batch)

    def _some_images(self, data: DataSpec) -> ImageSet:
        """Return the images with labels that fit some layout; raises InvalidDataset where they fit none."""
        refused: list[InvalidDataset] = []
        for reader in self.model.readers or (None,):
            try:
                return self._images(data, reader)
            except InvalidDataset as error:
                refused.append(error)
        self._check_outputs(data)
        words = f" The outputs are read as {self.model.readers[0].words}." if self.model.readers else ""
        raise InvalidDataset(f"{refused[0]}{words}")

    def _check_outputs(self, data: DataSpec) -> None:
        """Raise what the outputs of these images, not of noise, show to be the reason why no labels fit."""
        images = self._images(replace(data, labels=WITHOUT_LABELS))
        if self.model.readers and isinstance(images, PreparedImages):
            raw = self._raw(images.batch(0, min(_BATCH, len(images))))
            self.task.readers(raw, self.model.preprocessing.input_shape[1:], 0, every=True)

    def _images(self, data: DataSpec, reader: OutputReader | None = None) -> ImageSet:
        """Return some of the images as ``data`` has them, with labels for the outputs that ``reader`` reads."""
        model = self.model
        if reader is not None and reader.num_classes:
            model = replace(model, num_classes=reader.num_classes, background=reader.background)
        if len(model.class_names) != model.num_classes:
            model = replace(model, class_names=())
        return self.images.prepared(model, data)

    # ---- the choice

    def _by_labels(self, scored: Sequence[Scored], count: int) -> PreparationChoice:
        best = scored[0]
        alike = [each for each in scored if not best.is_clearly_better(each.each, len(scored))]
        taken = min(alike, key=lambda each: (_DEPARTURES(each), -each.value))
        as_plain = [each for each in alike if _but_fit(each) == _but_fit(taken)]
        question = ""
        if count < LEAST_IMAGES and best.value > taken.value + _LEAST_VALUE:
            question = (
                f"{plural(count, 'labelled image')} are too few to tell how {self.model.title} is read. "
                f"{self.best_words(scored)} Choose one, or bring at least {LEAST_IMAGES}."
            )
        elif min(each.value for each in as_plain) < taken.value - _LEAST_VALUE:
            question = (
                f"{plural(count, 'labelled image')} do not tell which of {plural(len(as_plain), 'reading')} of "
                f"{self.model.title} is right. {self.best_words(as_plain)} Choose one, or bring more images."
            )
        elif self._is_found_otherwise(taken, scored):
            question = (
                "The class numbers of the labels are only assumed, and the network finds them otherwise (each half of "
                "the images is judged by the numbers that suit the other half). "
                f"{self.best_words(scored)} Choose one; the command line can say something else (--class-map)."
            )
        elif self.model.pretrained and taken.is_chance(_LEAST_VALUE):
            question = (
                f"The original finds next to nothing of what is labelled: {self.result(taken)} on "
                f"{plural(count, 'image')}, so it was probably read wrongly. {self.best_words(scored)} Say how "
                "it is read, or bring other labels; to measure all the same, choose one of these readings."
            )
        evidence: Evidence = "labels" if len(scored) > 1 else "fit"
        return self.made(scored, taken, count, evidence, question)

    def _is_found_otherwise(self, taken: Scored, scored: Sequence[Scored]) -> bool:
        """Return whether the network finds other classes than numbers that are only assumed, with a better figure."""
        order, layout = taken.candidate.order, taken.candidate.layout
        found = (
            each.value
            for each in scored
            if each.candidate.order is not None and each.candidate.order.words == AS_FOUND
            if (each.candidate.data, each.candidate.layout) == (taken.candidate.data, layout)
        )
        return order is not None and order.words != AS_FOUND and max(found, default=0) > taken.value + _LEAST_VALUE

    def _by_answers(self, scored: Sequence[Scored], count: int) -> PreparationChoice:
        best, *others = scored
        alike = [best, *(each for each in others if self._answers_alike(best, each))]
        best = min(alike, key=_DEPARTURES)
        scored = [best, *(each for each in others if each not in alike)]
        if wrong := self._why_nothing(best):
            return self.made(scored, best, count, "assumed", f"{wrong} To measure all the same, choose a reading.")
        if len(scored) == 1:
            own = self.model.preparation_evidence
            found: Evidence = "images" if own == "assumed" else own
            return self.made(alike if own == "assumed" else scored, best, count, found, "")
        second = scored[1]
        is_far = best.value >= max(_LEAST_AGREEMENT, 1.25 * second.value)
        if is_far and best.is_clearly_better(second.each, len(scored)):
            return self.made(scored, best, count, "images", "")
        what = "outputs" if len({each.candidate.layout for each in scored}) > 1 else "images"
        question = (
            f"It is not known how {what} of {self.model.title} are read: the file does not say, and "
            f"{plural(count, 'image')} without labels do not decide. Choose one of {len(scored)} readings, or bring a "
            "few labelled images."
        )
        return self.made(scored, min(scored, key=_DEPARTURES), count, "assumed", question)

    def _why_nothing(self, best: Scored) -> str:
        """Return why answers of the best reading say nothing: there are none, or they move otherwise than pictures."""
        nothing, read = best.nothing, best.candidate.reader or (lambda raw: raw)
        images = cast("PreparedImages", self._some_images(best.candidate.data))
        for batch in self._batches(images, every=True) if nothing else ():  # others may show something
            nothing = nothing and self.task.baseline_note(self.task.predictions(read(self._raw(batch))))
        if nothing:
            height, width = images.preprocessing.input_shape[1:]
            return f"{self.model.title} takes images of {width} × {height} pixels. {nothing}"
        if best.nothing or best.value >= _NO_AGREEMENT:
            return ""
        return (
            f"The answers of {self.model.title} to pictures and to their mirror images have next to nothing in common, "
            "so it was probably read wrongly. Say how it is read, or bring labelled images."
        )

    def _answers_alike(self, one: Scored, other: Scored) -> bool:
        """Return whether answers agree across two preparations as they do within the first, so that either is right."""
        fits = {effective_preprocessing(each.candidate.data, self.model.preprocessing).fit for each in (one, other)}
        if one.candidate.layout != other.candidate.layout or len(fits) > 1 or one.value < _LEAST_AGREEMENT:
            return False
        images, turned = (cast("PreparedImages", self._some_images(each.candidate.data)) for each in (one, other))
        raws = [self._raw(batch) for batch in self._batches(images, every=False)]
        mirrored = [self._raw(batch.flip(3)) for batch in self._batches(turned, every=False)]
        across = scored_by_mirror(self.task, one.candidate, raws, mirrored, images.preprocessing.input_shape[2])
        return across.value >= one.value - _LEAST_VALUE


def _best(scored: Sequence[Scored]) -> Scored:
    return max(scored, key=lambda each: (each.value, -each.candidate.departures))


def _but_fit(scored: Scored) -> object:
    candidate = scored.candidate
    return replace(candidate.data, fit=""), candidate.layout, candidate.order
