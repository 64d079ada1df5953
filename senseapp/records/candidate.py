"""Candidates: files that can be delivered, each with the figures measured of that very file.

A candidate is one compressed network in one form. Pages, reports and the command line show figures of candidates only;
anything else is marked as predicted. :mod:`senseapp.prove.decision` chooses among them.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal, Self

from senseapp.core.errors import InvalidSpec, check_choice
from senseapp.core.registry import grouped
from senseapp.core.texts import bytes_size, plural
from senseapp.descriptions import Effect, get
from senseapp.descriptions.runtimes import RuntimeDescription, runtime_words, usual_runtime
from senseapp.metrics import METRICS, MetricChange, judging_among
from senseapp.records.deployment import CHECKPOINT, INT8_BITS, INTEGERS, SPARSE, WHILE_BUSY, Deployment, RuntimeFigures
from senseapp.records.measurement import change_in
from senseapp.records.promise import CONFIDENCE, bound_text, images_text
from senseapp.records.schedule import Delivered, Schedule
from senseapp.records.spec import ModelSpec

Form = Literal["weights", "small", "onnx", "int8", "mixed"]
"""PyTorch weights as float32, the same with zeros or integers packed; a runtime's file in float, int8, or in both."""

_WIDEST = 1 - CONFIDENCE
"""Error of the first of :attr:`Candidate.bounds`."""
MOST_BOUNDS = 12  # each with half the error of the one before: enough for 2,048 alternatives (Bonferroni)
SAME_BYTES = 0.05
"""Relative difference of sizes that decides nothing."""
SAME_TIME = 0.03
"""Relative difference of median times that repeated measurements on one machine do not tell apart."""


_FILE_NAME = re.compile(r"(compressed|deployed)-[0-9a-f]{16}(?P<suffix>(\.[a-z0-9_]{1,16}){1,3})")
_WEIGHTS_SUFFIXES = (CHECKPOINT.suffix, SPARSE.suffix, INTEGERS.suffix)


