"""The recommendation of a run: the largest saving whose measured loss is tolerable, and its sentences."""

from dataclasses import dataclass

from senseapp.core.texts import plural
from senseapp.descriptions import DENSE_BITS, BudgetKind
from senseapp.metrics import METRICS, Metric, MetricChange, number_text
from senseapp.records.measurement import change_in
from senseapp.records.promise import CONFIDENCE, Promise, bound_text, images_text
from senseapp.records.schedule import Schedule, TriedTarget, ValidationResult

_SAVED = {
    "params": "remove {} of the weights",
    "bytes": "save {} of the bytes",
    "macs": "save {} of the multiplications",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommendation after a run, and the losses of whole schedules over the measured range.

    Attributes:
        kind: what a saving counts.
        metric: what people judge the model by: right answers where there are labels, else unchanged ones.
        allowed_drop: the largest tolerable loss, in the unit of ``metric``.
        tried: schedules of least damage, measured on the images of the curves, in the order of their savings.
        uniform: schedules with the same level in every layer, likewise.
        schedule: the one that was proven, as it was asked for; None where nothing is recommended.
        validation: its proof.
        refused: what stronger schedules lost on the images of the proof, which the curves' images had let pass.
        held_out: whether the proof's images are held-out ones.
        missing: why no schedule could be made, in a sentence; empty where some were.
        promise: what decided in place of ``allowed_drop`` alone; None where nothing was promised.
    """

    kind: BudgetKind
    metric: str
    allowed_drop: float
    tried: tuple[TriedTarget, ...]
    uniform: tuple[TriedTarget, ...] = ()
    schedule: Schedule | None = None
    validation: ValidationResult | None = None
    refused: tuple[TriedTarget, ...] = ()
    held_out: bool = True
    missing: str = ""
    promise: Promise | None = None

    @property
    def loss(self) -> MetricChange | None:
        """Measured loss of the recommended model, as delivered."""
        return change_in(self.validation.kept_changes, self.metric) if self.validation else None

    @property
    def uniform_loss(self) -> MetricChange | None:
        """The same of the schedule that costs as much with one level for all layers; None where there is none."""
        return change_in(self.validation.uniform_kept_changes, self.metric) if self.validation else None

    @property
    def headline(self) -> str:
        """The answer in one sentence: ``You can remove 45 % of the weights and keep 99 % of the answers``."""
        view, loss = METRICS[self.metric], self.loss
        if self.missing:
            return "No schedule could be made"
        if self.validation is None or loss is None:
            sure = f", with {self.promise.certainty}" if self.promise else ""
            return f"Nothing can be saved for a loss of at most {view.limit_text(self.allowed_drop)}{sure}"
        figure = self.validation.schedule.achieved[self.kind]
        return f"You can {saving_text(self.kind, figure)} and {view.kept_text(loss)}"

    @property
    def evidence(self) -> str:
        """The measurement behind the recommendation: images, interval, and the loss of the uniform schedule."""
        view, loss = METRICS[self.metric], self.loss
        if loss is None or self.validation is None:
            return self._mildest(view)
        where = images_text(loss.num_samples, held_out=self.held_out) + self.validation.also_rounded
        allowed = number_text(view.factor * self.allowed_drop, digits=view.digits)
        interval = view.interval_text(loss.ci_low, loss.ci_high)
        uniform = self.uniform_loss
        beside = f" The same level in every layer loses {view.change_text(uniform.delta)}." if uniform else ""
        return f"Measured on {where}: {_lost(view, loss)} ({interval}; {allowed} allowed).{beside}{self._bound(loss)}"

    def _bound(self, loss: MetricChange) -> str:
        """Return the sentence on the bound of the loss on new images; empty without held-out images."""
        if self.validation is None or not (self.held_out and loss.moments) or METRICS[loss.metric].resampled:
            return ""  # a bootstrap takes too long for a page; the files of the proof carry its bound
        tried = self.validation.tried
        bound = METRICS[loss.metric].upper_bound(loss.moments, 1 - (1 - CONFIDENCE) / tried)
        return f" {bound_text(loss, bound, tried=tried)}"

    def _mildest(self, view: Metric) -> str:
        """Return the sentence on the loss of the mildest schedule tried, on the images that refused it if they did."""
        known = [(tried, change) for tried in self.refused or self.tried if (change := tried.change(self.metric))]
        if not known:
            return self.missing or "No schedule could be measured."
        tried, change = min(known, key=lambda pair: pair[1].delta)
        return (
            f"To {saving_text(self.kind, tried.figure)} already costs {view.change_text(change.delta)} "
            f"({view.interval_text(change.ci_low, change.ci_high)}), on {plural(change.num_samples, 'image')}."
        )


def _lost(view: Metric, loss: MetricChange) -> str:
    """Return the loss in words: ``100 % before, 99.3 % after, 0.7 points lost``."""
    if view.needs_labels:
        before, after = view.value_text(loss.baseline), view.value_text(loss.value)
        return f"{before} before, {after} after, {view.change_text(loss.delta)} lost"
    if view.is_share:
        changed = f"{round(loss.delta * loss.num_samples)} of {plural(loss.num_samples, 'answer')} change"
        return f"{changed}, {view.change_text(loss.delta)}"
    return f"{view.change_inside} {view.change_text(loss.delta)}"


def saving_text(kind: BudgetKind, figure: float) -> str:
    """Return a saving as something to do.

    >>> saving_text("params", 0.45), saving_text("bits", 4.2)
    ('remove 45 % of the weights', 'store the weights in 4.2 bits instead of 32')
    """
    if kind == "bits":
        return f"store the weights in {round(figure, 1):g} bits instead of {DENSE_BITS:g}"
    return _SAVED[kind].format(f"{100 * figure:.0f} %")
