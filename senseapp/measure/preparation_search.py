"""Search for the preprocessing of images that suits a model, on a few dozen of them.

A checkpoint does not record its preprocessing, and architectures with equal names and shapes of weights differ in
padding, strides and preprocessing. Each candidate, an architecture with an image size, a normalisation and a channel
order, is run on the same images; the architecture's own preprocessing is replaced only by one that is clearly better
(:mod:`senseapp.metrics.paired_tests`).

All candidates run on the first images, and on the rest those that are not clearly worse there
(:mod:`senseapp.measure.candidate_runs`). The best values of the pixels are then tried with every crop, fit and size.
Without labels the evidence is weaker: fewer candidates are tried, and it is a guess.

Where names do not tell which output a label means, the order in which the network finds the classes is tried last:
labels and outputs are matched on one half of the images, and the match is judged on the other half.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from senseapp.core.texts import plural
from senseapp.data.images import ImageSet, PreparedImages
from senseapp.measure.candidate_runs import FIRST_IMAGES, HOPELESS, CandidateRuns
from senseapp.measure.preparation_candidates import (
    RAW,
    PreparationCandidate,
    other_preparations,
    subject_of,
    verdict,
)
from senseapp.measure.reading_evidence import AS_FOUND, judging
from senseapp.measure.reading_search import choose_reading
from senseapp.metrics.base import SIGNIFICANCE
from senseapp.metrics.paired_tests import Answers, clearly_better
from senseapp.networks.checkpoints.fitting import look_alikes
from senseapp.networks.loaded import LoadedModel
from senseapp.records.inputs import PreparationChoice, PreparationTrial
from senseapp.records.spec import RunSpec
from senseapp.tasks import task_named
from senseapp.tasks.reading import Evidence

_SECOND_IMAGES = 28  # of those that are not clearly worse by the first; the finalists run on all
_GOOD_ENOUGH = 0.95  # accuracy from which nothing else is tried

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
    return _PreparationSearch(CandidateRuns(as_it_is, models, tuple(data_roots), loaded), recognition).choose()


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
    runs = CandidateRuns(spec, (spec.model,), tuple(data_roots), (spec.model, model))
    choice = _PreparationSearch(runs, _orders_only=True).choose()
    return choice if choice.spec.data.class_map else PreparationChoice(spec=spec)


@dataclass(slots=True, eq=False)
class _PreparationSearch:
    """The choice between candidates by their runs."""

    _runs: CandidateRuns
    _recognition: tuple[str, ...] = ()
    _orders_only: bool = False
    _tried: list[PreparationCandidate] = field(default_factory=list)
    _num_left_out: int = 0
    _own_words: str = ""

    def choose(self) -> PreparationChoice:
        own, images = self._runs.first()
        if self._runs.load(own.model).fresh_head or not isinstance(images, PreparedImages):
            return PreparationChoice(spec=replace(self._runs.spec, model=own.model))
        self._own_words = self._runs.load(own.model).prepared_as
        self._runs.run(own, slice(None))
        finalists: list[PreparationCandidate] = []
        if not self._is_good(own):  # other orders of the classes need no further pass of the model
            finalists += (replace(own, order=order) for order in range(1, len(images.label_orders)))
        self._tried = [own, *finalists]
        given = self._orders_only or own.data.mean or own.data.std
        # Where nothing says how images are prepared, others are tried even if the answers are good.
        is_assumed = not given and self._runs.load(own.model).preparation_evidence == "assumed"
        if not (self._orders_only or any(map(self._is_good, self._tried))) or is_assumed:
            finalists += self._otherwise_prepared(own, images)
        return self._decide(own, finalists)

    def _is_good(self, candidate: PreparationCandidate) -> bool:
        seen = self._runs.answers(candidate)
        is_good = seen.num_correct is not None and seen.num_correct >= _GOOD_ENOUGH * len(seen.loss)
        return is_good and self._runs.is_possible(candidate)

    def _otherwise_prepared(self, own: PreparationCandidate, images: PreparedImages) -> list[PreparationCandidate]:
        """Return the best of the other preparations, each with every order of the classes."""
        ways = other_preparations(self._runs.spec.data, self._runs.models, images, self._runs.own_preprocessing)
        ways = [item for item in ways if item.key != own.key]
        others = self._runs.affordable(sorted(ways, key=self._num_departures))
        orders = range(max(1, len(images.label_orders)))
        left = [replace(item, order=order) for item in others for order in orders]
        left = self._runs.run_all(left, slice(0, FIRST_IMAGES))
        self._tried += left
        for part in (slice(FIRST_IMAGES, _SECOND_IMAGES), slice(_SECOND_IMAGES, None)):
            left = self._runs.run_all(self._runs.promising(left), part)
        best = {item.values for item in self._runs.promising([own, *left], most=1, most_apart=1)}
        alike = [item for item in ways if item.values in best and item not in others]
        more = self._runs.run_all([replace(item, order=order) for item in alike for order in orders], slice(None))
        self._tried += more
        self._num_left_out = len(ways) - len(others) - len(alike)
        return left + more

    def _decide(self, own: PreparationCandidate, finalists: Sequence[PreparationCandidate]) -> PreparationChoice:
        judged = [(item, self._runs.answers(item)) for item in (own, *finalists)]
        judged.sort(key=_by_loss)  # ties stay in order
        by_own = next(answers for item, answers in judged if item is own)
        significance = SIGNIFICANCE / len(self._tried)  # for all candidates together
        better = [
            (item, by)
            for item, by in judged
            if clearly_better(by, by_own, significance=significance) and self._runs.is_possible(item)
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
            guess=self._runs.classes.labels is None,
            verdict=verdict(subject, taken, trials[id(own)], len(self._tried)),
            subject=subject,
            num_tried=len(self._tried),
            caveats=tuple(self._caveats()),
            question=self._question(chosen, taken),
        )
        data = replace(
            taken.spec.data,
            chosen_by=(*self._runs.spec.data.chosen_by, *self._recognition, *choice.notes),
            evidence=tuple(self._evidence(chosen, own).items()),
        )
        return replace(choice, spec=replace(taken.spec, data=data))

    def _as_found(self, chosen: PreparationCandidate, judged: Sequence[_Judged]) -> _Judged | None:
        """Return the best candidate with classes matched on half of the images, if clearly better on the other half."""
        classes = self._runs.classes
        if classes.labels is None or not classes.orders or self._is_good(chosen):
            return None
        matched = [
            (item, by)
            for item in {item.key: item for item, _ in judged}.values()
            if (by := classes.answers_as_found(self._runs.scores_of(item), HOPELESS)) is not None
        ]
        if not matched:
            return None
        best = self._plainest(sorted(matched, key=_by_loss))
        answers = next(by for item, by in matched if item is best)
        significance = SIGNIFICANCE / (len(self._tried) + len(matched))
        as_chosen = classes.answers(self._runs.scores_of(chosen), chosen.order, judging(classes.labels))
        if not clearly_better(answers, as_chosen, significance=significance):
            return None
        self._tried += [replace(item, order=len(classes.orders)) for item, _ in matched]
        classes.orders += (classes.found(self._runs.scores_of(best)),)
        return replace(best, order=len(classes.orders) - 1), answers

    def _evidence(self, chosen: PreparationCandidate, own: PreparationCandidate) -> dict[str, Evidence]:
        """Return how the parts are known that images say something about."""
        known, data = dict(self._runs.spec.data.evidence), self._runs.spec.data
        by: Evidence = "images" if self._runs.classes.labels is None else "labels"
        if not (data.mean or data.std) and (chosen.key != own.key or self._runs.shows_values(chosen)):
            known["preparation"] = by
        if self._runs.classes.orders and not data.class_map:
            is_free = self._runs.classes.labels is None or chosen.order > 0
            if is_free or self._runs.tells_classes_apart(chosen, SIGNIFICANCE):  # no other could be clearly better
                known["classes"] = by
            elif len(self._runs.classes.orders) > 1:
                known["classes"] = "assumed"
        return known

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
        return len(candidate.words) + (candidate.model.title != self._runs.models[0].title) + (candidate.order > 0)

    def _trial(self, candidate: PreparationCandidate, answers: Answers) -> PreparationTrial:
        titles = (candidate.model.title,) if len(self._runs.models) > 1 else ()
        words = candidate.words or (("its own preprocessing",) if titles else (self._own_words,))
        data, orders = candidate.data, self._runs.classes.orders
        if any(each.order for each in self._tried):
            ordered = f"classes {orders[candidate.order].words}"
            words = (ordered,) if subject_of(self._tried) == "Class order" and not titles else (*words, ordered)
        if len(orders) > 1:
            data = replace(data, class_map=orders[candidate.order].pairs)
        return PreparationTrial(
            title=", ".join((*titles, *words)),
            spec=replace(self._runs.spec, model=candidate.model, data=data),
            num_images=len(answers.loss),
            correct=answers.num_correct,
            score=answers.mean_loss if answers.num_correct is not None else -answers.mean_loss,
        )

    def _question(self, chosen: PreparationCandidate, taken: PreparationTrial) -> str:
        """Return that the model was probably read wrongly, where its answers hardly fit the labels; else empty."""
        few, labels = taken.num_images < FIRST_IMAGES, self._runs.classes.labels
        if labels is None or few or self._orders_only or not self._runs.load(chosen.model).pretrained:
            return ""
        if len(np.unique(labels)) < 2 or self._runs.tells_classes_apart(chosen, SIGNIFICANCE):
            return ""
        return (
            f"The original does no better than chance: {taken.result}, so it was probably read wrongly. Say how images "
            "are prepared and what labels mean, or bring other images; to measure all the same, choose one of these "
            "readings."
        )

    def _caveats(self) -> Iterator[str]:
        labels, orders = self._runs.classes.labels, self._runs.classes.orders
        if labels is None:
            yield (
                "There are no labels, so the preprocessing is a guess: ways are compared by how much the answers tell, "
                "which is more where they are surer and vary more. A few dozen labelled images would decide."
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
