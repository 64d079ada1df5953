from dataclasses import replace

import pytest

from senseapp.core.steps import StepTitle
from senseapp.records.goal import usual_run
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.machine import LoadWatch, MachineSpeed, time_convolutions
from senseapp.server.time_estimate import RuntimePredictor, Workload, kind_of, levels_before
from tests.fake_session import LAYERS, a_profile, a_result, fake_calibration

SECONDS = 11.0
WORK = {StepTitle.LAYERS: SECONDS}


def book_at(path, calibrate=fake_calibration, **options):
    return RuntimePredictor(path, calibrate=calibrate, **options)


def predicted(book, kind, **load):
    return sum(step.seconds for step in book.steps([WORK], kind=kind, **load))


def learn(book, kind, seconds):
    book.learn(book.steps([WORK], kind=kind), {StepTitle.LAYERS: seconds}, kind=kind)


def seconds_of(settings, images=64, *, macs_per_second=1 / 0.9, seconds_per_call=0.0):
    """Return the seconds of a run; by default a multiply-accumulate takes one, and calls of modules none."""
    speed = MachineSpeed(macs_per_second=macs_per_second, values_per_second=1e30, seconds_per_call=seconds_per_call)
    spec = RunSpec(sensitivity=settings)
    return Workload(spec=spec, profile=a_profile(), num_images=images, speed=speed).run()


def test_work_is_the_sum_over_suffixes():
    settings = SensitivitySpec(levels=(0.25, 0.5))
    found, whole = seconds_of(settings), 64 * 2 * (10_000 + 9_000 + 7_000 + 4_000)
    of_calls = seconds_of(settings, macs_per_second=1e30, seconds_per_call=1 / 3)[StepTitle.LAYERS]
    share = found[StepTitle.LAYERS] / whole
    assert share == pytest.approx(of_calls / (4 * 2 * 2 * (4 + 3 + 2 + 1)), rel=0.01)
    assert 0.3 < share < 1  # levels of one layer share what they have in common
    assert found[StepTitle.ESTIMATE] == pytest.approx(64 * (5 + 2 * 2) * 10_000)


def test_what_a_layer_returns_takes_time_too():
    layers = [replace(layer, output_shape=(4, 8, 8)) for layer in a_profile().layers]
    speed = MachineSpeed(macs_per_second=1e30, values_per_second=5.7, seconds_per_call=0.0)
    work = Workload(
        spec=RunSpec(sensitivity=SensitivitySpec(levels=(0.5,))),
        profile=replace(a_profile(), layers=tuple(layers)),
        num_images=64,
        speed=speed,
    )
    assert work.run()[StepTitle.ESTIMATE] == pytest.approx((5 + 2) * 64 * len(LAYERS) * 4 * 8 * 8)


def test_work_grows_linearly_with_images_and_levels():
    def seconds(levels, images):
        return seconds_of(SensitivitySpec(levels=levels), images)[StepTitle.LAYERS]

    assert seconds((0.5,), 200) == pytest.approx(2 * seconds((0.5,), 100))
    one, two, three = (seconds(levels, 100) for levels in ((0.5,), (0.25, 0.5), (0.25, 0.5, 0.75)))
    assert three - two == pytest.approx(two - one)


def test_selected_layers_and_quick_mode_cost_less():
    def seconds(**settings):
        return sum(seconds_of(SensitivitySpec(levels=(0.5,), **settings), 10).values())

    late, early = (seconds(layers=(name,)) for name in (LAYERS[-1], LAYERS[0]))
    assert seconds(mode="quick") < late < early < seconds()


@pytest.mark.parametrize(
    ("limit", "goal", "expected"),
    [
        (0, "smaller", "nothing"),
        (1e9, "smaller", "schedule"),
        (1e9, "targets", "schedule"),
        (1e9, "look", "nothing"),
        (1, "smaller", "file"),
        (1, "targets", "schedule"),  # without it the run would end without targets
        (0, "targets", "nothing"),
        (1e-6, "smaller", "nothing"),
    ],
)
def test_what_follows_a_run_is_part_of_its_plan(tmp_path, limit, goal, expected):
    book, spec = book_at(tmp_path / "speed.json", recommend_seconds=limit), RunSpec(goal=goal)
    assert book.follows(spec, a_profile(), 100) == expected
    titles = [step.title for step in book.run_steps(spec, a_profile(), 100, load=1.0)]
    assert titles[:2] == [StepTitle.READ, StepTitle.ESTIMATE]
    assert (StepTitle.SCHEDULES in titles) == (expected == "schedule")
    has_first_file = expected != "nothing" and goal == "smaller"
    assert (StepTitle.WEIGHTS in titles) == has_first_file
    if has_first_file:  # which comes after all bars, and before the layers
        assert titles.index(StepTitle.ESTIMATE) < titles.index(StepTitle.WEIGHTS) < titles.index(StepTitle.LAYERS)


