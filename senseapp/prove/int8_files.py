"""A network's files in int8, in any runtime: ranges and the parts left in float are chosen by measured damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import OptionalSteps, StepTitle
from senseapp.descriptions import DENSE_BITS
from senseapp.descriptions.levels import BitScale
from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import FileTimes
from senseapp.prove.float_nodes import Mixed, mixed
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.search_images import Amounts, fitted_and_others, half_of_each, in_calls_of
from senseapp.records.deployment import INT8_BITS, DeploySettings
from senseapp.runtimes.base import Runtime, RuntimeNetwork
from senseapp.runtimes.quantizers import Fitting, OwnInt8, Quantizer
from senseapp.solve.node_precisions import NodeTimes

ROUNDING_BITS = BitScale(noun="rounding", axis="Bits")
"""Levels of nodes: in int8, or as they are."""
_SECONDS = 240.0  # of all that is fitted and tried, and again of the choice of parts in float
_PARTS = 8  # of the images that judge: whether a gain is one on all of them
_INT8 = ("file", "int8", "default")
_NOT_QUICKER = "No file with int8 that is quicker than float changes as few answers: this one is all in float."
_OFTEN_LONGER = (
    "Timed again, the file took longer than was allowed at some times: this machine is busy, or its times vary. Make "
    "the file again on a quiet machine."
)
_REASONS = 3  # sentences beside a file
_MUCH_LOST = 0.5  # of the values of a part of a tensor
_ALL_INT8 = "All of it is in int8."
_WEIGHTS_ONLY = "Weights are stored in 8 bits, and all of it is computed in float."
_UNSEEN = 0.01  # of what is notable: less damage than that is not worth a layer in float


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
        self._judge = _judge_of(evaluator, self._others, self._network)
        self._last: tuple[bytes, Judgement | None] = b"", None
        self._timing: dict[bytes, FileTimes] = {}  # by reference
        self._node_times: NodeTimes | None = None
        self._most = settings.most_time  # times all-int8's, that the file may take

    @property
    def judging(self) -> list[Tensor]:
        """The images that choose ranges and nodes, in batches."""
        return self._others

    def found(self, files: Mapping[str, bytes], layers: Mapping[str, str]) -> Int8Files:
        """Return ``files`` with those in int8; ``layers`` are those of nodes, whose bits say which stay in float."""
        runtime, settings, steps, network = self._runtime, self._settings, self._steps, self._content
        beyond = [node for node, layer in layers.items() if self._bits.get(layer, DENSE_BITS) > INT8_BITS]
        kept = beyond if self._bits else []
        fitting = Fitting(
            batches=self._fitted,
            damage_of=lambda candidate: self._judge.judged(candidate).damage,
            damages_of=lambda candidate: self._judge.judged(candidate).damages(_PARTS),
            reduce_range=settings.reduce_range,
            held_out=self._held_out,
            integers={node: self._integers[layer] for node, layer in layers.items() if layer in self._integers},
            steps=steps,
        )
        steps.progress.begin(StepTitle.INT8)
        with runtime.fitted_quantizer(network, fitting) as quantizer:
            all_int8 = quantizer.finished(quantizer.write())
            found = Mixed(content=quantizer.finished(quantizer.write(but=kept)), gain={})
            own: OwnInt8 | None = None
            steps.progress.begin(StepTitle.OWN)
            with steps.trying(runtime.description.own_quantizer):
                own = runtime.own_int8(network, fitting)
            steps.progress.begin(StepTitle.PARTS)
            if settings.kind != "int8":
                with steps.trying("the search for parts that int8 harms"):
                    found = self._mixed(files["original"], quantizer, kept)
            others = tuple[Variant, ...]()
            if self._makes_variants:
                with steps.trying("further files to choose from"):
                    others = self._variants(quantizer, kept)
            reasons = tuple[str, ...]()
            with steps.trying("the causes of what int8 harms"):
                reasons = self._reasons(quantizer, found)
        made = {**files, "int8": all_int8}
        if own is not None:
            if self._damage_of(own.content) < self._damage_of(found.content) and not kept:
                found = replace(found, content=own.content, in_float=())
            made["default"] = own.content
        late = tuple[str, ...]()
        if settings.kind == "mixed" and found.content != all_int8:
            steps.progress("Timing the file again")
            if self._times(all_int8).anew(self._placed(found.content)).high > self._most:
                late = (_OFTEN_LONGER,)
        if self._by_answers and not self._pays(found.content):
            found = Mixed(content=network, gain={})  # float changes none, and takes no longer
        late = (*late, *found.notes, *self._amounts.notes)
        is_ours = found.content not in (network, made.get("default"))
        notes = (*late, *self._notes(found.content, (*quantizer.notes, *reasons) if is_ours else (), own))
        made = {**made, "file": found.content}
        files = {name: runtime.in_place(network, made[name]) if name in _INT8 else made[name] for name in made}
        setting = own.setting if own is not None else ""
        known = {files["file"], network}
        variants = []
        for each in others:
            content = runtime.in_place(network, each.content)
            if content not in known:
                known.add(content)
                computed = (runtime.int8_note,) if runtime.int8_note and not each.computes_in_float else ()
                variants.append(replace(each, content=content, notes=(*each.notes, *quantizer.notes, *computed)))
        return Int8Files(
            files=files, in_float=found.in_float, notes=notes, own_setting=setting, variants=tuple(variants)
        )

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

    @cached_property
    def _held_out(self) -> list[Tensor]:
        """A few of the images that files are tested on."""
        proof = self._evaluator.images.proof
        return in_calls_of(self._network, self._evaluator, proof.subset(range(min(8, len(proof)))))

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
        changed = self._judged(content).share_changed
        return changed <= self._settings.most_changed and self._times(self._content).is_within(
            self._placed(content), 1.0
        )

    def _notes(self, content: bytes, of_quantizer: tuple[str, ...], own: OwnInt8 | None) -> tuple[str, ...]:
        """Return sentences on how the file was made, and what it is compared with."""
        bits, note = self._bits, self._runtime.int8_note
        rounded = bits and min(bits.values()) < INT8_BITS
        is_own = own is not None and content == own.content
        is_float = content == self._content
        whose = self._runtime.description.own_quantizer
        return (
            *((f"Weights of fewer than {INT8_BITS} bits are stored in {INT8_BITS}.",) if rounded else ()),
            *((_NOT_QUICKER,) if self._by_answers and is_float else ()),
            *((f"This file is that of {whose}, which did less harm on the images that choose.",) if is_own else ()),
            *(() if is_own or is_float else (*of_quantizer, *((note,) if note else ()))),
            *(own.notes if own is not None else ()),
        )

    def _reasons(self, quantizer: Quantizer, found: Mixed) -> tuple[str, ...]:
        """Return why int8 harms the parts in float, with what that gains alone; else the worst of all parts."""
        if not found.in_float:
            worst = quantizer.causes()[:_REASONS]
            return tuple(f"All in int8: {cause.sentence}" for cause in worst if cause.lost > _MUCH_LOST)
        metric = METRICS[self._judge.divergence]
        reasons = [
            f"{cause.sentence} Alone in int8, it does {metric.change_text(found.gain[cause.node])} of damage."
            for cause in quantizer.causes(found.in_float)[:_REASONS]
            if found.gain.get(cause.node, 0) > 0
        ]
        return (*reasons, *((self._runtime.remedy_note,) if reasons and self._runtime.remedy_note else ()))

    def _mixed(self, original: bytes, quantizer: Quantizer, kept: Sequence[str]) -> Mixed:
        """Return the file of ``quantizer`` with those parts in float that int8 harms, as far as settings allow."""
        settings, all_int8 = self._settings, quantizer.finished(quantizer.write())
        times = self._times(original if self._by_answers else self._placed(all_int8))
        self._most = most_time = 1.0 if self._by_answers else self._most_time(all_int8)

        def is_enough(content: bytes, damage: float) -> bool:
            if self._by_answers:
                return self._judged(quantizer.finished(content)).share_changed <= settings.most_changed
            return damage <= _UNSEEN * METRICS[self._judge.divergence].notable

        found = mixed(
            quantizer,
            always_float=kept,
            screen=self._typical_damage_of,
            damage_of=lambda content: self._damage_of(quantizer.finished(content)),
            seconds_of=self._seconds(quantizer, all_int8),
            time_of=lambda content: times.seems(self._placed(content)) / most_time,
            is_enough=is_enough,
            holds_time=lambda content: times.is_within(self._placed(content), most_time),
            progress=self._steps.progress,
            seconds=_SECONDS,
        )
        return replace(found, content=quantizer.finished(found.content))

    def _most_time(self, all_int8: bytes) -> float:
        """Return the time that a file may take, in times of all-int8: as settings allow, and no more than float's.

        Where all-int8 takes longer than float, the file may take as long as that.
        """
        float_time = self._times(self._placed(all_int8)).anew(self._content).value
        return min(self._settings.most_time, max(1.0, float_time))

    def _seconds(self, quantizer: Quantizer, int8: bytes) -> NodeTimes:
        """Return the predicted seconds of a call by the nodes in float."""
        owners = {name: name for name in quantizer.nodes(int8)}
        if self._node_times is None:
            batch, threads = self._network.fixed_batch or self._settings.batch, self._settings.threads
            found = self._runtime.time_layers(self._content, quantizer, owners, threads=threads, batch=batch)
            self._node_times = NodeTimes.of(found, owners, ROUNDING_BITS)
        return self._node_times

    @cached_property
    def _screen(self) -> Judge:
        """What judges on a few images of all."""
        few = half_of_each(self._others, self._fitted, self._amounts.screening)
        return _judge_of(self._evaluator, torch.split(few, len(self._others[0])), self._network)

    def _typical_damage_of(self, content: bytes) -> float:
        return self._screen.judged(self._runtime.open(content)).typical_damage

    def _damage_of(self, content: bytes) -> float:
        return self._judged(content).damage

    def _judged(self, content: bytes) -> Judgement:
        """Return the judgement of a file; the last one is cached, as it is needed twice."""
        known, judgement = self._last
        if judgement is None or known != content:
            judgement = self._judge.judged(self._runtime.open(content))
            self._last = content, judgement
        return judgement


def _judge_of(evaluator: ScheduleEvaluator, batches: Sequence[Tensor], network: RuntimeNetwork) -> Judge:
    """Return what compares with ``network`` on ``batches``, without labels."""
    images, outputs = JudgingImages.of_batches(batches), evaluator.profile.num_classes
    return Judge(evaluator.task, images, network, num_outputs=outputs)
