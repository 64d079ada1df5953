"""Candidate preprocessings, run on one draw of a run's images: the model's scores, and what they say of each.

The budget is counted in multiply-accumulates, so that the outcome is the same on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec
from senseapp.data.images import ImageSet, PreparedImages
from senseapp.measure.preparation_candidates import PreparationCandidate, SomeImages, counted_macs, macs_of
from senseapp.measure.reading_evidence import ClassOrders
from senseapp.metrics.base import SIGNIFICANCE
from senseapp.metrics.paired_tests import Answers, Array, clearly_better
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.tasks import task_named

FIRST_IMAGES = 12
"""Of every candidate; the promising ones run on more."""
HOPELESS = 0.01
"""Significance at which a candidate is not run on the rest of the images."""
_MOST_IMAGES = 64  # in all
_LEAST_IMAGES = 24  # however large the network is
_FINALISTS = 8  # candidates that run on all images
_APART_FINALISTS = 4  # more of them, for classes as the network finds them
_BATCH = 16  # images of a forward pass
_MACS = 2e11  # for the first images of all candidates together: seconds on a small machine


@dataclass(slots=True, eq=False)
class CandidateRuns:
    """The models that a checkpoint may be, and their scores of the images of ``spec``.

    Attributes:
        models: architectures, the likeliest first.
        classes: labels of the images in each order of the classes, after :meth:`first`.
    """

    spec: RunSpec
    models: Sequence[ModelSpec]
    data_roots: tuple[Path, ...]
    loaded: tuple[ModelSpec, LoadedModel] | None = None
    classes: ClassOrders = field(default_factory=ClassOrders)
    _scores: dict[tuple[ModelSpec, DataSpec], list[Array]] = field(default_factory=dict)
    _counted: float = 0.0
    _images: SomeImages = field(init=False)

    def first(self) -> tuple[PreparationCandidate, ImageSet]:
        """Return the first architecture that loads, with its own preprocessing, and the images prepared so."""
        refusal: InvalidCheckpoint | None = None
        for model in self.models:
            own = PreparationCandidate(model, self.spec.data)
            try:
                self._counted = counted_macs(self.load(model))
            except InvalidCheckpoint as error:  # order and shapes of the weights fit, but not their values
                refusal = refusal or error
                continue
            self._images = SomeImages(
                most=min(_MOST_IMAGES, max(int(_MACS / 2 / macs_of(model, self._counted)), _LEAST_IMAGES)),
                task=task_named(self.spec.model.task),
                seed=self.spec.sensitivity.seed,
                data_roots=self.data_roots,
            )
            images = self._images.prepared(self.load(model), own.data)
            if isinstance(images, PreparedImages):
                labels = None if images.labels is None else images.labels.numpy()
                self.classes = ClassOrders(labels, images.label_orders)
            return own, images
        assert refusal is not None
        raise refusal

    def load(self, model: ModelSpec) -> LoadedModel:
        """Return the network, which is kept until the next one."""
        if self.loaded is None or self.loaded[0] != model:
            self.loaded = None  # release it first: never two networks in memory
            self.loaded = model, load_model(model)
        return self.loaded[1]

    def own_preprocessing(self, model: ModelSpec) -> Preprocessing | None:
        """Return an architecture's own preprocessing; None if the checkpoint does not fit it."""
        try:
            return self.load(model).preprocessing
        except (InvalidSpec, InvalidCheckpoint):
            return None

    def affordable(self, others: Sequence[PreparationCandidate]) -> list[PreparationCandidate]:
        """Return the candidates whose passes over the first images fit into the budget."""
        left = _MACS
        found: list[PreparationCandidate] = []
        for item in others:
            cost = FIRST_IMAGES * macs_of(item.model, self._counted)
            if cost <= left or len(found) < 8:  # so many in any case
                found.append(item)
                left -= cost
        return found

    def run_all(self, candidates: Sequence[PreparationCandidate], part: slice) -> list[PreparationCandidate]:
        """Run candidates on a part of the images, network by network; return those that accept them, in their order."""
        by_network = sorted(candidates, key=lambda item: (item.model.title, item.model.img_size or 0))
        ran = {id(item) for item in by_network if self.run(item, part)}
        return [item for item in candidates if id(item) in ran]

    def run(self, candidate: PreparationCandidate, part: slice) -> bool:
        """Add the model's scores for a part of the images; False if the model rejects such images."""
        try:
            model = self.load(candidate.model)
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

    def scores_of(self, candidate: PreparationCandidate) -> Array:
        """Return the scores of the images that a candidate was run on, (n, C)."""
        return np.concatenate(self._scores[candidate.key])

    def answers(self, candidate: PreparationCandidate) -> Answers:
        """Return the answers to the images that a candidate was run on, judged in its class order."""
        return self.classes.answers(self.scores_of(candidate), candidate.order)

    def tells_classes_apart(self, candidate: PreparationCandidate, significance: float) -> bool:
        """Return whether answers agree with the labels in the class order beyond the class frequencies alone."""
        return self.classes.tells_apart(self.scores_of(candidate), candidate.order, significance)

    def is_possible(self, candidate: PreparationCandidate) -> bool:
        """Return whether the class order is the first one, or answers do not speak against it."""
        return candidate.order == 0 or self.classes.labels is None or self.tells_classes_apart(candidate, HOPELESS)

    def promising(
        self, candidates: Sequence[PreparationCandidate], *, most: int = _FINALISTS, most_apart: int = _APART_FINALISTS
    ) -> list[PreparationCandidate]:
        """Return the best few, not clearly worse than the best, and a few that tell unnamed classes apart."""
        judged = sorted(((item, self.answers(item)) for item in candidates), key=lambda item: item[1].mean_loss)
        hopeful = [item for item, by in judged if not clearly_better(judged[0][1], by, significance=HOPELESS)]
        hopeful = hopeful[:most]
        if self.classes.labels is None or not self.classes.orders:
            return hopeful
        apart = sorted(
            (item for item in candidates if not item.order),
            key=lambda item: self.classes.num_found(self.scores_of(item)),
            reverse=True,
        )
        return hopeful + [item for item in apart[:most_apart] if item not in hopeful]

    def shows_values(self, chosen: PreparationCandidate) -> bool:
        """Return whether labels fit answers to the values of ``chosen`` clearly better than those to all others."""
        if self.classes.labels is None:
            return False
        own, scores = (chosen.model, chosen.data.mean, chosen.data.std), self.scores_of(chosen)
        others = [
            np.concatenate(each) for (model, data), each in self._scores.items() if own != (model, data.mean, data.std)
        ]
        pairs = [
            [self.classes.answers(each[: len(other)], chosen.order) for each in (scores, other)] for other in others
        ]
        return bool(pairs) and all(clearly_better(*pair, significance=SIGNIFICANCE) for pair in pairs)
