"""Search for the nodes of an int8 file that compute in float: least damage within a time.

1. :func:`damages_alone`: the damage of each node alone in int8, by halving groups of neighbours.
2. :func:`fill_time_budget`: the nodes in float that leave least damage in the time are solved for with predicted times;
   timed files correct the predictions.
3. Where the file is good enough, fewer nodes in float are tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from senseapp.core.steps import OptionalSteps
from senseapp.core.texts import plural
from senseapp.descriptions.levels import BitScale
from senseapp.metrics import METRICS
from senseapp.prove.file_times import FileTimes
from senseapp.prove.judge import Judgement
from senseapp.prove.search_images import SearchImages
from senseapp.records.deployment import DeploySettings
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.quantizers import Quantizer
from senseapp.solve.node_precisions import NodeTimes, least_damage, quickest

_ROUNDS, _MORE_ROUNDS = 8, 4  # files that are timed, at first and where predictions are corrected already
_LEAST_STEP, _MOST_STEP = 0.002, 0.1  # of the time that is predicted, between files that are aimed at
_SHARES = (1.0, 0.75, 0.5, 0.25)  # of the time that nodes in float may add, for which files are looked for
_UNSEEN = 0.01  # of what is notable: less damage than that is not worth a layer in float
_ROUNDING_BITS = BitScale(noun="rounding", axis="Bits")  # levels of nodes: in int8, or as they are
_NONE_IN_TIME = "No file with parts in float was found to keep to the time that is allowed, so none is."

Group = tuple[str, ...]
"""Names of nodes."""


class QuantizedFiles:
    """The int8 files of one network by their nodes in float, whose weights have 8 bits: written, judged and timed.

    Args:
        quantizer: of the network.
        kept: names of nodes in float in all files.
        runtime: that opens and times files.
        images: that judge them.
        times: of files beside a reference.
        most_time: that a file may take, as a multiple of the reference's time.
        settings: what is good enough, and how times are taken.

    Attributes:
        nodes: that can compute in int8, in order.
        seconds: predicted, of a call by the nodes in float.
    """

    def __init__(
        self,
        quantizer: Quantizer,
        kept: Sequence[str],
        *,
        runtime: Runtime,
        images: SearchImages,
        times: FileTimes,
        most_time: float,
        settings: DeploySettings,
    ) -> None:
        self._quantizer, self._kept, self._runtime, self._images = quantizer, kept, runtime, images
        self._times, self._most_time, self._settings = times, most_time, settings
        self._last: tuple[Group, Judgement] | None = None
        self.nodes = tuple(quantizer.nodes(self._written()))
        batch = runtime.open(quantizer.network).fixed_batch or settings.batch
        every = {name: name for name in quantizer.nodes(quantizer.write())}
        layer_times = runtime.time_layers(quantizer.network, quantizer, every, threads=settings.threads, batch=batch)
        self.seconds = NodeTimes.of(layer_times, every, _ROUNDING_BITS)

    def _written(self, in_float: Group = ()) -> bytes:
        return self._quantizer.write(but=self._kept, weights_only=in_float)

    def _placed(self, in_float: Group) -> bytes:
        return self._runtime.in_place(self._quantizer.network, self._written(in_float))

    def content(self, in_float: Group = ()) -> bytes:
        """Return a file as it is delivered."""
        return self._quantizer.finished(self._written(in_float))

    def _judged(self, in_float: Group) -> Judgement:
        """Return the judgement of a file on the images that choose; the last one is kept, as it is needed twice."""
        if self._last is None or self._last[0] != in_float:
            self._last = in_float, self._images.judge.judged(self._runtime.open(self.content(in_float)))
        return self._last[1]

    def damage(self, in_float: Group) -> float:
        """Return the damage of a file on the images that choose."""
        return self._judged(in_float).damage

    def rough_damage(self, in_float: Group) -> float:
        """Return the damage of a file on few images."""
        return self._images.rough_damage(self._runtime.open(self.content(in_float)))

    def damage_alone(self, in_int8: Group) -> float:
        """Return the damage on few images of the file with only these nodes in int8."""
        others = (node for node in self.nodes if node not in in_int8)
        return self._images.rough_damage(self._runtime.open(self._quantizer.write(but=[*self._kept, *others])))

    def is_enough(self, in_float: Group) -> bool:
        """Return whether a file changes as few answers as allowed, or loses next to nothing."""
        if self._settings.kind == "quickest":
            return self._judged(in_float).share_changed <= self._settings.most_changed
        return self.damage(in_float) <= _UNSEEN * METRICS[self._images.judge.divergence].notable

    def rough_time(self, in_float: Group) -> float:
        """Return the time of a file as a multiple of what is allowed, by one timing."""
        return self._times.measure_rough(self._placed(in_float)) / self._most_time

    def keeps_time(self, in_float: Group) -> bool:
        """Return whether a precise timing finds a file quick enough."""
        return self._times.is_within(self._placed(in_float), self._most_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecision:
    """The nodes in float that a search chose.

    Attributes:
        in_float: names of the nodes that compute in float.
        damages: by node, of a file in which this node alone is in int8; empty where none was needed.
        notes: sentences on a search that was cut short, or found no file.
    """

    in_float: Group = ()
    damages: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def search_mixed_precision(files: QuantizedFiles, steps: OptionalSteps) -> MixedPrecision:
    """Return the nodes in float that leave least damage in the time, or the fewest with which a file is good enough.

    None is in float where that does no less harm. ``steps`` bounds the time of the search.
    """
    if not files.nodes or files.is_enough(()):
        return MixedPrecision()
    at_first, damages = files.damage(()), damages_alone(files, steps)
    found = MixedPrecision(damages=damages, notes=() if steps.left() else (_cut_short(steps.seconds),))
    group = fill_time_budget(files, damages, steps)
    if group is None:
        return replace(found, notes=(*found.notes, _NONE_IN_TIME))
    if not files.damage(group) < at_first:
        return found
    if files.is_enough(group):
        steps.progress("Trying fewer parts in float")
        group = _fewest(files, damages, group)
    return replace(found, in_float=group)


def damages_alone(files: QuantizedFiles, steps: OptionalSteps) -> dict[str, float]:
    """Return the damage of each node alone in int8; nodes that do little get an equal share of their group's.

    All other nodes are in float: beside others in int8, whose damage varies with every change of the file, small shares
    of it cannot be told apart on few images. Damages of nodes alone hardly vary, and add up to about that of all (seen
    on EfficientNet-Lite0 and ConvNeXt, where nodes ranked so and put in float left a half to a seventh).

    The most harmful group of neighbours is halved until no group of several nodes does more than a small share of all
    damage, so that a network of hundreds of nodes takes about a hundred files.
    """
    exact, every = files.damage_alone(()), tuple(files.nodes)
    found = {every: files.damage_alone(every) - exact}
    while steps.left():
        group = max((each for each in found if len(each) > 1), key=found.__getitem__, default=())
        # of the damage of all: a group that does no more is not halved
        if not group or found[group] <= 0.02 * sum(found.values()):
            break
        steps.progress(f"Measuring parts in int8 · {plural(len(found), 'group')} of {len(every)} parts")
        del found[group]
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            found[half] = files.damage_alone(half) - exact
    shares = {node: damage / len(group) for group, damage in found.items() for node in group}
    return {node: shares[node] for node in every}


def fill_time_budget(files: QuantizedFiles, damages: Mapping[str, float], steps: OptionalSteps) -> Group | None:
    """Return the nodes in float of the file of least damage in the time; None where no file with some keeps to it.

    Of the files that should do least harm in the time, the most promising one is taken that a precise timing finds
    quick enough, too; where none is, files are looked for that should take less.
    """
    timed: dict[Group, float] = {(): files.rough_time(())}
    tried = set[Group]()
    added = max(1 - timed[()], 0.1)  # of the time that is allowed: what they may add at least, so that shares differ
    for share in _SHARES:
        _time_files(files, damages, timed, steps, aim=1 - (1 - share) * added)
        fitting = sorted((each for each, time in timed.items() if each and time <= 1), key=lambda g: _left(g, damages))
        # files of those that should do least harm, of which one is to keep the time
        measured = {group: files.rough_damage(group) for group in fitting[:4] if group not in tried}
        tried.update(measured)
        for group in _by_promise(measured, damages):
            steps.progress("Timing the file again")
            if files.keeps_time(group):
                return group
            # times what is allowed: what a file counts as that a precise timing found too slow
            timed[group] = max(timed[group], 1.01)
        if not steps.left():
            break
    return None


def _time_files(
    files: QuantizedFiles, damages: Mapping[str, float], timed: dict[Group, float], steps: OptionalSteps, *, aim: float
) -> None:
    """Add files to ``timed`` until one takes hardly less than ``aim``, as a multiple of what is allowed.

    A file is solved for a time (:func:`~senseapp.solve.node_precisions.least_damage`) and timed; then predictions are
    corrected by all files so far, as times of single nodes and borders in a network differ from those of the same
    alone, and it is solved again.
    """
    at_first, wanted, low, high = timed[()], aim, 0.0, math.inf
    for _ in range(_MORE_ROUNDS if len(timed) > 1 else _ROUNDS):
        steps.progress("Using the rest of the time for parts in float")
        corrected = files.seconds.corrected({group: time / at_first for group, time in timed.items() if group})
        solved = least_damage(damages, corrected, corrected(()) * wanted / at_first)
        group = _without_all(quickest(damages, corrected) if solved is None else solved, damages)
        if group not in timed:
            timed[group] = files.rough_time(group)
            if 0.985 * aim <= timed[group] <= aim:  # of the time that is allowed: a file that takes as much uses it
                return
        if solved is not None and timed[group] > aim:
            high = wanted
        else:
            low = wanted
        missed = min(max(aim / timed[group], 1 - _MOST_STEP), 1 + _MOST_STEP)
        wanted = (low + high) / 2 if low and high < math.inf else wanted * missed
        if high - low < _LEAST_STEP:
            return


def _fewest(files: QuantizedFiles, damages: Mapping[str, float], group: Group) -> Group:
    """Return the nodes in float of the quickest file that is enough, as ``group`` is."""
    low, high = files.seconds(()), files.seconds(group)
    for _ in range(6):  # halvings of the time that nodes in float add
        middle = (low + high) / 2
        solved = least_damage(damages, files.seconds, middle)
        if solved is not None and len(solved) < len(damages) and files.is_enough(solved):
            group, high = solved, middle
        else:
            low = middle
    return group


def _by_promise(measured: Mapping[Group, float], damages: Mapping[str, float]) -> Sequence[Group]:
    """Return groups in float by what the other nodes do alone in int8, and after them those that do clearly more harm.

    ``measured`` has the damage of each file on few images, which tells less than these sums where it hardly differs.
    """
    most = 1.25 * min(measured.values(), default=0.0)  # times the least damage: as much may be chance
    return sorted(measured, key=lambda group: (max(measured[group] - most, 0.0), _left(group, damages)))


def _left(group: Group, damages: Mapping[str, float]) -> float:
    return sum(damage for node, damage in damages.items() if node not in group)


def _without_all(group: Group, damages: Mapping[str, float]) -> Group:
    """Return a group without the least harmful node where it is all nodes, as one stays in int8."""
    if len(group) < len(damages):
        return group
    least = min(damages, key=damages.__getitem__)
    return tuple(node for node in group if node != least)


def _cut_short(seconds: float) -> str:
    minutes = plural(max(1, round(seconds / 60)), "minute")
    return (
        f"The search for parts to leave in float was ended after {minutes}, before it knew which of them do most harm: "
        "some may be in int8 that should not."
    )
