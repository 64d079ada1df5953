"""Per-image metrics, their sums, intervals and ranks."""

from senseapp.evaluate.changes import add_moments, change_of
from senseapp.evaluate.metrics import METRICS, check_labels, metric_names, moments_of
from senseapp.results.ranking import joint_confidence, rank_intervals, shared_ranks, spearman, undecided

__all__ = [
    "METRICS",
    "add_moments",
    "change_of",
    "check_labels",
    "joint_confidence",
    "metric_names",
    "moments_of",
    "rank_intervals",
    "shared_ranks",
    "spearman",
    "undecided",
]
