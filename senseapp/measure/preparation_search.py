"""Search for the preprocessing of images that suits a model, on a few dozen of them.

A checkpoint does not record its preprocessing, and architectures with equal names and shapes of weights differ in
padding, strides and preprocessing. Each candidate, an architecture with an image size, a normalisation and a channel
order, is run on the same images; the architecture's own preprocessing is replaced only by one that is clearly better
(:mod:`senseapp.metrics.paired_tests`).

All candidates run on the first images, and on the rest those that are not clearly worse there. The best values of the
pixels are then tried with every crop, fit and size. The budget is counted in multiply-accumulates, so that the outcome
is the same on every machine. Without labels the evidence is weaker: fewer candidates are tried, and it is a guess.

Where names do not tell which output a label means, the order in which the network finds the classes is tried last:
labels and outputs are matched on one half of the images, and the match is judged on the other half.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, PreparedImages
from senseapp.measure.preparation_candidates import (
    RAW,
    PreparationCandidate,
    SomeImages,
    counted_macs,
    macs_of,
    other_preparations,
    subject_of,
    verdict,
)
from senseapp.measure.reading_evidence import AS_FOUND, ClassOrders, judging
from senseapp.measure.reading_search import choose_reading
from senseapp.metrics.base import SIGNIFICANCE
from senseapp.metrics.paired_tests import Answers, Array, clearly_better
from senseapp.networks.checkpoints.fitting import look_alikes
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.load import load_model
from senseapp.records.inputs import PreparationChoice, PreparationTrial
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.tasks import task_named
from senseapp.tasks.reading import Evidence

_MOST_IMAGES = 64  # in all
_FIRST_IMAGES = 12  # of every candidate
_SECOND_IMAGES = 28  # of those that are not clearly worse by then; the finalists run on all
_FINALISTS = 8  # candidates that run on all images
_APART_FINALISTS = 4  # more of them, for classes as the network finds them
_BATCH = 16  # images of a forward pass
_GOOD_ENOUGH = 0.95  # accuracy from which nothing else is tried
_HOPELESS = 0.01  # significance at which a candidate is not run on the rest of the images
_MACS = 2e11  # for the first images of all candidates together: seconds on a small machine
_LEAST_IMAGES = 24  # however large the network is

_Judged = tuple[PreparationCandidate, Answers]


def choose_preparation(
    spec: RunSpec,
    *,
    model: LoadedModel | None = None,
    data_roots: Sequence[Path] = (),
    progress: Callable[[str], None] = lambda sentence: None,
) -> PreparationChoice:
    """Return the settings of ``spec`` with all settings of the preprocessing chosen; ``model`` is its, where open.

    Values that ``spec`` sets are kept: mean and std, the crop, the image size, an architecture by name. Without a basis
    for a choice (no class scores, random inputs, a random classifier, fewer than a handful of pictures) the
    architecture's own preprocessing is used.

    Raises InvalidInput if no architecture that fits the weights can be loaded, or the images cannot be read.
    """
    as_it_is = replace(spec, data=replace(spec.data, preparation="given"))
    by_answers = task_named(spec.model.task).prepared_by_answers
    if spec.data.kind not in ("folder", "archive", "torchvision", *(() if by_answers else ("photographs",))):
        return PreparationChoice(spec=as_it_is)
    if not by_answers:
        return choose_reading(spec, model=model, data_roots=data_roots, progress=progress)
    progress("Choosing the preprocessing")
    models, recognition = look_alikes(spec.model) if spec.model.library == "auto" else ((spec.model,), ())
    as_it_is = replace(as_it_is, model=models[0])
    if len(models) > 1:  # the images choose
        models, recognition = models[:6], ()
    loaded = None if model is None else (models[0], model)
    return _PreparationSearch(as_it_is, models, tuple(data_roots), recognition, loaded).choose()


def choose_class_order(
    spec: RunSpec,
    model: LoadedModel,
    images: ImageSet,
    *,
    data_roots: Sequence[Path] = (),
    progress: Callable[[str], None] = lambda sentence: None,
) -> PreparationChoice:
    """Return the settings of ``spec``, whose preprocessing is fixed, with the class order chosen by ``images``.

    Where only one order fits the labels, or the user has confirmed one, ``spec`` is unchanged.
    """
    by_answers = task_named(spec.model.task).prepared_by_answers
    if not by_answers or spec.data.class_map or not isinstance(images, PreparedImages) or not images.label_orders:
        return PreparationChoice(spec=spec)
    progress("Choosing the class order")
    choice = _PreparationSearch(
        spec, (spec.model,), tuple(data_roots), (), (spec.model, model), _orders_only=True
    ).choose()
    return choice if choice.spec.data.class_map else PreparationChoice(spec=spec)


@dataclass(slots=True, eq=False)
class _PreparationSearch:
    """The candidates for ``_spec``, run on one draw of its images."""

    _spec: RunSpec
    _models: Sequence[ModelSpec]
    _data_roots: tuple[Path, ...]
    _recognition: tuple[str, ...]
    _loaded: tuple[ModelSpec, LoadedModel] | None = None
    _orders_only: bool = False
    _classes: ClassOrders = field(default_factory=ClassOrders)
    _scores: dict[tuple[ModelSpec, DataSpec], list[Array]] = field(default_factory=dict)
    _tried: list[PreparationCandidate] = field(default_factory=list)
    _num_left_out: int = 0
    _own_words: str = ""
    _counted: float = 0.0
    _images: SomeImages = field(init=False)

    def choose(self) -> PreparationChoice:
        own, images = self._first()
        if self._load(own.model).fresh_head or not isinstance(images, PreparedImages):
            return PreparationChoice(spec=replace(self._spec, model=own.model))
        self._classes = ClassOrders(None if images.labels is None else images.labels.numpy(), images.label_orders)
        self._run(own, slice(None))
        finalists: list[PreparationCandidate] = []
        if not self._is_good(own):  # other orders of the classes need no further pass of the model
            finalists += (replace(own, order=order) for order in range(1, len(images.label_orders)))
        self._tried = [own, *finalists]
        given = self._orders_only or own.data.mean or own.data.std
        # Where nothing says how images are prepared, others are tried even if the answers are good.
        is_assumed = not given and self._load(own.model).preparation_evidence == "assumed"
        if not (self._orders_only or any(map(self._is_good, self._tried))) or is_assumed:
            finalists += self._otherwise_prepared(own, images)
        return self._decide(own, finalists)

    def _is_good(self, candidate: PreparationCandidate) -> bool:
        seen = self._answers(candidate)
        is_good = seen.num_correct is not None and seen.num_correct >= _GOOD_ENOUGH * len(seen.loss)
        return is_good and self._is_possible(candidate)

    def _is_possible(self, candidate: PreparationCandidate) -> bool:
        """Return whether predictions in this class order agree with the labels beyond the class frequencies alone."""
        return candidate.order == 0 or self._classes.labels is None or self._tells_classes_apart(candidate, _HOPELESS)

    def _tells_classes_apart(self, candidate: PreparationCandidate, significance: float) -> bool:
        return self._classes.tells_apart(self._scores_of(candidate), candidate.order, significance)

    def _otherwise_prepared(self, own: PreparationCandidate, images: PreparedImages) -> list[PreparationCandidate]:
        """Return the best of the other preparations, each with every order of the classes."""
        ways = other_preparations(self._spec.data, self._models, images, self._own_preprocessing)
        ways = [item for item in ways if item.key != own.key]
        others = self._affordable(sorted(ways, key=self._num_departures))
        orders = range(max(1, len(images.label_orders)))
        left = [replace(item, order=order) for item in others for order in orders]
        left = self._run_all(left, slice(0, _FIRST_IMAGES))
        self._tried += left
        for part in (slice(_FIRST_IMAGES, _SECOND_IMAGES), slice(_SECOND_IMAGES, None)):
            left = self._run_all(self._promising(left), part)
        best = {item.values for item in self._promising([own, *left], most=1, most_apart=1)}
        alike = [item for item in ways if item.values in best and item not in others]
        more = self._run_all([replace(item, order=order) for item in alike for order in orders], slice(None))
        self._tried += more
        self._num_left_out = len(ways) - len(others) - len(alike)
        return left + more

    def _first(self) -> tuple[PreparationCandidate, ImageSet]:
        """Return the first architecture that loads, with its own preprocessing, and the images prepared so."""
        refusal: InvalidCheckpoint | None = None
        for model in self._models:
            own = PreparationCandidate(model, self._spec.data)
            try:
                self._own_words = self._load(model).prepared_as
            except InvalidCheckpoint as error:  # order and shapes of the weights fit, but not their values
                refusal = refusal or error
                continue
            self._counted = counted_macs(self._load(model))
            self._images = SomeImages(
                most=min(_MOST_IMAGES, max(int(_MACS / 2 / macs_of(model, self._counted)), _LEAST_IMAGES)),
                task=task_named(self._spec.model.task),
                seed=self._spec.sensitivity.seed,
                data_roots=self._data_roots,
            )
            return own, self._images.prepared(self._load(model), own.data)
        assert refusal is not None
        raise refusal

    def _affordable(self, others: Sequence[PreparationCandidate]) -> list[PreparationCandidate]:
        """Return the candidates whose passes over the first images fit into the budget."""
        left = _MACS
        found: list[PreparationCandidate] = []
        for item in others:
            cost = _FIRST_IMAGES * macs_of(item.model, self._counted)
            if cost <= left or len(found) < 8:  # so many in any case
                found.append(item)
                left -= cost
        return found

    def _promising(
        self, candidates: Sequence[PreparationCandidate], *, most: int = _FINALISTS, most_apart: int = _APART_FINALISTS
    ) -> list[PreparationCandidate]:
        """Return the best few, not clearly worse than the best, and a few that tell unnamed classes apart."""
        judged = sorted(((item, self._answers(item)) for item in candidates), key=lambda item: item[1].mean_loss)
        hopeful = [item for item, by in judged if not clearly_better(judged[0][1], by, significance=_HOPELESS)]
        hopeful = hopeful[:most]
        if self._classes.labels is None or not self._classes.orders:
            return hopeful
        apart = sorted(
            (item for item in candidates if not item.order),
            key=lambda item: self._classes.num_found(self._scores_of(item)),
            reverse=True,
        )
        return hopeful + [item for item in apart[:most_apart] if item not in hopeful]

    def _run_all(self, candidates: Sequence[PreparationCandidate], part: slice) -> list[PreparationCandidate]:
        by_network = sorted(candidates, key=lambda item: (item.model.title, item.model.img_size or 0))
        ran = {id(item) for item in by_network if self._run(item, part)}
        return [item for item in candidates if id(item) in ran]

    def _own_preprocessing(self, model: ModelSpec) -> Preprocessing | None:
        """Return an architecture's own preprocessing; None if the checkpoint does not fit it."""
        try:
            return self._load(model).preprocessing
        except (InvalidSpec, InvalidCheckpoint):
            return None

    def _load(self, model: ModelSpec) -> LoadedModel:
        if self._loaded is None or self._loaded[0] != model:
            self._loaded = None  # release it first: never two networks in memory
            self._loaded = model, load_model(model)
        return self._loaded[1]

    def _run(self, candidate: PreparationCandidate, part: slice) -> bool:
        """Add the model's scores for a part of the images; False if the model rejects such images."""
        try:
            model = self._load(candidate.model)
            images = self._images.prepared(model, candidate.data)
        except (InvalidSpec, InvalidCheckpoint):
            return False
        known = self._scores.setdefault(candidate.key, [])
        _, stop, _ = part.indices(len(images))
        task = task_named(candidate.model.task)
        with torch.inference_mode():
            for first in range(sum(map(len, known)), stop, _BATCH):
                batch = images.batch(first, min(first + _BATCH, stop))
                known.append(task.output(model.module(batch)).double().numpy())
        return True

    def _scores_of(self, candidate: PreparationCandidate) -> Array:
        """Return the scores of the images that a candidate was run on, (n, C)."""
        return np.concatenate(self._scores[candidate.key])

    def _answers(self, candidate: PreparationCandidate) -> Answers:
        return self._classes.answers(self._scores_of(candidate), candidate.order)

    def _decide(self, own: PreparationCandidate, finalists: Sequence[PreparationCandidate]) -> PreparationChoice:
        judged = [(item, self._answers(item)) for item in (own, *finalists)]
        judged.sort(key=_by_loss)  # ties stay in order
        by_own = next(answers for item, answers in judged if item is own)
        significance = SIGNIFICANCE / len(self._tried)  # for all candidates together
        better = [
            (item, by)
            for item, by in judged
            if clearly_better(by, by_own, significance=significance) and self._is_possible(item)
        ]
        chosen = self._plainest(better) if better else own
        if (found := self._as_found(chosen, judged)) is not None:
            chosen, judged = found[0], [found, *judged]
        trials = {id(item): self._trial(item, answers) for item, answers in judged}
        taken, subject = trials[id(chosen)], subject_of(self._tried)
        choice = PreparationChoice(
            spec=taken.spec,
            chosen=taken,
            trials=tuple(trials.values()),
            guess=self._classes.labels is None,
            verdict=verdict(subject, taken, trials[id(own)], len(self._tried)),
            subject=subject,
            num_tried=len(self._tried),
            caveats=tuple(self._caveats()),
            question=self._question(chosen, taken),
        )
        data = replace(
            taken.spec.data,
            chosen_by=(*self._spec.data.chosen_by, *self._recognition, *choice.notes),
            evidence=tuple(self._evidence(chosen, own).items()),
        )
        return replace(choice, spec=replace(taken.spec, data=data))

    def _as_found(self, chosen: PreparationCandidate, judged: Sequence[_Judged]) -> _Judged | None:
        """Return the best candidate with classes matched on half of the images, if clearly better on the other half."""
        classes = self._classes
        if classes.labels is None or not classes.orders or self._is_good(chosen):
            return None
        matched = [
            (item, by)
            for item in {item.key: item for item, _ in judged}.values()
            if (by := classes.answers_as_found(self._scores_of(item), _HOPELESS)) is not None
        ]
        if not matched:
            return None
        best = self._plainest(sorted(matched, key=_by_loss))
        answers = next(by for item, by in matched if item is best)
        significance = SIGNIFICANCE / (len(self._tried) + len(matched))
        as_chosen = classes.answers(self._scores_of(chosen), chosen.order, judging(classes.labels))
        if not clearly_better(answers, as_chosen, significance=significance):
            return None
        self._tried += [replace(item, order=len(classes.orders)) for item, _ in matched]
        classes.orders += (classes.found(self._scores_of(best)),)
        return replace(best, order=len(classes.orders) - 1), answers

    def _evidence(self, chosen: PreparationCandidate, own: PreparationCandidate) -> dict[str, Evidence]:
        """Return how the parts are known that images say something about."""
        known, data = dict(self._spec.data.evidence), self._spec.data
        by: Evidence = "images" if self._classes.labels is None else "labels"
        if not (data.mean or data.std) and (chosen.key != own.key or self._shows_values(chosen)):
            known["preparation"] = by
        if self._classes.orders and not data.class_map:
            is_free = self._classes.labels is None or chosen.order > 0
            if is_free or self._tells_classes_apart(chosen, SIGNIFICANCE):  # no other could be clearly better
                known["classes"] = by
            elif len(self._classes.orders) > 1:
                known["classes"] = "assumed"
        return known

    def _shows_values(self, chosen: PreparationCandidate) -> bool:
        """Return whether labels fit answers to the values of ``chosen`` clearly better than those to all others."""
        if self._classes.labels is None:
            return False
        own, scores = (chosen.model, chosen.data.mean, chosen.data.std), self._scores_of(chosen)
        others = [
            np.concatenate(each) for (model, data), each in self._scores.items() if own != (model, data.mean, data.std)
        ]
        pairs = [
            [self._classes.answers(each[: len(other)], chosen.order) for each in (scores, other)] for other in others
        ]
        return bool(pairs) and all(clearly_better(*pair, significance=SIGNIFICANCE) for pair in pairs)

    def _plainest(self, judged: Sequence[tuple[PreparationCandidate, Answers]]) -> PreparationCandidate:
        """Return the candidate closest to an architecture's own preprocessing, of the first and those as good as it.

        Of several equally close ones it is the most usual. Inputs of up to 255 make scores surer, which is no merit, so
        what answers as many images right is as good as they are.
        """
        first, best = judged[0]
        enough = best.num_correct if any(word.startswith(RAW) for word in first.words) else None
        alike = [
            item
            for item, by in judged
            if not clearly_better(best, by, significance=SIGNIFICANCE) or enough == by.num_correct is not None
        ]
        return min(alike, key=lambda item: (self._num_departures(item), self._tried.index(item)))

    def _num_departures(self, candidate: PreparationCandidate) -> int:
        return len(candidate.words) + (candidate.model.title != self._models[0].title) + (candidate.order > 0)

    def _trial(self, candidate: PreparationCandidate, answers: Answers) -> PreparationTrial:
        titles = (candidate.model.title,) if len(self._models) > 1 else ()
        words = candidate.words or (("its own preprocessing",) if titles else (self._own_words,))
        data, orders = candidate.data, self._classes.orders
        if any(each.order for each in self._tried):
            ordered = f"classes {orders[candidate.order].words}"
            words = (ordered,) if subject_of(self._tried) == "Class order" and not titles else (*words, ordered)
        if len(orders) > 1:
            data = replace(data, class_map=orders[candidate.order].pairs)
        return PreparationTrial(
            title=", ".join((*titles, *words)),
            spec=replace(self._spec, model=candidate.model, data=data),
            num_images=len(answers.loss),
            correct=answers.num_correct,
            score=answers.mean_loss if answers.num_correct is not None else -answers.mean_loss,
        )

    def _question(self, chosen: PreparationCandidate, taken: PreparationTrial) -> str:
        """Return that the model was probably read wrongly, where its answers hardly fit the labels; else empty."""
        few, labels = taken.num_images < _FIRST_IMAGES, self._classes.labels
        if labels is None or few or self._orders_only or not self._load(chosen.model).pretrained:
            return ""
        if len(np.unique(labels)) < 2 or self._tells_classes_apart(chosen, SIGNIFICANCE):
            return ""
        return (
            f"The original does no better than chance: {taken.result}, so it was probably read wrongly. Say how images "
            "are prepared and what labels mean, or bring other images; to measure all the same, choose one of these "
            "readings."
        )

    def _caveats(self) -> Iterator[str]:
        labels, orders = self._classes.labels, self._classes.orders
        if labels is None:
            yield (
                "There are no labels, so the preprocessing is a guess, by the file's name and by how much the answers "
                "tell: more, where they are surer and vary more. A few dozen labelled images would decide."
            )
        elif orders and orders[-1].words == AS_FOUND:
            judged = int(judging(labels).sum())
            yield (
                "No name says which of the model's outputs a label means: they were matched on "
                f"{plural(len(labels) - judged, 'image')} and judged on the other {judged}."
            )
        if self._num_left_out:
            ways = plural(self._num_left_out, "more way")
            yield f"Not tried, as it would take too long: {ways} to prepare the images."


def _by_loss(judged: _Judged) -> float:
    return round(judged[1].mean_loss, 4)