def test_what_follows_a_run_stays_as_it_is_when_runs_finish(tmp_path):
    def planned(limit: float):
        book = book_at(tmp_path / "speed.json", recommend_seconds=limit)
        return book, book.run_steps(RunSpec(), a_profile(), 100, load=1.0)

    steps = planned(1e9)[1]
    search = sum(step.seconds for step in steps[-3:])  # trying, checking, testing
    book, steps = planned(1.5 * search)
    book.learn(steps, {step.title: 40 * step.seconds for step in steps}, kind=kind_of(RunSpec()))
    assert sum(step.seconds for step in planned(1.5 * search)[1][-3:]) > 10 * search
    assert book.follows(RunSpec(), a_profile(), 100) == "schedule"  # or a resumed run would leave its search out


def test_what_an_earlier_run_has_made_takes_no_time(tmp_path):
    book, zeros = book_at(tmp_path / "speed.json", recommend_seconds=1e9), RunSpec()
    bits = replace(zeros, sensitivity=usual_run().sensitivity)
    other = replace(bits, model=ModelSpec(library="timm", name="other"))

    def seconds(*earlier):
        found = book.run_steps(zeros, a_profile(), 100, load=1.0, earlier=earlier)
        return {step.title: step.seconds for step in found}

    everything = seconds()
    assert seconds(other) == everything
    file = (StepTitle.INT8, StepTitle.WEIGHTS, StepTitle.OWN, StepTitle.PARTS)
    assert seconds(bits) == everything | dict.fromkeys(file, 0.0)
    assert seconds(zeros)[StepTitle.LAYERS] == 0 < seconds(bits)[StepTitle.LAYERS]
    one_of_three = seconds(with_settings(levels=(0.5,)))[StepTitle.LAYERS]
    assert one_of_three == pytest.approx(2 / 3 * everything[StepTitle.LAYERS])


def with_settings(**settings):
    return RunSpec(sensitivity=SensitivitySpec(**settings))


@pytest.mark.parametrize(
    ("wanted", "earlier", "expected"),
    [
        ({}, [{}], 3),
        ({"metric": "kl"}, [{"levels": (0.25, 0.9)}], 1),
        ({}, [{"levels": (0.25, 0.5)}, {"levels": (0.1, 0.2, 0.75)}], 1),  # of the run with the most
        ({"layers": ("fc",)}, [{}], 3),
        ({}, [{"layers": ("fc",)}], 0),
        ({}, [{"seed": 1}, {"num_samples": 20}, {"precision": "bf16"}, {"mode": "quick"}], 0),
        ({"mode": "quick"}, [{"mode": "quick"}], 0),
        ({"until_settled": True}, [{"until_settled": True}], 0),
    ],
)
def test_levels_are_taken_over_from_a_run_of_the_same_images_and_settings(wanted, earlier, expected):
    assert levels_before(with_settings(**wanted), [with_settings(**each) for each in earlier]) == expected


def test_levels_of_other_images_are_not_taken_over():
    assert levels_before(RunSpec(), [RunSpec(data=DataSpec(kind="photographs"))]) == 0
    assert levels_before(RunSpec(), [usual_run()]) == 0


def test_a_file_in_float_has_no_steps_of_8_bits(tmp_path):
    steps = book_at(tmp_path / "speed.json").task_steps(a_result(), with_schedule=False, load=1.0, in_float=True)
    assert [step.title for step in steps] == [StepTitle.READ, StepTitle.TEST]


def test_load_makes_every_step_longer(tmp_path):
    assert predicted(book_at(tmp_path / "speed.json"), "a", load=4.0) == pytest.approx(4 * SECONDS)


