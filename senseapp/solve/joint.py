"""Joint damage of several layers, predicted from the recorded changes of outputs by each layer alone.

Each measurement records the change of the log-probabilities by one layer, image by image. Those changes add up over
layers to first order, and the divergence of their sum D(Σ cᵢ) includes all interactions, of pairs and beyond, without
a further pass. The prediction is Σ dᵢ + D(Σ cᵢ) − Σ D(cᵢ), with the measured damages dᵢ.

To second order these are the interactions of pairs that Deng et al. 2023, "CLADO", eq. 4, measure one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from senseapp.descriptions import LevelScale
from senseapp.metrics import METRICS, Metric
from senseapp.records.measurement import RunResult, Status
from senseapp.solve.curves import Choice, LayerCurve

_LEAST_IMAGES, _MOST_IMAGES = 16, 256  # halves of fewer say nothing; measure/accumulation.py records no more
_LARGEST = 20.0  # logarithm of a probability
_LEAST_DAMAGE = 1e-12  # no logarithm of zero

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The measured levels of one layer, gentlest first: strengths and damages, (P,), and changes, (P, N, K)."""

    strengths: Vector
    damages: Vector
    changes: Vector

    def change(self, strength: float, damage: float) -> Vector:
        """Return the change of outputs by a choice, (N, K).

        Between measured levels it is that of the level with the nearest damage, scaled, as damages grow quadratically.
        """
        measured = np.flatnonzero(self.strengths == strength)
        if len(measured):
            return np.asarray(self.changes[measured[0]])
        known = np.maximum(self.damages, _LEAST_DAMAGE)
        nearest = int(np.abs(np.log(known / max(damage, _LEAST_DAMAGE))).argmin())
        return np.asarray(self.changes[nearest] * (damage / known[nearest]) ** 0.5)


@dataclass(frozen=True, kw_only=True)
class JointDamage:
    """Predicts the joint damage of several layers, from outputs recorded on ``num_images``.

    ``reference`` are outputs of the uncompressed model, (N, K), which has ``num_outputs`` per image. ``layers`` are by
    first member; damages of layers without recorded outputs are added.
    """

    metric: Metric
    scale: LevelScale
    reference: Vector
    layers: Mapping[str, _Recorded]
    num_outputs: int

    @classmethod
    def of(cls, result: RunResult, metric: str, curves: Sequence[LayerCurve]) -> Self | None:
        """Return None if ``metric`` is not the recorded one, or if too few images were recorded."""
        recorded = result.recorded
        if recorded is None or recorded.metric != metric or recorded.size < 1:
            return None
        reference = _images(recorded.values, recorded.size)
        found = {
            item.key: _images(item.outputs, recorded.size)
            for item in result.shown
            if item.outputs and item.status is Status.MEASURED
        }
        num_images = min((len(changes) for changes in (reference, *found.values())), default=0)
        if num_images < _LEAST_IMAGES:
            return None
        layers = {}
        for curve in curves:
            points = [point for point in curve.points if (curve.layer, point.level) in found]
            if points:
                layers[curve.layer] = _Recorded(
                    strengths=np.array([curve.scale.strength(point.level) for point in points]),
                    damages=np.array([point.damage for point in points]),
                    changes=np.stack([found[curve.layer, point.level][:num_images] for point in points]),
                )
        return cls(
            metric=METRICS[metric],
            scale=result.compression.scale,
            reference=reference[:num_images],
            layers=layers,
            num_outputs=result.profile.num_classes,
        )

    @property
    def num_images(self) -> int:
        """Number of images with recorded outputs."""
        return len(self.reference)

    def damage(self, chosen: Mapping[str, Choice]) -> float:
        """Return the joint damage of one choice per layer."""
        return max(0.0, _alone(chosen) + float(self._beyond(chosen).mean()))

    def halves(self, chosen: Mapping[str, Choice]) -> tuple[float, float]:
        """Return :meth:`damage` with the interactions of the even images, and with those of the odd ones."""
        alone, beyond = _alone(chosen), self._beyond(chosen)
        return alone + float(beyond[::2].mean()), alone + float(beyond[1::2].mean())

    def _beyond(self, chosen: Mapping[str, Choice]) -> Vector:
        """Return the joint damage of choices beyond the sum of their damages, by image, (N,)."""
        changes = [change for layer, choice in chosen.items() if (change := self._change(layer, choice)) is not None]
        if len(changes) < 2:
            return np.zeros(self.num_images)
        parts: Vector = self._together(np.stack(changes)).sum(0)
        return self._together(np.sum(changes, axis=0)) - parts

    def interactions(
        self, curves: Sequence[LayerCurve], chosen: Mapping[str, Choice]
    ) -> dict[str, tuple[Vector, Vector]]:
        """Return the damage that the levels of each layer would add to ``chosen``, beyond their own damage.

        By layer, these are strengths and damages, (P + 1,) each: of the untouched level, and of levels with recorded
        outputs.
        """
        changes = {layer: self._change(layer, choice) for layer, choice in chosen.items()}
        total = np.sum([change for change in changes.values() if change is not None], axis=0)
        found = {}
        for curve in curves:
            own = self.layers.get(curve.layer)
            if own is None:
                continue
            before = changes.get(curve.layer)
            others = total if before is None else total - before
            added = (self._together(others + own.changes) - self._together(others)).mean(-1) - self._parts[curve.layer]
            untouched = curve.scale.strength(curve.scale.untouched)
            found[curve.layer] = np.append(untouched, own.strengths), np.append(0.0, added)
        return found

    @cached_property
    def _parts(self) -> dict[str, Vector]:
        return {layer: self._together(own.changes).mean(-1) for layer, own in self.layers.items()}

    def _change(self, layer: str, choice: Choice) -> Vector | None:
        own = self.layers.get(layer)
        if own is None or not choice.parts:
            return None
        return own.change(self.scale.strength(choice.parts[0].level), choice.damage)

    def _together(self, changes: Vector) -> Vector:
        return self.metric.together(self.reference, changes, self.num_outputs)


def _alone(chosen: Mapping[str, Choice]) -> float:
    return sum(choice.damage for choice in chosen.values())


def _images(values: bytes, size: int) -> Vector:
    """Return float16 bytes, perhaps foreign, as (N, K): bounded, whole images, without changes that are not finite."""
    row = 2 * size
    whole = min(len(values) // row, _MOST_IMAGES) * row
    numbers = np.frombuffer(values[:whole], dtype="<f2").astype(np.float64).reshape(-1, size)
    return np.clip(np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0), -_LARGEST, _LARGEST)
