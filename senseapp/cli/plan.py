"""``analyze --plan``: what the run would take on one machine, and on more workers."""

from __future__ import annotations

from collections.abc import Iterator

from senseapp.cli.progress_bar import phases
from senseapp.engine.cluster.cluster import cluster_address, connected
from senseapp.records.spec import RunSpec

_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def print_plan(spec: RunSpec, *, local: bool) -> None:
    """Time a few images here, and print how the run would be shared out; nothing is measured."""
    address = "" if local else cluster_address()
    workers = 0
    if address:
        with connected(address, device=spec.sensitivity.device) as cluster:
            workers = cluster.workers
    print("\n".join(_lines(spec, workers)))


def _lines(spec: RunSpec, workers: int) -> Iterator[str]:
    from senseapp.engine.cluster.forecast import forecast  # torch loads here

    with phases() as progress:
        found = forecast(spec, progress=progress)
    costs = found.costs
    yield (
        f"{len(costs.shares)} targets × {costs.num_levels} levels on {costs.num_images} images, "
        f"{1000 * costs.seconds_per_image:.1f} ms for one image and one pass as timed here."
    )
    yield f"One machine by itself: about {_time(costs.local_seconds)}."
    if workers:
        (plan,) = found.plans([workers])
        yield f"The cluster as it is now: {plan.sentence()} About {_time(plan.seconds)}."
    yield "Predicted, for workers as fast as this machine:"
    yield f"{'workers':>8}{'time':>10}{'times as fast':>15}{'efficiency':>12}{'tasks':>8}   blocks × spans"
    for plan in found.plans(_WORKERS):
        cut = f"{len(plan.blocks)} × {plan.num_spans} of {plan.span_images}"
        yield (
            f"{plan.workers:>8}{_time(plan.seconds):>10}{plan.speed_up:>15.1f}{plan.efficiency:>12.2f}"
            f"{plan.num_tasks:>8}   {cut}"
        )


def _time(seconds: float) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), (1, "s"))
    return f"{seconds / size:.3g} {unit}"