FORMS: dict[Form, str] = {
    "weights": "PyTorch weights",
    "small": "compact PyTorch weights",
    "onnx": "{}",
    "int8": "{} in 8-bit numbers",
    "mixed": "{}, partly in 8-bit numbers",
}
"""Name of each form for display, with ``{}`` for that of the runtime's files."""
RUNNING: tuple[Form, ...] = ("onnx", "int8", "mixed")
"""Forms that a runtime runs as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One file of a compressed network, and what was measured of it.

    Attributes:
        file: its name in the run's folder.
        schedule: carried out in it, as it was proven; None for the original weights.
        reconstruction: how its weights were made; empty without a schedule.
        figures: of this file. Changes are against the original network in the same runtime, on :attr:`images` images.
        original: the same of the original network, of the form a person would use without senseapp.
        held_out: whether no part of the file was fitted to or chosen by these images.
        deployment: further evidence on a file for a runtime; None for PyTorch weights.
        tried: how many alternatives, this one included, held-out images compared while it was made.
        bounds: of the loss, for errors of 5 %, half of it, a quarter, …, where a bound takes a bootstrap; else empty.
    """

    file: str
    form: Form
    schedule: Schedule | None
    reconstruction: Delivered
    figures: RuntimeFigures
    original: RuntimeFigures
    held_out: bool
    deployment: Deployment | None = None
    notes: tuple[str, ...] = ()
    tried: int = 1
    bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.tried < 1 or len(self.bounds) > MOST_BOUNDS:
            raise InvalidSpec(f"A file is one of at least 1 alternative and has at most {MOST_BOUNDS} bounds.")
        check_choice("The form of a file is", self.form, FORMS)
        named, own = _FILE_NAME.fullmatch(self.file), self.runtime.suffix
        if named is None or (own and named["suffix"] not in (*_WEIGHTS_SUFFIXES, own)):
            raise InvalidSpec("The file of a candidate has no name that a run gives its files.")

    @property
    def suffix(self) -> str:
        """Of its file, with the dot."""
        return self.file[self.file.index(".") :]

    @property
    def runtime(self) -> RuntimeDescription:
        """The runtime that runs the file, in words; for weights the usual one."""
        return self.deployment.runtime if self.deployment is not None else runtime_words(usual_runtime())

    @property
    def title(self) -> str:
        """What kind of file it is: ``.onnx file in 8-bit numbers``, ``… by onnxruntime``."""
        figures = {} if self.deployment is None else self.deployment.figures
        own = figures.get("default")  # of the runtime's own quantizer: with its answers, it is its file
        maker = f" by {self.runtime.label}" if own is not None and own.changes == figures["file"].changes else ""
        wide = ", 16-bit activations" if self.has_wide_activations else ""
        return FORMS[self.form].format(self.runtime.file_title) + wide + maker

    @property
    def has_wide_activations(self) -> bool:
        """Whether it computes with activations of 16 bits."""
        return self.deployment is not None and self.deployment.settings.activation_bits > INT8_BITS

    @property
    def images(self) -> int:
        """How many images it was measured on."""
        return max((change.num_samples for change in self.figures.changes), default=0)

    @property
    def metric(self) -> str:
        """The metric that people judge it by: right answers where there are labels, else unchanged ones."""
        return judged_by(self.figures.changes)

    @property
    def loss(self) -> MetricChange:
        """Its change in :attr:`metric`."""
        found = change_in(self.figures.changes, self.metric)
        assert found is not None
        return found

    @property
    def opened_by(self) -> str:
        """What opens the file."""
        if self.runs:
            return self.runtime.opened_by
        if self.form == "small":
            return "PyTorch, unpacked by the lines beside the download: weights only"
        if self.schedule is not None and self.schedule.removes_channels:
            return "a network with these smaller layers: weights only, the file that runs holds that network itself"
        return "PyTorch, in a network with the same layers: weights only"

    @property
    def runs(self) -> bool:
        """Whether a runtime runs the file as it is."""
        return self.form in RUNNING

    @property
    def is_faster(self) -> bool:
        """Whether a call takes less time than the original's, beyond what chance and another opening explain."""
        ratio = self.figures.time_ratio
        return ratio.high < 1 and ratio.value <= 1 - SAME_TIME

    @property
    def is_smaller(self) -> bool:
        """Whether it has fewer bytes than the original's, by more than a difference that decides nothing."""
        return self.figures.file_bytes <= self.original.file_bytes * (1 - SAME_BYTES)

    def upper_bound(self, metric: str, error: float) -> float:
        """Return the bound of the loss on new images with the probability of ``error`` to be wrong; NaN if unknown."""
        change = change_in(self.figures.changes, metric)
        if change is None or not change.moments:
            return math.nan
        if metric == self.metric and self.bounds:
            place = max(0, math.ceil(math.log2(_WIDEST / error) - 1e-9))
            return self.bounds[place] if place < len(self.bounds) else math.inf
        return METRICS[metric].upper_bound(change.moments, 1 - error)

    def is_like(self, other: Self) -> bool:
        """Return whether another file is of the same form, schedule and size, and was measured to do the same."""
        mine, its = (
            (one.form, one.runtime.name, one.schedule, one.figures.file_bytes, one.figures.changes)
            for one in (self, other)
        )
        return mine == its

    @property
    def bound(self) -> float:
        """The upper bound of :attr:`loss` with 95 % certainty; NaN where no held-out images judged it."""
        return self.upper_bound(self.metric, _WIDEST / self.tried) if self.held_out else math.nan

    @property
    def bound_text(self) -> str:
        """``At most 4.1 % of answers change, with 95 % certainty; 3 of 200 did.``; empty where it is unknown."""
        return bound_text(self.loss, self.bound, tried=self.tried)

    @property
    def headline(self) -> str:
        """Size, time and answers in one line: ``18.8 MB → 4.7 MB · 0.55 × the time (…) · 96 of 100 answers …``."""
        return self.line(self.interval_text)

    def line(self, loss: str) -> str:
        """Return the headline with the ``loss`` as an interval, or as a bound where one is promised."""
        before, after = bytes_size(self.original.file_bytes), bytes_size(self.figures.file_bytes)
        size = f"{before} → {after}" if before != after else f"{after}, as before"
        return f"{size} · {self.time_text} · {self.answers_text} ({loss}; {self.measured_on})"

    @property
    def time_text(self) -> str:
        """``0.55 × the time (0.53 to 0.57)``, and that the machine was busy."""
        text = self.figures.time_ratio.times_text
        return text if not self.figures.busy or text.endswith(WHILE_BUSY) else f"{text}{WHILE_BUSY}"

    @property
    def answers_text(self) -> str:
        """``96 of 100 answers stay``, or of right answers before and after."""
        view, loss = METRICS[self.metric], self.loss
        if view.needs_labels and view.counted:
            return f"{_of_hundred(loss.value)} of 100 {view.counted} right, {_of_hundred(loss.baseline)} before"
        if view.counted:
            return f"{_of_hundred(loss.value)} of 100 {view.counted} {view.unchanged}"
        if view.is_share:
            return f"{view.label} {view.value_text(loss.value)}, {view.value_text(loss.baseline)} before"
        return f"{view.change_inside} {view.change_text(loss.delta)}"

    @property
    def measured_on(self) -> str:
        """``112 unseen images``."""
        unmade = self.is_original and not self.held_out
        return plural(self.images, "image") if unmade else images_text(self.images, held_out=self.held_out)

    @property
    def interval_text(self) -> str:
        """``93 to 98``: the 95 % interval of the answers."""
        view = METRICS[self.metric]
        low, high = value_interval(self.loss)
        return f"{_of_hundred(low)} to {_of_hundred(high)}" if view.is_share else view.interval_text(low, high)

    @property
    def integers_text(self) -> str:
        """What its runtime computes in integers, in one sentence; empty where that is not known."""
        found = None if self.deployment is None else self.deployment.integers
        return "" if found is None else found.sentence

    @property
    def is_original(self) -> bool:
        """Whether it is the uncompressed network itself, as its runtime's file in float."""
        kept = self.deployment is not None and self.deployment.in_float
        return self.form == "onnx" and self.schedule is None and not kept

    @property
    def made_of(self) -> str:
        """Its contents in words: ``.onnx file in 8-bit numbers``, ``PyTorch weights, zeros, layer by layer``."""
        if self.is_original:
            return f"original as {self.title}"
        parts = [] if self.schedule is None else _effects(self.schedule)
        # "2-8bit" as "2 to 8 bits a weight"
        bits = (part.replace("-", " to ").replace("bit", " bits a weight") for part in parts)
        inside = " and ".join(_INSIDE.get(part, text) for part, text in zip(parts, bits, strict=True))
        how = "" if self.schedule is None else _with_layers(inside, self.schedule)
        how += ", weights adapted" if self.reconstruction == "adapted" else ""
        kept = len(self.deployment.in_float) if self.deployment is not None else 0
        in_float = f", {plural(kept, 'part')} in full precision" if kept and self.form == "mixed" else ""
        if self.form == "onnx":  # with kept ones, a file of a search for int8 that computes nothing in int8
            in_float = ", only its weights in 8 bits" if kept else "" if "bits" in how else " in full precision"
            if not in_float and not self.is_smaller:  # stored as they were
                how += ", stored about as large as the original"
        return f"{self.title}{in_float}{how}"


