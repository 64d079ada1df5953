"""A network's files in int8, in any runtime: ranges and the parts left in float are chosen by measured damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import OptionalSteps, StepTitle
from senseapp.descriptions import DENSE_BITS
from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import FileTimes
from senseapp.prove.mixed_precision import FileJudge, QuantizedFiles, search_mixed_precision
from senseapp.prove.search_images import Amounts, fitted_and_others, in_calls_of
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
_MUCH_LOST = 0.5  # of the values of a part of a tensor
_ALL_INT8 = "All of it is in int8."
_WEIGHTS_ONLY = "Weights are stored in 8 bits, and all of it is computed in float."
_HELD_OUT = 8  # images that files are tested on, beside which calibration images are checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Another file of the same search: all of it in int8, or computed in float with weights in 8 bits.

    Attributes:
        name: which of them it is, for the name of its file.
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
    """The files by name, the nodes of "file" in float, and sentences on how it was made.

    Attributes:
        own_setting: of the runtime's own quantizer for "default"; empty where there is none.
        variants: further files to choose from, other than "file"; none where one way of computing was asked for.
    """

    files: dict[str, bytes]
    in_float: tuple[str, ...]
    notes: tuple[str, ...]
    own_setting: str = ""
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The file that was asked for.

    Attributes:
        in_float: its nodes in float.
        damages: by node, of a file in which this node alone is in int8.
        notes: sentences on the search.
        reasons: sentences on what int8 harms.
        is_quantizers: whether it is a file of the fitted quantizer, and not float or the runtime's own.
    """

    content: bytes
    in_float: tuple[str, ...] = ()
    damages: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    is_quantizers: bool = False


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
        variants: whether further files to choose from are made.
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
        variants: bool = True,
        integers: Mapping[str, IntegerWeight] | None = None,
    ) -> None:
        self._integers = integers or {}
        self._makes_variants = variants and settings.kind != "int8"
        self._evaluator, self._runtime, self._content, self._bits = evaluator, runtime, content, bits
        self._settings, self._steps = settings, steps
        self._by_answers = settings.kind == "quickest"
        self._network = runtime.open(content)
        steps.start(_SECONDS)
        self._amounts = Amounts.of(self._network, evaluator)
        images = fitted_and_others(evaluator, fitted=self._amounts.fitted, judging=self._amounts.judging)
        self._fitted, self._others = (in_calls_of(self._network, evaluator, each) for each in images)
        self._judge = FileJudge(evaluator, runtime, self._network, self._fitted, self._others, self._amounts)
        self._timing: dict[bytes, FileTimes] = {}  # by reference

    @property
    def judging(self) -> list[Tensor]:
        """The images that choose ranges and nodes, in batches."""
        return self._others

    def found(self, files: Mapping[str, bytes], layers: Mapping[str, str]) -> Int8Files:
        """Return ``files`` with those in int8; ``layers`` are those of nodes, whose bits say which stay in float.

        Ranges, weights and biases are fitted; where int8 is quicker at all, the runtime's own quantizer is tried and
        the nodes in float are searched for; then the file that does less harm is taken, if it keeps to its limits.
        """
        steps, fitting = self._steps, self._fitting(layers)
        kept = [node for node, layer in layers.items() if self._bits and self._bits.get(layer, DENSE_BITS) > INT8_BITS]
        steps.progress.begin(StepTitle.INT8)
        quantizer = self._runtime.fitted_quantizer(self._content, fitting)
        made = {"int8": quantizer.finished(quantizer.write())}
        own: DefaultInt8 | None = None
        choice = _Choice(content=self._content)
        if self._may_be_quicker(made["int8"]):
            steps.progress.begin(StepTitle.OWN)
            with steps.trying(self._runtime.description.own_quantizer):
                own = self._runtime.default_int8(self._content, fitting)
            steps.progress.begin(StepTitle.PARTS)
            choice = self._chosen(quantizer, kept, own)
        variants = tuple[Variant, ...]()
        if self._makes_variants:
            with steps.trying("further files to choose from"):
                variants = self._variants(quantizer, kept)
        if choice.is_quantizers:
            with steps.trying("the causes of what int8 harms"):
                choice = replace(choice, reasons=self._reasons(quantizer, choice))
        if own is not None:
            made["default"] = own.content
        notes = (*choice.notes, *self._amounts.notes, *self._notes(choice, quantizer.notes, own))
        made["file"] = choice.content
        return Int8Files(
            files={**files, **{name: self._placed(each) for name, each in made.items()}},
            in_float=choice.in_float,
            notes=notes,
            own_setting=own.setting if own is not None else "",
            variants=self._delivered(variants, choice.content, quantizer.notes),
        )

    def _fitting(self, layers: Mapping[str, str]) -> Fitting:
        """Return the images that the quantizer is fitted to, and what judges its files."""
        proof, judge = self._evaluator.images.proof, self._judge.judge
        return Fitting(
            batches=self._fitted,
            damage_of=lambda candidate: judge.judged(candidate).damage,
            damages_of=lambda candidate: judge.judged(candidate).damages(_PARTS),
            reduce_range=self._settings.reduce_range,
            held_out=in_calls_of(self._network, self._evaluator, proof.subset(range(min(_HELD_OUT, len(proof))))),
            integers={node: self._integers[layer] for node, layer in layers.items() if layer in self._integers},
            steps=self._steps,
        )

    def _may_be_quicker(self, all_int8: bytes) -> bool:
        """Return False where a file must be quicker than float, and all of it in int8 is clearly not."""
        if not self._by_answers:
            return True
        self._steps.progress("Timing the network in float and in int8")
        return self._times(self._content).measure_precise(self._placed(all_int8)).low < 1

    def _chosen(self, quantizer: Quantizer, kept: Sequence[str], own: DefaultInt8 | None) -> _Choice:
        """Return the file that was asked for: of the search, or of the runtime's own quantizer if that does less harm.

        Where it must be quicker than float and change few answers and does not, the float file.
        """
        choice = _Choice(content=quantizer.finished(quantizer.write(but=kept)), is_quantizers=True)
        if self._settings.kind != "int8":
            with self._steps.trying("the search for parts that int8 harms"):
                choice = self._mixed(quantizer, kept)
        ours = choice.content
        if own and not kept and self._judge.judged(own.content).damage < self._judge.judged(ours).damage:
            choice = replace(choice, content=own.content, in_float=(), is_quantizers=False)
        if self._by_answers and not self._pays(choice.content):
            return _Choice(content=self._content)
        return choice

    def _mixed(self, quantizer: Quantizer, kept: Sequence[str]) -> _Choice:
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
            network=self._content,
            runtime=self._runtime,
            judge=self._judge,
            times=times,
            most_time=most_time,
            settings=self._settings,
        )
        found = search_mixed_precision(files, self._steps)
        content, late = files.content(found.in_float), tuple[str, ...]()
        if self._settings.kind == "mixed" and content != all_int8:
            self._steps.progress("Timing the file again")
            late = (_OFTEN_LONGER,) if times.measure_precise(self._placed(content)).high > most_time else ()
        notes = (*late, *found.notes)
        return _Choice(content=content, in_float=found.in_float, damages=found.damages, notes=notes, is_quantizers=True)

    def _variants(self, quantizer: Quantizer, kept: Sequence[str]) -> tuple[Variant, ...]:
        """Return files beside the one that was asked for: all of it in int8, and weights alone in 8 bits."""
        all_int8 = quantizer.finished(quantizer.write(but=kept))
        every = tuple(quantizer.nodes(all_int8))
        return (
            Variant(name="all", content=all_int8, notes=(_ALL_INT8,)),
            Variant(
                name="weights",
                content=quantizer.write(but=kept, weights_only=every),
                in_float=every,
                notes=(_WEIGHTS_ONLY,),
                computes_in_float=True,
            ),
        )

    def _delivered(
        self, variants: Sequence[Variant], file: bytes, of_quantizer: tuple[str, ...]
    ) -> tuple[Variant, ...]:
        """Return variants as they are delivered, with notes, without those that another file equals."""
        known, note = {file, self._content}, self._runtime.int8_note
        found = []
        for each in variants:
            if each.content not in known:
                known.add(each.content)
                computed = (note,) if note and not each.computes_in_float else ()
                notes = (*each.notes, *of_quantizer, *computed)
                found.append(replace(each, content=self._placed(each.content), notes=notes))
        return tuple(found)

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
        part = self._others[0]
        return part if self._network.fixed_batch else part[:1].expand(self._settings.batch, *part.shape[1:])

    def _pays(self, content: bytes) -> bool:
        """Return whether a file changes as few answers as allowed and is quicker than the float file.

        The search accepts all of it in int8 where that changes few enough, and the runtime's own file by its damage:
        neither was timed against float.
        """
        changed = self._judge.judged(content).share_changed
        return changed <= self._settings.most_changed and self._times(self._content).is_within(
            self._placed(content), 1.0
        )

    def _notes(self, choice: _Choice, of_quantizer: tuple[str, ...], own: DefaultInt8 | None) -> tuple[str, ...]:
        """Return sentences on how the file was made, and what it is compared with."""
        bits, note = self._bits, self._runtime.int8_note
        rounded = bits and min(bits.values()) < INT8_BITS
        is_own = own is not None and choice.content == own.content
        whose = self._runtime.description.own_quantizer
        return (
            *((f"Weights of fewer than {INT8_BITS} bits are stored in {INT8_BITS}.",) if rounded else ()),
            *((_NOT_QUICKER,) if self._by_answers and choice.content == self._content else ()),
            *((f"This file is that of {whose}, which did less harm on the images that choose.",) if is_own else ()),
            *((*of_quantizer, *choice.reasons, *((note,) if note else ())) if choice.is_quantizers else ()),
            *(own.notes if own is not None else ()),
        )

    def _reasons(self, quantizer: Quantizer, choice: _Choice) -> tuple[str, ...]:
        """Return why int8 harms the parts in float, with what that gains alone; else the worst of all parts."""
        if not choice.in_float:
            worst = quantizer.causes()[:_REASONS]
            return tuple(f"All in int8: {cause.sentence}" for cause in worst if cause.lost > _MUCH_LOST)
        metric = METRICS[self._judge.judge.divergence]
        reasons = [
            f"{cause.sentence} Alone in int8, it does {metric.change_text(choice.damages[cause.node])} of damage."
            for cause in quantizer.causes(choice.in_float)[:_REASONS]
            if choice.damages.get(cause.node, 0) > 0
        ]
        return (*reasons, *((self._runtime.remedy_note,) if reasons and self._runtime.remedy_note else ()))
