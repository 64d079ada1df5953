"""A network's files in int8, in any runtime: ranges and the parts left in float are chosen by measured damage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import OptionalSteps, StepTitle
from senseapp.descriptions import DENSE_BITS
from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import FileTimes
from senseapp.prove.judge import Judgement
from senseapp.prove.mixed_precision import MixedPrecision, QuantizedFiles, search_mixed_precision
from senseapp.prove.search_images import SearchImages
from senseapp.records.deployment import INT8_BITS, DeploySettings
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.quantizers import DefaultInt8, Fitting, Quantizer

_SECONDS = 240.0  # of all that is fitted and tried, and again of the choice of parts in float
_PARTS = 8  # of the images that judge: whether a gain is one on all of them
_NOT_QUICKER = "No file with int8 that is quicker than float changes as few answers: this one is all in float."
_OFTEN_LONGER = (
    "Timed again, the file took longer than was allowed at some times: this machine is busy, or its times vary. Make "
    "the file again on a quiet machine."
)
_REASONS = 3  # sentences beside a file
_ALL_INT8 = "All of it is in int8."
_WEIGHTS_ONLY = "Weights are stored in 8 bits, and all of it is computed in float."
_HELD_OUT = 8  # images that files are tested on, beside which calibration images are checked


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFile:
    """A file with its nodes in float.

    Attributes:
        name: which it is among the files of one search: ``file`` for the one that was asked for, ``all`` for all of it
            in int8, ``weights`` for one that is computed in float with weights in 8 bits.
        in_float: its nodes in float.
        notes: sentences on how it was made.
        computes_in_float: whether no node computes in int8.
    """

    name: str
    content: bytes
    in_float: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    computes_in_float: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Files:
    """Files of one search.

    Attributes:
        made: to choose from, the one that was asked for first.
        compared: files beside these: ``int8``, all of it, and ``default``, of the runtime's own quantizer if any.
        own_setting: of that quantizer; empty where there is none.
    """

    made: tuple[MadeFile, ...]
    compared: Mapping[str, bytes]
    own_setting: str = ""


class Int8Search:
    """Makes a network's files in int8, and looks for the parts that are better left in float.

    Args:
        evaluator: of the run, whose curves' images fit and judge.
        runtime: that files are for.
        content: the network as a float file.
        bits: by layer, of each weight on a grid; empty for weights that may be changed.
        integers: by layer, those of such weights.
        settings: which file is wanted.
        steps: are told, and take the errors of what is optional.
        others: whether further files to choose from are made.

    Attributes:
        images: that fit the files and choose among them.
    """

    def __init__(
        self,
        evaluator: ScheduleEvaluator,
        runtime: Runtime,
        content: bytes,
        bits: Mapping[str, float],
        settings: DeploySettings,
        steps: OptionalSteps,
        *,
        others: bool = True,
        integers: Mapping[str, IntegerWeight] | None = None,
    ) -> None:
        self._integers, self._makes_others = integers or {}, others and settings.kind != "int8"
        self._evaluator, self._runtime, self._content, self._bits = evaluator, runtime, content, bits
        self._settings, self._steps = settings, steps
        self._by_answers = settings.kind == "quickest"
        self._network = runtime.open(content)
        steps.start(_SECONDS)
        self.images = SearchImages(evaluator, self._network)
        self._timing: dict[bytes, FileTimes] = {}  # by reference

    def found(self, layers: Mapping[str, str]) -> Int8Files:
        """Return the files in int8; ``layers`` are those of nodes, whose bits say which stay in float.

        Ranges, weights and biases are fitted; where int8 is quicker at all, the runtime's own quantizer is tried and
        the nodes in float are searched for; then the file that does less harm is taken, if it keeps to its limits.
        """
        steps, fitting = self._steps, self._fitting(layers)
        kept = [node for node, layer in layers.items() if self._bits and self._bits.get(layer, DENSE_BITS) > INT8_BITS]
        steps.progress.begin(StepTitle.INT8)
        quantizer = self._runtime.fitted_quantizer(self._content, fitting)
        all_int8 = quantizer.finished(quantizer.write())
        own: DefaultInt8 | None = None
        file = self._in_float()
        if self._may_be_quicker(all_int8):
            steps.progress.begin(StepTitle.OWN)
            with steps.trying(self._runtime.description.own_quantizer):
                own = self._runtime.default_int8(self._content, fitting)
            steps.progress.begin(StepTitle.PARTS)
            file = self._chosen(quantizer, kept, own)
        made, known = list[MadeFile](), {self._content}
        for each in (file, *(self._further(quantizer, kept) if self._makes_others else ())):
            if not made or each.content not in known:
                known.add(each.content)
                made.append(replace(each, content=self._placed(each.content)))
        compared = {"int8": all_int8} | ({"default": own.content} if own is not None else {})
        return Int8Files(
            made=(replace(made[0], notes=(*made[0].notes, *(own.notes if own is not None else ()))), *made[1:]),
            compared={name: self._placed(each) for name, each in compared.items()},
            own_setting=own.setting if own is not None else "",
        )

    def _fitting(self, layers: Mapping[str, str]) -> Fitting:
        """Return the images that the quantizer is fitted to, and what judges its files."""
        proof, judge = self._evaluator.images.proof, self.images.judge
        return Fitting(
            batches=self.images.fitted,
            damage_of=lambda candidate: judge.judged(candidate).damage,
            damages_of=lambda candidate: judge.judged(candidate).damages(_PARTS),
            reduce_range=self._settings.reduce_range,
            held_out=self.images.in_calls(proof.subset(range(min(_HELD_OUT, len(proof))))),
            integers={node: self._integers[layer] for node, layer in layers.items() if layer in self._integers},
            steps=self._steps,
        )

    def _in_float(self) -> MadeFile:
        notes = ((_NOT_QUICKER,) if self._by_answers else ()) + self.images.notes
        return MadeFile(name="file", content=self._content, notes=notes, computes_in_float=True)

    def _may_be_quicker(self, all_int8: bytes) -> bool:
        """Return False where a file must be quicker than float, and all of it in int8 is clearly not."""
        if not self._by_answers:
            return True
        self._steps.progress("Timing the network in float and in int8")
        return self._times(self._content).measure_precise(self._placed(all_int8)).low < 1

    def _chosen(self, quantizer: Quantizer, kept: Sequence[str], own: DefaultInt8 | None) -> MadeFile:
        """Return the file that was asked for: of the search, or of the runtime's own quantizer if that does less harm.

        Where it must be quicker than float and change few answers and does not, the float file.
        """
        rounded = self._bits and min(self._bits.values()) < INT8_BITS
        stored = (f"Weights of fewer than {INT8_BITS} bits are stored in {INT8_BITS}.",) if rounded else ()
        content, found = quantizer.finished(quantizer.write(but=kept)), MixedPrecision()
        if self._settings.kind != "int8":
            with self._steps.trying("the search for parts that int8 harms"):
                content, found = self._mixed(quantizer, kept)
        notes = (*found.notes, *self.images.notes, *stored)
        if own and not kept and self._judged(own.content).damage < self._judged(content).damage:
            title = self._runtime.description.own_quantizer
            notes = (*notes, f"This file is that of {title}, which did less harm on the images that choose.")
            file = MadeFile(name="file", content=own.content, notes=notes)
        else:
            reasons = tuple[str, ...]()
            with self._steps.trying("the causes of what int8 harms"):
                reasons = self._reasons(quantizer, found)
            notes = (*notes, *quantizer.notes, *reasons, *filter(None, [self._runtime.int8_note]))
            file = MadeFile(name="file", content=content, in_float=found.in_float, notes=notes)
        return file if not self._by_answers or self._pays(file.content) else self._in_float()

    def _mixed(self, quantizer: Quantizer, kept: Sequence[str]) -> tuple[bytes, MixedPrecision]:
        """Return the file of ``quantizer`` with those parts in float that int8 harms, as far as settings allow."""
        all_int8 = quantizer.finished(quantizer.write())
        times, most_time = self._times(self._content), 1.0
        if not self._by_answers:
            times = self._times(self._placed(all_int8))
            # No more than float's time; where all-int8 takes longer than float, the file may take as long as that.
            most_time = min(self._settings.most_time, max(1.0, times.measure_precise(self._content).value))
        self._steps.start(_SECONDS)
        files = QuantizedFiles(
            quantizer,
            kept,
            runtime=self._runtime,
            images=self.images,
            times=times,
            most_time=most_time,
            settings=self._settings,
        )
        found = search_mixed_precision(files, self._steps)
        content = files.content(found.in_float)
        if self._settings.kind == "mixed" and content != all_int8:
            self._steps.progress("Timing the file again")
            if times.measure_precise(self._placed(content)).high > most_time:
                found = replace(found, notes=(_OFTEN_LONGER, *found.notes))
        return content, found

    def _further(self, quantizer: Quantizer, kept: Sequence[str]) -> Iterator[MadeFile]:
        """Yield files beside the one that was asked for: all of it in int8, and weights alone in 8 bits."""
        with self._steps.trying("further files to choose from"):
            all_int8 = quantizer.finished(quantizer.write(but=kept))
            every = tuple(quantizer.nodes(all_int8))
            computed = tuple(filter(None, [self._runtime.int8_note]))
            yield MadeFile(name="all", content=all_int8, notes=(_ALL_INT8, *quantizer.notes, *computed))
            yield MadeFile(
                name="weights",
                content=quantizer.write(but=kept, weights_only=every),
                in_float=every,
                notes=(_WEIGHTS_ONLY, *quantizer.notes),
                computes_in_float=True,
            )

    def _judged(self, content: bytes) -> Judgement:
        return self.images.judge.judged(self._runtime.open(content))

    def _times(self, reference: bytes) -> FileTimes:
        """Return the times of files beside ``reference``; always the same, as it remembers calm moments."""
        known = self._timing.get(reference)
        if known is None:
            known = FileTimes(self._runtime, reference, self._call, threads=self._settings.threads)
            self._timing[reference] = known
        return known

    def _placed(self, content: bytes) -> bytes:
        """Return an int8 file as it is delivered, and a float one as it is."""
        return content if content == self._content else self._runtime.in_place(self._content, content)

    @cached_property
    def _call(self) -> Tensor:
        """The images of one call, as times are taken."""
        part = self.images.judging[0]
        return part if self._network.fixed_batch else part[:1].expand(self._settings.batch, *part.shape[1:])

    def _pays(self, content: bytes) -> bool:
        """Return whether a file changes as few answers as allowed and is quicker than the float file.

        The search accepts all of it in int8 where that changes few enough, and the runtime's own file by its damage:
        neither was timed against float.
        """
        changed = self._judged(content).share_changed
        return changed <= self._settings.most_changed and self._times(self._content).is_within(
            self._placed(content), 1.0
        )

    def _reasons(self, quantizer: Quantizer, found: MixedPrecision) -> tuple[str, ...]:
        """Return why int8 harms the parts in float, with what that gains alone; else the worst of all parts."""
        if not found.in_float:
            worst = quantizer.causes()[:_REASONS]
            return tuple(f"All in int8: {cause.sentence}" for cause in worst if cause.lost > 0.5)
        metric = METRICS[self.images.judge.divergence]
        reasons = [
            f"{cause.sentence} Alone in int8, it does {metric.change_text(found.damages[cause.node])} of damage."
            for cause in quantizer.causes(found.in_float)[:_REASONS]
            if found.damages.get(cause.node, 0) > 0
        ]
        return (*reasons, *((self._runtime.remedy_note,) if reasons and self._runtime.remedy_note else ()))
