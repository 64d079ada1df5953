"""Search for the nodes of an int8 file that compute in float: least damage within a time.

They are chosen by their damages alone in int8 and by predicted times, which timed files correct; where the file is good
enough, fewer are tried.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from senseapp.core.steps import OptionalSteps
from senseapp.core.texts import plural
from senseapp.descriptions.levels import BitScale
from senseapp.metrics import METRICS
from senseapp.prove.file_times import FileTimes, one_call
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
_SMALL = 0.05  # of all damage. On EfficientNet-Lite0, files were as good with .05 as with .02, and made in .86 the time
_ROUNDING_BITS = BitScale(noun="rounding", axis="Bits")  # levels of nodes: in int8, or as they are
_CUT_SHORT = (
    "The search for parts to leave in float was ended after {}, before it knew which of them do most harm: some may be "
    "in int8 that should not."
)
_NONE_IN_TIME = "No file with parts in float was found to keep to the time that is allowed, so none is."

Group = tuple[str, ...]
"""Names of nodes."""


class QuantizedFiles:
    """The int8 files of one network by their nodes in float, whose weights have 8 bits: written, judged and timed.

    Nodes in ``kept`` are in float in all files. ``network`` is the float file; the ``quantizer`` may work on a
    simplified copy. ``images`` judge files; ``settings`` say what is good enough, and how times are taken.
    """

    def __init__(
        self,
        quantizer: Quantizer,
        kept: Sequence[str],
        *,
        network: bytes,
        runtime: Runtime,
        images: SearchImages,
        settings: DeploySettings,
    ) -> None:
        self.quantizer, self.runtime, self.images, self.settings = quantizer, runtime, images, settings
        self._kept, self._network = kept, network
        self._last: tuple[bytes, Judgement] | None = None

    @cached_property
    def nodes(self) -> Group:
        """Those that can compute in int8, in order."""
        return tuple(self.quantizer.nodes(self.content()))

    @cached_property
    def seconds(self) -> NodeTimes:
        """Predicted, of a call by the nodes in float."""
        threads, every = self.settings.threads, {name: name for name in self.quantizer.nodes(self.quantizer.write())}
        batch = self.runtime.open(self._network).fixed_batch or self.settings.batch
        times = self.runtime.time_layers(self._network, self.quantizer, every, threads=threads, batch=batch)
        return NodeTimes.of(times, every, _ROUNDING_BITS)

    @cached_property
    def all_int8(self) -> bytes:
        """The file with every node in int8 that can be."""
        return self.quantizer.write()

    @cached_property
    def beside_float(self) -> FileTimes:
        """Times of files beside the float file."""
        return self._times_beside(self._network)

    @cached_property
    def _times(self) -> tuple[FileTimes, float]:
        """Times of files beside a reference, and the multiple of its time that a file may take."""
        if self.settings.kind == "quickest":
            return self.beside_float, 1.0
        times = self._times_beside(self.placed(self.all_int8))
        # No more than float's time; where all-int8 takes longer than float, the file may take as long as that.
        return times, min(self.settings.most_time, max(1.0, times.measure_precise(self._network).value))

    def _times_beside(self, reference: bytes) -> FileTimes:
        call = one_call(self.runtime.open(self._network), self.images.judging[0], self.settings.batch)
        return FileTimes(self.runtime, reference, call, threads=self.settings.threads)

    def content(self, in_float: Group = ()) -> bytes:
        """Return the file with these nodes in float, beside those that are in every file."""
        return self.quantizer.write(but=self._kept, weights_only=in_float)

    def placed(self, content: bytes) -> bytes:
        """Return an int8 file in place of the network as it was uploaded, and a float one as it is."""
        return content if content == self._network else self.runtime.in_place(self._network, content)

    def judged(self, content: bytes) -> Judgement:
        """Return the judgement of a file on the images that choose; the last one is kept, as it is needed twice."""
        if self._last is None or self._last[0] != content:
            self._last = content, self.images.judge.judged(self.runtime.open(content))
        return self._last[1]

    def damage(self, in_float: Group) -> float:
        """Return the damage of a file on the images that choose."""
        return self.judged(self.content(in_float)).damage

    def rough_damage(self, in_float: Group) -> float:
        """Return the damage of a file on few images."""
        return self.images.rough_damage(self.runtime.open(self.content(in_float)))

    def damage_alone(self, in_int8: Group) -> float:
        """Return the damage on few images of the file with only these nodes in int8."""
        others = (node for node in self.nodes if node not in in_int8)
        return self.images.rough_damage(self.runtime.open(self.quantizer.write(but=[*self._kept, *others])))

    def changes_few(self, content: bytes) -> bool:
        """Return whether a file changes as few answers as allowed."""
        return self.judged(content).share_changed <= self.settings.most_changed

    def is_enough(self, in_float: Group) -> bool:
        """Return whether a file changes as few answers as allowed, or loses next to nothing."""
        if self.settings.kind == "quickest":
            return self.changes_few(self.content(in_float))
        return self.damage(in_float) <= _UNSEEN * METRICS[self.images.judge.divergence].notable

    def rough_time(self, in_float: Group) -> float:
        """Return the time of a file as a multiple of what is allowed, by one timing."""
        times, most = self._times
        return times.measure_rough(self.placed(self.content(in_float))) / most

    def keeps_time(self, in_float: Group) -> bool:
        """Return whether a precise timing finds a file quick enough."""
        times, most = self._times
        return times.is_within(self.placed(self.content(in_float)), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecision:
    """The nodes in float that a search chose, and sentences on a search that was cut short, or found no file.

    ``damages`` are, by node, of a file in which this node alone is in int8; empty where none was needed.
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
    notes = tuple[str, ...]()
    if not steps.left():
        notes = (_CUT_SHORT.format(plural(max(1, round(steps.seconds / 60)), "minute")),)
    group = fill_time_budget(files, damages, steps)
    if group is None:
        return MixedPrecision(damages=damages, notes=(*notes, _NONE_IN_TIME))
    if not files.damage(group) < at_first:
        return MixedPrecision(damages=damages, notes=notes)
    if files.is_enough(group):
        steps.progress("Trying fewer parts in float")
        low, high = files.seconds(()), files.seconds(group)
        for _ in range(6):  # halvings of the time that nodes in float add
            middle = (low + high) / 2
            solved = least_damage(damages, files.seconds, middle)
            if solved is not None and len(solved) < len(damages) and files.is_enough(solved):
                group, high = solved, middle
            else:
                low = middle
    return MixedPrecision(in_float=group, damages=damages, notes=notes)


