"""The engine measures what a task picks from a model's output, whatever the model returns around it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidInput, UnsupportedModel
from senseapp.data.images import TensorImages
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import LayerMeasurement
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION, Task
from senseapp.tasks.classification import Classification
from tests.small_models import NUM_CLASSES, images_for, small_network

SPEC = SensitivitySpec(levels=(0.5, 0.9), device="cpu")


class Wrapped(nn.Module):
    """Returns its scores in a dictionary beside something else."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_network()

    def forward(self, images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        scores: Tensor = self.network(images)
        return {"found": (scores, scores.argmax(1))}


@dataclass(frozen=True, kw_only=True)
class PickedClassification(Classification):
    """Class scores inside of what the model returns."""

    def output(self, model_output: Any) -> Tensor:
        """Return the scores."""
        scores: Tensor = model_output["found"][0]
        return scores

    def check_output(self, model_output: Any, num_images: int) -> None:
        """Refuse what holds no scores."""
        super().check_output(model_output["found"][0], num_images)


PICKED = PickedClassification(**{each.name: getattr(CLASSIFICATION, each.name) for each in fields(CLASSIFICATION)})


def measured(model: nn.Module, task: Task, *, quick: bool) -> dict[tuple[str, float], dict[str, float]]:
    sweep = Sweep.open(model, images_for(), SPEC, task=task)
    assert sweep.context.replay_obstacle is None  # prefix replay copes with dictionaries

    def key(item: LayerMeasurement) -> tuple[str, float]:
        return item.layer.removeprefix("network."), item.level

    found = quick_scan(sweep) if quick else sweep.measure()
    return {key(item): {change.metric: change.delta for change in item.changes} for item in found}


@pytest.mark.parametrize("quick", [False, True])
def test_scores_inside_a_dictionary_are_measured_like_plain_ones(quick: bool) -> None:
    plain = measured(small_network(), CLASSIFICATION, quick=quick)
    picked = measured(Wrapped(), PICKED, quick=quick)
    assert plain.keys() == picked.keys()
    for key, changes in plain.items():
        assert picked[key] == pytest.approx(changes, rel=1e-6, abs=1e-12)


def test_a_model_of_another_task_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"class scores per image.*it returned a dict\. Choose a classification"):
        Sweep.open(Wrapped(), images_for(), SPEC, task=CLASSIFICATION)


def test_labels_beyond_the_outputs_are_refused() -> None:
    images = torch.randn(4, 3, 8, 8)
    with pytest.raises(InvalidInput, match="Labels must be class indices"):
        Sweep.open(
            small_network(), TensorImages(images, torch.tensor([0, 1, 2, NUM_CLASSES])), SPEC, task=CLASSIFICATION
        )
