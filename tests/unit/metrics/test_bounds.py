"""Upper bounds against their definitions, and their coverage by enumeration and by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, multinomial

from senseapp.core.errors import InvalidInput
from senseapp.metrics import METRICS
from senseapp.metrics.bounds import (
    Floats,
    images_needed,
    most_changed_within,
    upper_bound_of_net_share,
    upper_bound_of_share,
    upper_bound_of_sums,
)
from tests.cases import first_of

LEAST = 0.95 - 1e-9


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))), st.floats(0.5, 0.999))
def test_the_bound_of_a_share_leaves_so_few_changes_exactly_their_error(counted: tuple[int, int], sure: float) -> None:
    changed, images = counted
    bound = upper_bound_of_share(changed, images, sure)
    assert binom.cdf(changed, images, bound) == pytest.approx(1 - sure, rel=1e-6)


@pytest.mark.parametrize("images", [20, 100, 500])
@pytest.mark.parametrize("share", [0.002, 0.01, 0.05, 0.3])
def test_the_bound_of_a_share_covers_whatever_the_share(images: int, share: float) -> None:
    counts = np.arange(images + 1)
    above = np.array([upper_bound_of_share(int(count), images) >= share for count in counts])
    assert binom.pmf(counts, images, share)[above].sum() >= LEAST


@pytest.mark.parametrize(("worse", "better"), [(0.05, 0.02), (0.02, 0.0), (0.02, 0.02), (0.01, 0.05), (0.3, 0.25)])
def test_the_bound_of_a_drop_covers_by_enumeration(worse: float, better: float) -> None:
    images, covered = 40, 0.0
    for one in range(images + 1):
        for other in range(images + 1 - one):
            chance = multinomial.pmf([one, other, images - one - other], images, [worse, better, 1 - worse - better])
            if chance > 1e-7 and upper_bound_of_net_share(one, other, images) >= worse - better:
                covered += chance
    assert covered >= LEAST


def test_images_that_get_better_lower_the_bound_of_a_drop() -> None:
    bounds = [upper_bound_of_net_share(6, better, 300) for better in (0, 2, 6, 20)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] == upper_bound_of_share(6, 300)
    assert bounds[2] > 0 > bounds[3]
    assert upper_bound_of_net_share(0, 50, 50) < 0
    rng = np.random.default_rng(0)  # its definition: a Dirichlet distribution with one more worse image
    drawn = rng.dirichlet([7, 292, 2], size=200_000)
    assert bounds[1] == pytest.approx(float(np.quantile(drawn[:, 0] - drawn[:, 2], 0.95)), rel=0.01)


def upper_bound_of_mean(values: Floats, low: float, high: float) -> float:
    return upper_bound_of_sums(len(values), (float(values.sum()), float((values**2).sum())), low, high)


DISTRIBUTIONS = {
    "rare and total": lambda rng, shape: (rng.random(shape) < 0.02).astype(float),
    "small in each image": lambda rng, shape: rng.beta(2, 60, shape),
    "mostly none": lambda rng, shape: np.where(rng.random(shape) < 0.1, rng.beta(1, 3, shape), 0.0),
}
EXPECTED = {"rare and total": 0.02, "small in each image": 2 / 62, "mostly none": 0.025}


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
@pytest.mark.parametrize("images", first_of([30, 300]))
def test_the_bound_of_a_mean_covers(name: str, images: int) -> None:
    drawn = DISTRIBUTIONS[name](np.random.default_rng(1), (150, images))
    bounds = np.array([upper_bound_of_mean(row, 0, 1) for row in drawn])
    assert (bounds >= EXPECTED[name]).mean() >= 0.95
    assert bounds.max() <= 1


def test_the_bound_of_a_mean_is_near_that_of_a_share_and_gains_where_values_vary_little() -> None:
    values = np.zeros(500)
    values[:10] = 1
    share = upper_bound_of_share(10, 500)
    assert share < upper_bound_of_mean(values, 0, 1) < 1.5 * share
    signed = np.tile([0.011, 0.009], 5000)
    assert upper_bound_of_mean(signed, -1, 1) < 0.012  # Hoeffding alone: .027, empirical Bernstein: .012
    labels = np.tile([0.05, 0.0, 0.1, 0.0], 125)  # of twenty labels of each image
    assert upper_bound_of_mean(labels, 0, 1) < 0.05  # Hoeffding-Bentkus: .061, empirical Bernstein: .064
    scaled = upper_bound_of_mean(100 * signed, -100, 100)
    assert scaled == pytest.approx(100 * upper_bound_of_mean(signed, -1, 1))
    assert upper_bound_of_sums(9, (math.inf, math.inf), 0, 1) == 1


@given(st.floats(0.001, 0.5), st.floats(0, 0.9), st.sampled_from([0.9, 0.95, 0.99]))
def test_so_many_images_are_enough_and_one_less_is_not(share: float, part: float, sure: float) -> None:
    rate = part * share
    needed = images_needed(share, sure, rate=rate)
    assert needed is not None
    assert upper_bound_of_share(math.ceil(rate * needed - 1e-9), needed, sure) <= share
    assert needed == 1 or upper_bound_of_share(math.ceil(rate * (needed - 1) - 1e-9), needed - 1, sure) > share


def test_no_number_of_images_shows_a_share_that_is_reached() -> None:
    assert images_needed(0.05, rate=0.05) is None


@given(st.floats(0.001, 0.5), st.integers(1, 400))
def test_the_most_that_may_change_keeps_the_bound(share: float, images: int) -> None:
    most = most_changed_within(share, images)
    assert most is None or upper_bound_of_share(most, images) <= share
    assert upper_bound_of_share(0 if most is None else most + 1, images) > share


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: upper_bound_of_share(1, 0),
        lambda: upper_bound_of_share(3, 2),
        lambda: upper_bound_of_share(1, 2, 1.0),
        lambda: upper_bound_of_net_share(3, 3, 5),
        lambda: upper_bound_of_sums(0, (0.0, 0.0), 0, 1),
        lambda: images_needed(0.0),
        lambda: images_needed(1e-13),
    ],
)
def test_what_has_no_bound_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput):
        wrong()  # type: ignore[operator]


def of_objects(found: np.ndarray) -> tuple[float, ...]:
    """Return the moments of F1 of images with three objects each, of which so many are found as before."""
    rows = [(3.0, 3.0, 3.0, 3.0, 3.0, 3.0, each, each) for each in found.tolist()]
    return (float(len(rows)), *(number for row in rows for number in row))


def of_masks(left: np.ndarray, seed: int = 0) -> tuple[float, ...]:
    """Return the moments of mean IoU of images with one class each, of whose pixels such a share is left."""
    classes = np.random.default_rng(seed).integers(0, 4, len(left))
    rows = ((4, label, 100, 100, 100, 4, label, 100, 100 * share, 100 * share)
            for label, share in zip(classes.tolist(), left.tolist(), strict=True))  # fmt: skip
    return (float(len(left)), *(float(number) for row in rows for number in row))


UNCHANGED = {
    "agreement": (200.0, 200.0, 0.0, 0.0, 0.0),
    "top1": (200.0, 150.0, 0.0, 0.0, 0.0),
    "label_agreement": (200.0, 200.0, 0.0, 0.0, 0.0),
    "lrap": (200.0, 150.0, 0.0, 0.0, 0.0),
    "pixel_agreement": (200.0, 200.0, 0.0, 0.0, 0.0),
    "objects_f1": of_objects(np.full(200, 3.0)),
    "miou": of_masks(np.ones(200)),
}


@pytest.mark.parametrize("metric", list(UNCHANGED))
def test_images_that_all_stay_do_not_promise_that_no_other_one_changes(metric: str) -> None:
    bound = METRICS[metric].upper_bound(UNCHANGED[metric])
    assert upper_bound_of_share(0, 200) <= bound * (1 + 1e-9)
    assert bound < (0.3 if metric == "lrap" else 0.03)
    assert METRICS[metric].upper_bound(UNCHANGED[metric], 0.99) > bound


def test_a_metric_without_a_largest_value_has_the_end_of_its_interval() -> None:
    moments = (100.0, 0.0, 2.0, 0.1, 0.01)
    assert METRICS["kl"].upper_bound(moments) == METRICS["kl"].interval(moments, 0.9)[1]


@pytest.mark.parametrize(("metric", "images", "runs"), first_of([("objects_f1", 60, 60), ("miou", 150, 100)]))
def test_bounds_of_functions_of_all_images_cover_where_few_images_lose_all(metric: str, images: int, runs: int) -> None:
    rng, lost, missed = np.random.default_rng(3), 0.03, 0
    # of a share of images that lose all: F1 falls from 1 to 2 (1 - q) / (2 - q), mean IoU from 1 to 1 - q
    truth = 1 - 2 * (1 - lost) / (2 - lost) if metric == "objects_f1" else lost
    for run in range(runs):
        left = (rng.random(images) > lost).astype(float)
        moments = of_objects(3 * left) if metric == "objects_f1" else of_masks(left, run)
        missed += METRICS[metric].upper_bound(moments) < truth
    assert missed / runs <= 0.05
