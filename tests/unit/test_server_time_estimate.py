from __future__ import annotations

import pytest

from senseapp.records.spec import SensitivitySpec
from senseapp.server.time_estimate import MachineSpeed, RuntimePredictor, RunWork, time_convolutions, work_of
from tests.fake_session import LAYERS, a_profile, fake_calibration

WORK = RunWork(macs=2e9, calls=1e5, measurements=50)
SECONDS = 2 / 0.4 + 8 * 1 + 50 * 0.01 + 0.5


def book_at(path, calibrate=fake_calibration):
    return RuntimePredictor(path, calibrate=calibrate)


def test_work_is_the_sum_over_suffixes():
    settings = SensitivitySpec(levels=(0.25, 0.5))
    work = work_of(a_profile(), settings, num_images=64)
    total, suffixes = 10_000, 10_000 + 9_000 + 7_000 + 4_000
    passes = 1 + 1 + 2 + 2  # baseline; quick scan: forward, backward, one per level
    assert work.macs == 64 * (passes * total + 2 * suffixes)
    assert work.measurements == 8
    assert work.calls == 4 * 2 * (passes * 4 + 2 * (4 + 3 + 2 + 1))


def test_work_grows_linearly_with_images_and_levels():
    def macs(levels, images):
        return work_of(a_profile(), SensitivitySpec(levels=levels), num_images=images).macs

    assert macs((0.5,), 200) == 2 * macs((0.5,), 100)
    assert macs((0.25, 0.5, 0.75), 100) - macs((0.25, 0.5), 100) == macs((0.25, 0.5), 100) - macs((0.5,), 100)


def test_selected_layers_and_quick_mode_cost_less():
    exact = SensitivitySpec(levels=(0.5,))
    everything = work_of(a_profile(), exact, num_images=10)
    late, early = (work_of(a_profile(), exact, num_images=10, selected={name}) for name in (LAYERS[-1], LAYERS[0]))
    quick = work_of(a_profile(), SensitivitySpec(levels=(0.5,), mode="quick"), num_images=10)
    assert quick.macs < late.macs < early.macs < everything.macs


def test_a_prediction_adds_arithmetic_and_calls(tmp_path):
    assert book_at(tmp_path / "speed.json").predict(WORK, kind="a") == pytest.approx(SECONDS)


def test_predictions_follow_finished_runs_and_survive_a_restart(tmp_path):
    book = book_at(tmp_path / "speed.json")
    book.learn(WORK, kind="a", seconds=12)
    assert book.predict(WORK, kind="a") == pytest.approx(12)
    assert book.predict(WORK, kind="never seen") == pytest.approx(12)
    book.learn(WORK, kind="b", seconds=3)
    assert book.predict(WORK, kind="a") == pytest.approx(12)
    assert book.predict(WORK, kind="b") == pytest.approx(3)
    book.learn(WORK, kind="a", seconds=3)
    assert book.predict(WORK, kind="a") == pytest.approx(6)  # halfway on a log scale

    def never():
        pytest.fail("timed the machine again")

    assert book_at(tmp_path / "speed.json", never).predict(WORK, kind="a") == pytest.approx(6)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"speed": {}}', '{"speed": {"macs_per_second": -1}, "corrections": {}}']
)
def test_a_damaged_file_is_made_anew(tmp_path, content):
    path = tmp_path / "speed.json"
    path.write_text(content)
    assert book_at(path).predict(WORK, kind="a") == pytest.approx(SECONDS)
    assert "macs_per_second" in path.read_text()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_impossible_times_teach_nothing(tmp_path, seconds):
    book = book_at(tmp_path / "speed.json")
    book.learn(WORK, kind="a", seconds=seconds)
    assert book.predict(WORK, kind="a") == pytest.approx(SECONDS)


def test_one_freak_run_cannot_spoil_predictions(tmp_path):
    book = book_at(tmp_path / "speed.json")
    book.learn(WORK, kind="a", seconds=3e9)
    assert book.predict(WORK, kind="a") <= SECONDS * 50


def test_a_home_that_cannot_be_written_still_predicts(tmp_path):
    assert book_at(tmp_path / "missing" / "speed.json").predict(WORK, kind="a") == pytest.approx(SECONDS)


def test_this_machine_can_be_timed():
    speed = time_convolutions()
    assert isinstance(speed, MachineSpeed)
    assert 1e7 < speed.macs_per_second < 1e15
    assert 1e-8 < speed.seconds_per_call < 0.1
