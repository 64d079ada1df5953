"""Files of a quantizer by their nodes in float, as the search for these judges and times them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from senseapp.descriptions.levels import BitScale
from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import FileTimes
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.mixed_precision import Group, MixedFiles
from senseapp.prove.search_images import Amounts, half_of_each
from senseapp.records.deployment import DeploySettings
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.foreign import RuntimeNetwork
from senseapp.runtimes.quantizers import Quantizer
from senseapp.solve.node_precisions import NodeTimes

ROUNDING_BITS = BitScale(noun="rounding", axis="Bits")
"""Levels of nodes: in int8, or as they are."""
_UNSEEN = 0.01  # of what is notable: less damage than that is not worth a layer in float


class FileJudge:
    """Compares files with the float network, on the images that choose, or on few images of all.

    Args:
        evaluator: of the run.
        runtime: that opens the files.
        network: the open float file.
        fitted: batches (N, C, H, W) that files are fitted to.
        others: batches that choose.
        amounts: how many images screen.
    """

    def __init__(
        self,
        evaluator: ScheduleEvaluator,
        runtime: Runtime,
        network: RuntimeNetwork,
        fitted: Sequence[Tensor],
        others: Sequence[Tensor],
        amounts: Amounts,
    ) -> None:
        self._evaluator, self._runtime, self._network = evaluator, runtime, network
        self._fitted, self._others, self._amounts = fitted, others, amounts
        self.judge = self._judge_of(others)
        self._last: tuple[bytes, Judgement | None] = b"", None

    def judged(self, content: bytes) -> Judgement:
        """Return the judgement of a file; the last one is cached, as it is needed twice."""
        known, judgement = self._last
        if judgement is None or known != content:
            judgement = self.judge.judged(self._runtime.open(content))
            self._last = content, judgement
        return judgement

    def rough_damage(self, content: bytes) -> float:
        """Return the typical damage of a file on few images."""
        return self._screen.judged(self._runtime.open(content)).typical_damage

    @cached_property
    def _screen(self) -> Judge:
        few = half_of_each(self._others, self._fitted, self._amounts.screening)
        return self._judge_of(torch.split(few, len(self._others[0])))

    def _judge_of(self, batches: Sequence[Tensor]) -> Judge:
        """Return what compares with the network on ``batches``, without labels."""
        images, outputs = JudgingImages.of_batches(batches), self._evaluator.profile.num_classes
        return Judge(self._evaluator.task, images, self._network, num_outputs=outputs)


class QuantizedFiles(MixedFiles):
    """Files of ``quantizer``; the nodes ``kept`` are in float in all of them.

    Args:
        quantizer: of the network.
        kept: names of nodes.
        network: the float file.
        runtime: that times files.
        judge: what judges them.
        times: of files beside a reference.
        most_time: that a file may take, as a multiple of the reference's time.
        settings: what is good enough, and how times are taken.
    """

    def __init__(
        self,
        quantizer: Quantizer,
        kept: Sequence[str],
        *,
        network: bytes,
        runtime: Runtime,
        judge: FileJudge,
        times: FileTimes,
        most_time: float,
        settings: DeploySettings,
    ) -> None:
        self._quantizer, self._kept, self._network = quantizer, kept, network
        self._runtime, self._judge = runtime, judge
        self._times, self._most_time, self._settings = times, most_time, settings
        self._damages: dict[tuple[Group, Group], float] = {}
        self.nodes = tuple(quantizer.nodes(self._written()))
        batch = runtime.open(network).fixed_batch or settings.batch
        every = {name: name for name in quantizer.nodes(quantizer.write())}
        layer_times = runtime.time_layers(network, quantizer, every, threads=settings.threads, batch=batch)
        self.seconds = NodeTimes.of(layer_times, every, ROUNDING_BITS)

    def _written(self, in_float: Group = (), float_weights: Group = ()) -> bytes:
        rest = [node for node in in_float if node not in float_weights]
        return self._quantizer.write(but=[*self._kept, *float_weights], weights_only=rest)

    def content(self, in_float: Group = (), float_weights: Group = ()) -> bytes:
        """Return a file as it is delivered."""
        return self._quantizer.finished(self._written(in_float, float_weights))

    def num_bytes(self, in_float: Group, float_weights: Group = ()) -> int:
        """Return the size of a file."""
        return len(self._written(in_float, float_weights))

    def damage(self, in_float: Group, float_weights: Group = ()) -> float:
        """Return the damage of a file on the images that choose."""
        key = in_float, float_weights
        if key not in self._damages:
            self._damages[key] = self._judge.judged(self.content(*key)).damage
        return self._damages[key]

    def rough_damage(self, in_float: Group) -> float:
        """Return the damage of a file on few images."""
        return self._judge.rough_damage(self.content(in_float))

    def damage_alone(self, in_int8: Group) -> float:
        """Return the damage on few images of the file with only these nodes in int8."""
        others = (node for node in self.nodes if node not in in_int8)
        return self._judge.rough_damage(self._quantizer.write(but=[*self._kept, *others]))

    def is_enough(self, in_float: Group) -> bool:
        """Return whether a file changes as few answers as allowed, or loses next to nothing."""
        if self._settings.kind == "quickest":
            return self._judge.judged(self.content(in_float)).share_changed <= self._settings.most_changed
        return self.damage(in_float) <= _UNSEEN * METRICS[self._judge.judge.divergence].notable

    def rough_time(self, in_float: Group) -> float:
        """Return the time of a file as a multiple of what is allowed, by one timing."""
        return self._times.measure_rough(self._placed(in_float)) / self._most_time

    def keeps_time(self, in_float: Group) -> bool:
        """Return whether a precise timing finds a file quick enough."""
        return self._times.is_within(self._placed(in_float), self._most_time)

    def _placed(self, in_float: Group) -> bytes:
        return self._runtime.in_place(self._network, self._written(in_float))
