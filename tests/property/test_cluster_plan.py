"""The plan of a distributed run and its predicted time: bounds, monotony, one worker."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from senseapp.measure.cluster.plan import Plan, RunCosts, choose_plan, even_blocks
from tests.cases import examples

WORKERS = st.integers(1, 1000)
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=30).map(lambda found: tuple(sorted(found, reverse=True)))
COSTS = st.builds(
    RunCosts,
    shares=SHARES,
    num_levels=st.integers(1, 10),
    num_images=st.integers(1, 5000),
    seconds_per_image=st.floats(1e-4, 0.1),
    micro_batch=st.sampled_from([1, 8, 16, 32]),
)


@given(COSTS, st.integers(1, 30))
def test_blocks_hold_every_target_once_and_about_as_much_work(costs: RunCosts, count: int) -> None:
    blocks = even_blocks(costs, count)
    assert len(blocks) <= count
    assert [index for block in blocks for index in range(*block)] == list(range(len(costs.shares)))
    if sum(costs.shares):
        works = [sum(costs.shares[slice(*block)]) for block in blocks]
        assert max(works) <= sum(costs.shares) / count + max(costs.shares) + 1e-9


@settings(max_examples=examples(25), deadline=None)
@given(COSTS, WORKERS, st.integers(1, 2000))
def test_every_plan_measures_everything_once_and_within_its_bounds(
    costs: RunCosts, workers: int, most_images: int
) -> None:
    plan = choose_plan(costs, workers, most_images=most_images)
    assert plan.span_images <= max(most_images, costs.micro_batch)
    assert plan.span_images % costs.micro_batch == 0
    assert plan.num_spans * plan.span_images >= costs.num_images
    assert [index for block in plan.blocks for index in range(*block)] == list(range(len(costs.shares)))
    whole_passes = 1 + sum(costs.passes(*block) for block in plan.blocks)
    work = whole_passes * costs.num_images * costs.seconds_per_image
    longest = max(costs.block_seconds(*block, min(plan.span_images, costs.num_images)) for block in plan.blocks)
    waiting = costs.alone_seconds + costs.start_seconds
    assert plan.seconds >= waiting + max(work / workers, longest) - 1e-6
    assert plan.efficiency <= 1


@settings(max_examples=10, deadline=None)
@given(COSTS)
def test_more_workers_never_take_longer(costs: RunCosts) -> None:
    times = [choose_plan(costs, workers, most_images=512).seconds for workers in (1, 2, 5, 17, 64, 300, 1000)]
    for fewer, more in pairwise(times):
        assert more <= fewer / 0.995 + 1e-6  # a plan must be better by half a percent to be preferred


@settings(max_examples=examples(20), deadline=None)
@given(COSTS, st.sampled_from([16, 64, 320]))
def test_a_resumed_run_keeps_its_spans(costs: RunCosts, span_images: int) -> None:
    assume(costs.micro_batch <= 16)
    assert choose_plan(costs, 4, most_images=1, span_images=span_images).span_images == span_images


def test_one_worker_without_overhead_takes_what_one_machine_takes() -> None:
    costs = RunCosts(
        shares=(1.0, 0.6, 0.1),
        num_levels=2,
        num_images=100,
        seconds_per_image=0.5,
        task_seconds=0.0,
        start_seconds=0.0,
        measurement_seconds=0.0,
    )
    plan = Plan(costs=costs, workers=1, blocks=((0, 3),), span_images=100)
    assert plan.seconds == pytest.approx(costs.local_seconds) == 20 + 100 * 0.5 * (1 + 0.9 + 2 * 1.7)
    assert plan.speed_up == pytest.approx(1)
