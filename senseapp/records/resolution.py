"""Resolution of a run's images: losses above noise, a baseline that works, ranks and ties.

Headline, default metric, leaderboard, schedules and colours all ask here. docs/INTERVALS.md says why it is so.
"""

import statistics
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from senseapp.core.registry import grouped
from senseapp.core.texts import plural
from senseapp.metrics import METRICS, Metric, divergence_among, primary_among
from senseapp.records.measurement import RunResult, Status
from senseapp.tasks import task_named


def _surely_below(lows: Sequence[float], highs: Sequence[float]) -> NDArray[np.bool_]:
    """Matrix whose entry (i, j) is whether interval i lies wholly below interval j."""
    below: NDArray[np.bool_] = np.asarray(highs, dtype=float)[:, None] < np.asarray(lows, dtype=float)[None, :]
    return below


def rank_intervals(lows: Sequence[float], highs: Sequence[float]) -> list[tuple[int, int]]:
    """Best and worst possible rank of each layer.

    The best rank is 1 plus the number of layers whose interval lies wholly above, the worst is the number of
    layers minus those wholly below. An undefined (nan) interval could lie anywhere.

    Source: Klein, Wright and Wieczorek (2020), A joint confidence region for an overall ranking of populations,
    JRSS C 69, theorem 1.

    >>> rank_intervals([5, 1, 2], [6, 3, 4])
    [(1, 1), (2, 3), (2, 3)]
    """
    below = _surely_below(lows, highs)
    best = 1 + below.sum(axis=1)
    worst = len(lows) - below.sum(axis=0)
    return [(int(first), int(last)) for first, last in zip(best, worst, strict=True)]


