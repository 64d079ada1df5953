"""Search for the reading of outputs, images and class numbers that suits a network whose task has annotations.

Candidates are layouts that the outputs fit × preparations of the images × class numbers. With annotations each is
scored by the task's metric on some images, and the plainest of those that are not clearly worse than the best is taken.
Without, layouts and preparations are kept in which the network's answers to a picture and to its mirror image agree
most, where that is clear; otherwise a person is asked.

A pass of the network serves all layouts and class numbers of one preparation. The range of values is tried first, and
with the best one the order of channels and the fit: the figures differ least by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from senseapp.core.errors import InvalidDataset, InvalidInput, InvalidSpec
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, PreparedImages, effective_preprocessing
from senseapp.data.load import images_for
from senseapp.measure.preparation_candidates import usual_ranges
from senseapp.measure.reading_evidence import (
    AS_FOUND,
    LEAST_IMAGES,
    ReadingCandidate,
    Scored,
    labels_as,
    order_as_found,
    scored_by_metric,
    scored_by_mirror,
)
from senseapp.metrics import METRICS
from senseapp.metrics.predictions import Predictions, joined, stored
from senseapp.networks.loaded import FITS, LoadedModel, Preprocessing
from senseapp.networks.onnx.modules import OnnxNetwork
from senseapp.networks.sources.load import load_model
from senseapp.records.inputs import PreparationChoice, PreparationTrial
from senseapp.records.spec import DataSpec, RunSpec
from senseapp.tasks import Task, task_named
from senseapp.tasks.class_numbers import Background
from senseapp.tasks.reading import EVIDENCE_WORDS, ChannelOrder, Evidence, Fit, OutputReader

_IMAGES, _FEW_IMAGES = 32, 16  # for inputs of up to a side, and for larger ones
_LARGE_SIDE = 320  # pixels
_BATCH = 8  # images of a pass
_LEAST_AGREEMENT = 0.4  # of answers to mirrored pictures, for these to be evidence
_LEAST_RATIO = 1.25  # by which the best must agree more than the second
_LEAST_VALUE = 0.02  # of the shown metric, below which almost nothing of what is labelled is found
_ASKED = 6  # candidates in a question


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

    Raises:
        InvalidInput: the network or the images cannot be read.
    """
    progress("Reading outputs and images")
    model = model or load_model(spec.model)
    task = task_named(spec.model.task)
    side = max(model.preprocessing.input_shape[1:])
    search = _ReadingSearch(
        spec=spec,
        model=model,
        task=task,
        data_roots=tuple(data_roots),
        count=_FEW_IMAGES if side > _LARGE_SIDE else _IMAGES,
    )
    return search.choose()


