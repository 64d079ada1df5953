"""The one bar: it only moves forward, never stands still, ends at 1, and corrects the time left under load."""

from contextlib import nullcontext
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.core.steps import StepTitle
from senseapp.server.job_progress import JobControl, PlannedStep
from tests.cases import examples

PLAN = (
    PlannedStep(title="Read", seconds=2),
    PlannedStep(title="Estimate", seconds=3),
    PlannedStep(title="Make", seconds=20),
    PlannedStep(title="Measure", seconds=15),
    PlannedStep(title="Make", seconds=5),
)


class Job:
    """The progress of a job at times that the tests set."""

    def __init__(self, plan: tuple[PlannedStep, ...] = ()) -> None:
        self.now = 0.0
        self.control = JobControl(nullcontext(), lambda: self.now)
        self.control.start()
        self.control.plan(plan)

    def told(self, sentence: str, now: float) -> JobControl:
        self.now = now
        self.control.phase(sentence)
        return self.control

    def left(self) -> float:
        found = self.control.remaining(self.now)
        assert found is not None
        return found


def run(
    plan: tuple[PlannedStep, ...], factors: list[float], reports: int = 10
) -> tuple[list[float], list[float], float]:
    """Carry out ``plan``, each step ``factors`` times as long as planned; return the bar and the time left by second.

    Each step reports ``reports`` counts, evenly.
    """
    job, now, shown, left = Job(plan), 0.0, [0.0], [0.0]
    for step, factor in zip(plan, factors, strict=True):
        seconds = step.seconds * factor
        for number in range(reports):
            job.told(f"{step.title} · {number} of {reports}", now)
            end = now + seconds / reports
            while int(now) < int(end):
                now = float(int(now) + 1)
                shown.append(job.told("", now).fraction)
                left.append(job.left())
            now = end
    return shown, left, now


@given(
    st.lists(st.tuples(st.floats(0.5, 60, allow_nan=False), st.floats(0.3, 6, allow_nan=False)), min_size=1, max_size=8)
)
@settings(max_examples=examples(60), deadline=None)
def test_it_only_moves_forward_never_stands_still_and_stays_below_1(drawn: list[tuple[float, float]]) -> None:
    plan = tuple(PlannedStep(title=f"step {place}", seconds=seconds) for place, (seconds, _) in enumerate(drawn))
    shown, left, _ = run(plan, [factor for _, factor in drawn])
    assert all(after > before for before, after in pairwise(shown))
    assert shown[-1] < 1
    assert min(left[1:], default=1.0) > 0


@pytest.mark.parametrize("factor", [1.0, 4.0, 0.5])
def test_load_slows_the_bar_and_corrects_the_time_left(factor: float) -> None:
    shown, left, end = run(PLAN, [factor] * len(PLAN))
    for second in range(int(end) - 5):
        assert shown[second + 5] - shown[second] > 0.004  # as people see it in five seconds
    for second in range(int(0.25 * end), int(0.9 * end)):
        assert left[second] == pytest.approx(end - second, rel=0.35)
    assert shown[int(end)] > 0.9
    if factor == 1.0:
        for second, fraction in enumerate(shown):
            assert fraction == pytest.approx(second / end, abs=0.06)


def test_a_load_that_comes_in_mid_run_is_seen_within_the_step() -> None:
    plan = (PlannedStep(title="a", seconds=10), PlannedStep(title="b", seconds=30), PlannedStep(title="c", seconds=30))
    _, left, end = run(plan, [1, 4, 4])
    assert left[70] == pytest.approx(end - 70, rel=0.3)  # halfway through the first loaded step


def test_a_step_that_says_nothing_still_moves_and_does_not_fill_the_bar() -> None:
    shown, _, end = run(PLAN, [1, 1, 5, 1, 1], reports=1)
    assert all(shown[second + 5] - shown[second] > 0.002 for second in range(int(end) - 5))
    assert shown[105] == pytest.approx(105 / end, abs=0.05)  # two steps are left after the long one


def test_a_skipped_step_a_repeated_title_and_details() -> None:
    job = Job(PLAN)
    bar = job.told("Loading the model", 0.5)
    assert (bar.doing, bar.detail) == ("Read", "Loading the model")
    bar = job.told("Make · Rounding weights · 12 of 40 layers", 2.0)
    assert (bar.doing, bar.detail, bar.share) == ("Make", "Rounding weights · 12 of 40 layers", 0.0)
    assert job.told("Make · Timing", 3.0).step is PLAN[2]  # the same step goes on
    bar = job.told("Measure · 3 of about 15 · 0 of 256 images", 4.0)
    assert (bar.step, bar.share, bar.doing, bar.detail) == (PLAN[3], 0.2, "Measure: 3 of about 15", "0 of 256 images")
    assert job.told("Measure · Comparing answers", 4.5).doing == "Measure: 3 of about 15"  # a count never goes away
    assert job.told("Estimate", 5.0).step is PLAN[3]  # what is over does not begin again
    assert job.told("Make", 5.0).step is PLAN[4]
    assert bar.seconds_of_steps() == {"Read": 2.0, "Make": 2.0, "Measure": 1.0}


def test_work_without_a_plan_moves_says_what_it_does_and_knows_no_time() -> None:
    job = Job()
    bar = job.told("Opening the candidate", 1.0)
    assert (bar.doing, bar.detail, bar.remaining(1.0)) == ("Opening the candidate", "", None)
    shown = [job.told("", now).fraction for now in (1.0, 5.0, 100.0)]
    assert 0 < shown[0] < shown[1] < shown[2] < 1
    assert shown[1] < 0.05  # a plan for minutes may still come


def test_time_before_the_plan_is_not_taken_for_its_pace() -> None:
    job = Job()
    job.told("", 20.0).plan(PLAN)
    assert job.left() == pytest.approx(sum(step.seconds for step in PLAN))
    assert "Read" not in job.told("Estimate", 21.0).seconds_of_steps()


def test_a_better_plan_keeps_the_bar_where_it_is() -> None:
    job = Job(PLAN)
    before = job.told("Estimate", 2.0).fraction
    left = job.left()
    job.control.plan([PlannedStep(title=each.title, seconds=2 * each.seconds) for each in PLAN])
    assert (job.control.step.title, job.control.fraction) == ("Estimate", before)
    assert job.left() > 1.8 * left


def test_the_bar_of_a_resumed_job_goes_on_where_the_measurements_do() -> None:
    plan = (*PLAN[:3], PlannedStep(title=StepTitle.LAYERS, seconds=15), PLAN[4])
    for is_resumed, expected in ((True, (25 + 15 * 0.4) / 45), (False, 0.0)):
        control = Job(plan).control
        control.measurements(total=10, done=4, is_resumed=is_resumed)
        assert control.fraction == pytest.approx(expected)


def test_the_seconds_left_rise_only_where_clearly_more_are_left():
    job = Job((PlannedStep(title="Make", seconds=10.0),))

    def left(now: float) -> float:
        job.now = now
        return job.left()

    assert left(1.0) == pytest.approx(9.0, rel=0.1)
    least = left(6.0)
    assert least == pytest.approx(4.0, rel=0.1)
    assert left(8.5) == least  # half of what was spent: hardly more
    assert left(30.0) > 2 * least
