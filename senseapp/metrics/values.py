"""Metrics of outputs that are plain numbers: embeddings, key points, depth, sequences, several tensors at once.

Predictions are float (N, outputs, values): each output of an image in a row, with zeros behind shorter ones. An output
is compared by its squared error relative to its own power, so that all outputs count the same whatever their scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from senseapp.metrics.base import Metric
from senseapp.metrics.records import SHARE, of_divergence, of_lost_share, unbounded

if TYPE_CHECKING:
    from torch import Tensor

TASK = "values"


def squared_errors(before: Tensor, after: Tensor) -> Tensor:
    """Return ‖after − before‖² / ‖before‖² of each output, (N, outputs), for predictions (N, outputs, values).

    An output of zeros alone that changes counts as wholly lost, 1. NaN where ``before`` is not finite; what is not
    finite ``after`` counts without bound.
    """
    power, error = before.square().sum(2), (after - before).square().sum(2)
    shares = (error / power).where(power > 0, (error > 0).to(error.dtype))
    return unbounded(shares.where(error.isfinite(), math.inf)).masked_fill(~power.isfinite(), math.nan)


@dataclass(frozen=True, kw_only=True)
class SquaredError(Metric):
    """The mean over an image's outputs of the squared error relative to the output's power, then over images."""

    least_loss: float = 0.0

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the powers of each image's squared error."""
        errors = squared_errors(baseline_output, output).mean(1)
        return of_divergence(errors, errors.isnan())

    def change_text(self, delta: float) -> str:
        """Return a squared error with the ratio of signal to noise: ``0.42 % (23.8 dB)``."""
        decibels = f" ({-10 * math.log10(delta):.1f} dB)".replace("-", "−") if 0 < delta < math.inf else ""
        return super().change_text(delta) + decibels


@dataclass(frozen=True, kw_only=True)
class Fidelity(Metric):
    """1 less the squared error of each output, at least 0: a mean over an image's outputs, then over images."""

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the powers of what each image loses, at most 1."""
        return of_lost_share(squared_errors(baseline_output, output).clamp_max(1.0).nan_to_num(1.0).mean(1))

    def value_text(self, value: float) -> str:
        """Return the fidelity with two decimals; only an output that is as before has 100 %."""
        return "100 %" if value == 1 else f"{min(99.99, 100 * value):.2f} %"


def _cosine_distance(before: Tensor, after: Tensor, _targets: object) -> tuple[Tensor, ...]:
    """Return the terms of each image's distance, as half the squared distance of outputs of length 1."""
    # An output of zeros has no direction.
    old, new = (each / each.norm(dim=2, keepdim=True).clamp_min(1e-150) for each in (before, after))
    return of_divergence(((new - old).square().sum(2) / 2).mean(1), ~before.isfinite().flatten(1).all(1))


FIDELITY = Fidelity(
    **SHARE,
    least_loss=0.0,
    most_loss=1.0,
    name="fidelity",
    task=TASK,
    label="Fidelity",
    change_title="Loss of fidelity",
    help="1 less the squared error of each image's outputs relative to their power, at least 0. All outputs count the "
    "same. Needs no labels.",
    primary=True,
    finding=" loses {} of fidelity",
    kept="keep a fidelity of {}",
)
SQUARED_ERROR = SquaredError(
    name="squared_error",
    task=TASK,
    label="Squared error",
    change_title="Squared error",
    help="Squared error of each image's outputs relative to their power; all outputs count the same. 1 % is a ratio of "
    "signal to noise of 20 dB. Needs no labels and sees the smallest changes.",
    value_unit="%",
    change_unit="%",
    notable=0.01,
    higher_is_better=False,
    divergence=True,
    axis_title="Squared error relative to the power of the outputs",
    finding=", {} of squared error",
    kept="have a squared error of {}",
)
COSINE = Metric(
    of_images=_cosine_distance,
    least_loss=0.0,
    name="cosine_distance",
    task=TASK,
    label="Cosine distance",
    change_title="Cosine distance",
    help="1 less the cosine of the angle between an image's outputs before and after: what changes a comparison of "
    "embeddings. Needs no labels.",
    notable=0.005,
    higher_is_better=False,
    finding=", {} of cosine distance",
)