@dataclass(slots=True, kw_only=True)
class _ReadingSearch:
    spec: RunSpec
    model: LoadedModel
    task: Task
    data_roots: tuple[Path, ...]
    count: int
    fitted: dict[tuple[Preprocessing, int, Background], PreparedImages] = field(default_factory=dict)

    def choose(self) -> PreparationChoice:
        """Return the choice; see :func:`choose_reading`."""
        given = replace(self.spec, data=replace(self.spec.data, preparation="given"))
        images = self._some_images(given.data)
        if not isinstance(images, PreparedImages):
            return PreparationChoice(spec=given)
        labelled = images.labels is not None and bool(self.task.shown_metric)
        is_settled = self.model.preparation_evidence == "library" and not self.model.readers
        if is_settled and len(images.label_orders) < 2:
            return PreparationChoice(spec=given)
        scored = self._scored(given.data, labelled=labelled)
        scored.sort(key=lambda each: -each.value)
        if labelled:
            return self._by_labels(scored, len(images))
        return self._by_answers(scored, len(images))

    # ---- candidates

    def _scored(self, own: DataSpec, *, labelled: bool) -> list[Scored]:
        """Return every candidate on the images; without labels those of several alone."""
        found = list(self._with_preparation(own, (), labelled=labelled))
        if not found:
            return found
        told = self._is_told(own, labelled=labelled)
        if told and labelled and not own.std and _best(found).is_chance(_LEAST_VALUE):  # it fits no label
            told = False
        if not (told or self.model.preparation_evidence == "graph"):
            for words, data in self._ranges(own):
                found += self._with_preparation(data, (words,), labelled=labelled)
        if labelled and not told:
            best = _best(found).candidate
            for words, data in self._finer(best.data):
                found += self._with_preparation(data, (*best.words, words), labelled=labelled)
        return found

    def _is_told(self, data: DataSpec, *, labelled: bool) -> bool:
        """Return whether a person, the file, or without labels its family, says how images are prepared."""
        evidence = self.model.preparation_evidence
        return bool(data.std or data.mean) or evidence in ("file", "library") or (evidence == "family" and not labelled)

    def _ranges(self, own: DataSpec) -> Iterator[tuple[str, DataSpec]]:
        usual = self.model.preprocessing
        for (mean, std), words in usual_ranges(usual.input_shape[0]).items():
            if (mean, std) != (usual.mean, usual.std):
                yield words, replace(own, mean=mean, std=std)

    def _finer(self, best: DataSpec) -> Iterator[tuple[str, DataSpec]]:
        """Yield the other orders of channels and other fits of the pictures."""
        usual, images = effective_preprocessing(best, self.model.preprocessing), self._some_images(best)
        if usual.input_shape[0] == 3 and not self.spec.data.channel_order:
            other: ChannelOrder = "rgb" if usual.channel_order == "bgr" else "bgr"
            yield other.upper(), replace(best, channel_order=other)
        width, height = (images.picture_size if isinstance(images, PreparedImages) else None) or (1, 1)
        in_proportion = width * usual.input_shape[1] == height * usual.input_shape[2]
        if not in_proportion and not self.spec.data.fit and self.spec.data.crop_pct is None:
            fits: tuple[Fit, ...] = ("letterbox", "stretch", "crop")
            for fit in fits:
                if fit != usual.fit:
                    yield fit, replace(best, fit=fit)

    def _with_preparation(self, data: DataSpec, words: tuple[str, ...], *, labelled: bool) -> Iterator[Scored]:
        """Yield the candidates of one preparation, from one pass of the network over the images."""
        images = self._some_images(data)
        if not isinstance(images, PreparedImages):
            return
        batches = [images.batch(at, min(at + _BATCH, len(images))) for at in range(0, len(images), _BATCH)]
        if not labelled:
            batches = batches[:1] if max(images.preprocessing.input_shape[1:]) > _LARGE_SIDE else batches
        raws = [self._raw(batch) for batch in batches]
        readers = self._readers(raws, every=labelled)
        if not labelled:
            is_alone = len(readers) == 1 and self._is_told(self.spec.data, labelled=False)  # not by what is tried
            mirrored = [] if is_alone else [self._raw(batch.flip(3)) for batch in batches]
            for place, reader in enumerate(readers):
                one = ReadingCandidate(data=data, reader=reader, words=words, departures=_departures(words) + place)
                yield scored_by_mirror(self.task, one, raws, mirrored, batches[0].shape[3])
            return
        for place, reader in enumerate(readers):
            read = [raw if reader is None else reader(raw) for raw in raws]
            outputs = joined([stored(self.task.predictions(each)) for each in read])
            one = ReadingCandidate(data=data, reader=reader, words=words, departures=_departures(words) + place)
            with suppress(InvalidDataset):  # no class numbers fit as many outputs
                yield from self._in_every_order(one, outputs, cast("PreparedImages", self._images(data, reader)))

    def _in_every_order(self, one: ReadingCandidate, outputs: Predictions, images: PreparedImages) -> Iterator[Scored]:
        """Yield a candidate with each order of the classes, and as the network finds them where none is certain.

        That is matched on the first half of the images and judged on the second, as a match fits those it is made of.
        """
        orders = images.label_orders or (None,)
        found = [
            scored_by_metric(self.task, replace(one, order=order, departures=one.departures + place), outputs, images)
            for place, order in enumerate(orders)
        ]
        yield from found
        best, half = max(found, key=lambda each: each.value), len(images) // 2
        order = best.candidate.order
        if order is None or order.certain or images.read_as is None:
            return
        width = (one.reader.num_classes if one.reader else 0) or self.model.num_classes
        matched = order_as_found(self.task, order, outputs[:half], labels_as(images, order)[:half], width)
        if matched is not order:
            other = replace(one, order=matched, departures=one.departures + len(orders))
            scored = scored_by_metric(self.task, other, outputs, images)
            yield replace(scored, each=np.concatenate([best.each[:half], scored.each[half:]]))

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
        raise refused[0]

    def _images(self, data: DataSpec, reader: OutputReader | None = None) -> ImageSet:
        """Return some of the images as ``data`` has them prepared, with labels for the outputs that ``reader`` reads.

        Equal crops with labels for as many outputs are read once.
        """
        key = self._key(data, reader)
        if key not in self.fitted:
            model = replace(self.model, num_classes=key[1], background=key[2])
            if len(model.class_names) != model.num_classes:
                model = replace(model, class_names=())
            load = partial(
                images_for, model, data, task=self.task, seed=self.spec.sensitivity.seed, data_roots=self.data_roots
            )
            try:
                images = load(num_samples=self.count)
            except InvalidSpec:  # there are fewer
                images = load()
            if not isinstance(images, PreparedImages):
                return images
            self.fitted[key] = images
        return self.fitted[key].normalised_as(effective_preprocessing(data, self.model.preprocessing))

    def _key(self, data: DataSpec, reader: OutputReader | None) -> tuple[Preprocessing, int, Background]:
        """Return what the pixels and the labels of images depend on: the crop, and outputs with their background."""
        wanted = effective_preprocessing(data, self.model.preprocessing)
        crop = replace(wanted, mean=(), std=(), channel_order="rgb")
        if reader is None or not reader.num_classes:
            return crop, self.model.num_classes, self.model.background
        return crop, reader.num_classes, reader.background

    # ---- the choice

    def _by_labels(self, scored: Sequence[Scored], count: int) -> PreparationChoice:
        best = scored[0]
        alike = [each for each in scored if not best.is_clearly_better(each.each, len(scored))]
        taken = min(alike, key=lambda each: (each.candidate.departures, -each.value))
        question = ""
        if count < LEAST_IMAGES and best.value > taken.value + _LEAST_VALUE:
            question = (
                f"{plural(count, 'labelled image')} are too few to tell how {self.model.title} is read. "
                f"{self._best_words(scored)} Choose one, or bring at least {LEAST_IMAGES}."
            )
        elif self._is_found_otherwise(taken, scored):
            question = (
                "The class numbers of the labels are only assumed, and the network finds them otherwise. "
                f"{self._best_words(scored)} Choose one, or say which output each class means (--class-map)."
            )
        elif self.model.pretrained and taken.is_chance(_LEAST_VALUE):
            question = (
                f"The original finds next to nothing of what is labelled: {self._result(taken)} on "
                f"{plural(count, 'image')}, so it was probably read wrongly. {self._best_words(scored)} Say how it is "
                "read, or bring other labels; to measure all the same, choose one of these readings."
            )
        evidence: Evidence = "labels" if len(scored) > 1 else "fit"
        return self._choice(scored, taken, count, evidence, question)

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
        if len(scored) == 1:
            return self._choice(scored, scored[0], count, self.model.preparation_evidence, "")
        best, second = scored[0], scored[1]
        is_far = best.value >= max(_LEAST_AGREEMENT, _LEAST_RATIO * second.value)
        if is_far and best.is_clearly_better(second.each, len(scored)):
            return self._choice(scored, best, count, "images", "")
        what = "outputs" if len({each.candidate.layout for each in scored}) > 1 else "images"
        question = (
            f"It is not known how {what} of {self.model.title} are read: the file does not say, and "
            f"{plural(count, 'image')} without labels do not decide. Choose one of {len(scored)} readings, or bring a "
            "few labelled images."
        )
        first = min(scored, key=lambda each: each.candidate.departures)
        return self._choice(scored, first, count, "assumed", question)

    def _choice(
        self, scored: Sequence[Scored], taken: Scored, count: int, evidence: Evidence, question: str
    ) -> PreparationChoice:
        trials = {id(each): self._trial(each, scored, count) for each in scored}
        chosen = trials[id(taken)]
        found = f"{chosen.words} on {plural(count, 'image')}" if len(scored) > 1 or taken.labelled else ""
        tried = f"; {len(scored)} readings tried" if len(scored) > 1 else ""
        verdict = f"{': '.join(filter(None, (chosen.title, found)))} ({EVIDENCE_WORDS[evidence]}{tried})."
        choice = PreparationChoice(
            spec=chosen.spec,
            chosen=chosen,
            trials=tuple(dict.fromkeys((chosen, *list(trials.values())[:_ASKED]))),
            guess=evidence in ("images", "assumed"),
            subject="Reading",
            verdict=verdict,
            question=question,
        )
        data = choice.spec.data
        known = {**dict(data.evidence), **self._evidence(taken, scored, evidence)}
        settled = replace(data, chosen_by=(*self.spec.data.chosen_by, *choice.notes), evidence=tuple(known.items()))
        return replace(choice, spec=replace(choice.spec, data=settled))

    def _evidence(self, taken: Scored, scored: Sequence[Scored], found: Evidence) -> dict[str, Evidence]:
        """Return how each part is known: by what was compared, where there were several."""
        layouts = {each.candidate.layout for each in scored}
        preparations = {each.candidate.data for each in scored}
        orders = {each.candidate.order for each in scored}
        person = self.spec.data.mean or self.spec.data.std
        return {
            "layout": "person" if self.spec.model.layout else found if len(layouts) > 1 else "fit",
            "preparation": "person" if person else found if len(preparations) > 1 else self.model.preparation_evidence,
            "classes": "person" if self.spec.data.class_map else found if len(orders) > 1 else "fit",
        }

    def _trial(self, scored: Scored, all_scored: Sequence[Scored], count: int) -> PreparationTrial:
        candidate = scored.candidate
        data, model = candidate.data, self.spec.model
        usual = effective_preprocessing(data, self.model.preprocessing)
        data = replace(
            data,
            mean=usual.mean,
            std=usual.std,
            fit=cast("Fit", usual.fit),
            channel_order=cast("ChannelOrder", usual.channel_order),
        )
        if candidate.order is not None:
            data = replace(data, class_map=candidate.order.pairs)
        if candidate.reader is not None:
            model = replace(model, layout=candidate.reader.key)
        return PreparationTrial(
            title=self._title(candidate, all_scored),
            spec=replace(self.spec, model=model, data=replace(data, preparation="given")),
            num_images=count,
            correct=None,
            score=-scored.value,
            words=self._result(scored),
        )

    def _title(self, candidate: ReadingCandidate, scored: Sequence[Scored]) -> str:
        """Return the preparation in words, and layout and class numbers where several are compared."""
        parts = [", ".join(candidate.words) or self.model.prepared_as]
        if candidate.reader is not None and len({each.candidate.layout for each in scored}) > 1:
            parts.append(candidate.reader.words)
        if candidate.order is not None and len({each.candidate.order for each in scored}) > 1:
            parts.append(f"classes {candidate.order.words}")
        return "; ".join(parts)

    def _result(self, scored: Scored) -> str:
        if scored.labelled:
            metric = METRICS[self.task.shown_metric]
            return f"{metric.label} {metric.value_text(scored.value)}"
        if scored.value != scored.value:
            return "the only reading"
        return f"{100 * scored.value:.0f} % of the answers agree with those to mirrored pictures"

    def _best_words(self, scored: Sequence[Scored]) -> str:
        best = " · ".join(f"{self._title(each.candidate, scored)}: {self._result(each)}" for each in scored[:3])
        return f"The best of {plural(len(scored), 'reading')}: {best}."


def _best(scored: Sequence[Scored]) -> Scored:
    return max(scored, key=lambda each: (each.value, -each.candidate.departures))


def _departures(words: Sequence[str]) -> int:
    """Return how far a preparation is from the first; no way to fit pictures is more usual than the others."""
    return sum(word not in FITS for word in words)
