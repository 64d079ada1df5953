"""Notes on a file that was measured in a runtime, as sentences."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from senseapp.core.errors import SenseError
from senseapp.core.texts import plural
from senseapp.data.images import PreparedImages
from senseapp.descriptions.runtimes import runtime_words
from senseapp.metrics import METRICS, MetricChange, divergence_among
from senseapp.metrics.paired_tests import mean_is_above_zero
from senseapp.networks.network import Network
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.judge import Judgement
from senseapp.records.candidate import judged_by
from senseapp.records.deployment import DeploySettings, Elsewhere, Median, RuntimeFigures
from senseapp.records.measurement import change_in
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.call_times import saturates

_HERE = "On this processor, which has no VNNI, sums of products of 8 bits"
_THERE = "On processors without VNNI or AMX, sums of products of 8 bits"
_PARTS = 64  # of the images, whose damages are compared


def findings(
    figures: Mapping[str, RuntimeFigures], settings: DeploySettings, *, images: int, own_setting: str = ""
) -> tuple[str, ...]:
    """Return what was measured of the file in one sentence, and a sentence for each objection.

    ``figures`` and ``own_setting`` are those of :class:`~senseapp.records.deployment.Deployment`.
    """
    file, original, default = figures["file"], figures["original"], figures.get("default")
    size = f"at {100 * file.file_bytes / original.file_bytes:.0f} % of its size"
    said = [f"Measured on {plural(images, 'image')}: {_answers(file.changes)}, {_time(file)}, {size}."]
    names = [change.metric for change in file.changes]
    if settings.kind == "quickest" and "int8" in figures:
        said += _against_limit(file, settings.most_changed)
    divergence = divergence_among(names) or names[0]
    own, usual = (None if each is None else change_in(each.changes, divergence) for each in (file, default))
    if default is not None and own is not None and usual is not None:
        title = runtime_words(settings.runtime).own_title(own_setting)
        if own.ci_low > usual.ci_high:
            said.append(f"{title} does less harm than this file.")
        if file.seconds.low > default.seconds.high and own.delta >= usual.delta:
            said.append(f"{title} is quicker than this file, and does no more harm.")
    return tuple(said)


def side_by_side(runtime: str, other: Elsewhere) -> str:
    """Return which of two runtimes is quicker here and by how much, for a file that was made for ``runtime``."""
    own, label = runtime_words(runtime).label, runtime_words(other.runtime).label

    def share(ratio: Median) -> str:
        return f"{100 * ratio.value:.0f} % ({100 * ratio.low:.0f} to {100 * ratio.high:.0f})"

    if other.file.low <= 1 <= other.file.high:
        quicker = f"In {label} the file takes as long here as in {own}, as far as can be told"
    else:
        quicker = f"{label if other.file.high < 1 else own} is quicker here: in {label} the file takes"
        quicker += f" {share(other.file)} of its time in {own}"
    return (
        f"{quicker}; the original in float takes {share(other.original)} (in turns). What the file answers in "
        f"{label} is measured when it is made for it."
    )


def saturation(
    name: str, judged: Judgement, opened: Callable[[], Network | None], *, threshold: float | None = None
) -> tuple[str, ...]:
    """Return in a sentence what a file answers here and on processors of the other kind; none where that is alike.

    ``opened`` opens the file called ``name`` as other processors compute it (:meth:`.Runtime.on_other_processors`);
    ``threshold`` is of its scores.
    """
    try:
        network = opened()
    except SenseError as error:
        there = f"{_HERE} may saturate in {name}, and with VNNI or AMX they do not."
        return (f"{there if saturates() else f'{_THERE} may saturate in {name}, and here they do not.'} {error}",)
    if network is None:
        return ()
    other = judged.judge.judged(network, threshold=threshold)
    here, elsewhere = (_answers(each.changes) for each in (judged, other))
    count = min(judged.stop - judged.start, _PARTS)
    gains = np.nan_to_num(np.subtract(judged.damages(count), other.damages(count)))  # both may be infinite
    # a two-sided paired t test
    differ = any(mean_is_above_zero(sign * gains, significance=0.025) for sign in (1, -1))
    if here == elsewhere or not differ:
        return ()
    if saturates():
        said = f"{_HERE} saturate in {name}: {here}; with VNNI or AMX, computed on the same images: {elsewhere}."
    else:
        said = f"{_THERE} saturate in {name}, computed on the same images: {elsewhere}; here, with VNNI: {here}."
    return (said,)


def alike_everywhere() -> str:
    """Return that a file answers alike on both kinds of processors, and on which it was measured."""
    here = "without" if saturates() else "with"
    return (
        "The answers are the same on processors with and without VNNI, as far as these images tell; this one is "
        f"{here} VNNI."
    )


def preparation(evaluator: ScheduleEvaluator, runtime: Runtime) -> str:
    """Return how a picture becomes an input of a file."""
    shape = runtime.input_words(evaluator.profile.input_shape)
    if not isinstance(evaluator.images.proof, PreparedImages):
        return f"{shape}."
    how = evaluator.images.proof.preprocessing
    part = {
        "crop": f"the middle {100 * how.crop_pct:g} % of the picture",
        "letterbox": "the whole picture with grey borders around it",
        "corner": "the whole picture in the upper left corner, grey beside it",
        "stretch": "the whole picture in the proportions of the input",
    }[how.fit]
    return (
        f"{shape}: {part}, resized ({how.interpolation}), channels in the "
        f"order {how.channel_order}, from 0 to 1, less {list(how.mean)}, divided by {list(how.std)}."
    )


def _answers(changes: tuple[MetricChange, ...]) -> str:
    """Return how the file answers: by labels where there are any, else like the original or not."""
    change = change_in(changes, judged_by(changes))
    assert change is not None
    metric = METRICS[change.metric]
    if metric.needs_labels:
        return f"{metric.label} {metric.value_text(change.value)}, the original's {metric.value_text(change.baseline)}"
    if metric.counted:
        return f"{metric.value_text(change.value)} of the {metric.counted} stay as they were"
    return f"{metric.change_inside} {metric.change_text(change.delta)} from the original"


def _time(file: RuntimeFigures) -> str:
    if file.time_ratio.low > 1:
        return f"but slower than the original here, {file.time_ratio.value:.2f} times its time"
    if file.time_ratio.high >= 1:
        return "in no less time here that can be told from the original's"
    return f"in {100 * file.time_ratio.value:.0f} % of the original's time here"


def _against_limit(file: RuntimeFigures, most_changed: float) -> Iterator[str]:
    """Note files whose answers change more on these images than on those that chose the nodes in float."""
    counted = (each for each in file.changes if METRICS[each.metric].counted and not METRICS[each.metric].needs_labels)
    change = next(counted, None)
    if change is not None and change.delta > most_changed:
        low, high = 100 * max(0.0, change.ci_low), 100 * change.ci_high
        yield (
            f"{100 * change.delta:.1f} % of the {METRICS[change.metric].counted} change (95 % interval {low:.1f} to "
            f"{high:.1f}), more than the {100 * most_changed:g} % allowed, which held on the images that chose what "
            "stays in float."
        )
