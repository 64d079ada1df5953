"""Settings that follow from goal and task: as a table, and without contradictions."""

from dataclasses import replace
from typing import get_args

import pytest

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.core.codec import decode, encode
from senseapp.core.errors import InvalidSpec
from senseapp.records.goal import GOALS, makes_files, settings_for, usual_run, with_goal
from senseapp.records.spec import Goal, RunSpec
from senseapp.tasks import TASKS, task_named

INT8 = QuantizationConfig(activations=True)


@pytest.mark.parametrize(
    ("goal", "task", "compression", "levels", "metric"),
    [
        ("smaller", "classification", QuantizationConfig(), (2, 4, 8), None),
        ("smaller", "detection", QuantizationConfig(), (2, 4, 8), None),
        ("faster", "classification", INT8, (8,), None),
        ("faster", "values", INT8, (8,), None),
        ("targets", "classification", SparsityConfig(), (0.25, 0.5, 0.75), "kl"),
        ("targets", "multilabel", SparsityConfig(), (0.25, 0.5, 0.75), "bernoulli_kl"),
        ("targets", "segmentation", SparsityConfig(), (0.25, 0.5, 0.75), "pixel_kl"),
        ("targets", "detection", SparsityConfig(), (0.25, 0.5, 0.75), "detection_kl"),
        ("targets", "values", SparsityConfig(), (0.25, 0.5, 0.75), "squared_error"),
        ("look", "classification", SparsityConfig(), (0.25, 0.5, 0.75), None),
    ],
)
def test_settings(goal, task, compression, levels, metric) -> None:
    found = settings_for(goal, task_named(task))
    assert (found.compression, found.levels, found.metric) == (compression, levels, metric)


def test_no_default_contradicts_its_goal() -> None:
    assert set(GOALS) == set(get_args(Goal))
    for goal in GOALS:
        for task in TASKS.values():
            found = settings_for(goal, task)
            assert found.compression.description.pays_when_run or not makes_files(goal)
            assert found.metric in (None, *(metric.name for metric in task.own_metrics))


def test_another_goal_keeps_what_does_not_follow_from_it() -> None:
    spec = replace(usual_run(), sensitivity=replace(usual_run().sensitivity, num_samples=48, seed=7))
    found = with_goal(spec, "targets")
    assert found.sensitivity.compression == SparsityConfig()
    assert (found.sensitivity.num_samples, found.sensitivity.seed, found.goal) == (48, 7, "targets")
    assert with_goal(spec, spec.goal) == spec


def test_run_files_have_the_goal() -> None:
    assert decode(encode(RunSpec(goal="look")), RunSpec).goal == "look"
    with pytest.raises(InvalidSpec, match="goal must be one of"):
        RunSpec(goal="cheaper")  # type: ignore[arg-type]
