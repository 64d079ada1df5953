"""How far the outputs of a file that runs are from those of the network that it was made from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from senseapp.core.errors import InvalidSpec
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.metrics import METRICS, MetricChange, change_of, divergence_among
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel


class FileJudge:
    """Tells how far the outputs of files are from those of ``network`` on ``images``.

    Attributes:
        metric: the one that tells most.
    """

    def __init__(
        self,
        evaluator: ScheduleEvaluator,
        network: bytes,
        images: Sequence[Tensor],
        *,
        simulated: bool = False,
    ) -> None:
        names = evaluator.dense.task.metrics(has_labels=False, num_outputs=evaluator.profile.num_classes)
        self.images, self._simulated = images, simulated
        self._task = evaluator.dense.task
        self._baseline = BaselineOutputs(self._task.output(RuntimeModel(network).outputs(images)), None, names)
        self.metric = divergence_among(names) or names[0]
        self._share = next((name for name in names if METRICS[name].is_share), None)
        self._last = b"", torch.empty(0)

    def share_changed(self, content: bytes) -> float:
        """Return the share of answers that differ.

        Raises:
            InvalidSpec: outputs are no answers that differ or not.
        """
        if self._share is None:
            raise InvalidSpec("A limit on changed answers is for networks that choose one of several: limit the time.")
        outputs = self._outputs(content)
        return change_of(self._share, self._baseline.moments_of(self._share, outputs, 0, len(outputs))).delta

    def _outputs(self, content: bytes) -> Tensor:
        if self._last[0] != content:
            opened = RuntimeModel(content, simulated=self._simulated)
            self._last = content, self._task.output(opened.outputs(self.images))
        return self._last[1]

    def change_of(self, content: bytes) -> MetricChange:
        """Return the change of :attr:`metric`."""
        outputs = self._outputs(content)
        return change_of(self.metric, self._baseline.moments_of(self.metric, outputs, 0, len(outputs)))

    def damage_of(self, content: bytes) -> float:
        """Return the change of :attr:`metric` as a number; infinite where it is none."""
        delta = self.change_of(content).delta
        return delta if delta == delta else float("inf")