def _with_layers(inside: str, schedule: Schedule) -> str:
    """Return in which layers ``inside`` is: ``, zeros, layer by layer``, ``, 8 bits a weight in 28 of 50 layers``."""
    members = [(entry.compression, layer) for entry in schedule.entries for layer in entry.members or (entry.layer,)]
    layers, changed = {layer for _, layer in members}, {layer for kind, layer in members if kind != "none"}
    if not inside or len(changed) == len(layers):
        return "".join(f", {part}" for part in (inside, "layer by layer") if part)
    return f", {inside} in {len(changed)} of {plural(len(layers), 'layer')}"


def value_interval(change: MetricChange) -> tuple[float, float]:
    """Return the 95 % interval of a metric's value from that of its drop; of one without a baseline, the latter."""
    view, ends = METRICS[change.metric], (change.ci_low, change.ci_high)
    if view.additive:
        sign = -1 if view.higher_is_better else 1
        ends = (change.value + sign * (ends[0] - change.delta), change.value + sign * (ends[1] - change.delta))
    low, high = min(ends), max(ends)
    return (max(0.0, low), min(1.0, high)) if view.is_share else (low, high)


def judged_by(changes: Iterable[MetricChange]) -> str:
    """Return the metric among ``changes`` that people judge a file by."""
    return judging_among([change.metric for change in changes])


