"""A task from outside: regression, one number per image. Everything that an engineer writes for a new one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidDataset
from senseapp.metrics import Metric, powers
from senseapp.tasks import Task
from senseapp.tasks.base import refuse_output
from senseapp.tasks.labels import Targets, WrittenLabels

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.tasks.directions import ScanDirections


@dataclass(frozen=True, kw_only=True)
class AbsoluteError(Metric):
    """The mean distance from the label."""

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the powers of each image's rise."""
        assert targets is not None  # check has seen to it
        before, after = ((each - targets).abs().flatten() for each in (baseline_output, output))
        return powers(before, after - before)


@dataclass(frozen=True, kw_only=True)
class SquaredShift(Metric):
    """The mean squared distance from the uncompressed model's answer."""

    least_loss: float = 0.0

    def terms(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the powers of each image's squared distance."""
        shift = (output - baseline_output).square().flatten()
        return powers(shift.new_zeros(shift.shape), shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directions:
    """The one number itself, whose change is known to first order."""

    output: Tensor
    targets: Tensor | None
    vectors: tuple[Tensor, ...]

    def changes(self, products: Tensor) -> Mapping[str, Tensor]:
        moved = self.output.double() + products.double()
        names = (SHIFT, ERROR) if self.targets is not None else (SHIFT,)
        return {metric.name: metric.terms(self.output.double(), moved, self.targets)[1] for metric in names}


@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """One number per image."""

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what is not one number per image."""
        if tuple(getattr(model_output, "shape", ())) != (num_images, 1):
            raise refuse_output(f"one number per image, shape ({num_images}, 1)", model_output, self.name)

    def targets(self, written: WrittenLabels, confirmed: Sequence[tuple[str, int]] = ()) -> Targets:
        """Return the number of each picture, float64 (N, 1)."""
        import torch

        try:
            values = [float(label) for label in written.labels]
        except ValueError as error:
            raise InvalidDataset(f"Labels must be numbers ({error}). Bring a table with lines file,number.") from error
        if not all(map(math.isfinite, values)):
            raise InvalidDataset("Labels must be finite numbers. Leave pictures without one out of the table.")
        return Targets(values=torch.tensor(values, dtype=torch.float64)[:, None], kept=range(len(values)))

    def directions(self, output: Tensor, targets: Tensor | None, signs: Tensor, most: int) -> ScanDirections:
        """Return the number itself."""
        return _Directions(output=output, targets=targets, vectors=(output.new_ones(output.shape),))

    def score(self, output: Tensor) -> Tensor:
        """Return the sum of the numbers."""
        return output.sum()

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the distances."""
        return (output - targets).abs().sum()

    def output_text(self, output: Tensor, names: Sequence[str]) -> str:
        """Return the number."""
        return f"{float(output):.2f}"

    def target_text(self, target: Tensor, names: Sequence[str]) -> str:
        """Return the number."""
        return f"{float(target):.2f}"


ERROR = AbsoluteError(
    name="absolute_error",
    task="regression",
    label="Absolute error",
    change_title="Rise in absolute error",
    help="How far answers are from the labels, on average.",
    notable=0.01,
    higher_is_better=False,
    needs_labels=True,
    primary=True,
)
SHIFT = SquaredShift(
    name="squared_shift",
    task="regression",
    label="Squared shift",
    change_title="Squared shift",
    help="How far answers move from the original model's, squared. Needs no labels.",
    notable=0.001,
    higher_is_better=False,
    divergence=True,
)
REGRESSION = Regression(
    name="regression",
    label="Regression",
    output_title="Numbers per image",
    label_words=("value", "values"),
    label_places="labels.csv where there is one",
    label_help="A CSV table with lines file,number.",
    score_label="Number",
    shown_metric=ERROR.name,
    extra_metrics=(ERROR, SHIFT),
)