def test_load_slows_what_keeps_fewer_processors_busy_less(tmp_path):
    book = book_at(tmp_path / "speed.json")

    def seconds(load, **model):
        spec = RunSpec(model=ModelSpec(**model))
        return sum(step.seconds for step in book.run_steps(spec, a_profile(), 100, load=load))

    slowdowns = [seconds(4.0, task=task) / seconds(1.0, task=task) for task in ("classification", "detection")]
    assert slowdowns == pytest.approx([2.6, 1.8])
    assert seconds(1.2) == seconds(1.0)


def test_predictions_follow_finished_runs_and_survive_a_restart(tmp_path):
    book = book_at(tmp_path / "speed.json")
    learn(book, "a", 12)
    assert predicted(book, "a") == pytest.approx(12)
    assert predicted(book, "never seen") == pytest.approx((SECONDS * 12) ** 0.5)  # half of it is of such runs
    learn(book, "b", 3)
    assert predicted(book, "a") == pytest.approx(12)
    assert predicted(book, "b") == pytest.approx(3)
    learn(book, "a", 3)
    assert predicted(book, "a") == pytest.approx(6)  # halfway on a log scale

    def never():
        pytest.fail("timed the machine again")

    assert predicted(book_at(tmp_path / "speed.json", never), "a") == pytest.approx(6)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"speed": {}}', '{"speed": {"macs_per_second": -1}, "corrections": {}}']
)
def test_a_damaged_file_is_made_anew(tmp_path, content):
    path = tmp_path / "speed.json"
    path.write_text(content)
    book = book_at(path)
    book.speed()
    assert predicted(book, "a") == pytest.approx(SECONDS)
    assert "macs_per_second" in path.read_text()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_impossible_times_teach_nothing(tmp_path, seconds):
    book = book_at(tmp_path / "speed.json")
    learn(book, "a", seconds)
    assert predicted(book, "a") == pytest.approx(SECONDS)


def test_one_freak_run_cannot_spoil_predictions(tmp_path):
    book = book_at(tmp_path / "speed.json")
    learn(book, "a", 3e9)
    assert predicted(book, "a") == pytest.approx(SECONDS * 50)


def test_a_home_that_cannot_be_written_still_predicts(tmp_path):
    assert predicted(book_at(tmp_path / "missing" / "speed.json"), "a") == pytest.approx(SECONDS)


def test_this_machine_can_be_timed():
    speed = time_convolutions()
    assert isinstance(speed, MachineSpeed)
    assert 1e7 < speed.macs_per_second < 1e15
    assert 1e6 < speed.values_per_second < 1e13
    assert 1e-8 < speed.seconds_per_call < 0.1


@pytest.mark.parametrize(
    ("shares", "load"),
    [([0.13, 0.25, 0.13, 0.2, 0.13, 0.13], 4.0), ([0.05, 0.1, 0.5], 2.0), ([0.8, 0.1], 1.25)],
    ids=["busy", "a page is drawn", "quiet"],
)
def test_after_an_unknown_time_load_is_looked_at_until_no_page_is_drawn(shares, load, monkeypatch):
    watch, shares = LoadWatch(), iter(shares)
    monkeypatch.setattr("senseapp.server.machine.share_left", lambda processors: next(shares))
    monkeypatch.setattr("senseapp.server.machine._APART_SECONDS", 0.0)
    monkeypatch.setattr("senseapp.server.machine._own_seconds", lambda: 0.0)
    with watch.unknown():
        assert not watch.known
        assert watch.load() == 1
    assert watch.known
    assert watch.load() == pytest.approx(load)
    assert not list(shares)


def test_load_is_the_quieter_of_two_looks_and_as_before_without_an_answer(monkeypatch):
    watch, shares, found = LoadWatch(), iter([0.25, 0.25, 0.5, 0.25, None, 0.25, 0.25, 0.25]), []
    own = iter([0.0] * 14 + [1e9])  # during the last look our own processes worked
    monkeypatch.setattr("senseapp.server.machine.share_left", lambda processors: next(shares))
    monkeypatch.setattr("senseapp.server.machine._own_seconds", lambda: next(own))
    for _ in range(8):
        watch._looked = float("-inf")
        found.append(watch.load())
    assert found == pytest.approx([1.0, 4.0, 2.0, 2.0, 2.0, 4.0, 4.0, 1.0])