def shared_ranks(deltas: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> list[int]:
    """One rank per layer; neighbours that cannot be told apart share it.

    Layers are walked from the largest delta down. A layer with rank r has r - 1 layers that are surely more
    fragile than it or than a layer above it, so ranks never fall on the way down. Undefined deltas come last.

    >>> shared_ranks([9, 8, 3, 2], [8, 7, 2, 1], [10, 9, 4, 3])
    [1, 1, 3, 3]
    """
    best = [first for first, _ in rank_intervals(lows, highs)]
    order = np.argsort(-np.asarray(deltas, dtype=float), kind="stable")  # numpy sorts nan to the end
    ranks = [0] * len(best)
    rank = 1
    for index in order:
        rank = max(rank, best[index])
        ranks[index] = rank
    return ranks


def undecided(lows: Sequence[float], highs: Sequence[float]) -> set[int]:
    """Layers whose rank more images could still settle: those whose interval overlaps another one.

    Equal intervals of no width (layers that change nothing) are ties that no image will break; undefined
    intervals are no reason to measure on either.
    """
    low, high = np.asarray(lows, dtype=float), np.asarray(highs, dtype=float)
    below = _surely_below(lows, highs)
    point = low == high
    tied = point[:, None] & point[None, :] & (low[:, None] == low[None, :])
    known = ~np.isnan(low) & ~np.isnan(high)
    overlap = ~(below | below.T | tied) & known[:, None] & known[None, :]
    np.fill_diagonal(overlap, False)
    return {int(index) for index in np.flatnonzero(overlap.any(axis=1))}


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation over the pairs in which both are defined; ties take their mean rank.

    From -1 to 1; nan if fewer than two pairs are defined, or one side is constant: there is no order then.
    """
    from pandas import DataFrame  # scipy's looks into torch, which another thread may have half loaded

    ranks = DataFrame({"first": first, "second": second}, dtype=float).dropna().rank()
    return float(ranks.corr(min_periods=2).to_numpy()[0, 1])


FRAGILITY_STEPS = (1, 3, 10, 30)
"""Upper ends of the bands of losses, in units of what is tolerable: about half a decade each."""
_COLOURS = ((0, 0), (1, 2), (3, len(FRAGILITY_STEPS)))  # first and last band of those drawn blue, yellow and red


def default_metric(metrics: Collection[str], num_images: int) -> str:
    """Return the metric to rank by: the labelled primary one where ``num_images`` can show a notable drop, else KL.

    With fewer than 276 labelled images the interval of a layer that changes no answer includes more than one point.
    """
    primary = primary_among(metrics, labelled=True)
    if primary is not None and METRICS[primary].unchanged_upper_end(num_images) <= METRICS[primary].notable:
        return primary
    return divergence_among(metrics) or next(iter(metrics))


def smallest_visible_loss(result: RunResult, metric: str, level: float | None = None) -> float | None:
    """Return the smallest loss in ``metric``, in the unit of ``delta``, that the run's images can show, or None.

    That is the median upper end of the 95 % intervals that reach zero at ``level``; None where none does. Without a
    level, the least of all levels: where layers change most, intervals are long for other reasons than the number of
    images.
    """
    measured = (item for item in result.measurements if item.status is Status.MEASURED and level in (None, item.level))
    changes = ((item.level, change) for item in measured if (change := item.change(metric)) is not None)
    ends = grouped((at, change.ci_high) for at, change in changes if change.has_interval and change.ci_low <= 0)
    return min((statistics.median(found) for found in ends.values()), default=None)


def hides_losses(result: RunResult, metric: str) -> str:
    """Return the sentence that notable losses are not resolved, without its stop; empty if the images resolve them."""
    visible = smallest_visible_loss(result, metric)
    view = everyday(result, metric)
    return "" if visible is None or visible <= view.notable else unseen_below(result.num_samples, view, visible)


def preparation_doubt(result: RunResult) -> str:
    """Return that it is a guess how images are prepared, where no label confirms it; empty elsewhere."""
    known = dict(result.reading.evidence).get("preparation") if result.reading is not None else ""
    if known not in ("assumed", "images") or any(METRICS[name].needs_labels for name in result.baseline):
        return ""
    return (
        "How pictures are prepared for this network is a guess, and no label confirms it: all figures hold for that "
        "preparation only. A few dozen labelled pictures would decide."
    )


_FEWEST_PAIRS, _LEAST_SHARE = 8, 0.01  # measurements, and the share that changes in one, which tell harm in answers


def everyday(result: RunResult, name: str) -> Metric:
    """Return a metric in everyday words: a divergence as how many of 100 answers change with it in this run.

    That is the non-decreasing function of the divergence that is nearest, in squares, to the shares that changed in the
    measurements of single layers. Where these are too few, or hardly any changed, it is what noise on the outputs of
    the uncompressed model changes; without recorded ones the metric stays as it is.
    """
    metric = METRICS[name]
    own = (each for each in METRICS.values() if each.task == metric.task and each.primary and each.counted)
    share = next((each for each in own if not each.needs_labels), None)
    if not metric.divergence or share is None:
        return metric
    question = "harm in answers", name
    if question not in result.kept or result.kept[question][0] != len(result.measurements):
        changes = [(item.change(name), item.change(share.name)) for item in result.measurements]
        pairs = [(one.delta, two.delta) for one, two in changes if one is not None and two is not None]
        measured_pairs = _rising([each for each in pairs if np.isfinite(each).all()])
        result.kept[question] = len(result.measurements), measured_pairs or _by_noise(result, metric)
    known = result.kept[question][1]
    return metric.in_answers(known, share.counted) if known else metric


def _rising(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the least-squares fit to ``pairs`` whose second numbers rise with the first; empty for too few of them.

    Each block of the isotonic regression, which passes through none lost for none changed, is a pair of means.
    """
    if len(pairs) < _FEWEST_PAIRS or max(share for _, share in pairs) < _LEAST_SHARE:
        return ()
    from scipy.optimize import isotonic_regression  # takes long to load, and a page may show no such run

    deltas, shares = np.array(sorted([(0.0, 0.0), *pairs])).T
    ends = isotonic_regression(shares).blocks
    blocks = [slice(low, high) for low, high in pairwise(ends)]
    means = [(float(deltas[each].mean()), float(shares[each].mean())) for each in blocks]
    return (0.0, 0.0), *((delta, share) for delta, share in means if delta > 0 and share > 0)


_NOISE = np.geomspace(0.01, 10, 28)  # its standard deviations, from no changed answer to nearly all
_DRAWS = 8  # of the noise of each image


def _by_noise(result: RunResult, metric: Metric) -> tuple[tuple[float, float], ...]:
    """Return mean divergences and shares of changed answers of recorded outputs with noise; empty without these.

    One draw of an image is scaled, so both rise with the noise. In the runs of both demos shares above
    5 % are within a quarter of those measured, smaller ones within a factor of 3.
    """
    recorded = result.recorded
    if recorded is None or recorded.metric != metric.name or not recorded.values:
        return ()
    outputs = np.frombuffer(recorded.values, dtype=np.float16).reshape(-1, recorded.size).astype(np.float64)
    noise, classes = np.random.default_rng(0).standard_normal((_DRAWS, *outputs.shape)), result.profile.num_classes
    found = [
        (float(metric.together(outputs, size * noise, classes).mean()),
         float(metric.changed_answers(outputs, size * noise, classes).mean()))
        for size in _NOISE
    ]  # fmt: skip
    return (0.0, 0.0), *((harm, share) for harm, share in found if share > 0)


def unseen_below(num_images: int, metric: str | Metric, loss: float) -> str:
    """Return ``20 images cannot show losses under about 16 points``, no more exactly than ``loss`` is known."""
    return _sentence("{} cannot show {} under about {}", num_images, metric, loss)


def seen_from(num_images: int, metric: str | Metric, loss: float) -> str:
    """Return ``512 images show harm from about 0.006``."""
    return _sentence("{} show {} from about {}", num_images, metric, loss).replace("about < ", "under ")


def _sentence(words: str, num_images: int, metric: str | Metric, loss: float) -> str:
    view = METRICS[metric] if isinstance(metric, str) else metric
    if view.as_answers:
        return words.format(plural(num_images, "image"), "changes", view.limit_text(loss))
    kind = "losses" if view.change_unit else view.change_inside  # which a number without a unit is of
    scaled = view.factor * loss  # large figures have no decimals, in the unit shown
    shown = f"{scaled:.0f} {view.change_unit}".strip() if scaled >= 10.0 else view.change_text(loss)
    return words.format(plural(num_images, "image") if num_images else "these images", kind, shown)


def cannot_tell(
    low: NDArray[np.float64], delta: NDArray[np.float64], high: NDArray[np.float64], notable: float
) -> NDArray[np.bool_]:
    """Whether 95 % intervals leave open if losses are tolerable: they hold more than ``notable``, and none."""
    return (high > notable) & ((low <= 0) | (delta <= notable))


def band_of(
    low: NDArray[np.float64], delta: NDArray[np.float64], high: NDArray[np.float64], notable: float
) -> NDArray[np.int64]:
    """Return the band of each loss: 0 (tolerable) to 4 (fragile), −1 where its 95 % interval leaves that open.

    An estimate's ``low`` and ``high`` are its ``delta``.
    """
    ends = np.multiply(FRAGILITY_STEPS, notable) * (1 + 1e-9)  # a rounded loss of 1 point is up to 1 point
    return np.where(cannot_tell(low, delta, high, notable), -1, np.searchsorted(ends, delta))


def opening_level(result: RunResult, metric: str, levels: Collection[float] = ()) -> float:
    """Return the level that charts, tables and the headline of a run show first, among ``levels`` if given.

    It is the level at which the most of these are there: tolerable layers (blue), layers that lose more (yellow), and
    fragile ones (red). Of several such levels it is the one nearest to the usual level of the compression.
    """
    wanted = frozenset(levels or result.levels)
    question = "opening level", metric, wanted
    if question in result.kept:
        return float(result.kept[question])
    scale = result.compression.scale
    found: dict[float, list[tuple[float, float, float]]] = {level: [] for level in wanted}
    for item in result.shown:
        if item.level not in found or item.status is not Status.MEASURED:
            continue
        if (change := item.change(metric)) is not None:
            known = change.has_interval and not item.estimated
            ends = (change.ci_low, change.ci_high) if known else (change.delta, change.delta)
            found[item.level].append((ends[0], change.delta, ends[1]))
    notable = METRICS[metric].notable

    def preference(level: float) -> tuple[bool, int, float, float]:
        return not found[level], -_num_colours(found[level], notable), abs(level - scale.usual), scale.strength(level)

    chosen = result.kept[question] = min(wanted, key=preference)
    return chosen


def _num_colours(changes: Sequence[tuple[float, float, float]], notable: float) -> int:
    """Return how many of blue, yellow and red the changes (lower end, delta, upper end) have."""
    if not changes:
        return 0
    low, delta, high = np.array(changes).T
    bands = band_of(low, delta, high, notable)
    return sum(bool(((bands >= first) & (bands <= last)).any()) for first, last in _COLOURS)


def baseline_warning(result: RunResult) -> str:
    """Return a warning that the uncompressed model fails its task on these images; empty if it does not, or unknown."""
    if not result.num_samples or not result.profile.pretrained:
        return ""
    task = task_named(result.spec.model.task)
    return task.baseline_warning(result.baseline, result.num_samples, result.profile.num_classes)
