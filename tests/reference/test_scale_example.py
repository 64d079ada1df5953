"""The worked example of docs/scale.md, computed anew by the planner for the real ResNet-50."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from senseapp.compressions.base import Target
from senseapp.measure.cluster.plan import Plan, RunCosts, choose_plan
from senseapp.measure.plan import plan_targets
from senseapp.networks.profile import profile_model, watched_pass

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
WORKERS = (1, 8, 64, 256, 1000)


@pytest.fixture(scope="module")
def shares() -> tuple[float, ...]:
    """What follows each layer of ResNet-50, as a share of a forward pass."""
    model, image = timm.create_model("resnet50").eval(), torch.zeros(1, 3, 224, 224)
    trace = watched_pass(model, image)
    layers = profile_model(model, image, trace=trace).layers
    targets = [Target(layer=layer.name, members=(layer.name,), modules=(layer.name,)) for layer in layers]
    return tuple(item.suffix for item in plan_targets(targets, trace))


def costs(shares: tuple[float, ...], seconds_per_image: float) -> RunCosts:
    return RunCosts(
        shares=shares,
        num_levels=10,
        num_images=50_000,
        seconds_per_image=seconds_per_image,
    )


def row(plan: Plan) -> str:
    cut = f"{len(plan.blocks)} × {plan.num_spans:,}"
    return (
        f"| {plan.workers:,} | {plan.num_tasks:,} | {cut} | {plan.seconds / 3600:.2f} | {plan.speed_up:.1f} "
        f"| {plan.efficiency:.2f} |"
    )


@pytest.mark.wide
def test_the_page_says_what_the_planner_finds(shares: tuple[float, ...]) -> None:
    found = costs(shares, 0.06)
    assert f"{len(shares)} layers" in PAGE
    assert f"Σ s(k) = {sum(shares):.2f}" in PAGE
    assert f"{found.passes(0, len(shares)):.1f} + 1 passes per image: {found.local_seconds:,.0f} s" in PAGE
    for workers in WORKERS:
        assert row(choose_plan(found, workers, most_images=512)) in PAGE.splitlines()


def test_sixty_four_workers_are_used_well(shares: tuple[float, ...]) -> None:
    assert choose_plan(costs(shares, 0.06), 64, most_images=512).efficiency >= 0.8


def test_the_page_is_honest_about_graphics_cards(shares: tuple[float, ...]) -> None:
    found = costs(shares, 0.0005)
    assert found.local_seconds < 7200
    plans = {workers: choose_plan(found, workers, most_images=512) for workers in (8, 64)}
    assert f"8 cards {plans[8].speed_up:.1f}, 64 cards {plans[64].speed_up:.1f} times as fast" in PAGE
