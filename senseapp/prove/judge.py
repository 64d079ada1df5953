"""The one comparison of networks: outputs of any network against those of a reference, over the same images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from senseapp.core.errors import InvalidInput, InvalidSpec
from senseapp.core.steps import Progress
from senseapp.data.images import ImageSet
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.context import MeasurementContext, prediction_bytes
from senseapp.measure.plan import micro_batches
from senseapp.metrics import METRICS, MetricChange, change_of, divergence_among
from senseapp.metrics.predictions import Predictions, joined, stored
from senseapp.networks.network import Network, in_calls
from senseapp.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingImages:
    """Images as networks take them: ``batches`` returns those from a first to a last as batches (n, C, H, W).

    ``labels`` are (N, ...); None where they have none, or where those are not looked at.
    """

    count: int
    batches: Callable[[int, int], Iterable[Tensor]]
    labels: Tensor | None = None

    @classmethod
    def of_set(cls, images: ImageSet, dense: MeasurementContext) -> JudgingImages:
        """Return a set in the layout of ``dense``, each batch made when it is needed."""
        return cls(count=len(images), batches=partial(dense.arranged_when_read, images), labels=images.labels)

    @classmethod
    def of_images(cls, images: ImageSet, size: int) -> JudgingImages:
        """Return a set in batches of at most ``size`` images, each made when it is needed."""

        def batches(start: int, stop: int) -> Iterable[Tensor]:
            return (images.batch(low, high) for low, high in micro_batches(start, stop, size))

        return cls(count=len(images), batches=batches, labels=images.labels)

    @classmethod
    def of_batches(cls, batches: Sequence[Tensor]) -> JudgingImages:
        """Return batches that are in memory already, without labels; they are only ever run as a whole."""
        return cls(count=sum(map(len, batches)), batches=lambda _start, _stop: batches)


def predictions(task: Task, network: Network, batch: Tensor, *, most_bytes: int | None = None) -> Predictions:
    """Return what ``task`` reads from ``network`` for images, (N, C, H, W): float32 on the processor."""
    parts = list[Predictions]()
    for part in in_calls(network, batch):
        with torch.inference_mode():
            output = task.predictions(network.run(part), most_bytes=most_bytes)
        parts.append(stored(output))  # outside inference mode, so that later code may use it freely
    return joined(parts)


class Judge:
    """Compares networks with a reference, image by image, in those ``metrics`` of a task that can be measured.

    The ``reference`` runs here on all ``images``, and not again; the task reads ``num_outputs`` numbers for each.
    ``threshold`` is of its scores, None for the usual one. ``progress`` is told how many images are done before each
    batch.
    """

    def __init__(
        self,
        task: Task,
        images: JudgingImages,
        reference: Network,
        *,
        num_outputs: int,
        threshold: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.task, self.images = task, images
        self.metrics = task.metrics(has_labels=images.labels is not None, num_outputs=num_outputs)
        self._progress = progress or Progress()
        self._prediction_bytes = prediction_bytes(images.count)
        outputs = self._run(reference, 0, images.count, threshold)
        self.baseline = BaselineOutputs(outputs, images.labels, self.metrics)

    def require_answers(self) -> None:
        """Raise InvalidInput where the reference says nothing on these images, so that any network agrees with it."""
        nothing, shown = self.task.baseline_note(self.baseline.outputs), self.task.shown_metric
        if nothing and not (shown in self.metrics and self.baseline.values().get(shown, 0.0) > 0):
            raise InvalidInput(f"Nothing can be compared. {nothing}")

    @property
    def divergence(self) -> str:
        """The metric that tells most without labels."""
        return divergence_among(self.metrics) or self.metrics[0]

    def judged(
        self, network: Network, start: int = 0, stop: int | None = None, *, threshold: float | None = None
    ) -> Judgement:
        """Run ``network`` on the images from ``start`` to ``stop``, by default all; ``threshold`` is of its scores."""
        end = self.images.count if stop is None else stop
        return Judgement(judge=self, outputs=self._run(network, start, end, threshold), start=start, stop=end)

    @property
    def original(self) -> Judgement:
        """The reference itself, as if it were judged."""
        return Judgement(judge=self, outputs=self.baseline.outputs, start=0, stop=self.images.count)

    def _run(self, network: Network, start: int, stop: int, threshold: float | None) -> Predictions:
        """Return the predictions of the images, float32 on the processor."""
        outputs, done = list[Predictions](), 0
        for batch in self.images.batches(start, stop):
            self._progress.images(done, stop - start)
            outputs.append(predictions(self.task, network, batch, most_bytes=self._prediction_bytes))
            done += len(batch)
        found = joined(outputs)
        return found if threshold is None else self.task.at_threshold(found, threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Measurements of a network, by its predictions ``outputs``, on a span of images, beside the reference."""

    judge: Judge
    outputs: Predictions
    start: int
    stop: int

    @property
    def moments(self) -> dict[str, tuple[float, ...]]:
        """The sums of every metric, from which changes are computed; those of spans add up."""
        return self.judge.baseline.moments(self.outputs, self.start, self.stop)

    @property
    def changes(self) -> tuple[MetricChange, ...]:
        """The change of every metric."""
        return tuple(change_of(name, sums) for name, sums in self.moments.items())

    def change(self, metric: str) -> MetricChange:
        """Return the change of one metric."""
        return change_of(metric, self.judge.baseline.moments_of(metric, self.outputs, self.start, self.stop))

    @property
    def damage(self) -> float:
        """The change of the divergence as a number; infinite where it is none."""
        return self.damages(1)[0]

    @property
    def typical_damage(self) -> float:
        """The square of the mean square root of the damages of single images; :attr:`damage` where these have none.

        Few images with much of it decide :attr:`damage`: that of single nodes of EfficientNet-Lite0 on 32 images
        differed by 73 % from that on 280 others (weighted by damage), this one by 44 %, and on 96 by 22 %.
        """
        if not METRICS[self.judge.divergence].divergence:
            return self.damage
        return statistics.fmean(math.sqrt(max(each, 0.0)) for each in self.damages(self.stop - self.start)) ** 2

    def damages(self, parts: int) -> tuple[float, ...]:
        """Return the damage of each of so many parts of the images, one after the other; fewer of few images."""
        name, baseline = self.judge.divergence, self.judge.baseline
        count = self.stop - self.start
        ends = [count * part // parts for part in range(parts + 1)]
        spans = [(low, high) for low, high in pairwise(ends) if high > low]
        sums = (baseline.moments_of(name, self.outputs[a:b], self.start + a, self.start + b) for a, b in spans)
        deltas = (change_of(name, each).delta for each in sums)
        return tuple(delta if delta == delta else float("inf") for delta in deltas)

    @property
    def keeps_nothing(self) -> bool:
        """Whether the network keeps none of the reference's answers, where that has some."""
        if self.judge.task.baseline_note(self.judge.baseline.outputs):
            return False
        kept = (each for each in self.changes if METRICS[each.metric].primary and not METRICS[each.metric].needs_labels)
        return any(METRICS[each.metric].is_share and each.value == 0 for each in kept)

    @property
    def share_changed(self) -> float:
        """The share of answers that differ.

        Raises InvalidSpec if outputs are no answers that differ or not.
        """
        shares = (name for name in self.judge.metrics if METRICS[name].is_share and not METRICS[name].needs_labels)
        share = next(shares, None)
        if share is None:
            raise InvalidSpec("A limit on changed answers is for networks that choose one of several: limit the time.")
        return self.change(share).delta
