"""Keys of stored work: as earlier versions called it, whatever fields come later."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.records.candidate import Delivery
from senseapp.records.deployment import DeploySettings
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry
from senseapp.records.spec import HistogramSpec
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.layer_tasks import HistogramTask
from senseapp.server.schedule_tasks import Verification
from senseapp.server.tasks import FinishedRunTask, changed_fields, earlier_texts, key_fields
from senseapp.server.timing_tasks import TimingTask
from senseapp.store.run_folder import RunFolder

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


@pytest.mark.parametrize(
    ("task", "key"),
    [
        (Verification(run_id="r", schedule=SCHEDULE), "ec7dceed7fac7dd2"),
        (Verification(run_id="r", schedule=SCHEDULE, repair=False, adapting="best", rounds=1), "6d1dfb118471c5db"),
        (DeliverTask(run_id="r", settings=DeploySettings()), "9d1be8999d1bc929"),
        (DeliverTask(run_id="r", schedule=SCHEDULE, settings=QUICK, allowed_drop=0.01), "5cd27c0fcb622948"),
        (TimingTask(run_id="r", batch=4), "b9bd9060ad956640"),
        (HistogramTask(run_id="r", spec=HistogramSpec(layer="x")), "1eeb755f205c62b5"),
        (HistogramTask(run_id="r", spec=COARSE), "b72aeb7612ad11e8"),
    ],
)
def test_a_question_has_the_key_that_it_had(task: FinishedRunTask, key: str) -> None:
    assert task.key == key
    assert task.earlier_keys == ()


@pytest.mark.parametrize(
    ("task", "key"),
    [
        (Verification(run_id="r", schedule=SCHEDULE, other=OTHER), "7ba1084820ba2651"),
        (
            DeliverTask(run_id="r", schedule=SCHEDULE, settings=DeploySettings(kind="float"), other=OTHER),
            "19a2e46c7999b5ab",
        ),
    ],
)
def test_what_hashed_the_settings_as_python_shows_them_is_still_found(
    task: FinishedRunTask, key: str, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    assert task.key != key
    assert task.kept_key(folder) == task.key
    if isinstance(task, DeliverTask):
        folder.save(key, kept := Delivery(candidates=(), notes=("kept",)))
        assert (task.kept_key(folder), task.outcome(folder)) == (key, kept)
        folder.save(task.key, newer := Delivery(candidates=(), notes=("newer",)))
        assert task.outcome(folder) == newer
    assert key in task.earlier_keys


@dataclass(frozen=True)
class Grown:
    """Settings that had two fields at first."""

    name: str
    bits: int = 8
    younger: bool = False
    youngest: tuple[str, ...] = field(default_factory=tuple)


def test_a_younger_field_counts_only_where_it_differs_from_its_default() -> None:
    plain, other = Grown("x"), Grown("x", younger=True)
    written = {"name": "x", "bits": 8, "younger": True, "youngest": []}
    assert key_fields(plain, written, ("name", "bits")) == {"name": "x", "bits": 8}
    assert key_fields(other, written, ("name", "bits")) == {"name": "x", "bits": 8, "younger": True}
    assert changed_fields(plain) == {"name": "x"}
    assert changed_fields(other) == {"name": "x", "younger": True}
    assert list(earlier_texts(other)) == [
        "Grown(name='x', bits=8, younger=True, youngest=())",
        "Grown(name='x', bits=8, younger=True)",
    ]
    assert list(earlier_texts(plain))[-1] == "Grown(name='x')"


def test_a_key_says_which_runtime_a_file_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = DeliverTask(run_id="r", settings=DeploySettings())
    foreign = DeliverTask(run_id="r", settings=DeploySettings(runtime="abacus"))
    assert usual.key != foreign.key
    assert TimingTask(run_id="r").key != TimingTask(run_id="r", runtime="abacus").key
