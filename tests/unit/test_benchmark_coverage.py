"""Of how few losses an interval cannot cover 93 to 97 %, and which cells of the table of coverages hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.stats import poisson

from benchmarks.dense.coverage import FEW, Covered
from benchmarks.dense.few import least_expected


def mid_p_coverage(mean: float) -> float:
    """Probability of a count whose two mid-P tails at ``mean`` are both above 2.5 %, without an interval."""
    counts = np.arange(200)
    at = poisson.pmf(counts, mean)
    low, high = poisson.cdf(counts, mean) - at / 2, poisson.sf(counts, mean) + at / 2
    return float(at[(low > 0.025) & (high > 0.025)].sum())


def test_from_the_least_mean_on_a_mid_p_interval_covers_what_is_asked() -> None:
    least = least_expected(0.93, 0.97, whole=False)
    assert mid_p_coverage(least - 1e-3) > 0.97
    assert all(0.93 <= mid_p_coverage(mean) <= 0.97 for mean in np.arange(least + 1e-3, 50, 0.01))


def test_where_the_next_loss_may_be_larger_more_are_needed_and_none_is_covered_less() -> None:
    assert least_expected(0.93, 0.97, whole=True) > 1.5 * least_expected(0.93, 0.97, whole=False)
    assert least_expected(0.93, 1.0, whole=True) == 0
    assert least_expected(0.93, 1.0, whole=False) > 5  # mid-P alone falls short of 93 % after no loss or one


def test_a_cell_of_few_losses_may_cover_more_and_one_near_an_end_gets_more_samples() -> None:
    few, many = (Covered(losing=losing, samples=1_000, below=5, above=10) for losing in (FEW - 0.1, FEW + 0.1))  # .985
    assert (few.holds, few.near) == (True, False)
    assert (many.holds, many.near) == (False, True)
    middle = replace(many, above=45)
    assert (middle.holds, middle.near) == (True, False)
    assert replace(middle, above=29).near  # .966, with a standard error of .008
    assert not replace(few, above=70).holds
