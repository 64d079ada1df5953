import pytest

from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import trade_off
from tests.schedule_cases import quantized_run, sparse_run
from tests.unit.solve.test_overlap import GROUPS, chain_run, true_fraction


def test_damage_rises_with_the_budget():
    points = trade_off(sparse_run(), "params", 25)
    assert len(points) == 25
    assert points[0].target == pytest.approx(0.05, abs=1e-6)
    assert points[-1].target == pytest.approx(0.9, abs=1e-5)
    assert [point.damage for point in points] == sorted(point.damage for point in points)


@pytest.mark.parametrize("method", ["optimal", "gamma", "uniform"])
def test_each_point_is_the_schedule_of_its_target(method):
    for point in trade_off(sparse_run(), "macs", 6, method=method):
        budget = ResourceBudget(kind=point.kind, target=point.target)
        schedule = make_schedule(sparse_run(), method=method, budget=budget)
        assert schedule.predicted_damage == pytest.approx(point.damage, rel=1e-6)


def test_targets_that_a_method_cannot_meet_are_left_out():
    limits = Limits(max_level=0.9, min_level=0.2, fixed={"conv1": 0.0})
    assert len(trade_off(sparse_run(), "params", 10, method="gamma", limits=limits)) <= 10
    assert len(trade_off(sparse_run(), "params", 10, limits=limits)) == 10


def test_targets_lie_on_the_steps_of_a_slider():
    points = trade_off(sparse_run(), "params", 25, step=0.01)
    assert all(point.target == round(point.target, 2) for point in points)
    assert len({point.target for point in points}) == len(points) > 20
    assert points[0].target == 0.05
    assert points[-1].target == 0.9 or points[-1].target == 0.89
    assert all(point.figure >= point.target - 1e-9 for point in points)
    bits = trade_off(quantized_run(), "bits", 25, step=0.1)
    assert all(point.figure <= point.target + 1e-9 for point in bits)
    assert {point.target for point in bits} <= {round(0.1 * tenths, 9) for tenths in range(20, 81)}


def test_figures_of_pruning_are_true_where_the_couplings_are_known():
    for point in trade_off(chain_run(), "params", 8, groups=GROUPS):
        schedule = make_schedule(chain_run(), budget=ResourceBudget(kind="params", target=point.target))
        assert point.figure == pytest.approx(true_fraction(schedule), abs=1e-4)


def test_a_schedule_that_removes_clearly_more_than_asked_says_so() -> None:
    def said(removed: float, method: str = "optimal") -> str:
        asked, achieved = ResourceBudget(kind="params", target=0.55), {"params": removed}
        return Schedule(model="net", method=method, entries=(), budget=asked, achieved=achieved).beyond_budget

    assert said(0.6) == "60 % are removed, not 55 %: no schedule in between is predicted to harm less."
    assert said(0.56) == said(0.6, "uniform") == ""
