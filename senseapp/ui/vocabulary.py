"""The words of the interface: one label, unit and plain sentence for each metric and state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from senseapp.results import RunState
from senseapp.results.metrics import METRIC_FACTS, loss_text, number_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricView:
    """How a metric is shown.

    Attributes:
        name: the engine's name.
        label: the name people see.
        loss: what a drop is called; above zero is worse, for every metric.
        axis: title of the axis that a drop is drawn on, with its unit.
        value_axis: title of the axis that the metric itself is drawn on.
        unit: of a drop, where it is asked for.
        falls: whether a worse model has a smaller value.
        decibels: whether the metric itself is in dB, while a drop is a share of power.
        additive: whether value and drop differ by the baseline, so that the interval of one is that of the other.
        help: one plain sentence.
    """

    name: str
    label: str
    loss: str
    axis: str
    value_axis: str
    unit: str
    falls: bool = False
    decibels: bool = False
    additive: bool = True
    help: str

    @property
    def factor(self) -> float:
        """Display units for one engine unit: 100 for fractions shown in points."""
        return METRIC_FACTS[self.name].factor

    @property
    def notable(self) -> float:
        """The largest drop, in engine units, that is tolerable."""
        return METRIC_FACTS[self.name].notable

    @property
    def loss_inside(self) -> str:
        """What a drop is called inside a sentence."""
        return self.loss if self.loss.startswith("KL") else self.loss[0].lower() + self.loss[1:]

    def change(self, delta: float) -> str:
        """Return a drop as text, above zero for the worse: ``6.4 points``, ``< 0.001 nats``, ``−0.3 points``."""
        return loss_text(self.name, delta)

    def interval(self, low: float, high: float) -> str:
        """Return an interval in the unit of :meth:`change`: ``7.4 to 8.6``."""
        ends = (number_text(self.factor * end, digits=METRIC_FACTS[self.name].digits) for end in (low, high))
        return " to ".join(ends)

    def reading(self, value: float) -> str:
        """Return the metric itself as text: ``97.8 %``, ``0.081 nats``, ``14.1 dB``."""
        if self.falls:
            return f"{number_text(100 * value, digits=1)} %"
        if self.decibels:
            return "no noise" if value == math.inf else f"{value:.1f} dB".replace("-", "−")
        return f"{number_text(value, digits=3)} {self.unit}"


_VIEWS = (
    MetricView(
        name="top1",
        label="Top-1 accuracy",
        loss="Drop in top-1 accuracy",
        axis="Drop in top-1 accuracy (points)",
        value_axis="Top-1 accuracy (%)",
        unit="points",
        falls=True,
        help="Share of images whose first guess is right. Easy to explain; needs labels and many images.",
    ),
    MetricView(
        name="top5",
        label="Top-5 accuracy",
        loss="Drop in top-5 accuracy",
        axis="Drop in top-5 accuracy (points)",
        value_axis="Top-5 accuracy (%)",
        unit="points",
        falls=True,
        help="Share of images whose label is among the first five guesses. Needs labels.",
    ),
    MetricView(
        name="loss",
        label="Loss",
        loss="Rise in loss",
        axis="Rise in cross-entropy loss (nats)",
        value_axis="Cross-entropy loss (nats)",
        unit="nats",
        help="Cross-entropy with the labels. Notices small damage that does not yet change a guess.",
    ),
    MetricView(
        name="kl",
        label="KL divergence",
        loss="KL divergence",
        axis="KL divergence from the original output (nats)",
        value_axis="KL divergence (nats)",
        unit="nats",
        help="How far the output moves from the original model's. Needs no labels and sees the smallest changes.",
    ),
    MetricView(
        name="agreement",
        label="Top-1 agreement",
        loss="Drop in agreement",
        axis="Drop in agreement with the original (points)",
        value_axis="Agreement with the original (%)",
        unit="points",
        falls=True,
        help="Share of images whose first guess stays the same. Needs no labels.",
    ),
    MetricView(
        name="sqnr",
        label="Output noise (SQNR)",
        loss="Output noise",
        axis="Noise in the output, relative to its power",
        value_axis="Signal to noise (dB)",
        unit="of the signal power",
        decibels=True,
        additive=False,
        help="Noise that compression adds to the class scores, as a share of their power. Needs no labels.",
    ),
)
METRICS = {view.name: view for view in _VIEWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """How a run's state is shown: a word, a badge colour and an icon as the second cue."""

    label: str
    color: str
    icon: str


STATES = {
    RunState.QUEUED: StateView(label="Waiting", color="gray", icon=":material/hourglass_empty:"),
    RunState.RUNNING: StateView(label="Running", color="blue", icon=":material/play_circle:"),
    RunState.DONE: StateView(label="Finished", color="green", icon=":material/check_circle:"),
    RunState.CANCELLED: StateView(label="Cancelled", color="gray", icon=":material/cancel:"),
    RunState.FAILED: StateView(label="Failed", color="red", icon=":material/error:"),
    RunState.INTERRUPTED: StateView(label="Interrupted", color="orange", icon=":material/pause_circle:"),
}