def _of_hundred(share: float) -> str:
    """Return a share as answers of a hundred; decimals only where there are images to tell them."""
    return f"{100 * share:.1f}".removesuffix(".0")


def with_one_original(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates of one run with one size of the original: that of the file that a runtime runs, if any."""
    known = tuple(candidates)
    size = next((one.original.file_bytes for one in known if one.runs), None)
    if size is None:
        return known
    return tuple(replace(one, original=replace(one.original, file_bytes=size)) for one in known)


def own_bounds(changes: Sequence[MetricChange]) -> tuple[float, ...]:
    """Return :attr:`Candidate.bounds` of a file with these changes."""
    metric = judged_by(changes)
    change = change_in(changes, metric)
    if change is None or not METRICS[metric].resampled:
        return ()
    return tuple(METRICS[metric].upper_bound(change.moments, 1 - _WIDEST / 2**place) for place in range(MOST_BOUNDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The candidates that one piece of work made; a run's candidates are those of all its deliveries.

    Attributes:
        content_key: hash over the weights and images that files of the original weights were made from; else empty.
    """

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    content_key: str = ""


# ---- names of files that people take away: the network, then what the file really holds

_DIGITS = "digits"  # the network of the first demo, whose spec has no name
_EFFECTS = {Effect.CHANNELS: "pruned", Effect.ZEROS: "sparse"}
_FORM_NAMES = {"int8": "int8", "mixed": "partly-int8"}


def file_name(model: ModelSpec, candidate: Candidate) -> str:
    """Return the name of a downloaded file: ``digits-pruned-int8.onnx``."""
    form = "w8a16" if candidate.has_wide_activations else _FORM_NAMES.get(candidate.form, "")
    if candidate.form == "onnx" and candidate.deployment is not None and candidate.deployment.in_float:
        form = "int8-weights"  # of a search for int8 that computes nothing in int8
    return named(model, candidate.schedule, candidate.suffix, form)


def named(model: ModelSpec, schedule: Schedule | None, suffix: str, form: str = "") -> str:
    """Return the name of a file of a network with the weights of ``schedule``, or its original ones.

    >>> named(ModelSpec(), None, ".onnx", "int8")
    'digits-int8.onnx'
    """
    parts = [network_name(model), *([] if schedule is None else _effects(schedule)), form]
    return "-".join(filter(None, parts)) + suffix


def network_name(model: ModelSpec) -> str:
    """Return the name of a network as the part of a file's name.

    >>> network_name(ModelSpec(library="timm", name="resnet18.a1_in1k"))
    'resnet18-a1-in1k'
    """
    name = PurePath(model.checkpoint.replace("\\", "/")).stem or model.name or _DIGITS
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].rstrip("-") or "network"


_INSIDE = {"pruned": "fewer channels", "sparse": "zeros"}


def _effects(schedule: Schedule) -> list[str]:
    """Return what the levels of a schedule do to weights, in words, for those that do anything."""
    found = grouped(
        (entry.compression, entry.level)
        for entry in schedule.entries
        if entry.compression != "none" and entry.level != get(entry.compression).scale.untouched
    )
    parts = []
    for kind, levels in sorted(found.items(), key=lambda item: get(item[0]).order):
        ends = "-".join(f"{level:g}" for level in sorted({min(levels), max(levels)}))
        parts.append(_EFFECTS.get(get(kind).effect, f"{ends}bit"))
    return parts
