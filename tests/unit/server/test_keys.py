"""Keys of stored work: equal for equal questions."""

import math
import re
from dataclasses import replace
from typing import Any

from senseapp.compressions import QuantizationConfig
from senseapp.records.deployment import DeploySettings
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry
from senseapp.records.spec import HistogramSpec
from senseapp.server.delivery_tasks import DeliverTask, RecommendationTask
from senseapp.server.run_tasks import HistogramTask, TimingTask, Verification
from senseapp.server.tasks import FinishedRunTask

SCHEDULE = Schedule(
    model="demo",
    method="optimal",
    entries=(
        ScheduleEntry(
            layer="a", members=("a", "b"), compression="sparsity", level=0.5, predicted_damage=math.inf, locked=True
        ),
        ScheduleEntry(layer="c", members=("c",), compression="none", level=0.0),
    ),
    budget=ResourceBudget(kind="params", target=0.5),
    metric="kl",
    predicted_damage=0.25,
    achieved={"params": 0.5},
    notes=("A note.",),
    file_notes=("Another.",),
)
OTHER = QuantizationConfig(activations=True)
QUICK = DeploySettings(kind="quickest", most_changed=0.02, threads=2)
COARSE = HistogramSpec(layer="x", bits=4, per_channel=True, objective="none")


USUAL: list[FinishedRunTask[Any]] = [
    Verification(run_id="r", schedule=SCHEDULE),
    Verification(run_id="r", schedule=SCHEDULE, other=OTHER),
    DeliverTask(run_id="r", settings=DeploySettings()),
    DeliverTask(run_id="r", schedule=SCHEDULE, settings=QUICK, allowed_drop=0.01),
    RecommendationTask(run_id="r"),
    TimingTask(run_id="r", batch=4),
    HistogramTask(run_id="r", spec=HistogramSpec(layer="x")),
    HistogramTask(run_id="r", spec=COARSE),
]


def test_each_question_has_a_key_of_its_own_whatever_run_it_is_about() -> None:
    keys = [task.key for task in USUAL]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch("[0-9a-f]{16}", key) for key in keys)
    assert [replace(task, run_id="another").key for task in USUAL] == keys
    assert replace(USUAL[0], schedule=replace(SCHEDULE, notes=())).key != keys[0]
    assert replace(USUAL[0], repair=False).key != keys[0]


def test_a_key_says_which_runtime_a_file_is_for() -> None:
    usual = DeliverTask(run_id="r", settings=DeploySettings())
    assert usual.key != DeliverTask(run_id="r", settings=DeploySettings(runtime="abacus")).key
    assert TimingTask(run_id="r").key != TimingTask(run_id="r", runtime="abacus").key
