"""Replay equals the plain loop: the other half of the architectures, and structural pruning."""

from __future__ import annotations

import pytest
import torch

from senseapp.spec import PruningConfig, SensitivitySpec
from tests.architectures import ARCHITECTURES, NUM_CLASSES, QUICK_ARCHITECTURES, example_input
from tests.plain_loop import assert_same, labelled, measured, sampled, sweep_of
from tests.replayed_architectures import CONVOLUTIONAL, check_replay


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if ARCHITECTURES[name].family not in CONVOLUTIONAL])
def test_replay_equals_the_plain_loop(name: str) -> None:
    check_replay(name)


@pytest.mark.parametrize("name", QUICK_ARCHITECTURES)
def test_replayed_pruning_equals_whole_passes(name: str) -> None:
    architecture = ARCHITECTURES[name]
    images = labelled(example_input(architecture, 4), NUM_CLASSES)
    sweep = sweep_of(architecture.build(), images, SensitivitySpec(compression=PruningConfig(), levels=(0.5,)))
    keep = set(sampled([item.target.layer for item in sweep.planned], 3))
    sweep.planned = [item for item in sweep.planned if item.target.layer in keep]
    values = measured(list(sweep.measure()))
    assert sweep.bench.unsafe == ""
    assert len(values) == len(keep)
    assert images.labels is not None
    for item in sweep.planned:
        with torch.inference_mode(), sweep.compressor.compress(item.target, 0.5):
            logits = sweep.bench.model(images.images)
        assert_same(values[item.target.layer], logits, sweep.yardstick.baseline, images.labels)