def damages_alone(files: QuantizedFiles, steps: OptionalSteps) -> dict[str, float]:
    """Return the damage of each node alone in int8, others in float; nodes that do little share their group's.

    Damages of single nodes add up to about that of all; beside others in int8, small ones cannot be told apart on few
    images. The most harmful group of neighbours is halved until none of several nodes does more than a small share of
    all damage, so a network of hundreds of nodes takes some tens of files.
    """
    exact, every = files.damage_alone(()), tuple(files.nodes)
    found = {every: files.damage_alone(every) - exact}
    while steps.left():
        group = max((each for each in found if len(each) > 1), key=found.__getitem__, default=())
        # of the damage of all: a group that does no more is not halved, and one whose file gives no numbers always is
        if not group or found[group] <= _SMALL * sum(filter(math.isfinite, found.values())):
            break
        steps.progress(f"Measuring parts in int8 · {plural(len(found), 'group')} of {len(every)} parts")
        del found[group]
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            found[half] = files.damage_alone(half) - exact
    most = 10 * max([1.0, *filter(math.isfinite, found.values())])  # more than any other, and a number
    shares = {node: min(damage, most) / len(group) for group, damage in found.items() for node in group}
    return {node: shares[node] for node in every}


def fill_time_budget(files: QuantizedFiles, damages: Mapping[str, float], steps: OptionalSteps) -> Group | None:
    """Return the nodes in float of the file of least damage in the time; None where no file with some keeps to it.

    Of the files that should do least harm in the time, the most promising one is taken that a precise timing finds
    quick enough, too; where none is, files are looked for that should take less.
    """
    timed: dict[Group, float] = {(): files.rough_time(())}
    tried = set[Group]()
    added = max(1 - timed[()], 0.1)  # of the time that is allowed: what they may add at least, so that shares differ

    def left(group: Group) -> float:
        return sum(damage for node, damage in damages.items() if node not in group)

    for share in _SHARES:
        _time_files(files, damages, timed, steps, aim=1 - (1 - share) * added)
        fitting = sorted((each for each, time in timed.items() if each and time <= 1), key=left)
        # files of those that should do least harm, of which one is to keep the time
        measured = {group: files.rough_damage(group) for group in fitting[:4] if group not in tried}
        tried.update(measured)
        # Damage on few images tells less than these sums, unless it is clearly more: as much may be chance.
        most = 1.25 * min(measured.values(), default=0.0)
        for group in sorted(measured, key=lambda group: (max(measured[group] - most, 0.0), left(group))):
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

    Each is solved for (:func:`~senseapp.solve.node_precisions.least_damage`) with predictions that are corrected by all
    files so far.
    """
    at_first, wanted, low, high = timed[()], aim, 0.0, math.inf
    for _ in range(_MORE_ROUNDS if len(timed) > 1 else _ROUNDS):
        steps.progress("Using the rest of the time for parts in float")
        corrected = files.seconds.corrected({group: time / at_first for group, time in timed.items() if group})
        solved = least_damage(damages, corrected, corrected(()) * wanted / at_first)
        group = quickest(damages, corrected) if solved is None else solved
        if len(group) == len(damages):  # the least harmful one stays in int8
            least = min(damages, key=damages.__getitem__)
            group = tuple(node for node in group if node != least)
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
